-- Deletes those candidates that are still expired for at least ?1 ms.
-- ?2: array of {account, session}.
DELETE FROM tenure_session_lease
WHERE (account_id, session_id) IN (SELECT value ->> 'account', value ->> 'session' FROM json_each(?2))
  AND expires_at <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) - ?1
