    -- The items of ?1 that no limit per account refuses. most is the limit, or null. An item whose session is held now
    -- takes no further place: the conflict rule lets only the holder through. Whoever allows more comes first, so an
    -- item that is refused keeps nobody else out. The write that this is a part of has the one write lock, so nobody
    -- else is granted a session between the count and the grant.
    SELECT key, value
    FROM (
        SELECT key, value, most, is_held,
               row_number() OVER (
                   PARTITION BY account, is_held
                   ORDER BY most DESC NULLS FIRST, session
               ) AS place,
               CASE WHEN most IS NOT NULL THEN (
                   SELECT count(*)
                   FROM tenure_session_lease AS live
                   WHERE live.account_id = account AND live.expires_at > now
               ) END AS running
        FROM (
            SELECT asked.key AS key, asked.value AS value, clock.now AS now,
                   asked.value ->> 'account' AS account,
                   asked.value ->> 'session' AS session,
                   asked.value ->> 'most' AS most,
                   EXISTS (
                       SELECT 1
                       FROM tenure_session_lease AS live
                       WHERE live.account_id = asked.value ->> 'account'
                         AND live.session_id = asked.value ->> 'session'
                         AND live.expires_at > clock.now
                   ) AS is_held
            FROM json_each(?1) AS asked
            CROSS JOIN (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now) AS clock
        )
    )
    WHERE most IS NULL OR is_held OR running + place <= most
