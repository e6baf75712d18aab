-- Follows server.sql. $1 account, $2 session, $3 the fence before which the page begins, or null, $4 how many runs at
-- most. If there are none, it returns one row whose run_id is null.
SELECT
    server.doubt,
    (extract(epoch FROM clock_timestamp() - server.as_of) * 1000000)::bigint AS behind,
    run_id, fence, node, holder, phase, how, end_reason, ended_by, ended_why, waited_ms,
    (extract(epoch FROM acquired_at) * 1000000)::bigint AS acquired_at,
    (extract(epoch FROM ended_at) * 1000000)::bigint AS ended_at,
    (extract(epoch FROM stop_requested_at) * 1000000)::bigint AS stop_at,
    stop_by, stop_reason
FROM server
LEFT JOIN LATERAL (
    SELECT *
    FROM tenure.run_history
    WHERE account_id = $1::text AND session_id = $2::text AND ($3::text IS NULL OR fence < $3::text::bigint)
    ORDER BY fence DESC
    LIMIT $4::bigint
) AS page ON true
ORDER BY fence DESC
