CREATE TABLE tenure_fence_gate (
    account_id text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    -- The greatest fence that has written under this session.
    fence bigint NOT NULL CHECK (fence > 0),
    PRIMARY KEY (account_id, session_id)
)
