-- Remembers a fence, in the transaction that writes what the fence guards. ?1 account, ?2 session, ?3 fence.
-- Returns one row: seen is the greatest fence. If it is greater than ?3, the writer is late: roll back. If it
-- equals ?3, the writer may write.
INSERT INTO tenure_fence_gate AS gate (account_id, session_id, fence)
VALUES (?1, ?2, ?3)
ON CONFLICT (account_id, session_id) DO UPDATE SET fence = max(gate.fence, excluded.fence)
RETURNING fence AS seen
