//! The statements of tenure in a transaction of the host on PostgreSQL.

use std::time::Duration;

use futures::future::BoxFuture;
use sqlx::{
    AssertSqlSafe, Error, PgConnection, Row as _,
    postgres::{PgDatabaseError, PgRow},
};
use uuid::Uuid;

use super::{FoundRun, HostConnection, SCHEMA, fence, sealed::Statements, sql};
use crate::session::{FencingToken, RunId, SessionKey};

impl HostConnection for PgConnection {}

impl Statements for PgConnection {
    const IS_ONLY_WRITER: bool = false;

    fn is_in_transaction(&mut self) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            // The driver does not know of a transaction that the host began with a statement of its own.
            if sqlx::Connection::is_in_transaction(self) {
                return Ok(true);
            }
            match sqlx::raw_sql("SAVEPOINT tenure; RELEASE SAVEPOINT tenure").execute(self).await {
                Err(error) if has_code(&error, "25P01") => Ok(false),
                done => done.map(|_| true),
            }
        })
    }

    fn pin<'a>(
        &'a mut self,
        key: &'a SessionKey,
        run_id: RunId,
        schema: &'a str,
    ) -> BoxFuture<'a, Result<FoundRun, Error>> {
        Box::pin(async move {
            match pin_once(self, key, run_id, schema).await {
                // A new statement sees the change that the last one waited for.
                Ok(FoundRun::Lost) => pin_once(self, key, run_id, schema).await,
                Err(error) if is_overtaken(&error) => Ok(FoundRun::Lost),
                found => found,
            }
        })
    }

    fn remember<'a>(
        &'a mut self,
        key: &'a SessionKey,
        fence: FencingToken,
    ) -> BoxFuture<'a, Result<FencingToken, Error>> {
        let query = sqlx::query(sql::REMEMBER_POSTGRES);
        let query = query.bind(key.account()).bind(key.session()).bind(fence.as_i64());
        Box::pin(async move { super::fence(&query.fetch_one(self).await?, "seen") })
    }
}

async fn pin_once(
    connection: &mut PgConnection,
    key: &SessionKey,
    run_id: RunId,
    schema: &str,
) -> Result<FoundRun, Error> {
    let query = match schema {
        SCHEMA => sqlx::query(sql::PIN_POSTGRES),
        other => sqlx::query(AssertSqlSafe(sql::pin_postgres_in(other))),
    };
    let query = query.bind(key.account()).bind(key.session()).bind(run_id.as_uuid());
    found(&query.fetch_one(connection).await?)
}

fn found(row: &PgRow) -> Result<FoundRun, Error> {
    Ok(match row.try_get::<&str, _>("verdict")? {
        "pinned" => {
            let micros: i64 = row.try_get("remaining_micros")?;
            let remaining = Duration::from_micros(micros.try_into().unwrap_or(0));
            FoundRun::Pinned { fence: fence(row, "fence")?, remaining }
        }
        "unsure" => FoundRun::Unsure { fence: fence(row, "fence")? },
        "expired" => FoundRun::Expired,
        "gone" => FoundRun::Gone,
        "superseded" => {
            FoundRun::Superseded { run_id: row.try_get::<Uuid, _>("run_id")?, fence: fence(row, "fence")? }
        }
        _ => FoundRun::Lost,
    })
}

/// Whether the row was taken over or deleted since the transaction's snapshot. Not every serialization failure means that.
/// This one comes from locking a row, and the statement locks only this row.
fn is_overtaken(error: &Error) -> bool {
    let routine =
        error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>()?.routine());
    has_code(error, "40001") && routine == Some("ExecLockRows")
}

fn has_code(error: &Error, code: &str) -> bool {
    error.as_database_error().and_then(|error| error.code()).as_deref() == Some(code)
}
