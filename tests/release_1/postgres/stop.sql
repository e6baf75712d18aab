-- $1 account, $2 session, $3 the only run to stop, or null, $4 by whom and $5 why, or null. Returns one row that says
-- what was found, or no row if there is no live lease, or if the live lease is not that of run $3.
--
-- It chooses the run first and then writes the row by that run's run_id. An update by key alone could wait for a
-- takeover, and would then hit the next run.
WITH seen AS MATERIALIZED (
    SELECT run_id
    FROM tenure.session_lease
    WHERE account_id = $1::text
        AND session_id = $2::text
        AND ($3::text IS NULL OR run_id = $3::text::uuid)
        AND expires_at > clock_timestamp()
),
locked AS MATERIALIZED (
    SELECT l.*
    FROM tenure.session_lease l
    JOIN seen s USING (run_id)
    WHERE l.account_id = $1::text AND l.session_id = $2::text
    FOR NO KEY UPDATE OF l SKIP LOCKED
),
-- The clock is read after the row has been locked.
timed AS MATERIALIZED (
    SELECT *, clock_timestamp() AS at FROM locked
),
asked AS (
    UPDATE tenure.session_lease l
    SET stop_requested_at = t.at, stop_by = $4::text, stop_reason = $5::text
    FROM timed t
    WHERE l.account_id = t.account_id
        AND l.session_id = t.session_id
        AND l.run_id = t.run_id
        AND l.expires_at > t.at
        -- The first request is kept.
        AND l.stop_requested_at IS NULL
    RETURNING l.run_id, l.stop_requested_at, l.stop_by, l.stop_reason
),
answer AS MATERIALIZED (
    SELECT
        s.run_id AS chosen,
        CASE
            WHEN t.run_id IS NULL THEN 'locked'
            WHEN t.expires_at <= t.at THEN 'expired'
            WHEN a.run_id IS NULL AND t.stop_requested_at IS NULL THEN 'unwritten'
            WHEN a.run_id IS NULL THEN 'asked before'
            ELSE 'asked'
        END AS verdict,
        t.run_id, t.fence, t.node, t.holder, t.stage, t.phase, t.acquired_at, t.expires_at, t.at,
        coalesce(a.stop_requested_at, t.stop_requested_at) AS stop_requested_at,
        CASE WHEN a.run_id IS NULL THEN t.stop_by ELSE a.stop_by END AS stop_by,
        CASE WHEN a.run_id IS NULL THEN t.stop_reason ELSE a.stop_reason END AS stop_reason
    FROM seen s
    LEFT JOIN timed t USING (run_id)
    LEFT JOIN asked a USING (run_id)
)
SELECT
    chosen, verdict, run_id, fence, node, holder, stage, phase,
    (extract(epoch FROM acquired_at) * 1000000)::bigint AS acquired_at,
    (extract(epoch FROM expires_at) * 1000000)::bigint AS expires_at,
    (extract(epoch FROM expires_at - at) * 1000000)::bigint AS remaining,
    (extract(epoch FROM stop_requested_at) * 1000000)::bigint AS stop_at,
    stop_by, stop_reason,
    -- A NOTIFY takes a lock of the whole database when it commits, so none is sent if nobody listens. A listener of the
    -- node holds this advisory lock (listen.rs). If this statement gets the lock, there is no listener, and the lock is
    -- released when this statement commits.
    CASE
        WHEN verdict IN ('asked', 'asked before')
            AND stage = 'running'
            AND NOT pg_try_advisory_xact_lock(
                ('x' || left(replace(node::text, '-', ''), 16))::bit(64)::bigint
            )
            THEN pg_notify('tenure_' || replace(node::text, '-', ''), run_id::text) IS NULL
    END AS hinted
FROM answer
