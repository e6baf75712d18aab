-- Deletes the rows of these runs, and no row of another run (invariant I4).
-- ?1: array of {account, session, run}.
DELETE FROM tenure_session_lease
WHERE (account_id, session_id, run_id) IN (
    SELECT value ->> 'account', value ->> 'session', value ->> 'run' FROM json_each(?1)
)
RETURNING account_id, session_id
