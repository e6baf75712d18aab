-- Runs of session ?2 of account ?1 that are over, with a fence before ?3 (null: all), newest first, at most ?4.
SELECT run_id, fence, node, holder, phase, acquired_at, ended_at, how, end_reason, ended_by, ended_why, waited_ms,
       stop_requested_at, stop_by, stop_reason
FROM tenure_run_history
WHERE account_id = ?1 AND session_id = ?2 AND fence < ifnull(?3, 9223372036854775807)
ORDER BY fence DESC
LIMIT ?4
