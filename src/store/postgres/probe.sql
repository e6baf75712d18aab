-- $1 boolean: whether this session keeps its settings from one statement to the next.
-- synchronous_commit = off may forget a lease that was granted; stronger settings are left as they are.
SELECT
    server.doubt,
    (extract(epoch FROM clock_timestamp() - server.as_of) * 1000000)::bigint AS behind,
    CASE
        WHEN $1::boolean AND current_setting('synchronous_commit') = 'off'
            THEN set_config('synchronous_commit', 'on', false)
    END AS synchronous_commit,
    newest.version,
    newest.compatible_from
FROM server
LEFT JOIN (
    SELECT version, compatible_from FROM tenure.migration ORDER BY version DESC LIMIT 1
) AS newest ON true
