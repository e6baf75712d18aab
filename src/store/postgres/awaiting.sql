-- Whether commits in this database wait too long for a synchronous standby, as in probe.sql.
-- $1 bigint: how long a commit may take, in milliseconds.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_stat_activity
    WHERE wait_event = 'SyncRep'
        AND datname = pg_catalog.current_database()
        AND query_start < pg_catalog.clock_timestamp() - $1::bigint * interval '1 millisecond'
) AS awaits_standby
