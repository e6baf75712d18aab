-- Pins a lease: proves that a run holds its session, and keeps every other run from it until this transaction ends.
-- $1 account, $2 session, $3 run. Returns one row.
--
-- verdict     what it proves
-- pinned      the run holds the session; no other run is granted it before this transaction ends
-- unsure      no other run is granted the session before this transaction ends, but the snapshot of this transaction is
--             too old to show whether the lease has expired (only in repeatable read and serializable)
-- expired     the lease has expired; if the row was locked, it stays locked until this transaction ends
-- superseded  another run holds the session: run_id and fence are those of that run
-- gone        the session has no row: the lease was released, or swept after it had expired
-- lost        the session was taken over or released while this statement waited; ask again to learn which
--
-- In repeatable read and serializable, this statement fails with SQLSTATE 40001 if the session was taken over or
-- released after the snapshot.
WITH seen AS MATERIALIZED (
    SELECT run_id, fence, expires_at
    FROM tenure.session_lease
    WHERE account_id = $1::text AND session_id = $2::text
),
-- FOR KEY SHARE is the weakest row lock, and renewals do not conflict with it. A statement that gives the session to
-- another run sets a key column or deletes the row, so it does conflict. An expired lease is not locked.
pinned AS MATERIALIZED (
    SELECT run_id, fence, expires_at
    FROM tenure.session_lease
    WHERE account_id = $1::text
        AND session_id = $2::text
        AND run_id = $3::uuid
        AND expires_at > CASE current_setting('transaction_isolation')
            WHEN 'read committed' THEN clock_timestamp()
            ELSE transaction_timestamp()
        END
    FOR KEY SHARE
),
-- The clock is read after the row has been locked.
timed AS MATERIALIZED (
    SELECT *, clock_timestamp() AS at FROM pinned
)
SELECT
    CASE
        WHEN t.expires_at > t.at THEN 'pinned'
        -- A lease that had expired when the transaction began cannot have been renewed since. A lease that expired
        -- later may have been.
        WHEN t.expires_at > transaction_timestamp()
            AND current_setting('transaction_isolation') <> 'read committed'
            THEN 'unsure'
        WHEN t.at IS NOT NULL THEN 'expired'
        WHEN s.run_id IS NULL THEN 'gone'
        WHEN s.run_id <> $3::uuid THEN 'superseded'
        WHEN s.expires_at <= clock_timestamp() THEN 'expired'
        ELSE 'lost'
    END AS verdict,
    coalesce(t.run_id, s.run_id) AS run_id,
    coalesce(t.fence, s.fence) AS fence,
    (extract(epoch FROM t.expires_at - t.at) * 1000000)::bigint AS remaining_micros
FROM (SELECT) AS always
LEFT JOIN seen s ON true
LEFT JOIN timed t ON true
