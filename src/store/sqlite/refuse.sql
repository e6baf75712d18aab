-- The items whose session another run holds with a live lease, and that lease. This only reads.
-- ?1: array of {account, session, run}.
SELECT item.key AS item,
       lease.run_id, lease.node, lease.holder, lease.fence, lease.stage, lease.phase,
       lease.acquired_at, lease.expires_at,
       lease.stop_requested_at, lease.stop_by, lease.stop_reason,
       lease.expires_at - clock.now AS remaining
FROM json_each(?1) AS item
CROSS JOIN (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now) AS clock
CROSS JOIN tenure_session_lease AS lease
    ON lease.account_id = item.value ->> 'account' AND lease.session_id = item.value ->> 'session'
WHERE lease.run_id <> item.value ->> 'run' AND lease.expires_at > clock.now
