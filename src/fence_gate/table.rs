//! A gate in a table beside the data that it guards. It is asked in the caller's transaction.

use super::Refused;
use crate::{
    host::{HostConnection, is_without_table, sql},
    session::{FencingToken, SessionKey},
};

/// The table that [`admit`] needs on PostgreSQL, for the host's own migrations. It belongs in the database of the
/// resource, in a schema of the role's `search_path`.
#[cfg(feature = "postgres")]
pub const POSTGRES_TABLE: &str = include_str!("postgres_table.sql");

/// The statement of [`admit`] on PostgreSQL. `$1` account, `$2` session, `$3` fence. It returns one row: `seen bigint`.
///
/// If `seen` is greater than the fence, the writer is late: roll back. The statement must run in the transaction that
/// writes. That transaction holds the row until it ends, and later runs wait for it. Other transactions of the same run
/// do not wait once the first one has committed. The role needs SELECT, INSERT and UPDATE on the table. In repeatable
/// read and serializable, SQLSTATE 40001 means that the transaction has to be repeated.
#[cfg(feature = "postgres")]
pub const POSTGRES: &str = sql::REMEMBER_POSTGRES;

/// The table that [`admit`] needs on SQLite, for the host's own migrations. It belongs in the file of the resource.
#[cfg(feature = "sqlite")]
pub const SQLITE_TABLE: &str = include_str!("sqlite_table.sql");

/// The statement of [`admit`] on SQLite. `?1` account, `?2` session, `?3` fence. It returns one row: `seen`.
///
/// If `seen` is greater than the fence, the writer is late: roll back. The statement must run in the transaction that
/// writes, and makes that transaction the file's only writer. Begin the transaction with `BEGIN IMMEDIATE`.
#[cfg(feature = "sqlite")]
pub const SQLITE: &str = sql::REMEMBER_SQLITE;

/// Admits a write to the database of this connection, in the transaction that makes the write. This takes one
/// statement.
///
/// Once it has returned, no later run is admitted until the transaction ends. Once the transaction has committed, no
/// earlier run is ever admitted. So the writes of a session are in the order of its runs. The host creates the table:
/// see the constants of this module.
///
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # async fn example(pool: sqlx::PgPool, key: tenure::SessionKey, fence: tenure::FencingToken)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin().await?;
/// tenure::fence_gate::admit(&mut *tx, &key, fence).await?;
/// sqlx::query("UPDATE document SET text = $1").bind("…").execute(&mut *tx).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`GateError`]: roll back.
///
/// # Cancel safety
/// As with every query of sqlx: if you drop the future, drop the transaction too.
pub async fn admit<C: HostConnection + ?Sized>(
    connection: &mut C,
    key: &SessionKey,
    fence: FencingToken,
) -> Result<(), GateError> {
    if !connection.is_in_transaction().await? {
        return Err(GateError::NoTransaction);
    }
    let seen = connection.remember(key, fence).await?;
    if seen > fence { Err(Refused::Late { fence, seen }.into()) } else { Ok(()) }
}

/// Why a write was not admitted by a table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// The write is late.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// No transaction is open on this connection. The write would not be guarded.
    #[error("no transaction is open on this connection; begin one, and write in it")]
    NoTransaction,
    /// The table is missing.
    #[error(
        "the table tenure_fence_gate is missing; add tenure::fence_gate::POSTGRES_TABLE or SQLITE_TABLE to the \
         migrations of this database ({0})"
    )]
    NoTable(#[source] sqlx::Error),
    /// An error of the database. The transaction has failed. This proves nothing about the fence.
    #[error("the fence could not be checked: {0}")]
    Database(#[source] sqlx::Error),
}

impl From<sqlx::Error> for GateError {
    fn from(error: sqlx::Error) -> Self {
        if is_without_table(&error) { Self::NoTable(error) } else { Self::Database(error) }
    }
}
