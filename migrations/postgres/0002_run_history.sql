-- The history of runs that are over. `tenure migrate --without-history` leaves it out, and every statement works without
-- it.
--
-- Triggers write it, not tenure's statements. So it also has what earlier releases and people do, and a statement need
-- not know whether it is there. A statement tells the triggers what only it knows by the setting tenure_run.ended, which
-- lasts until the end of its transaction. It is a JSON object:
--
--   {"runs": {RUN_ID: {"reason": ..., "by": ..., "why": ...}}}    these runs were released, and ended for this reason
--   {"how": "swept"}                                        these rows had expired long ago
--   {"how": "broken", "by": ..., "why": ...}                    somebody ended the lease of a dead run

CREATE TABLE tenure.run_history (
    account_id text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    run_id uuid NOT NULL,
    fence bigint NOT NULL,
    node uuid NOT NULL,
    holder text NOT NULL,
    phase text NOT NULL,
    acquired_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL,
    how text NOT NULL,
    end_reason text,
    ended_by text,
    ended_why text,
    stop_requested_at timestamptz,
    stop_by text,
    stop_reason text,
    waited_ms bigint,
    -- Newest first is by fence: a later run of a session has the greater one.
    PRIMARY KEY (account_id, session_id, fence)
);

-- For the sweep. Rows are written about in the order of ended_at, so this costs next to nothing.
CREATE INDEX run_history_ended ON tenure.run_history USING brin (ended_at);

COMMENT ON TABLE tenure.run_history IS
    'One row per run that is over, for people. No lease depends on it. `tenure sweep` removes old rows.';
COMMENT ON COLUMN tenure.run_history.account_id IS 'First half of the session''s key.';
COMMENT ON COLUMN tenure.run_history.session_id IS 'Second half of the session''s key.';
COMMENT ON COLUMN tenure.run_history.run_id IS 'The run.';
COMMENT ON COLUMN tenure.run_history.fence IS 'Its fencing token.';
COMMENT ON COLUMN tenure.run_history.node IS 'Its supervisor.';
COMMENT ON COLUMN tenure.run_history.holder IS 'Its holder''s name for people.';
COMMENT ON COLUMN tenure.run_history.phase IS 'What it said last that it was doing.';
COMMENT ON COLUMN tenure.run_history.acquired_at IS 'When it acquired the session, by this server''s clock.';
COMMENT ON COLUMN tenure.run_history.ended_at IS
    'When its lease ended, by this server''s clock. If the lease expired, this is when.';
COMMENT ON COLUMN tenure.run_history.how IS
    'How its lease ended: released; taken_over (it had expired, and the next run has the session); broken (by somebody '
    'who knew that the run is dead); swept (it had expired long ago); deleted or changed (by hand).';
COMMENT ON COLUMN tenure.run_history.end_reason IS
    'Why a released run ended: completed, failed, dropped, panicked, stopped, shutdown, timed_out or a loss; null when '
    'unknown.';
COMMENT ON COLUMN tenure.run_history.ended_by IS
    'Who broke the lease or asked for the end; for what was done by hand, the role; else null.';
COMMENT ON COLUMN tenure.run_history.ended_why IS 'Why, for people: of a break, a stop, or a failure; else null.';
COMMENT ON COLUMN tenure.run_history.stop_requested_at IS 'When somebody asked the run to stop; null when nobody did.';
COMMENT ON COLUMN tenure.run_history.stop_by IS 'Who asked.';
COMMENT ON COLUMN tenure.run_history.stop_reason IS 'Why.';
COMMENT ON COLUMN tenure.run_history.waited_ms IS 'How long it waited in line for the session; null when it did not.';

-- Both functions work with the rights of the table's owner, so that no role needs a right for the history. If the row
-- cannot be written, the lease's statement still succeeds (invariant I12). The first end of a run stays.
--
-- One call for all rows of a statement, because each exception block costs a subtransaction.
CREATE OR REPLACE FUNCTION tenure.record_deletions() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    told jsonb;
BEGIN
    told := nullif(current_setting('tenure_run.ended', true), '')::jsonb;
    INSERT INTO tenure.run_history (
        account_id, session_id, run_id, fence, node, holder, phase, acquired_at, ended_at, how, end_reason, ended_by,
        ended_why, stop_requested_at, stop_by, stop_reason
    )
    SELECT
        account_id, session_id, run_id, fence, node, holder, phase, acquired_at,
        least(expires_at, clock_timestamp()), h.how, run ->> 'reason',
        CASE WHEN h.how = 'deleted' THEN session_user ELSE run ->> 'by' END,
        run ->> 'why', stop_requested_at, stop_by, stop_reason
    FROM ended
    CROSS JOIN LATERAL (SELECT told -> 'runs' -> run_id::text AS run) AS t
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN run IS NOT NULL THEN 'released'
            WHEN told ->> 'how' = 'swept' THEN 'swept'
            -- Releases of schema version 1 tell nothing, but their sessions have this name unless the URL gives another.
            WHEN told IS NOT NULL OR current_setting('application_name') NOT LIKE 'tenure%' THEN 'deleted'
            WHEN expires_at <= clock_timestamp() - interval '1 hour' THEN 'swept'
            ELSE 'released'
        END AS how
    ) AS h
    ON CONFLICT DO NOTHING;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'the history of runs is not written: %', SQLERRM;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION tenure.record_deletions() IS 'Trigger function: records the runs whose rows were deleted.';

CREATE OR REPLACE FUNCTION tenure.record_change() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    told jsonb;
    how text;
BEGIN
    told := nullif(current_setting('tenure_run.ended', true), '')::jsonb;
    how := CASE
        WHEN OLD.run_id IS DISTINCT FROM NEW.run_id AND OLD.expires_at <= clock_timestamp() THEN 'taken_over'
        WHEN OLD.run_id IS DISTINCT FROM NEW.run_id THEN 'changed'
        -- A lease that was shortened and still goes on has not ended.
        WHEN NEW.expires_at > clock_timestamp() THEN NULL
        WHEN told ->> 'how' = 'broken' THEN 'broken'
        ELSE 'changed'
    END;
    IF how IS NOT NULL THEN
        INSERT INTO tenure.run_history (
            account_id, session_id, run_id, fence, node, holder, phase, acquired_at, ended_at, how, ended_by, ended_why,
            stop_requested_at, stop_by, stop_reason
        )
        VALUES (
            OLD.account_id, OLD.session_id, OLD.run_id, OLD.fence, OLD.node, OLD.holder, OLD.phase, OLD.acquired_at,
            least(OLD.expires_at, clock_timestamp()), how,
            CASE how WHEN 'broken' THEN told ->> 'by' WHEN 'changed' THEN session_user END,
            CASE how WHEN 'broken' THEN told ->> 'why' END,
            OLD.stop_requested_at, OLD.stop_by, OLD.stop_reason
        )
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'the history of runs is not written: %', SQLERRM;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION tenure.record_change() IS
    'Trigger function: records a run whose row was given to another run, or whose lease was ended before its time.';

-- These take a lock that waits for every statement that writes leases, and for which each later one waits. The
-- migration gives up after a moment and tries again, so that renewals are not held up.
CREATE OR REPLACE TRIGGER record_deletions
    AFTER DELETE ON tenure.session_lease
    REFERENCING OLD TABLE AS ended
    FOR EACH STATEMENT
    EXECUTE FUNCTION tenure.record_deletions();

CREATE OR REPLACE TRIGGER record_change
    AFTER UPDATE OF run_id, expires_at ON tenure.session_lease
    FOR EACH ROW
    -- Never for a renewal.
    WHEN (OLD.run_id IS DISTINCT FROM NEW.run_id OR NEW.expires_at < OLD.expires_at)
    EXECUTE FUNCTION tenure.record_change();

COMMENT ON COLUMN tenure.session_lease.expires_at IS
    'When the lease expires, by this server''s clock. Under one run_id it moves back only when somebody breaks the '
    'lease of a dead run, and then to the present; it never moves at all once it has passed.';
