-- The triggers that can suppress a write to a lease's row: those that are BEFORE (2) and FOR EACH ROW (1).
SELECT pg_catalog.string_agg(pg_catalog.quote_ident(tgname), ', ' ORDER BY tgname) AS names
FROM pg_catalog.pg_trigger
WHERE tgrelid = 'tenure.session_lease'::regclass
    AND NOT tgisinternal
    AND tgenabled <> 'D'
    AND tgtype & 3 = 3
