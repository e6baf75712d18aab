-- The history of runs that are over. `tenure migrate --without-history` leaves it out, and every statement works without
-- it. Triggers write it, so that it also has what earlier releases and people do. tenure's own statements then add what
-- only they know.

CREATE TABLE IF NOT EXISTS tenure_run_history (
    -- Whose session, and which.
    account_id TEXT NOT NULL COLLATE BINARY,
    session_id TEXT NOT NULL COLLATE BINARY,
    -- The run, and its fencing token.
    run_id TEXT NOT NULL,
    fence INTEGER NOT NULL,
    -- Its supervisor, the holder's name for people, and what the run said last that it was doing.
    node TEXT NOT NULL,
    holder TEXT NOT NULL,
    phase TEXT NOT NULL,
    -- When it acquired the session, in ms since 1970.
    acquired_at INTEGER NOT NULL,
    -- When its lease ended, in ms since 1970. If the lease expired, this is when.
    ended_at INTEGER NOT NULL,
    -- How its lease ended: released; taken_over (it had expired, and the next run has the session); broken (by somebody
    -- who knew that the run is dead); swept (it had expired long ago); deleted (by hand, or released by a release of
    -- schema version 1); changed (by hand).
    how TEXT NOT NULL,
    -- Why a released run ended: completed, failed, dropped, panicked, stopped, shutdown, timed_out or a loss; null when
    -- unknown.
    end_reason TEXT,
    -- Who broke the lease or asked for the end; else null.
    ended_by TEXT,
    -- Why, for people: of a break, a stop, or a failure; else null.
    ended_why TEXT,
    -- A request to stop, as in the row of the lease.
    stop_requested_at INTEGER,
    stop_by TEXT,
    stop_reason TEXT,
    -- How long it waited in line for the session; null when it did not.
    waited_ms INTEGER,
    -- Newest first is by fence: a later run of a session has the greater one.
    PRIMARY KEY (account_id, session_id, fence)
) STRICT, WITHOUT ROWID;

-- The names begin with tenure_fence_, because releases of schema version 1 suspect every other trigger of the table of
-- suppressing writes. The first end of a run stays.
DROP TRIGGER IF EXISTS tenure_fence_end_deleted;
CREATE TRIGGER tenure_fence_end_deleted AFTER DELETE ON tenure_session_lease
BEGIN
    INSERT INTO tenure_run_history (
        account_id, session_id, run_id, fence, node, holder, phase, acquired_at, ended_at, how, stop_requested_at,
        stop_by, stop_reason
    )
    SELECT old.account_id, old.session_id, old.run_id, old.fence, old.node, old.holder, old.phase, old.acquired_at,
           min(old.expires_at, clock.now), iif(old.expires_at <= clock.now - 3600000, 'swept', 'deleted'),
           old.stop_requested_at, old.stop_by, old.stop_reason
    FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now) AS clock
    -- Without a WHERE, the parser would read ON CONFLICT as the ON of a join.
    WHERE true
    ON CONFLICT DO NOTHING;
END;

DROP TRIGGER IF EXISTS tenure_fence_end_changed;
CREATE TRIGGER tenure_fence_end_changed AFTER UPDATE OF run_id, expires_at ON tenure_session_lease
-- Never for a renewal. A lease that was shortened and still goes on has not ended.
WHEN old.run_id <> new.run_id
    OR (new.expires_at < old.expires_at AND new.expires_at <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER))
BEGIN
    INSERT INTO tenure_run_history (
        account_id, session_id, run_id, fence, node, holder, phase, acquired_at, ended_at, how, stop_requested_at,
        stop_by, stop_reason
    )
    SELECT old.account_id, old.session_id, old.run_id, old.fence, old.node, old.holder, old.phase, old.acquired_at,
           min(old.expires_at, clock.now),
           iif(old.run_id <> new.run_id AND old.expires_at <= clock.now, 'taken_over', 'changed'),
           old.stop_requested_at, old.stop_by, old.stop_reason
    FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now) AS clock
    -- Without a WHERE, the parser would read ON CONFLICT as the ON of a join.
    WHERE true
    ON CONFLICT DO NOTHING;
END;
