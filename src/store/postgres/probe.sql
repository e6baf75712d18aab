-- $1 boolean: whether this session keeps its settings from one statement to the next. Then it gets those that cannot be
-- sent at connection: they depend on what is set already, or not every server has them.
-- - synchronous_commit = off may forget a lease that was granted; stronger settings are left as they are.
-- - What is PostgreSQL's is found first, whatever search_path says. The rest of the path stays, for triggers of the host.
-- - The session lives as long as its runs, and may be at rest for long.
-- $2 bigint: how long a commit may take, in milliseconds; less than zero: that is not looked at.
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
    -- From PostgreSQL 17 on.
    CASE
        WHEN $1::boolean AND pg_catalog.current_setting('transaction_timeout', true) <> '0'
            THEN pg_catalog.set_config('transaction_timeout', '0', false)
    END AS transaction_timeout,
    -- A commit that is not answered, in any session of the same role: what others do is not shown.
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
