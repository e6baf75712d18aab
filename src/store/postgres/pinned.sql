-- $1 accounts, $2 sessions, $3 runs whose lease has expired. Returns the items whose row an acquire has skipped because
-- of a pin.
--
-- Of all the locks that an acquire skips, FOR SHARE is compatible only with a pin (FOR KEY SHARE). It is not compatible
-- with the locks of another acquire, a release, a renewal or a request to stop, which are held only for a moment.
WITH input AS (
    SELECT account_id COLLATE "C" AS account_id, session_id COLLATE "C" AS session_id, run_id, item
    FROM unnest($1::text[], $2::text[], $3::uuid[])
        WITH ORDINALITY AS i (account_id, session_id, run_id, item)
),
locked AS MATERIALIZED (
    SELECT i.item
    FROM input i
    JOIN tenure.session_lease l USING (account_id, session_id, run_id)
    WHERE l.expires_at <= clock_timestamp()
    ORDER BY l.account_id, l.session_id
    FOR SHARE OF l SKIP LOCKED
)
-- This changes no data, so the commit needs no flush. That shortens the time in which these row locks make an acquire
-- skip the row.
SELECT item, set_config('synchronous_commit', 'off', true) FROM locked
