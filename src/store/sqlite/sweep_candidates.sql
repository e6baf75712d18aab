-- At most ?2 rows that expired at least ?1 ms ago. There is no index on expires_at, so this scans the table. It is a
-- separate read, because as part of the delete the scan would delay every renewal.
SELECT account_id, session_id
FROM tenure_session_lease
WHERE expires_at <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) - ?1
LIMIT ?2
