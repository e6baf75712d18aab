-- Adds to the history what only the break knows. The trigger of the break has just written this row, which is the newest of its session.
-- ?1 account, ?2 session, ?3 run, ?5 by whom, ?6 why.
UPDATE tenure_run_history
SET how = 'broken', ended_by = ?5, ended_why = ?6
WHERE account_id = ?1
  AND session_id = ?2
  AND fence = (SELECT max(fence) FROM tenure_run_history WHERE account_id = ?1 AND session_id = ?2)
  AND run_id = ?3
  AND how = 'changed'
