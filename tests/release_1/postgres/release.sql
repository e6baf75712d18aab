-- $1 accounts, $2 sessions, $3 runs. Returns one row per item. It locks and deletes only rows of the run itself
-- (invariant I4).
WITH input AS (
    SELECT account_id COLLATE "C" AS account_id, session_id COLLATE "C" AS session_id, run_id, item
    FROM unnest($1::text[], $2::text[], $3::uuid[])
        WITH ORDINALITY AS i (account_id, session_id, run_id, item)
),
seen AS MATERIALIZED (
    SELECT i.item
    FROM input i
    JOIN tenure.session_lease l USING (account_id, session_id, run_id)
),
locked AS MATERIALIZED (
    SELECT i.item, l.account_id, l.session_id, l.run_id
    FROM input i
    JOIN tenure.session_lease l USING (account_id, session_id, run_id)
    ORDER BY l.account_id, l.session_id
    FOR UPDATE OF l SKIP LOCKED
),
released AS (
    DELETE FROM tenure.session_lease l
    USING locked k
    WHERE l.account_id = k.account_id AND l.session_id = k.session_id AND l.run_id = k.run_id
    RETURNING k.item
)
SELECT
    item,
    CASE
        WHEN r.item IS NOT NULL THEN 'released'
        WHEN k.item IS NOT NULL THEN 'unwritten'
        WHEN s.item IS NOT NULL THEN 'locked'
        ELSE 'not found'
    END AS verdict
FROM input
LEFT JOIN seen s USING (item)
LEFT JOIN locked k USING (item)
LEFT JOIN released r USING (item)
