-- The leases of tenure in SQLite. All names begin with tenure_, because the file may be a host application's own
-- database. Instants are integer milliseconds since 1970-01-01 UTC, by the machine's clock. All processes that share
-- the file also share this clock.

CREATE TABLE tenure_session_lease (
    -- Whose session: 1 to 255 bytes of UTF-8 without NUL, compared byte for byte.
    account_id TEXT NOT NULL COLLATE BINARY
        CHECK (length(CAST(account_id AS BLOB)) BETWEEN 1 AND 255 AND instr(CAST(account_id AS BLOB), x'00') = 0),
    -- Which session of the account: bounded and compared like account_id.
    session_id TEXT NOT NULL COLLATE BINARY
        CHECK (length(CAST(session_id AS BLOB)) BETWEEN 1 AND 255 AND instr(CAST(session_id AS BLOB), x'00') = 0),
    -- The run that holds the session: a hyphenated UUID in lower case. Changes only when the lease of another
    -- run has expired (takeover); every other write requires it to match.
    run_id TEXT NOT NULL CHECK (length(run_id) = 36),
    -- The fencing token of the run: greater than every fence that any earlier statement granted in this file,
    -- and different from those of its own.
    fence INTEGER NOT NULL CHECK (fence > 0),
    -- The supervisor under which the run lives: a hyphenated UUID in lower case.
    node TEXT NOT NULL CHECK (length(node) = 36),
    -- The holder's name for people, not an identity: 1 to 255 bytes.
    holder TEXT NOT NULL CHECK (length(CAST(holder AS BLOB)) BETWEEN 1 AND 255),
    -- What the run says it is doing, for people: 0 to 64 bytes.
    phase TEXT NOT NULL CHECK (length(CAST(phase AS BLOB)) <= 64),
    -- How the run stands. 'stuck': its work outlived its grace, and the lease is kept until it ends.
    stage TEXT NOT NULL CHECK (stage IN ('running', 'stopping', 'stuck')),
    -- When this run acquired the session, in ms since 1970. Renewals and repeated acquires keep it.
    acquired_at INTEGER NOT NULL CHECK (acquired_at >= 0),
    -- When the lease expires, in ms since 1970: at and after this instant it grants nothing. Within one run it
    -- never moves back.
    expires_at INTEGER NOT NULL CHECK (expires_at >= 0),
    -- When somebody first asked this run to stop, in ms since 1970; null while nobody has. A takeover clears it.
    stop_requested_at INTEGER CHECK (stop_requested_at >= 0),
    -- Who asked this run to stop, for people; null while nobody has.
    stop_by TEXT,
    -- Why this run was asked to stop, for people; may be null.
    stop_reason TEXT,
    PRIMARY KEY (account_id, session_id)
) STRICT, WITHOUT ROWID;

-- Fences (invariant I8): a fence is the greater of two numbers, the clock in microseconds and one more than this floor.
-- The floor is needed for two grants within one tick, because the clock has only milliseconds, and when the clock was
-- stepped back. The clock is needed when the file was restored from a copy, whose floor is old.
CREATE TABLE tenure_fence_floor (
    -- Always 1: there is one floor for the whole file.
    id INTEGER PRIMARY KEY CHECK (id = 1),
    -- The greatest fence that was ever granted in this file. Never falls: not when rows are deleted, and not when
    -- the clock is stepped back. Two grants within one tick of the clock differ because of it.
    floor INTEGER NOT NULL CHECK (floor >= 0)
) STRICT;

INSERT INTO tenure_fence_floor (id, floor) VALUES (1, 0);

CREATE TRIGGER tenure_fence_granted AFTER INSERT ON tenure_session_lease
BEGIN
    UPDATE tenure_fence_floor SET floor = new.fence WHERE floor < new.fence;
END;

CREATE TRIGGER tenure_fence_replaced AFTER UPDATE OF fence ON tenure_session_lease
BEGIN
    UPDATE tenure_fence_floor SET floor = new.fence WHERE floor < new.fence;
END;
