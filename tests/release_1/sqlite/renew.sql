-- Extends every lease that belongs to its item's run and is not yet inside its safety margin (invariants I4 and I5).
-- The other items return no row. ?1: array of {account, session, run, ttl, margin, stage, phase}, ttl and margin in ms.
-- A null phase keeps the present one.
UPDATE tenure_session_lease AS lease
SET expires_at = max(lease.expires_at, clock.now + (item.value ->> 'ttl')),
    stage = item.value ->> 'stage',
    phase = coalesce(item.value ->> 'phase', lease.phase)
FROM json_each(?1) AS item
CROSS JOIN (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now) AS clock
WHERE lease.account_id = item.value ->> 'account'
  AND lease.session_id = item.value ->> 'session'
  AND lease.run_id = item.value ->> 'run'
  AND lease.expires_at - (item.value ->> 'margin') > clock.now
-- The stop columns are those of the row version that this statement writes.
RETURNING account_id, session_id,
          stop_requested_at, stop_by, stop_reason,
          expires_at - CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS remaining,
          CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS clock
