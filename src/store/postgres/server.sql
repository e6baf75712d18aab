-- Begins every statement that reads leases. doubt says why the answer may not be the truth (doubt.rs), and is null if
-- there is no reason.
--
-- A standby knows nothing about the time after the last commit that it has replayed. So a standby answers for that
-- moment: as_of is the time of that commit, by the primary's clock.
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
