-- Why items could not be renewed: the row is of another run, or of this run and (no longer) renewable, or absent (own is null).
-- ?1: as for the renewal.
SELECT item.key AS item,
       lease.run_id = item.value ->> 'run' AS own,
       lease.expires_at - (item.value ->> 'margin') > clock.now AS renewable,
       clock.now AS clock
FROM json_each(?1) AS item
CROSS JOIN (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now) AS clock
LEFT JOIN tenure_session_lease AS lease
    ON lease.account_id = item.value ->> 'account' AND lease.session_id = item.value ->> 'session'
