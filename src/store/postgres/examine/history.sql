SELECT
    h.oid IS NOT NULL AS has_table,
    (
        SELECT count(*) = 2
        FROM pg_catalog.pg_trigger t
        WHERE t.tgrelid = 'tenure.session_lease'::regclass
            AND t.tgname IN ('record_deletions', 'record_change')
            AND t.tgenabled <> 'D'
    ) AS has_triggers,
    -- The triggers work with the rights of the owner of their functions.
    coalesce(
        (
            SELECT bool_and(pg_catalog.has_table_privilege(p.proowner, h.oid, 'INSERT'))
            FROM pg_catalog.pg_proc p
            WHERE p.pronamespace = n.oid AND p.proname IN ('record_deletions', 'record_change')
        ),
        true
    ) AS may_insert
FROM pg_catalog.pg_namespace n
LEFT JOIN pg_catalog.pg_class h ON h.relnamespace = n.oid AND h.relname = 'run_history'
WHERE n.nspname = 'tenure'
