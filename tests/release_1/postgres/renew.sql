-- $1 accounts, $2 sessions, $3 runs, $4 ttls and $5 safety margins in milliseconds, $6 stages, $7 phases (null keeps
-- the present one). Returns one row per item.
WITH input AS (
    SELECT
        account_id COLLATE "C" AS account_id,
        session_id COLLATE "C" AS session_id,
        run_id,
        ttl_ms * interval '1 millisecond' AS ttl,
        margin_ms * interval '1 millisecond' AS margin,
        stage, phase, item
    FROM unnest($1::text[], $2::text[], $3::uuid[], $4::bigint[], $5::bigint[], $6::text[], $7::text[])
        WITH ORDINALITY AS i (account_id, session_id, run_id, ttl_ms, margin_ms, stage, phase, item)
),
seen AS MATERIALIZED (
    SELECT i.item, l.run_id = i.run_id AS own
    FROM input i
    JOIN tenure.session_lease l USING (account_id, session_id)
),
-- FOR NO KEY UPDATE does not conflict with a pin (FOR KEY SHARE). For the same reason the update below must not set a
-- key column. A row of another run is not locked.
locked AS MATERIALIZED (
    SELECT i.item, l.account_id, l.session_id, l.expires_at
    FROM input i
    JOIN tenure.session_lease l USING (account_id, session_id, run_id)
    ORDER BY l.account_id, l.session_id
    FOR NO KEY UPDATE OF l SKIP LOCKED
),
-- The clock is read after each row has been locked. So a statement that a frozen server runs late finds its lease
-- expired (invariant I5).
timed AS MATERIALIZED (
    SELECT *, clock_timestamp() AS at FROM locked
),
renewed AS (
    UPDATE tenure.session_lease l
    SET expires_at = greatest(l.expires_at, t.at + i.ttl),
        stage = i.stage,
        phase = coalesce(i.phase, l.phase)
    FROM timed t
    JOIN input i USING (item)
    WHERE l.account_id = t.account_id
        AND l.session_id = t.session_id
        AND l.run_id = i.run_id
        AND l.expires_at - i.margin > t.at
    -- The stop columns come from RETURNING, because the joined snapshot may be older than the row that was updated.
    RETURNING i.item, l.expires_at, t.at, l.stop_requested_at, l.stop_by, l.stop_reason
)
SELECT
    item,
    CASE
        WHEN r.item IS NOT NULL THEN 'renewed'
        WHEN t.expires_at - margin > t.at THEN 'unwritten'
        WHEN t.item IS NOT NULL THEN 'expired'
        WHEN s.own IS NULL THEN 'gone'
        WHEN s.own THEN 'locked'
        ELSE 'superseded'
    END AS verdict,
    (extract(epoch FROM r.expires_at - r.at) * 1000000)::bigint AS remaining,
    (extract(epoch FROM coalesce(t.at, clock_timestamp())) * 1000000)::bigint AS clock,
    (extract(epoch FROM r.stop_requested_at) * 1000000)::bigint AS stop_at,
    r.stop_by,
    r.stop_reason
FROM input
LEFT JOIN seen s USING (item)
LEFT JOIN timed t USING (item)
LEFT JOIN renewed r USING (item)
