-- Remembers a fence, in the transaction that writes what the fence guards. ?1 account, ?2 session, ?3 fence.
-- One row: seen is the greatest fence. Greater than ?3: the writer is late, roll back. Equal: it may write.
INSERT INTO tenure_fence_gate AS gate (account_id, session_id, fence)
VALUES (?1, ?2, ?3)
ON CONFLICT (account_id, session_id) DO UPDATE SET fence = max(gate.fence, excluded.fence)
RETURNING fence AS seen
