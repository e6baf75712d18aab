//! Connections of the host application on which it has a transaction open.

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

/// A connection of the host application: a `PgConnection` or `SqliteConnection` of sqlx, such as `&mut *transaction`.
///
/// tenure's statements on this connection become a part of its open transaction. Without an open transaction they are
/// refused. This trait is sealed.
pub trait HostConnection: sealed::Statements {}

pub(crate) mod sealed {
    use std::time::Duration;

    use futures::future::BoxFuture;
    use uuid::Uuid;

    use crate::session::{FencingToken, RunId, SessionKey};

    /// What a transaction of the host finds out about a run.
    #[derive(Debug)]
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "a writer sees everything"))]
    pub enum FoundRun {
        /// The run holds the session, and `remaining` is left of its lease by the database's clock.
        Pinned {
            fence: FencingToken,
            remaining: Duration,
        },
        /// No other run has the session, or can have it before the transaction ends. This transaction cannot see
        /// whether the lease has expired.
        Unsure {
            fence: FencingToken,
        },
        Expired,
        Superseded {
            run_id: Uuid,
            fence: FencingToken,
        },
        /// There is no row.
        Gone,
        /// Superseded or gone since the transaction's snapshot was taken.
        Lost,
    }

    /// What each backend can do in a transaction of the host.
    pub trait Statements: Send {
        /// Whether nobody else can write while the transaction is open. That stops renewals too.
        const IS_ONLY_WRITER: bool;

        fn is_in_transaction(&mut self) -> BoxFuture<'_, Result<bool, sqlx::Error>>;

        /// `schema` is for PostgreSQL only.
        fn pin<'a>(
            &'a mut self,
            key: &'a SessionKey,
            run_id: RunId,
            schema: &'a str,
        ) -> BoxFuture<'a, Result<FoundRun, sqlx::Error>>;

        /// Remembers the fence, unless a greater one is known. Returns the greatest.
        fn remember<'a>(
            &'a mut self,
            key: &'a SessionKey,
            fence: FencingToken,
        ) -> BoxFuture<'a, Result<FencingToken, sqlx::Error>>;
    }
}

pub(crate) use sealed::FoundRun;

use crate::session::FencingToken;

/// The schema that holds the leases on PostgreSQL, unless the database's URL names another.
pub(crate) const SCHEMA: &str = "tenure";

/// The statements. Hosts with other drivers can send them too: [`pin`](crate::pin) and
/// [`fence_gate`](crate::fence_gate) publish them, and say what they promise.
pub(crate) mod sql {
    pub(crate) const PIN_POSTGRES: &str = include_str!("store/postgres/pin.sql");
    pub(crate) const PIN_SQLITE: &str = include_str!("store/sqlite/pin.sql");
    #[cfg(feature = "postgres")]
    pub(crate) const REMEMBER_POSTGRES: &str = include_str!("fence_gate/postgres.sql");
    #[cfg(feature = "sqlite")]
    pub(crate) const REMEMBER_SQLITE: &str = include_str!("fence_gate/sqlite.sql");

    /// [`PIN_POSTGRES`] for leases in a schema of any name.
    pub(crate) fn pin_postgres_in(schema: &str) -> String {
        let quoted = format!("\"{}\".session_lease", schema.replace('"', "\"\""));
        PIN_POSTGRES.replace("tenure.session_lease", &quoted)
    }
}

/// A fence that the database has read.
pub(crate) fn fence<'r, R: sqlx::Row>(row: &'r R, column: &'static str) -> Result<FencingToken, sqlx::Error>
where
    &'static str: sqlx::ColumnIndex<R>,
    i64: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
{
    FencingToken::new(row.try_get(column)?).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

/// Whether the database has no such table.
pub(crate) fn is_without_table(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| {
        // 42P01: undefined_table, 3F000: invalid_schema_name. SQLite has no code of its own for this, only the text.
        matches!(error.code().as_deref(), Some("42P01" | "3F000"))
            || error.message().starts_with("no such table")
    })
}
