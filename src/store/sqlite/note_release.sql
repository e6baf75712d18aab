-- Adds to the history what only the release knows. The trigger of the release has just written these rows.
-- Each is the newest of its session, so that no other row is looked at.
-- ?1: array of {account, session, run, reason, by, why}.
UPDATE tenure_run_history AS past
SET how = 'released',
    end_reason = item.value ->> 'reason',
    ended_by = item.value ->> 'by',
    ended_why = item.value ->> 'why'
FROM json_each(?1) AS item
WHERE past.account_id = item.value ->> 'account'
  AND past.session_id = item.value ->> 'session'
  AND past.fence = (
      SELECT max(fence)
      FROM tenure_run_history
      WHERE account_id = item.value ->> 'account' AND session_id = item.value ->> 'session'
  )
  AND past.run_id = item.value ->> 'run'
  AND past.how IN ('deleted', 'swept')
