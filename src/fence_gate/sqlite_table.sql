CREATE TABLE tenure_fence_gate (
    account_id TEXT NOT NULL COLLATE BINARY,
    session_id TEXT NOT NULL COLLATE BINARY,
    -- The greatest fence that has written under this session.
    fence INTEGER NOT NULL CHECK (fence > 0),
    PRIMARY KEY (account_id, session_id)
) STRICT, WITHOUT ROWID
