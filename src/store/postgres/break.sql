-- $1 account, $2 session, $3 the run that is dead, $4 the expiry that its row has shown, in microseconds since 1970, $5 by
-- whom and $6 why, or null. Returns one row that says what was found, or no row if the run has none.
WITH seen AS MATERIALIZED (
    SELECT run_id
    FROM tenure.session_lease
    WHERE account_id = $1::text AND session_id = $2::text AND run_id = $3::text::uuid
),
-- A pin of the run stays: it does not conflict with this lock, and the next acquire waits for it.
locked AS MATERIALIZED (
    SELECT l.*
    FROM tenure.session_lease l
    JOIN seen s USING (run_id)
    WHERE l.account_id = $1::text AND l.session_id = $2::text
    FOR NO KEY UPDATE OF l SKIP LOCKED
),
-- The clock is read after the row has been locked. The setting is for the history (see the migration).
timed AS MATERIALIZED (
    SELECT
        *,
        clock_timestamp() AS at,
        (extract(epoch FROM expires_at) * 1000000)::bigint = $4::bigint AS is_unrenewed,
        set_config(
            'tenure_run.ended',
            jsonb_build_object('how', 'broken', 'by', $5::text, 'why', $6::text)::text,
            true
        ) AS told
    FROM locked
),
broken AS (
    UPDATE tenure.session_lease l
    SET expires_at = t.at
    FROM timed t
    WHERE l.account_id = t.account_id
        AND l.session_id = t.session_id
        AND l.run_id = t.run_id
        AND l.expires_at > t.at
        AND t.is_unrenewed
    RETURNING l.run_id
)
SELECT
    CASE
        WHEN t.run_id IS NULL THEN 'locked'
        WHEN b.run_id IS NOT NULL THEN 'broken'
        WHEN t.expires_at <= t.at THEN 'not held'
        WHEN NOT t.is_unrenewed THEN 'renewed'
        ELSE 'unwritten'
    END AS verdict,
    (extract(epoch FROM t.expires_at - t.at) * 1000000)::bigint AS remaining
FROM seen s
LEFT JOIN timed t USING (run_id)
LEFT JOIN broken b USING (run_id)
