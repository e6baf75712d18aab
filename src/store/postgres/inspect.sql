-- $1 accounts, $2 sessions. One row per item whose session has a row.
SELECT
    item, run_id, fence, node, holder, stage, phase,
    (extract(epoch FROM acquired_at) * 1000000)::bigint AS acquired_at,
    (extract(epoch FROM expires_at) * 1000000)::bigint AS expires_at,
    (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint AS remaining,
    (extract(epoch FROM stop_requested_at) * 1000000)::bigint AS stop_at,
    stop_by, stop_reason
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS i (account_id, session_id, item)
JOIN tenure.session_lease USING (account_id, session_id)
