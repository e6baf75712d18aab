-- Judges the limits per account of a limited acquire, and locks the accounts in which it may grant. Sent twice before
-- the acquire, in the same message and so in the same transaction. The first time takes the locks. The second time
-- counts: its snapshot is newer than the locks, so it has every run that another limited acquire has granted. The locks
-- last until this acquire has committed.
--
-- $1 accounts, $2 sessions, $3 runs, $8 limits or null. Returns one row for each item that this refuses, and notes all
-- refused items in a setting of the transaction. The acquire leaves those out.
WITH told AS MATERIALIZED (
    SELECT coalesce(current_setting('tenure_limit.refused', true), '') AS refused
),
clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
),
input AS MATERIALIZED (
    SELECT account_id COLLATE "C" AS account_id, session_id COLLATE "C" AS session_id, run_id, most, item
    FROM unnest($1::text[], $2::text[], $3::uuid[], $8::bigint[])
        WITH ORDINALITY AS i (account_id, session_id, run_id, most, item)
    WHERE item <> ALL (string_to_array((SELECT refused FROM told), ',')::bigint[])
),
limited AS MATERIALIZED (
    SELECT DISTINCT account_id FROM input WHERE most IS NOT NULL
),
running AS MATERIALIZED (
    SELECT account_id, count(l.run_id) AS running
    FROM limited
    LEFT JOIN tenure.session_lease l USING (account_id)
    WHERE l.run_id IS NULL OR l.expires_at > (SELECT now FROM clock)
    GROUP BY account_id
),
-- Who holds the session of each item. An item whose run already holds it takes no further place.
held AS MATERIALIZED (
    SELECT i.item, i.account_id, i.session_id, i.most, l.run_id IS NOT NULL AS is_held, l.run_id = i.run_id AS is_own
    FROM input i
    JOIN limited USING (account_id)
    LEFT JOIN tenure.session_lease l
        ON l.account_id = i.account_id AND l.session_id = i.session_id AND l.expires_at > (SELECT now FROM clock)
),
-- Whoever allows more comes first. So an item that is refused keeps nobody else out.
wanted AS MATERIALIZED (
    SELECT item, account_id, most,
        row_number() OVER (PARTITION BY account_id ORDER BY most DESC NULLS FIRST, session_id) AS place
    FROM held
    WHERE NOT is_held
),
judged AS MATERIALIZED (
    SELECT w.item, w.account_id, coalesce(r.running, 0) + w.place - 1 AS running,
        coalesce(r.running, 0) + w.place > w.most AS is_full
    FROM wanted w
    LEFT JOIN running r USING (account_id)
    WHERE w.most IS NOT NULL
),
-- A lock that this transaction already has is granted again.
locked AS MATERIALIZED (
    SELECT account_id, pg_try_advisory_xact_lock(hashtextextended('tenure.session_lease/' || account_id, 0)) AS is_mine
    FROM (SELECT DISTINCT account_id FROM judged WHERE NOT is_full) AS open
),
refused AS MATERIALIZED (
    SELECT CASE WHEN is_full THEN 'full' ELSE 'contended' END AS verdict, item, running
    FROM judged
    LEFT JOIN locked USING (account_id)
    WHERE is_full OR NOT is_mine
    UNION ALL
    -- If the holder releases the session before the acquire comes to it, no limit has been judged for this item. So
    -- the acquire must not come to it.
    SELECT 'held', item, NULL FROM held WHERE is_held AND NOT is_own AND most IS NOT NULL
)
SELECT verdict, item, running,
    set_config('tenure_limit.refused', concat_ws(',', nullif(refused, ''), string_agg(item::text, ',') OVER ()), true)
FROM refused
CROSS JOIN told
