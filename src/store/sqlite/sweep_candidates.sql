-- Rows that expired at least ?1 ms ago, at most ?2. There is no index on expires_at, so this scans: which is why
-- it is a read of its own, and not part of the delete, where the scan would hold up every renewal.
SELECT account_id, session_id
FROM tenure_session_lease
WHERE expires_at <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) - ?1
LIMIT ?2
