-- Pins a lease: proves that a run holds its session, and keeps any other run from it until this transaction ends.
-- $1 account, $2 session, $3 run. One row.
--
-- verdict     what is proven
-- pinned      the run holds the session; no other run is granted it before this transaction ends
-- unsure      the same, but this transaction's snapshot is too old to show whether the lease has expired meanwhile
--             (repeatable read and serializable only); no other run was granted the session so far
-- expired     the lease has expired; nothing is locked, or only until this transaction ends
-- superseded  another run holds the session: run_id and fence are its own
-- gone        the session has no row: the lease was given back, or removed after it had expired
-- lost        taken over or given back while this waited for that; asked again, it tells which
--
-- In repeatable read and serializable, a takeover or a release since the snapshot fails with SQLSTATE 40001.
WITH seen AS MATERIALIZED (
    SELECT run_id, fence, expires_at
    FROM tenure.session_lease
    WHERE account_id = $1::text AND session_id = $2::text
),
-- The weakest lock there is: renewals go past it. Whatever gives the session to another run names a key column or
-- deletes the row, and does not. A lease that has expired is not even locked.
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
-- The clock is read behind the row's lock.
timed AS MATERIALIZED (
    SELECT *, clock_timestamp() AS at FROM pinned
)
SELECT
    CASE
        WHEN t.expires_at > t.at THEN 'pinned'
        -- What had expired when the transaction began was never renewed since. What expired later may have been.
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
