-- $1 how many rows at most, $2 how long ago the runs must have ended, in milliseconds.
WITH old AS MATERIALIZED (
    SELECT account_id, session_id, fence
    FROM tenure.run_history
    WHERE ended_at <= clock_timestamp() - $2::bigint * interval '1 millisecond'
    LIMIT $1::bigint
),
swept AS (
    DELETE FROM tenure.run_history h
    USING old o
    WHERE h.account_id = o.account_id AND h.session_id = o.session_id AND h.fence = o.fence
    RETURNING 1
)
SELECT count(*) AS swept FROM swept
