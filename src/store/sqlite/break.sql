-- Ends the lease of run ?3 of account ?1, session ?2, if it still has the expiry ?4.
UPDATE tenure_session_lease
SET expires_at = clock.now
FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now) AS clock
WHERE account_id = ?1 AND session_id = ?2 AND run_id = ?3 AND expires_at = ?4 AND expires_at > clock.now
RETURNING ?4 - expires_at AS remaining
