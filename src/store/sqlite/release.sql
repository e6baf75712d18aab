-- ?1: array of {account, session, run}. Only rows of the run itself (invariant I4).
DELETE FROM tenure_session_lease
WHERE (account_id, session_id, run_id) IN (
    SELECT value ->> 'account', value ->> 'session', value ->> 'run' FROM json_each(?1)
)
RETURNING account_id, session_id
