-- Pins a lease: proves that a run holds its session. From here on, the transaction is the only writer of the file until
-- it ends. ?1 account, ?2 session, ?3 run as a hyphenated UUID in lower case. Returns no row if the run does not hold
-- the session.
--
-- Needs SQLite 3.42. An older SQLite does not know 'subsec', so this statement never finds that the run holds its
-- lease.
--
-- This write changes nothing, but it takes the one write lock, or fails. So what it proves stays true until the
-- transaction ends.
UPDATE tenure_session_lease
SET phase = phase
WHERE account_id = ?1
  AND session_id = ?2
  AND run_id = ?3
  AND expires_at > CAST(round(unixepoch('subsec') * 1000) AS INTEGER)
RETURNING fence,
          expires_at - CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS remaining_millis
