-- Does to the table what a lease does: inserts, updates and deletes a row. No session has this key, and the transaction
-- is rolled back.
BEGIN;
INSERT INTO tenure.session_lease
    (account_id, session_id, run_id, fence, node, holder, acquired_at, expires_at)
SELECT 'tenure doctor', pg_catalog.pg_backend_pid()::text, id, 1, id, 'tenure doctor', now(), now()
FROM (SELECT pg_catalog.gen_random_uuid() AS id) AS run;
UPDATE tenure.session_lease
SET phase = 'trial'
WHERE account_id = 'tenure doctor' AND session_id = pg_catalog.pg_backend_pid()::text;
DELETE FROM tenure.session_lease
WHERE account_id = 'tenure doctor' AND session_id = pg_catalog.pg_backend_pid()::text;
ROLLBACK
