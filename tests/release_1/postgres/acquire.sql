-- $1 accounts, $2 sessions, $3 runs, $4 nodes, $5 holders, $6 phases, $7 ttls in milliseconds.
-- Returns one row for each item that was granted, refused, or found locked. An item without a row has lost a race that
-- this statement's snapshot cannot show, or a trigger has suppressed the insert.
WITH input AS (
    SELECT
        account_id COLLATE "C" AS account_id,
        session_id COLLATE "C" AS session_id,
        run_id, node, holder, phase,
        ttl_ms * interval '1 millisecond' AS ttl,
        item
    FROM unnest($1::text[], $2::text[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::bigint[])
        WITH ORDINALITY AS i (account_id, session_id, run_id, node, holder, phase, ttl_ms, item)
),
-- A plain read, so that a refusal locks nothing and writes nothing.
seen AS MATERIALIZED (
    SELECT
        i.item, i.run_id AS asking, l.run_id, l.fence, l.node, l.holder, l.stage, l.phase, l.acquired_at,
        l.expires_at, l.stop_requested_at, l.stop_by, l.stop_reason, clock_timestamp() AS read_at
    FROM input i
    JOIN tenure.session_lease l USING (account_id, session_id)
),
-- SKIP LOCKED: a locked row must not delay the other items.
locked AS MATERIALIZED (
    SELECT i.item
    FROM input i
    JOIN tenure.session_lease l USING (account_id, session_id)
    WHERE l.expires_at <= clock_timestamp() OR l.run_id = i.run_id
    ORDER BY l.account_id, l.session_id
    FOR UPDATE OF l SKIP LOCKED
),
candidate AS MATERIALIZED (
    SELECT *
    FROM input
    WHERE item IN (SELECT item FROM locked) OR item NOT IN (SELECT item FROM seen)
    ORDER BY account_id, session_id
),
granted AS (
    INSERT INTO tenure.session_lease AS l
        (account_id, session_id, run_id, fence, node, holder, phase, acquired_at, expires_at)
    -- This projection is above the sort. So each row reads the clock when its turn to be inserted comes, and then takes
    -- its fence.
    SELECT account_id, session_id, run_id, tenure.next_fence(0), node, holder, phase, at, at + ttl
    FROM (SELECT *, clock_timestamp() AS at FROM candidate) AS timed
    -- Only this rule decides which run owns the session (invariant I4). Everything before it keeps refusals cheap and
    -- batches free of waits. The key columns are set so that the row lock conflicts with a pin (FOR KEY SHARE).
    ON CONFLICT (account_id, session_id) DO UPDATE SET
        account_id = excluded.account_id,
        session_id = excluded.session_id,
        run_id = excluded.run_id,
        fence = CASE WHEN l.run_id = excluded.run_id THEN l.fence ELSE tenure.next_fence(l.fence) END,
        node = excluded.node,
        holder = excluded.holder,
        stage = CASE WHEN l.run_id = excluded.run_id THEN l.stage ELSE excluded.stage END,
        phase = CASE WHEN l.run_id = excluded.run_id THEN l.phase ELSE excluded.phase END,
        acquired_at = CASE WHEN l.run_id = excluded.run_id THEN l.acquired_at ELSE clock_timestamp() END,
        -- The clock is read again under the row's lock, because the projected clock is from before the wait for the
        -- lock.
        expires_at = greatest(l.expires_at, excluded.expires_at + (clock_timestamp() - excluded.acquired_at)),
        stop_requested_at = CASE WHEN l.run_id = excluded.run_id THEN l.stop_requested_at END,
        stop_by = CASE WHEN l.run_id = excluded.run_id THEN l.stop_by END,
        stop_reason = CASE WHEN l.run_id = excluded.run_id THEN l.stop_reason END
    WHERE l.expires_at <= clock_timestamp() OR l.run_id = excluded.run_id
    RETURNING
        l.account_id, l.session_id, l.run_id, l.fence, l.node, l.holder, l.stage, l.phase, l.acquired_at,
        l.expires_at, l.stop_requested_at, l.stop_by, l.stop_reason, clock_timestamp() AS read_at,
        pg_sequence_last_value('tenure.fence_floor') AS floor
),
answer AS (
    SELECT
        CASE
            -- The trigger fence_again may have changed the fence after RETURNING. These are the trigger's own
            -- conditions, evaluated here. "Fences" in the migration explains them.
            WHEN k.item IS NULL
                AND g.read_at - g.acquired_at NOT BETWEEN interval '0' AND interval '50 microseconds'
                AND g.floor IS DISTINCT FROM g.fence
                THEN 'unsettled'
            ELSE 'granted'
        END AS verdict,
        i.item, g.run_id, g.fence, g.node, g.holder, g.stage, g.phase, g.acquired_at, g.expires_at,
        g.stop_requested_at, g.stop_by, g.stop_reason, g.read_at
    FROM granted g
    JOIN input i USING (account_id, session_id)
    LEFT JOIN locked k USING (item)
    UNION ALL
    SELECT
        CASE
            WHEN expires_at > read_at AND run_id <> asking THEN 'busy'
            WHEN item IN (SELECT item FROM locked) THEN 'unwritten'
            ELSE 'locked'
        END AS verdict,
        item, run_id, fence, node, holder, stage, phase, acquired_at, expires_at, stop_requested_at, stop_by,
        stop_reason, read_at
    FROM seen
    WHERE item NOT IN (SELECT item FROM granted JOIN input USING (account_id, session_id))
)
SELECT
    verdict, item, run_id, fence, node, holder, stage, phase,
    (extract(epoch FROM acquired_at) * 1000000)::bigint AS acquired_at,
    (extract(epoch FROM expires_at) * 1000000)::bigint AS expires_at,
    (extract(epoch FROM expires_at - read_at) * 1000000)::bigint AS remaining,
    (extract(epoch FROM stop_requested_at) * 1000000)::bigint AS stop_at,
    stop_by, stop_reason
FROM answer
