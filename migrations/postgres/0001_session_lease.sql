-- `tenure migrate` applies this in one transaction, under an advisory lock. The schema `tenure` and the table
-- `tenure.migration` exist before.

CREATE TABLE tenure.session_lease (
    account_id text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    run_id uuid NOT NULL,
    fence bigint NOT NULL,
    node uuid NOT NULL,
    holder text NOT NULL,
    stage text NOT NULL DEFAULT 'running',
    phase text NOT NULL DEFAULT '',
    acquired_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    stop_requested_at timestamptz,
    stop_by text,
    stop_reason text,
    PRIMARY KEY (account_id, session_id),
    -- Two constraints instead of nine, because every statement that writes compiles each constraint anew.
    CONSTRAINT session_lease_lengths CHECK (
        octet_length(account_id) BETWEEN 1 AND 255
        AND octet_length(session_id) BETWEEN 1 AND 255
        AND octet_length(holder) BETWEEN 1 AND 255
        AND octet_length(phase) <= 64
    ),
    CONSTRAINT session_lease_values CHECK (
        fence > 0
        AND stage IN ('running', 'stopping', 'stuck')
        AND isfinite(acquired_at)
        AND isfinite(expires_at)
        AND isfinite(stop_requested_at) IS NOT FALSE
    )
)
-- A little more than half of each page stays free. So when a batch renews all rows of a page, each row's next version
-- (and its line pointer) fits on the same page, and no index has to be written (HOT). For the same reason the table has
-- no index except the primary key, and none on expires_at.
WITH (
    fillfactor = 45,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 500
);

COMMENT ON TABLE tenure.session_lease IS
    'One row per session that a run holds or held last. No row: idle. expires_at not after clock_timestamp(): '
    'expired, it grants nothing and the next acquire takes it over. Every statement that changes run_id must name '
    'a key column in its SET list, so that it waits for (or skips) a row pinned with FOR KEY SHARE.';
COMMENT ON COLUMN tenure.session_lease.account_id IS
    'First half of the session''s key: 1 to 255 bytes, compared byte for byte.';
COMMENT ON COLUMN tenure.session_lease.session_id IS
    'Second half of the session''s key: 1 to 255 bytes, compared byte for byte.';
COMMENT ON COLUMN tenure.session_lease.run_id IS
    'The run that holds the lease: random per attempt, an identity and never an order. Changes only when the row '
    'has expired.';
COMMENT ON COLUMN tenure.session_lease.fence IS
    'Fencing token: strictly greater than that of every earlier run of this session. Microseconds since 1970, or '
    'more when the clock was stepped back. Constant while run_id is.';
COMMENT ON COLUMN tenure.session_lease.node IS
    'The supervisor of the run: random per start.';
COMMENT ON COLUMN tenure.session_lease.holder IS
    'The holder''s name for people: 1 to 255 bytes, not an identity.';
COMMENT ON COLUMN tenure.session_lease.stage IS
    'How the run stands: running, stopping (told to end) or stuck (has outlived its grace).';
COMMENT ON COLUMN tenure.session_lease.phase IS
    'What the run says it is doing, for people: at most 64 bytes.';
COMMENT ON COLUMN tenure.session_lease.acquired_at IS
    'When this run first acquired the session, by this server''s clock.';
COMMENT ON COLUMN tenure.session_lease.expires_at IS
    'When the lease expires, by this server''s clock. Under one run_id it moves back only when somebody breaks the '
    'lease of a dead run, and then to the present; it never moves at all once it has passed.';
COMMENT ON COLUMN tenure.session_lease.stop_requested_at IS
    'When somebody first asked this run to stop, by this server''s clock; null when nobody did. Write it by key '
    'and run_id only, or the request may hit the next run.';
COMMENT ON COLUMN tenure.session_lease.stop_by IS
    'Who asked, for people; null when unknown or when nobody did.';
COMMENT ON COLUMN tenure.session_lease.stop_reason IS
    'Why, for people; null when not given or when nobody asked.';

-- Fences (invariant I8: a later run of a session has the greater fence). This is the one place that explains them.
--
-- A fence is the greatest of three numbers: one more than the fence in the row, one more than the last fence of any
-- session (the sequence fence_floor), and the clock in microseconds since 1970. All three are needed:
--
-- - The row's fence covers a takeover. The new fence is greater, whatever the clock and the sequence do.
-- - The sequence covers a clock that was stepped back after the row was deleted, because it outlives the row. A
--   sequence has no row lock, so no grant waits for another's commit.
-- - The clock covers a failover that lost commits (assumption A1 broken), and with them rows and increments of the
--   sequence. Time has passed on the new primary, too (assumption A2).
--
-- setval has no compare-and-set. If two grants issue fences at the same time, one may set the floor lower than the
-- other, by the few microseconds between their readings of the clock. That matters only if the session with the greater
-- fence is released and the clock is stepped back before the next fence of any session is issued.
--
-- A new row needs one more step. Its fence is issued just before the row is inserted, and the insertion may have to
-- wait for another run's row with the same key. In the meantime that run can acquire and release the session. Then it
-- has the greater fence although it came first. So the trigger fence_again issues the fence a second time, after the
-- insertion. From then on no other run can come in between, and no other transaction has seen the row yet.
--
-- To issue every fence twice would give every granted row a second version. So the trigger does it only where it may
-- matter. It does not matter if one of these conditions holds:
--
-- - No other fence has been issued since, so the floor is still this fence. This is usual when few runs are granted.
-- - No more than 50 microseconds have passed. Another run needs far longer to acquire and release: two commits and a
--   round trip. This is usual when many runs are granted at once and the floor moves all the time.
--
-- A statement's RETURNING shows the row as it was before this trigger. So acquire.sql evaluates the same two conditions
-- in its RETURNING, which runs after the insertion. If neither holds, the trigger may have changed the fence. The
-- verdict is then 'unsettled', and a second statement reads the fence again.
CREATE SEQUENCE tenure.fence_floor AS bigint;
COMMENT ON SEQUENCE tenure.fence_floor IS
    'At least the greatest fence ever issued, in microseconds since 1970, short of a race of issuers, which the migration '
    'explains.';

CREATE FUNCTION tenure.next_fence(old bigint) RETURNS bigint
    LANGUAGE plpgsql VOLATILE STRICT
AS $$
DECLARE
    wanted bigint := greatest(
        old + 1,
        pg_catalog.floor(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::pg_catalog.int8
    );
    issued bigint := pg_catalog.nextval('tenure.fence_floor');
BEGIN
    IF issued < wanted THEN
        PERFORM pg_catalog.setval('tenure.fence_floor', wanted);
        issued := wanted;
    END IF;
    RETURN issued;
END
$$;
COMMENT ON FUNCTION tenure.next_fence(bigint) IS
    'A fence greater than old (zero when there is no row), than the clock in microseconds since 1970 at the time '
    'of the call, and than any fence issued before.';

CREATE FUNCTION tenure.fence_again() RETURNS trigger
    LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE tenure.session_lease
    SET fence = tenure.next_fence(fence)
    WHERE account_id = NEW.account_id AND session_id = NEW.session_id AND run_id = NEW.run_id;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION tenure.fence_again() IS
    'Trigger function: gives a row that was slow to be inserted a fence that was issued after its insertion.';

CREATE TRIGGER fence_again
    AFTER INSERT ON tenure.session_lease
    FOR EACH ROW
    WHEN (
        -- The same conditions as in acquire.sql.
        pg_catalog.clock_timestamp() - NEW.acquired_at
            NOT BETWEEN interval '0' AND interval '50 microseconds'
        AND pg_catalog.pg_sequence_last_value('tenure.fence_floor') IS DISTINCT FROM NEW.fence
    )
    EXECUTE FUNCTION tenure.fence_again();
