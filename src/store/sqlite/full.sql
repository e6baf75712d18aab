-- The items whose account has as many live leases as they allow, or more. This only reads.
-- ?1: as in grant.sql.
SELECT item, running
FROM (
    SELECT item.key AS item, item.value ->> 'most' AS most, (
        SELECT count(*)
        FROM tenure_session_lease AS live
        WHERE live.account_id = item.value ->> 'account'
          AND live.expires_at > CAST(round(unixepoch('subsec') * 1000) AS INTEGER)
    ) AS running
    FROM json_each(?1) AS item
)
WHERE running >= most
