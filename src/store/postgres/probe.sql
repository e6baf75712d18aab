-- Follows server.sql. Checks the server and the schema, and changes settings of the session.
-- $1 boolean: whether this session keeps its settings from one statement to the next. If so, it gets the settings that
-- cannot be sent at connection, because they depend on the present value or do not exist on every server:
-- - synchronous_commit: off could lose a lease that was granted, so it becomes on. Other values stay.
-- - search_path: PostgreSQL's own names are found first. The rest of the path stays, for triggers of the host.
-- - idle_session_timeout, transaction_timeout: none, because the session lives as long as its runs and may be idle for
--   long.
-- $2 bigint: how long a commit may take, in milliseconds. If it is negative, commits are not checked.
SELECT
    server.doubt,
    (extract(epoch FROM pg_catalog.clock_timestamp() - server.as_of) * 1000000)::bigint AS behind,
    CASE
        WHEN $1::boolean AND pg_catalog.current_setting('synchronous_commit') = 'off'
            THEN pg_catalog.set_config('synchronous_commit', 'on', false)
    END AS synchronous_commit,
    CASE
        WHEN $1::boolean AND NOT pg_catalog.starts_with(pg_catalog.current_setting('search_path'), 'pg_catalog')
            THEN pg_catalog.set_config(
                'search_path',
                pg_catalog.concat_ws(', ', 'pg_catalog', nullif(pg_catalog.current_setting('search_path'), '')),
                false
            )
    END AS search_path,
    CASE
        WHEN $1::boolean AND pg_catalog.current_setting('idle_session_timeout', true) <> '0'
            THEN pg_catalog.set_config('idle_session_timeout', '0', false)
    END AS idle_session_timeout,
    -- PostgreSQL 17 and later have this setting.
    CASE
        WHEN $1::boolean AND pg_catalog.current_setting('transaction_timeout', true) <> '0'
            THEN pg_catalog.set_config('transaction_timeout', '0', false)
    END AS transaction_timeout,
    -- Whether a commit has waited too long for a standby. A role without pg_read_all_stats sees only its own sessions.
    $2::bigint >= 0 AND EXISTS (
        SELECT FROM pg_catalog.pg_stat_activity
        WHERE wait_event = 'SyncRep'
            AND datname = pg_catalog.current_database()
            AND query_start < pg_catalog.clock_timestamp() - $2::bigint * interval '1 millisecond'
    ) AS awaits_standby,
    newest.version,
    newest.compatible_from
FROM server
LEFT JOIN (
    SELECT version, compatible_from FROM tenure.migration ORDER BY version DESC LIMIT 1
) AS newest ON true
