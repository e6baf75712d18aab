-- $1 and $2: the account and session after which the page begins. $3: the only account to list, or null. $4: whether to
-- list expired rows. $5: how many rows at most. If there are none, it returns one row whose run_id is null.
SELECT
    server.doubt,
    (extract(epoch FROM clock_timestamp() - server.as_of) * 1000000)::bigint AS behind,
    account_id, session_id, run_id, fence, node, holder, stage, phase,
    (extract(epoch FROM acquired_at) * 1000000)::bigint AS acquired_at,
    (extract(epoch FROM expires_at) * 1000000)::bigint AS expires_at,
    (extract(epoch FROM expires_at - coalesce(server.as_of, clock_timestamp())) * 1000000)::bigint AS remaining,
    (extract(epoch FROM stop_requested_at) * 1000000)::bigint AS stop_at,
    stop_by, stop_reason
FROM server
LEFT JOIN LATERAL (
    SELECT *
    FROM tenure.session_lease
    WHERE (account_id, session_id) > ($1::text, $2::text)
        AND ($3::text IS NULL OR account_id = $3::text)
        AND ($4::boolean OR expires_at > coalesce(server.as_of, clock_timestamp()))
    ORDER BY account_id, session_id
    LIMIT $5::bigint
) AS page ON true
ORDER BY account_id, session_id
