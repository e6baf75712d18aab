-- Remembers a fence, in the transaction that writes what the fence guards. $1 account, $2 session, $3 fence.
-- Returns one row: seen is the greatest fence. If it is greater than $3, the writer is late: roll back. If it
-- equals $3, the writer may write.
WITH held AS MATERIALIZED (
    -- One run may write in many transactions at once. A later run waits until they have ended.
    SELECT fence
    FROM tenure_fence_gate
    WHERE account_id = $1::text AND session_id = $2::text AND fence >= $3::bigint
    FOR SHARE
),
raised AS (
    INSERT INTO tenure_fence_gate AS g (account_id, session_id, fence)
    SELECT $1::text, $2::text, $3::bigint
    WHERE NOT EXISTS (SELECT FROM held)
    ON CONFLICT (account_id, session_id) DO UPDATE SET fence = greatest(g.fence, excluded.fence)
    RETURNING fence
)
SELECT coalesce((SELECT fence FROM raised), (SELECT fence FROM held)) AS seen
