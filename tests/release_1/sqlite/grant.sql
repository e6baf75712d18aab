-- Grants every item whose session is idle, expired, or already held by the same run. Only the conflict rule decides
-- (invariant I4). A refused item returns no row.
-- ?1: array of {account, session, run, node, holder, phase, ttl}, ttl in ms.
--
-- In the conflict rule, excluded.acquired_at is the clock.
INSERT INTO tenure_session_lease AS lease
    (account_id, session_id, run_id, fence, node, holder, phase, stage, acquired_at, expires_at)
SELECT item.value ->> 'account',
       item.value ->> 'session',
       item.value ->> 'run',
       -- Invariant I8: with the floor, fences increase within one tick of the clock and when it is stepped back. With
       -- the clock, they increase even after a backup was restored. The item's place (key) makes each fence of the
       -- batch different.
       max((SELECT floor FROM tenure_fence_floor) + 1, clock.now * 1000) + item.key,
       item.value ->> 'node',
       item.value ->> 'holder',
       item.value ->> 'phase',
       'running',
       clock.now,
       clock.now + (item.value ->> 'ttl')
FROM json_each(?1) AS item
CROSS JOIN (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now) AS clock
-- Without a WHERE, the parser would read ON CONFLICT as the ON of a join.
WHERE true
ON CONFLICT (account_id, session_id) DO UPDATE SET
    run_id = excluded.run_id,
    node = excluded.node,
    holder = excluded.holder,
    fence = iif(lease.run_id = excluded.run_id, lease.fence, excluded.fence),
    phase = iif(lease.run_id = excluded.run_id, lease.phase, excluded.phase),
    stage = iif(lease.run_id = excluded.run_id, lease.stage, excluded.stage),
    acquired_at = iif(lease.run_id = excluded.run_id, lease.acquired_at, excluded.acquired_at),
    expires_at = iif(
        lease.run_id = excluded.run_id, max(lease.expires_at, excluded.expires_at), excluded.expires_at
    ),
    stop_requested_at = iif(lease.run_id = excluded.run_id, lease.stop_requested_at, NULL),
    stop_by = iif(lease.run_id = excluded.run_id, lease.stop_by, NULL),
    stop_reason = iif(lease.run_id = excluded.run_id, lease.stop_reason, NULL)
WHERE lease.run_id = excluded.run_id OR lease.expires_at <= excluded.acquired_at
RETURNING account_id, session_id, fence, acquired_at, expires_at,
          stop_requested_at, stop_by, stop_reason,
          expires_at - CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS remaining
