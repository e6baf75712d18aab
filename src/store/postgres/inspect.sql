-- $1 accounts, $2 sessions. One row per item whose session has a row.
SELECT
    i.item, l.run_id, l.fence, l.node, l.holder, l.stage, l.phase,
    (extract(epoch FROM l.acquired_at) * 1000000)::bigint AS acquired_at,
    (extract(epoch FROM l.expires_at) * 1000000)::bigint AS expires_at,
    (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint AS remaining,
    (extract(epoch FROM l.stop_requested_at) * 1000000)::bigint AS stop_at,
    l.stop_by, l.stop_reason
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS i (account_id, session_id, item)
JOIN tenure.session_lease l USING (account_id, session_id)
