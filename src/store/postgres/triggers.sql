-- The triggers that can swallow a row of a lease: BEFORE (2) and FOR EACH ROW (1).
SELECT pg_catalog.string_agg(pg_catalog.quote_ident(tgname), ', ' ORDER BY tgname) AS names
FROM pg_catalog.pg_trigger
WHERE tgrelid = 'tenure.session_lease'::regclass
    AND NOT tgisinternal
    AND tgenabled <> 'D'
    AND tgtype & 3 = 3
