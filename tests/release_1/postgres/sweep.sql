-- $1 how many rows at most, $2 how long ago they must have expired, in milliseconds.
WITH old AS MATERIALIZED (
    SELECT account_id, session_id, run_id
    FROM tenure.session_lease
    WHERE expires_at <= clock_timestamp() - $2::bigint * interval '1 millisecond'
    ORDER BY account_id, session_id
    LIMIT $1::bigint
    FOR UPDATE SKIP LOCKED
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
SELECT count(*) AS swept FROM swept
