//! The connection that only reads a file, also for a user who may not write it.
//!
//! To read a file with a write-ahead log, SQLite needs the log and its shared memory beside the file. While any process
//! has the database open, both exist and can be read. The last connection to close removes them, and then the file
//! itself has everything. A user who may not create them again reads the file as an unchanging one (`immutable`). After
//! each such read, the store checks that the file has not changed and that no log has appeared. So it shows nothing
//! that was not true.

use std::{
    io,
    time::{Duration, SystemTime},
};

use futures::future::BoxFuture;
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};

use super::{
    connection::{Connection, options},
    failure::Failure,
    file::DatabaseFile,
    history, read, schema,
    standing::FileIdentity,
};
use crate::{
    history::PastRun,
    session::{Holder, SessionKey},
    store::{
        Acquire, AcquireOutcome, Bounds, BreakLease, BreakOutcome, HistoryPage, LeaseConnection, Page,
        Release, ReleaseOutcome, Renew, RenewOutcome, StopOutcome, StopRun, StoreError,
    },
};

pub(super) async fn open(file: &DatabaseFile, bounds: Bounds) -> Result<Box<dyn LeaseConnection>, Failure> {
    let there = file.there()?;
    match open_with_log(file, bounds).await {
        Ok(sqlite) => {
            let connection = Connection::of(sqlite, file.without_creating(), bounds, there)?;
            Ok(Box::new(connection.only_looking()))
        }
        Err(failure) if failure.is_denied() && file.path().exists() => {
            let unchanging = Unchanging { file: file.clone(), bounds };
            unchanging.check().await?;
            Ok(Box::new(unchanging))
        }
        Err(failure) => Err(failure),
    }
}

async fn open_with_log(file: &DatabaseFile, bounds: Bounds) -> Result<SqliteConnection, Failure> {
    let mut sqlite = options(file, bounds.lock).create_if_missing(false).connect().await?;
    schema::check(&mut sqlite).await?;
    Ok(sqlite)
}

/// A file without a log. Each read opens it again, because there may be a log by then.
struct Unchanging {
    file: DatabaseFile,
    bounds: Bounds,
}

/// The properties of the file that change when another process writes.
#[derive(PartialEq, Eq)]
struct FileState {
    identity: Option<FileIdentity>,
    length: u64,
    modified: SystemTime,
    log: bool,
}

/// How many times a read is tried if other processes write in the meantime.
const ATTEMPTS: usize = 5;

/// One read, and the state of the file just before it.
struct FileLook {
    sqlite: SqliteConnection,
    before: FileState,
}

impl Unchanging {
    async fn seen(&self, keys: &[SessionKey]) -> Result<Vec<Option<Holder>>, Failure> {
        for _ in 0..ATTEMPTS {
            let mut look = self.begin().await?;
            let seen = read::inspect(&mut look.sqlite, keys).await;
            if self.is_certain(look).await? {
                return seen;
            }
        }
        Err(changing())
    }

    async fn listed(&self, page: &Page) -> Result<Vec<(SessionKey, Holder)>, Failure> {
        for _ in 0..ATTEMPTS {
            let mut look = self.begin().await?;
            let seen = read::list(&mut look.sqlite, page).await;
            if self.is_certain(look).await? {
                return seen;
            }
        }
        Err(changing())
    }

    async fn past(&self, page: &HistoryPage) -> Result<Option<Vec<PastRun>>, Failure> {
        for _ in 0..ATTEMPTS {
            let mut look = self.begin().await?;
            let seen = history::history(&mut look.sqlite, page).await;
            if self.is_certain(look).await? {
                return seen;
            }
        }
        Err(changing())
    }

    async fn check(&self) -> Result<(), Failure> {
        for _ in 0..ATTEMPTS {
            let mut look = self.begin().await?;
            let seen = schema::check(&mut look.sqlite).await.map(drop);
            if self.is_certain(look).await? {
                return seen;
            }
        }
        Err(changing())
    }

    async fn begin(&self) -> Result<FileLook, Failure> {
        let before = self.state()?;
        if before.log {
            match open_with_log(&self.file, self.bounds).await {
                Ok(sqlite) => return Ok(FileLook { sqlite, before }),
                // The log was removed in the meantime. The file itself has everything.
                Err(failure) if failure.is_denied() && !self.state()?.log => {}
                Err(failure) => return Err(failure),
            }
        }
        let options = options(&self.file, self.bounds.lock).create_if_missing(false);
        let sqlite = options.read_only(true).immutable(true).connect().await?;
        Ok(FileLook { sqlite, before: FileState { log: false, ..before } })
    }

    /// Whether no process wrote during the read.
    async fn is_certain(&self, FileLook { sqlite, before }: FileLook) -> Result<bool, Failure> {
        // Nothing is left to write, so an error here does not matter.
        let _ = sqlite.close().await;
        Ok(before.log || self.state()? == before)
    }

    fn state(&self) -> Result<FileState, Failure> {
        let state = || -> io::Result<FileState> {
            let found = std::fs::metadata(self.file.path())?;
            let (length, modified) = (found.len(), found.modified()?);
            Ok(FileState { identity: self.file.identity()?, length, modified, log: self.file.has_log() })
        };
        state().map_err(|error| Failure::Sql(sqlx::Error::Io(error)))
    }

    fn denied<T>(&self) -> BoxFuture<'_, Result<T, StoreError>>
    where
        T: Send,
    {
        let error = StoreError::PermissionDenied {
            location: self.file.location().to_owned(),
            detail: "this connection only reads; let this user write the file and its directory".to_owned(),
        };
        Box::pin(async move { Err(error) })
    }
}

fn changing() -> Failure {
    Failure::Unreadable("another process wrote to the file during each read; try again".to_owned())
}

impl LeaseConnection for Unchanging {
    fn acquire<'a>(&'a mut self, _: &'a [Acquire]) -> BoxFuture<'a, Result<Vec<AcquireOutcome>, StoreError>> {
        self.denied()
    }

    fn renew<'a>(&'a mut self, _: &'a [Renew]) -> BoxFuture<'a, Result<Vec<RenewOutcome>, StoreError>> {
        self.denied()
    }

    fn release<'a>(&'a mut self, _: &'a [Release]) -> BoxFuture<'a, Result<Vec<ReleaseOutcome>, StoreError>> {
        self.denied()
    }

    fn request_stop<'a>(&'a mut self, _: &'a StopRun) -> BoxFuture<'a, Result<StopOutcome, StoreError>> {
        self.denied()
    }

    fn break_lease<'a>(&'a mut self, _: &'a BreakLease) -> BoxFuture<'a, Result<BreakOutcome, StoreError>> {
        self.denied()
    }

    fn history<'a>(
        &'a mut self,
        page: &'a HistoryPage,
    ) -> BoxFuture<'a, Result<Option<Vec<PastRun>>, StoreError>> {
        Box::pin(async move { self.past(page).await.map_err(|failure| failure.in_file(&self.file)) })
    }

    fn sweep_history(&mut self, _: Duration, _: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.denied()
    }

    fn inspect<'a>(
        &'a mut self,
        keys: &'a [SessionKey],
    ) -> BoxFuture<'a, Result<Vec<Option<Holder>>, StoreError>> {
        Box::pin(async move { self.seen(keys).await.map_err(|failure| failure.in_file(&self.file)) })
    }

    fn list<'a>(
        &'a mut self,
        page: &'a Page,
    ) -> BoxFuture<'a, Result<Vec<(SessionKey, Holder)>, StoreError>> {
        Box::pin(async move { self.listed(page).await.map_err(|failure| failure.in_file(&self.file)) })
    }

    fn sweep(&mut self, _: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.denied()
    }

    fn probe(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { self.check().await.map_err(|failure| failure.in_file(&self.file)) })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}
