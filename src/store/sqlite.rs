//! Leases in one SQLite file: the embedded authority for the processes of one machine.
//!
//! Each verb is one statement or a few, and each statement is its own transaction. A write takes SQLite's one write
//! lock when it begins. So it sees the latest state, and nothing changes while it runs. The items are sent as one JSON
//! array, and `json_each` turns them into rows.
//!
//! The clock is `CAST(round(unixepoch('subsec') * 1000) AS INTEGER)`: integer milliseconds since 1970. SQLite reads it
//! at most once for each row that a statement returns. A write reads it after it has got the write lock, and writes all
//! its rows before it returns the first one.

use std::{path::Path, time::Duration};

use futures::future::BoxFuture;
use sqlx::{ConnectOptions as _, Connection as _};

use self::{
    connection::{Connection, options},
    failure::Failure,
    file::DatabaseFile,
};
use super::{Bounds, KeepHistory, LeaseConnection, LeaseStore, Listener, Listening, Migrated, StoreError};
use crate::session::NodeId;

mod acquire;
mod batch;
mod breaking;
mod changes;
mod connection;
#[cfg(feature = "diagnosis")]
mod examine;
mod failure;
mod file;
mod history;
mod look;
#[cfg(unix)]
mod names;
mod read;
mod release;
mod renew;
mod row;
mod schema;
mod standing;
mod stop;
mod swallow;
mod sweep;
mod url;

#[cfg(test)]
pub(super) use schema::SCHEMA;

/// Leases in a SQLite file, for the processes of one machine.
///
/// The URL is `sqlite://PATH`, `sqlite:PATH` or `sqlite:///ABSOLUTE/PATH`. Characters that are special in a URL (`?`,
/// `%`) are percent-encoded. `~/` at the beginning of the path is the home directory. The option `mode` says what the
/// store may create:
///
/// | `mode` | file | schema |
/// |---|---|---|
/// | `rwc` (default) | created, but not its directory | applied by the first connection |
/// | `rw` | must exist | must exist, or be applied by [`migrate`](LeaseStore::migrate) |
/// | `ro` | must exist | must exist; only inspect and list work |
///
/// The file may be the host application's own, because all names begin with `tenure_`. But a separate file is better:
/// SQLite has one writer at a time, and a long write transaction of the application would delay the renewals.
///
/// - The store switches the file to write-ahead logging. The file's directory must be on a local disk, because SQLite's
///   locks do not work over network file systems.
/// - `synchronous` is `NORMAL`. A process that crashes loses nothing. A power failure may lose the last commits, but it
///   also ends every holder on the machine.
/// - The clock is the machine's wall clock. If the clock steps, every lease expires earlier or later than it would
///   have. No step moves a fence back.
/// - The file must have only one name. The store refuses a file with a second hard link, and a single file that is
///   mounted outside its directory. SQLite keeps a log for each name, and the log of one name does not show what was
///   granted under the other. A symbolic link to the file is no second name, and neither is a directory that is mounted
///   twice.
/// - A connection follows its path. If the file was removed, moved or replaced while it was open, the next call uses
///   the file that is there now. A run without a row in that file is lost, at its next renewal at the latest.
/// - All runs are lost ([`StoreError::Lost`]) if the log or the shared memory beside the file (`-wal`, `-shm`) is
///   removed while it is in use, or if the file is replaced without them. After that nothing is granted until every
///   process that has the file open has closed it.
///
/// ```no_run
/// # use tenure::store::{LeaseStore, SqliteStore};
/// let store = SqliteStore::new("sqlite:///var/lib/agent/tenure.db")?;
/// assert_eq!(store.location(), "/var/lib/agent/tenure.db");
/// # Ok::<(), tenure::store::StoreError>(())
/// ```
#[derive(Debug, Clone)]
pub struct SqliteStore {
    file: DatabaseFile,
}

impl SqliteStore {
    /// Checks the URL. This touches no file.
    ///
    /// # Errors
    /// [`StoreError::Url`] when the URL does not name a SQLite file.
    pub fn new(url: &str) -> Result<Self, StoreError> {
        DatabaseFile::from_url(url).map(|file| Self { file })
    }

    /// The same store for a program that only reads. It creates neither the file nor its schema, whatever the URL says.
    pub fn without_creating(self) -> Self {
        Self { file: self.file.without_creating() }
    }

    #[cfg(feature = "diagnosis")]
    pub(crate) async fn examine(
        &self,
        plan: super::finding::ExaminationPlan,
    ) -> Vec<super::finding::Finding> {
        examine::examine(&self.file, plan).await
    }

    /// The file, as an absolute path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

impl LeaseStore for SqliteStore {
    fn connect(&self, bounds: Bounds) -> BoxFuture<'static, Result<Box<dyn LeaseConnection>, StoreError>> {
        let file = self.file.clone();
        Box::pin(async move {
            match Connection::open(file.clone(), bounds).await {
                Ok(connection) => Ok(Box::new(connection) as Box<dyn LeaseConnection>),
                Err(failure) => Err(failure.in_file(&file)),
            }
        })
    }

    fn connect_to_look(
        &self,
        bounds: Bounds,
    ) -> BoxFuture<'static, Result<Box<dyn LeaseConnection>, StoreError>> {
        let file = self.file.clone();
        Box::pin(async move { look::open(&file, bounds).await.map_err(|failure| failure.in_file(&file)) })
    }

    fn migrate(&self) -> BoxFuture<'static, Result<Migrated, StoreError>> {
        self.migrate_with(KeepHistory::AsItIs)
    }

    fn migrate_with(&self, history: KeepHistory) -> BoxFuture<'static, Result<Migrated, StoreError>> {
        let file = self.file.clone();
        Box::pin(async move { migrate(&file, history).await.map_err(|failure| failure.in_file(&file)) })
    }

    /// No server reports a change, so the listener looks at the file four times a second.
    fn listen(&self, _: NodeId, _: Bounds) -> Option<Listening> {
        let file = self.file.clone();
        Some(Box::pin(async move { Ok(Box::new(changes::Changes::of(file)) as Box<dyn Listener>) }))
    }

    fn schema(&self) -> String {
        self.schema_with(KeepHistory::AsItIs)
    }

    fn schema_with(&self, history: KeepHistory) -> String {
        schema::script(history)
    }

    fn location(&self) -> &str {
        self.file.location()
    }
}

/// How long each statement of a migration waits for the write lock.
const MIGRATION_LOCK_TIMEOUT: Duration = Duration::from_secs(5);

async fn migrate(file: &DatabaseFile, history: KeepHistory) -> Result<Migrated, Failure> {
    file.there()?;
    let mut sqlite = options(file, MIGRATION_LOCK_TIMEOUT).connect().await?;
    let migrated = schema::ensure(&mut sqlite, history).await?;
    sqlite.close().await?;
    Ok(migrated)
}
