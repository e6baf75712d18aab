-- Why items were not renewed. own is null if the row is absent, and false if it belongs to another run. renewable says
-- whether the lease could be renewed now.
-- ?1: as in renew.sql.
SELECT item.key AS item,
       lease.run_id = item.value ->> 'run' AS own,
       lease.expires_at - (item.value ->> 'margin') > clock.now AS renewable,
       clock.now AS clock
FROM json_each(?1) AS item
CROSS JOIN (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now) AS clock
LEFT JOIN tenure_session_lease AS lease
    ON lease.account_id = item.value ->> 'account' AND lease.session_id = item.value ->> 'session'
