-- $1 accounts, $2 sessions, $3 runs whose lease has expired. The items whose row an acquire skips for a pin.
--
-- Of all locks that an acquire skips, FOR SHARE goes past a pin (FOR KEY SHARE) alone: not past another acquire, a
-- release, a renewal or a request to stop, which are over in a moment.
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
-- Nothing is changed, so that nothing is lost if the commit is: no flush, and the next acquire is skipped for less.
SELECT item, set_config('synchronous_commit', 'off', true) FROM locked
