-- $1 how many rows at most, $2 how long ago they must have expired, in milliseconds, $3 whether to delete
-- nothing while another transaction does the same.
WITH turn AS MATERIALIZED (
    SELECT
        CASE WHEN $3::boolean THEN pg_try_advisory_xact_lock(hashtextextended('tenure.session_lease sweep', 0)) ELSE true END
            AS is_mine
),
old AS MATERIALIZED (
    SELECT account_id, session_id, run_id
    FROM tenure.session_lease
    WHERE (SELECT is_mine FROM turn)
        AND expires_at <= clock_timestamp() - $2::bigint * interval '1 millisecond'
    ORDER BY account_id, session_id
    LIMIT $1::bigint
    FOR UPDATE SKIP LOCKED
),
-- For the triggers that write the history (see its migration).
told AS MATERIALIZED (
    SELECT set_config('tenure_run.ended', '{"how": "swept"}', true)
),
swept AS (
    DELETE FROM tenure.session_lease l
    USING old o
    WHERE l.account_id = o.account_id
        AND l.session_id = o.session_id
        AND l.run_id = o.run_id
        AND l.expires_at <= clock_timestamp() - $2::bigint * interval '1 millisecond'
    RETURNING 1
)
SELECT count(*) FILTER (WHERE told IS NOT NULL) AS swept FROM swept CROSS JOIN told
