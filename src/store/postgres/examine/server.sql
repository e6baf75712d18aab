-- As ../server.sql, for a database that may have no schema.
SELECT
    current_setting('server_version') AS version,
    CASE
        WHEN pg_is_in_recovery() THEN 'standby'
        WHEN current_setting('transaction_read_only')::boolean THEN (
            SELECT CASE
                WHEN source IN ('user', 'database user', 'client', 'session') THEN 'read-only role'
                ELSE 'read-only'
            END
            FROM pg_settings WHERE name = 'default_transaction_read_only'
        )
    END AS doubt,
    CASE
        WHEN pg_is_in_recovery()
            THEN (extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) * 1000000)::bigint
    END AS behind
