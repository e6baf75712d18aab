-- $1 boolean: whether this session keeps its settings from one statement to the next.
-- synchronous_commit = off may forget a lease that was granted; stronger settings are left as they are.
SELECT
    pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean AS read_only,
    CASE
        WHEN $1::boolean AND current_setting('synchronous_commit') = 'off'
            THEN set_config('synchronous_commit', 'on', false)
    END AS synchronous_commit,
    newest.version,
    newest.compatible_from
FROM (SELECT) AS always_one_row
LEFT JOIN (
    SELECT version, compatible_from FROM tenure.migration ORDER BY version DESC LIMIT 1
) AS newest ON true
