-- Pins a lease: proves that a run holds its session, inside a transaction that from here on is the file's only
-- writer until it ends. ?1 account, ?2 session, ?3 run as a hyphenated UUID in lower case. No row: it does not hold it.
--
-- Needs SQLite 3.42: for an older one there is no 'subsec', and no lease is held.
--
-- A write that changes nothing: it takes the one write lock, or fails, so that what it proves stays true.
UPDATE tenure_session_lease
SET phase = phase
WHERE account_id = ?1
  AND session_id = ?2
  AND run_id = ?3
  AND expires_at > CAST(round(unixepoch('subsec') * 1000) AS INTEGER)
RETURNING fence,
          expires_at - CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS remaining_millis
