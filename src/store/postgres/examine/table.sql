SELECT
    c.relpersistence = 'u' AS unlogged,
    coalesce(s.n_live_tup, 0) AS live,
    coalesce(s.n_dead_tup, 0) AS dead,
    coalesce(s.n_tup_upd, 0) AS updates,
    coalesce(s.n_tup_hot_upd, 0) AS hot_updates,
    (
        SELECT string_agg(i.indexrelid::regclass::text, ', ')
        FROM pg_catalog.pg_index i
        WHERE i.indrelid = c.oid AND NOT i.indisprimary
    ) AS more_indexes,
    (
        SELECT count(*)
        FROM (
            SELECT FROM tenure.session_lease
            WHERE expires_at <= clock_timestamp() - interval '1 hour'
            LIMIT 100001
        ) AS old
    ) AS long_expired
FROM pg_catalog.pg_class c
LEFT JOIN pg_catalog.pg_stat_user_tables s ON s.relid = c.oid
WHERE c.oid = 'tenure.session_lease'::regclass
