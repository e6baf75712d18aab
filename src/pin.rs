//! Pinning: a transaction of the host's that no other run can overtake.
//!
//! Where the work writes to the database that holds the leases, no fence is needed: the transaction itself can prove that
//! its run still holds the session, and keep any other from it until the transaction ends.
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
//! Once [`pin`](crate::RunContext::pin) has answered, until the transaction ends, no other run is granted the session:
//! not by release, expiry, takeover or clean-up, even if the lease expires meanwhile. So whatever the transaction
//! writes is committed before any later run begins. Nothing of that depends on a clock, on this process being alive, or
//! on its being told of anything.
//!
//! Pin in the outermost transaction, not in a nested one: rolling back to a savepoint that was set before the pin gives
//! the pin up.
//!
//! # PostgreSQL
//!
//! - It holds in read committed, repeatable read and serializable. In the latter two, a run that lost its session after
//!   the transaction's snapshot was taken learns [`PinError::Lost`], which cannot say to what, and the transaction
//!   has failed. Pin first thing in a transaction: then it says more, and nothing is done in vain.
//! - Renewals of a pinned lease go on, and nobody waits for the pin. An acquire that meets a pinned lease that has
//!   expired is refused at once (`Busy`, which names the last holder); a release or a sweep skips the row and comes
//!   back. A transaction that is left open keeps the session closed: set `idle_in_transaction_session_timeout`.
//! - It waits for another run's acquire that is under way, which is one statement. The host's `lock_timeout` bounds it.
//! - It costs a row lock: the connection's role needs `USAGE` on schema `tenure`, and `SELECT` and `UPDATE` on
//!   `tenure.session_lease`. (`UPDATE` on one column is enough:
//!   `GRANT UPDATE (phase) ON tenure.session_lease TO app`.) A read-only transaction cannot pin.
//! - The statement is [`POSTGRES`], for hosts with another driver or in another language: run it in the transaction with
//!   account, session and run id, and go on only if `verdict` is `pinned`. For `unsure`, which only a transaction older
//!   than the last renewal sees, see the comments in it.
//!
//! # SQLite
//!
//! From SQLite 3.42 on; an older one, as a host may have besides sqlx, finds no lease held.
//! The leases and the host's tables must be in the same file. The statement, [`SQLITE`], is a write, which makes the
//! transaction the file's only writer: so nobody else writes, **renewals included, of all sessions in that file**. A
//! pinned transaction must therefore be shorter than [`renew_timeout`](crate::Timing::renew_timeout) (ttl/10, at most
//! 5 s); a warning is logged when less trusted time than that is left. Begin it with `BEGIN IMMEDIATE`
//! (`pool.begin_with("BEGIN IMMEDIATE")`): a transaction that has read before cannot become a writer if somebody else has
//! written since, and fails with "database is locked". That is also how an acquire or a release of others fares
//! meanwhile: it waits for its turn, and is asked again.

use std::time::Duration;

pub use crate::host::HostConnection;
use crate::{
    end::EndReason,
    host::{Found, is_without_table},
    session::{FencingToken, RunId, SessionKey},
};

/// The schema of [`POSTGRES`].
pub(crate) const SCHEMA: &str = "tenure";

/// The statement that pins a lease on PostgreSQL. `$1` account, `$2` session, `$3` run id.
///
/// It answers one row: `verdict text`, `run_id uuid`, `fence bigint`, `remaining_micros bigint`, described in its
/// comments. It needs no privilege beyond those that the [module](self) names, and must run inside a transaction.
pub const POSTGRES: &str = include_str!("store/postgres/pin.sql");

/// The statement that pins a lease on SQLite. `?1` account, `?2` session, `?3` run id, hyphenated and in lower case.
///
/// It answers one row, `fence` and `remaining_millis`, if the run holds the session, and none otherwise. It must run
/// inside a transaction.
pub const SQLITE: &str = include_str!("store/sqlite/pin.sql");

/// [`POSTGRES`] for leases in another schema than `tenure`. The name is quoted.
pub fn postgres_in(schema: &str) -> String {
    let quoted = format!("\"{}\".session_lease", schema.replace('"', "\"\""));
    POSTGRES.replace("tenure.session_lease", &quoted)
}

/// Pins the lease of a run that is known by its id alone: what [`RunContext::pin`](crate::RunContext::pin) does, for a
/// process that works for a run and is not the one that holds it. On PostgreSQL for leases in schema `tenure`; for others,
/// see [`pin_in`].
///
/// # Errors
/// [`PinError`]. In a transaction that is older than the last renewal, [`PinError::StaleSnapshot`]: only the holder's
/// own process knows that the lease was renewed since.
///
/// # Cancel safety
/// As for every query of sqlx: drop the transaction with it.
pub async fn pin<C: HostConnection + ?Sized>(
    connection: &mut C,
    key: &SessionKey,
    run_id: RunId,
) -> Result<Pinned, PinError> {
    pin_in(connection, SCHEMA, key, run_id).await
}

/// As [`pin`], for leases in a schema of this name: what the database's URL says with `schema=`.
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

/// `is_trusted` answers what the transaction cannot see: whether the lease was renewed in time.
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
        Found::Pinned { fence, remaining } => Ok(Pinned { fence: fence.into(), remaining: Some(remaining) }),
        Found::Unsure { fence } if is_trusted() => Ok(Pinned { fence: fence.into(), remaining: None }),
        Found::Unsure { .. } => Err(PinError::StaleSnapshot),
        Found::Expired => Err(PinError::Expired),
        Found::Superseded { run_id, fence } => {
            Err(PinError::Superseded { run_id: run_id.into(), fence: fence.into() })
        }
        Found::Gone => Err(PinError::Released),
        Found::Lost => Err(PinError::Lost),
    }
}

/// The run holds the session, and no other run will before the transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pinned {
    /// The run's fencing token.
    pub fence: FencingToken,
    /// How long the lease lasts without a renewal, by the database's clock when it was pinned. `None` where the
    /// transaction's snapshot is older than the last renewal.
    pub remaining: Option<Duration>,
}

/// Why a lease was not pinned. Roll the transaction back: nothing in it is protected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// Another run has taken the session over.
    #[error("the session is another run's now ({run_id}, fence {fence}); roll back")]
    Superseded {
        /// That run.
        run_id: RunId,
        /// Its fence.
        fence: FencingToken,
    },
    /// The lease has expired, and nobody has taken the session over yet.
    #[error("the lease has expired; roll back")]
    Expired,
    /// No run holds the session: the lease was given back, or its row was removed after it had expired.
    #[error("the lease was given back, or has expired and was removed; roll back")]
    Released,
    /// The lease was given back or taken over after this transaction began; its snapshot cannot show which.
    #[error("the lease was given back or taken over since this transaction began; roll back")]
    Lost,
    /// The run has ended, by what its own process knows.
    #[error("the run has ended: {0}; roll back")]
    Ended(EndReason),
    /// This transaction is older than the lease's last renewal, and nothing in it can show whether the lease has expired.
    #[error(
        "this transaction's snapshot is too old to show the lease; roll back, and pin first thing in a new one"
    )]
    StaleSnapshot,
    /// No transaction is open on this connection: a pin would end with its own statement.
    #[error("no transaction is open on this connection; begin one, and pin in it")]
    NoTransaction,
    /// This database has no leases.
    #[error(
        "this database has no leases of tenure; pin in the database that holds them, or check the fence with \
         tenure::fence_gate ({0})"
    )]
    NoLeases(#[source] sqlx::Error),
    /// The database's own error; the transaction has failed. It proves nothing about the lease.
    #[error("the lease could not be pinned: {0}")]
    Database(#[source] sqlx::Error),
}

impl PinError {
    /// Whether it is certain that the run does not hold the session any more.
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
