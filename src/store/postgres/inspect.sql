-- $1 accounts, $2 sessions. Returns one row per item. run_id is null if the session has no row.
SELECT
    i.item, server.doubt,
    (extract(epoch FROM clock_timestamp() - server.as_of) * 1000000)::bigint AS behind,
    l.run_id, l.fence, l.node, l.holder, l.stage, l.phase,
    (extract(epoch FROM l.acquired_at) * 1000000)::bigint AS acquired_at,
    (extract(epoch FROM l.expires_at) * 1000000)::bigint AS expires_at,
    (extract(epoch FROM l.expires_at - coalesce(server.as_of, clock_timestamp())) * 1000000)::bigint AS remaining,
    (extract(epoch FROM l.stop_requested_at) * 1000000)::bigint AS stop_at,
    l.stop_by, l.stop_reason
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS i (account_id, session_id, item)
CROSS JOIN server
LEFT JOIN tenure.session_lease l USING (account_id, session_id)
