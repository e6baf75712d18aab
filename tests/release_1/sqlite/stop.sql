-- Records a request to stop in the row of the run that holds the session, unless the row has one already.
-- ?1 account, ?2 session, ?3 the only run to stop, or null, ?4 by whom, ?5 why.
UPDATE tenure_session_lease AS lease
SET stop_requested_at = clock.now, stop_by = ?4, stop_reason = ?5
FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now) AS clock
WHERE lease.account_id = ?1
  AND lease.session_id = ?2
  AND (?3 IS NULL OR lease.run_id = ?3)
  AND lease.expires_at > clock.now
  AND lease.stop_requested_at IS NULL
RETURNING run_id, node, holder, fence, stage, phase, acquired_at, expires_at,
          stop_requested_at, stop_by, stop_reason,
          expires_at - CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS remaining
