//! The statements of tenure in a transaction of the host on SQLite.

use std::time::Duration;

use futures::future::BoxFuture;
use sqlx::{Error, Row as _, SqliteConnection};

use super::{FoundRun, HostConnection, fence, sealed::Statements, sql};
use crate::session::{FencingToken, RunId, SessionKey};

impl HostConnection for SqliteConnection {}

impl Statements for SqliteConnection {
    const IS_ONLY_WRITER: bool = true;

    fn is_in_transaction(&mut self) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            // The driver does not know of a transaction that the host began with a statement of its own. But in one,
            // BEGIN fails.
            if sqlx::Connection::is_in_transaction(self) {
                return Ok(true);
            }
            match sqlx::raw_sql("BEGIN").execute(&mut *self).await {
                Ok(_) => sqlx::raw_sql("ROLLBACK").execute(self).await.map(|_| false),
                Err(error) if is_nested(&error) => Ok(true),
                Err(error) => Err(error),
            }
        })
    }

    fn pin<'a>(
        &'a mut self,
        key: &'a SessionKey,
        run_id: RunId,
        _schema: &'a str,
    ) -> BoxFuture<'a, Result<FoundRun, Error>> {
        Box::pin(async move {
            let run_id = run_id.as_uuid().to_string();
            let query = sqlx::query(sql::PIN_SQLITE).bind(key.account()).bind(key.session()).bind(&run_id);
            let Some(row) = query.fetch_optional(&mut *self).await? else {
                return why_not(self, key, &run_id).await;
            };
            let millis: i64 = row.try_get("remaining_millis")?;
            let remaining = Duration::from_millis(millis.try_into().unwrap_or(0));
            Ok(FoundRun::Pinned { fence: fence(&row, "fence")?, remaining })
        })
    }

    fn remember<'a>(
        &'a mut self,
        key: &'a SessionKey,
        fence: FencingToken,
    ) -> BoxFuture<'a, Result<FencingToken, Error>> {
        let query = sqlx::query(sql::REMEMBER_SQLITE);
        let query = query.bind(key.account()).bind(key.session()).bind(fence.as_i64());
        Box::pin(async move { super::fence(&query.fetch_one(self).await?, "seen") })
    }
}

/// Why the run does not hold its session. Nobody else can have written since the pin, because this transaction has the
/// write lock.
async fn why_not(sqlite: &mut SqliteConnection, key: &SessionKey, run_id: &str) -> Result<FoundRun, Error> {
    let sql = "SELECT run_id, fence FROM tenure_session_lease WHERE account_id = ?1 AND session_id = ?2";
    let query = sqlx::query(sql).bind(key.account()).bind(key.session());
    let Some(row) = query.fetch_optional(sqlite).await? else { return Ok(FoundRun::Gone) };
    let holder: &str = row.try_get("run_id")?;
    if holder == run_id {
        return Ok(FoundRun::Expired);
    }
    let run_id = holder.parse().map_err(|error| Error::Decode(Box::new(error)))?;
    Ok(FoundRun::Superseded { run_id, fence: fence(&row, "fence")? })
}

fn is_nested(error: &Error) -> bool {
    error.as_database_error().is_some_and(|error| error.message().contains("within a transaction"))
}
