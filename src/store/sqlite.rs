//! Leases in one SQLite file: the embedded authority for the processes of one machine.
//!
//! Every verb is one or a few single statements. A write takes SQLite's one write lock when it begins. So it sees the
//! latest state, and nothing changes while it runs. Items travel as JSON and are spread by `json_each`.
//!
//! The clock is `CAST(round(unixepoch('subsec') * 1000) AS INTEGER)`: integer milliseconds since 1970. SQLite reads it at
//! most once while a statement works towards its next row. A write reads it only when it has got the write lock, and
//! writes all its rows before it returns the first one.

use std::{path::Path, time::Duration};

use futures::future::BoxFuture;
use sqlx::{ConnectOptions as _, Connection as _};

use self::{
    connection::{Connection, options},
    failure::Failure,
    file::DatabaseFile,
};
use super::{Bounds, LeaseConnection, LeaseStore, Listener, Listening, Migrated, StoreError};
use crate::session::NodeId;

mod acquire;
mod batch;
mod changes;
mod connection;
#[cfg(feature = "diagnosis")]
mod examine;
mod failure;
mod file;
mod look;
#[cfg(unix)]
mod names;
mod read;
mod remove;
mod renew;
mod row;
mod schema;
mod standing;
mod stop;
mod swallow;
mod url;

#[cfg(test)]
pub(super) use schema::SCHEMA;

/// Leases in a SQLite file, for the processes of one machine.
///
/// The URL is `sqlite://PATH`, `sqlite:PATH` or `sqlite:///ABSOLUTE/PATH`. Characters that are special in a URL (`?`, `%`)
/// are percent-encoded, and `~/` at the beginning of the path is the home directory. The option `mode` says what may be
/// created:
///
/// | `mode` | file | schema |
/// |---|---|---|
/// | `rwc` (default) | created, but not its directory | applied by the first connection |
/// | `rw` | must be there | must be there, or be applied by [`migrate`](LeaseStore::migrate) |
/// | `ro` | must be there | must be there; only inspect and list work |
///
/// The file may be the host application's own: all names begin with `tenure_`. But a separate file is better. SQLite has one
/// writer at a time, and a long write transaction of the application would hold up the renewals.
///
/// - The file is switched to write-ahead logging. Its directory must be on a local disk: SQLite's locks do not
///   work over network file systems.
/// - `synchronous` is `NORMAL`. A crashed process loses nothing. A power loss may take the last commits, but it also ends
///   every holder on the machine.
/// - The clock is the machine's wall clock. Stepping it moves every lease, but never a fence back.
/// - The file must have one name. One with a second hard link, or one that is mounted as a single file away from its
///   directory, is refused: SQLite keeps a log for each name, and neither shows what was granted under the other. A
///   symbolic link to the file, and a directory that is mounted in two places, are no second names.
/// - A connection follows its path. When the file was removed, moved or replaced while it was open, the next call works
///   with what stands there now. A run without a row in it is lost, at its next renewal at the latest. All runs are lost
///   when the log or the shared memory beside the file (`-wal`, `-shm`) was removed while it was in use, or the file was
///   replaced and they were not ([`StoreError::Lost`]); then nothing is granted until every process that has the file open has closed it.
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
    /// Checks the URL. Touches no file.
    ///
    /// # Errors
    /// [`StoreError::Url`] when the URL does not name a SQLite file.
    pub fn new(url: &str) -> Result<Self, StoreError> {
        DatabaseFile::from_url(url).map(|file| Self { file })
    }

    /// The same store for those who only look. It creates neither the file nor its schema, whatever the URL says.
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
        let file = self.file.clone();
        Box::pin(async move { migrate(&file).await.map_err(|failure| failure.in_file(&file)) })
    }

    /// There is no server that tells of a change, so the file is looked at four times a second.
    fn listen(&self, _: NodeId, _: Bounds) -> Option<Listening> {
        let file = self.file.clone();
        Some(Box::pin(async move { Ok(Box::new(changes::Changes::of(file)) as Box<dyn Listener>) }))
    }

    fn schema(&self) -> String {
        schema::script()
    }

    fn location(&self) -> &str {
        self.file.location()
    }
}

/// How long a migration waits for the write lock at a time.
const MIGRATION_LOCK_TIMEOUT: Duration = Duration::from_secs(5);

async fn migrate(file: &DatabaseFile) -> Result<Migrated, Failure> {
    file.there()?;
    let mut sqlite = options(file, MIGRATION_LOCK_TIMEOUT).connect().await?;
    let migrated = schema::ensure(&mut sqlite).await?;
    sqlite.close().await?;
    Ok(migrated)
}
