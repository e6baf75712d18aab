-- One page of all leases in key order, after the key (?3, ?4). Every key is after ('', ''), because no key is empty.
-- ?1: whether to list expired leases, too. ?2: how many at most.
SELECT lease.account_id, lease.session_id,
       lease.run_id, lease.node, lease.holder, lease.fence, lease.stage, lease.phase,
       lease.acquired_at, lease.expires_at,
       lease.stop_requested_at, lease.stop_by, lease.stop_reason,
       lease.expires_at - CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS remaining
FROM tenure_session_lease AS lease
WHERE (account_id, session_id) > (?3, ?4)
  AND (?1 OR lease.expires_at > CAST(round(unixepoch('subsec') * 1000) AS INTEGER))
ORDER BY account_id, session_id
LIMIT ?2
