-- Begins every statement whose answer is doubtd: what there is to doubt in it (doubt.rs), null when there is nothing.
--
-- A standby is asked how things were when the last commit that it has was made, by the primary's clock: of what came
-- after that it knows nothing, not even that nothing came.
WITH judged AS MATERIALIZED (
    SELECT CASE
        WHEN (SELECT relkind NOT IN ('r', 'p') FROM pg_catalog.pg_class WHERE oid = 'tenure.session_lease'::regclass)
            THEN 'no table'
        WHEN pg_catalog.row_security_active('tenure.session_lease'::regclass)
            OR pg_catalog.row_security_active('tenure.migration'::regclass)
            THEN 'row security'
        WHEN pg_catalog.pg_is_in_recovery() THEN 'standby'
        WHEN pg_catalog.current_setting('transaction_read_only')::boolean THEN (
            SELECT CASE
                WHEN source IN ('user', 'database user', 'client', 'session') THEN 'read-only role'
                ELSE 'read-only'
            END
            FROM pg_catalog.pg_settings WHERE name = 'default_transaction_read_only'
        )
    END AS doubt
),
server AS MATERIALIZED (
    SELECT doubt, CASE WHEN doubt = 'standby' THEN pg_catalog.pg_last_xact_replay_timestamp() END AS as_of
    FROM judged
)
