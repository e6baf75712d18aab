-- The settings of this role in this database, in a session that has changed few of them. Time-outs are in milliseconds,
-- and zero means none. Not every server has all of them.
SELECT
    current_setting('default_transaction_isolation') AS isolation,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('fsync')::boolean AS fsync,
    current_setting('synchronous_standby_names') AS synchronous_standbys,
    (SELECT count(*) FROM pg_stat_replication) AS standbys,
    -- reset_val is the role's value. This session has set its own.
    coalesce((SELECT reset_val::bigint FROM pg_settings WHERE name = 'statement_timeout'), 0) AS statement_timeout,
    coalesce((SELECT setting::bigint FROM pg_settings WHERE name = 'lock_timeout'), 0) AS lock_timeout,
    coalesce((SELECT reset_val::bigint FROM pg_settings WHERE name = 'idle_session_timeout'), 0) AS idle_session_timeout
