//! Pinning: a transaction of the host that no other run can overtake.
//!
//! If the work writes to the database that holds the leases, no fence is needed. The transaction itself can prove that
//! its run still holds the session, and can keep every other run out of the session until the transaction ends.
//!
//! ```no_run
//! # #[cfg(feature = "postgres")]
//! # async fn example(run: tenure::Run, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let mut tx = pool.begin().await?;
//! run.pin(&mut *tx).await?;
//! sqlx::query("INSERT INTO message (session_id, text) VALUES ($1, $2)")
//!     .bind(run.key().session())
//!     .bind("done")
//!     .execute(&mut *tx)
//!     .await?;
//! tx.commit().await?;
//! # Ok(()) }
//! ```
//!
//! # What it promises
//!
//! Once [`pin`](crate::RunContext::pin) has succeeded, no other run is granted the session until the transaction ends.
//! This holds even if, in the meantime, the lease expires, or somebody tries to release it, take it over or sweep it.
//! So everything that the transaction writes is committed before any later run begins. The promise does not depend on a
//! clock, on this process being alive, or on any message reaching it.
//!
//! Pin in the outermost transaction, not in a nested one. Rolling back to a savepoint from before the pin gives the pin
//! up.
//!
//! # PostgreSQL
//!
//! - Pinning works in read committed, repeatable read and serializable. In the latter two, a run may have lost its
//!   session after the transaction's snapshot was taken. Then the pin fails with [`PinError::Lost`], which cannot say
//!   how the session was lost, and the transaction has failed. So pin first in a transaction: the error then says more,
//!   and no work is wasted.
//! - Renewals of a pinned lease go on, and nobody waits for the pin. If a pinned lease has expired, an acquire is
//!   refused at once (`Busy`, which names the last holder). A release or a sweep skips the row and tries again later. A
//!   transaction that is left open keeps the session closed, so set `idle_in_transaction_session_timeout`.
//! - The pin waits for another run's acquire that is under way. That is one statement, and the host's `lock_timeout`
//!   bounds the wait.
//! - The pin takes a row lock. The connection's role needs `USAGE` on schema `tenure`, and `SELECT` and `UPDATE` on
//!   `tenure.session_lease`. (`UPDATE` on one column is enough: `GRANT UPDATE (phase) ON tenure.session_lease TO app`.)
//!   A read-only transaction cannot pin.
//! - Hosts with another driver, or in another language, can run the statement [`POSTGRES`] themselves: in the
//!   transaction, with account, session and run id. Go on only if `verdict` is `pinned`. A transaction that is older
//!   than the last renewal may get `unsure`, which the comments in the statement explain.
//!
//! # SQLite
//!
//! Pinning works from SQLite 3.42 on. A host may use an older SQLite beside sqlx. There, the statement never finds that
//! the run holds its lease.
//!
//! The leases and the host's tables must be in the same file. The statement, [`SQLITE`], is a write, which makes the
//! transaction the file's only writer. Until the transaction ends nobody else writes, and **no session in that file is
//! renewed**. So a pinned transaction must be shorter than [`renew_timeout`](crate::Timing::renew_timeout) (ttl/10, at
//! most 5 s). A warning is logged if less trusted time than that is left. Begin the transaction with `BEGIN IMMEDIATE`
//! (`pool.begin_with("BEGIN IMMEDIATE")`). Otherwise, a transaction that has read cannot become a writer if somebody
//! else has written since, and fails with "database is locked". Acquires and releases of others wait for their turn,
//! and are retried.

use std::time::Duration;

pub use crate::host::HostConnection;
use crate::{
    end::EndReason,
    host::{FoundRun, SCHEMA, is_without_table, sql},
    session::{FencingToken, RunId, SessionKey},
};

/// The statement that pins a lease on PostgreSQL. `$1` account, `$2` session, `$3` run id.
///
/// It answers one row: `verdict text`, `run_id uuid`, `fence bigint`, `remaining_micros bigint`, described in its
/// comments. It needs no privilege beyond those that the [module](self) names, and must run inside a transaction.
pub const POSTGRES: &str = sql::PIN_POSTGRES;

/// The statement that pins a lease on SQLite. `?1` account, `?2` session, `?3` run id, hyphenated and in lower case.
///
/// It answers one row, `fence` and `remaining_millis`, if the run holds the session, and none otherwise. It must run
/// inside a transaction.
pub const SQLITE: &str = sql::PIN_SQLITE;

/// [`POSTGRES`] for leases in another schema than `tenure`. The name is quoted.
pub fn postgres_in(schema: &str) -> String {
    sql::pin_postgres_in(schema)
}

/// Pins the lease of a run that is known only by its id. This is [`RunContext::pin`](crate::RunContext::pin) for a
/// process that works for a run but does not hold it. On PostgreSQL, the leases are in schema `tenure`. For another
/// schema, see [`pin_in`].
///
/// # Errors
/// [`PinError`]. A transaction that is older than the last renewal gets [`PinError::StaleSnapshot`], because only the
/// holder's own process knows that the lease was renewed since.
///
/// # Cancel safety
/// As with every query of sqlx: if you drop the future, drop the transaction too.
pub async fn pin<C: HostConnection + ?Sized>(
    connection: &mut C,
    key: &SessionKey,
    run_id: RunId,
) -> Result<Pinned, PinError> {
    pin_in(connection, SCHEMA, key, run_id).await
}

/// As [`pin`], for leases in a schema of another name, which is the `schema=` of the database's URL.
///
/// # Errors
/// As [`pin`].
///
/// # Cancel safety
/// As [`pin`].
pub async fn pin_in<C: HostConnection + ?Sized>(
    connection: &mut C,
    schema: &str,
    key: &SessionKey,
    run_id: RunId,
) -> Result<Pinned, PinError> {
    pin_trusted(connection, schema, key, run_id, || false).await
}

/// `is_trusted` tells what the transaction may not be able to see: whether the lease was renewed in time.
pub(crate) async fn pin_trusted<C: HostConnection + ?Sized>(
    connection: &mut C,
    schema: &str,
    key: &SessionKey,
    run_id: RunId,
    is_trusted: impl FnOnce() -> bool,
) -> Result<Pinned, PinError> {
    if !connection.is_in_transaction().await? {
        return Err(PinError::NoTransaction);
    }
    match connection.pin(key, run_id, schema).await? {
        FoundRun::Pinned { fence, remaining } => Ok(Pinned { fence, remaining: Some(remaining) }),
        FoundRun::Unsure { fence } if is_trusted() => Ok(Pinned { fence, remaining: None }),
        FoundRun::Unsure { .. } => Err(PinError::StaleSnapshot),
        FoundRun::Expired => Err(PinError::Expired),
        FoundRun::Superseded { run_id, fence } => Err(PinError::Superseded { run_id: run_id.into(), fence }),
        FoundRun::Gone => Err(PinError::Released),
        FoundRun::Lost => Err(PinError::Lost),
    }
}

/// The run holds the session, and no other run can hold it before the transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pinned {
    /// The run's fencing token.
    pub fence: FencingToken,
    /// How long the lease lasts without another renewal, by the database's clock when it was pinned. `None` if the
    /// transaction's snapshot is older than the last renewal.
    pub remaining: Option<Duration>,
}

/// Why a lease was not pinned. Roll the transaction back: nothing in it is protected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// Another run has taken the session over.
    #[error("the session is another run's now ({run_id}, fence {fence}); roll back")]
    #[non_exhaustive]
    Superseded {
        /// That run.
        run_id: RunId,
        /// Its fence.
        fence: FencingToken,
    },
    /// The lease has expired, and nobody has taken the session over yet.
    #[error("the lease has expired; roll back")]
    Expired,
    /// No run holds the session: the lease was released, or its row was removed after it had expired.
    #[error("the lease was released, or has expired and was removed; roll back")]
    Released,
    /// The lease was released or taken over after this transaction began. Its snapshot cannot show which.
    #[error("the lease was released or taken over since this transaction began; roll back")]
    Lost,
    /// The run's own process knows that the run has lost its session.
    #[error("the run has ended: {0}; roll back")]
    Ended(EndReason),
    /// This transaction is older than the lease's last renewal, so nothing in it can show whether the lease has
    /// expired.
    #[error(
        "this transaction's snapshot is too old to show the lease; roll back, and pin first thing in a new one"
    )]
    StaleSnapshot,
    /// No transaction is open on this connection. A pin would end with its own statement.
    #[error("no transaction is open on this connection; begin one, and pin in it")]
    NoTransaction,
    /// This database has no leases.
    #[error(
        "this database has no leases of tenure; pin in the database that holds them, or check the fence with \
         tenure::fence_gate ({0})"
    )]
    NoLeases(#[source] sqlx::Error),
    /// An error of the database. The transaction has failed. This proves nothing about the lease.
    #[error("the lease could not be pinned: {0}")]
    Database(#[source] sqlx::Error),
}

impl PinError {
    /// Whether the run has certainly lost the session.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Superseded { .. } | Self::Expired | Self::Released | Self::Lost | Self::Ended(_))
    }
}

impl From<sqlx::Error> for PinError {
    fn from(error: sqlx::Error) -> Self {
        if is_without_table(&error) { Self::NoLeases(error) } else { Self::Database(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_of_another_name_is_quoted_wherever_the_table_is_named() {
        let sql = postgres_in("my \"schema\"");
        assert_eq!(sql.matches("FROM \"my \"\"schema\"\"\".session_lease").count(), 2, "{sql}");
        assert!(!sql.contains("tenure."), "{sql}");
    }
}
