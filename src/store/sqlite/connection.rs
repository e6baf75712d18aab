//! One open connection. It follows the path of its file, and hands each verb to the module with its SQL.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};

use super::{
    acquire, breaking,
    failure::Failure,
    file::{Access, DatabaseFile},
    history::{self, Presence},
    read, release, renew, schema,
    standing::{FileIdentity, OpenFiles, Standing},
    stop, sweep,
};
use crate::{
    history::PastRun,
    session::{Holder, SessionKey},
    store::{
        Acquire, AcquireOutcome, Bounds, BreakLease, BreakOutcome, HistoryPage, KeepHistory, LeaseConnection,
        MAX_BATCH, Page, Release, ReleaseOutcome, Renew, RenewOutcome, StopOutcome, StopRun, StoreError,
    },
    trace,
};

/// Writes leases. If that fails because of the history, writes them without it (invariant I12).
macro_rules! writing {
    ($sqlite:expr, $write:expr) => {
        match $write.await {
            Err(failure) => match history::set_aside(&mut $sqlite, failure).await {
                Ok(aside) => {
                    let again = $write.await;
                    aside.put_back(&mut $sqlite, again).await
                }
                Err(failure) => Err(failure),
            },
            done => done,
        }
    };
}

pub(super) struct Connection {
    pub(super) sqlite: SqliteConnection,
    file: DatabaseFile,
    bounds: Bounds,
    opened: Arc<OpenFiles>,
    only_looks: bool,
    history: Presence,
}

impl Connection {
    pub(super) async fn say_goodbye(self) {
        let _turn = self.file.turn_to_close().await;
        // All answers are already there. A failed close changes none of them.
        let _ = self.sqlite.close().await;
    }

    pub(super) async fn open(file: DatabaseFile, bounds: Bounds) -> Result<Self, Failure> {
        let there = file.there()?;
        let mut sqlite = options(&file, bounds.lock).connect().await?;
        match file.access() {
            Access::Create => drop(schema::ensure(&mut sqlite, KeepHistory::AsItIs).await?),
            Access::ReadWrite | Access::ReadOnly => drop(schema::check(&mut sqlite).await?),
        }
        if file.access() != Access::ReadOnly {
            accept_writes(&mut sqlite).await?;
        }
        if !schema::flush_less(&mut sqlite).await? {
            tracing::warn!(
                target: trace::STORE,
                database = %file,
                "the file does not use write-ahead logging: commits are slower"
            );
        }
        Self::of(sqlite, file, bounds, there)
    }

    /// `there` is the file that was at the path before the connection was opened.
    pub(super) fn of(
        sqlite: SqliteConnection,
        file: DatabaseFile,
        bounds: Bounds,
        there: Option<FileIdentity>,
    ) -> Result<Self, Failure> {
        let opened = file.opened(there)?;
        Ok(Self { sqlite, file, bounds, opened, only_looks: false, history: Presence::default() })
    }

    pub(super) fn only_looking(self) -> Self {
        Self { only_looks: true, ..self }
    }

    /// Continues with the file that is at the path now, because only that file grants leases (invariant I1). `false` if
    /// there is no file and `access` does not let it create one.
    async fn follow(&mut self, access: Access) -> Result<bool, StoreError> {
        let file = match access {
            Access::Create => self.file.clone(),
            Access::ReadWrite | Access::ReadOnly => self.file.without_creating(),
        };
        match self.look()? {
            Standing::Same => return Ok(true),
            Standing::Torn => return Err(self.file.torn()),
            Standing::Nothing if file.access() != Access::Create => return Ok(false),
            // This user may not be able to read the other file. The caller finds that out when it opens a new
            // connection.
            Standing::Nothing | Standing::Other if self.only_looks => return Err(self.file.replaced()),
            Standing::Nothing | Standing::Other => {}
        }
        tracing::warn!(
            target: trace::STORE,
            database = %self.file,
            "the file was removed or replaced while it was open"
        );
        let now = Self::open(file, self.bounds).await.map_err(|failure| failure.in_file(&self.file))?;
        *self = Self { file: self.file.clone(), ..now };
        Ok(true)
    }

    /// Like [`follow`](Self::follow), for a verb of a run. `false` also if the file has no schema, because then it
    /// certainly has no row of the run.
    async fn follow_runs(&mut self) -> Result<bool, StoreError> {
        match self.follow(Access::ReadWrite).await {
            Err(StoreError::SchemaMissing { .. }) => Ok(false),
            followed => followed,
        }
    }

    /// Like [`follow`](Self::follow), for all other verbs. They fail if there is no file.
    async fn follow_to_work(&mut self) -> Result<(), StoreError> {
        match self.follow(self.file.access()).await? {
            true => Ok(()),
            false => Err(self.file.removed()),
        }
    }

    /// Releases without writing the log back into the file. By default, the commit that finds the log long does so, with
    /// flushes that may take seconds on a busy disk. Here somebody waits whose program has ended; the next acquire or
    /// renewal writes the log back instead.
    async fn release_at_once(&mut self, items: &[Release]) -> Result<Vec<ReleaseOutcome>, Failure> {
        self.write_log_back_after(0).await?;
        let outcomes = release::release(&mut self.sqlite, &mut self.history, items).await;
        self.write_log_back_after(LONG_LOG).await?;
        outcomes
    }

    /// `pages` is the length of the log with which a commit on this connection writes the log back. Zero is never.
    async fn write_log_back_after(&mut self, pages: u32) -> Result<(), Failure> {
        let pragma = sqlx::AssertSqlSafe(format!("PRAGMA wal_autocheckpoint = {pages}"));
        sqlx::query(pragma).persistent(false).fetch_all(&mut self.sqlite).await?;
        Ok(())
    }

    pub(super) fn look(&self) -> Result<Standing, StoreError> {
        self.file.look(&self.opened)
    }

    /// Turns a failure into the contract's error. If the file is no longer at the path, the answer does not count:
    /// another process may already grant the same session in the new file (invariant I1).
    pub(super) fn answer<T>(&mut self, answer: Result<T, Failure>) -> Result<T, StoreError> {
        match self.look()? {
            Standing::Same => answer.map_err(|failure| failure.in_file(&self.file)),
            Standing::Torn => Err(self.file.torn()),
            Standing::Other | Standing::Nothing => Err(self.file.replaced()),
        }
    }
}

/// SQLite's own default, in pages.
const LONG_LOG: u32 = 1_000;

/// Fails if the file cannot be written. SQLite opens a write-protected file read-only and reports no error, so this
/// runs a write that matches no row.
pub(super) async fn accept_writes(sqlite: &mut SqliteConnection) -> Result<(), Failure> {
    match write_nothing(sqlite).await {
        Err(failure) if !failure.is_busy() => Err(failure),
        // If another connection is writing, the file can be written.
        _ => Ok(()),
    }
}

async fn write_nothing(sqlite: &mut SqliteConnection) -> Result<(), Failure> {
    writing!(*sqlite, delete_nothing(sqlite))
}

async fn delete_nothing(sqlite: &mut SqliteConnection) -> Result<(), Failure> {
    sqlx::query("DELETE FROM tenure_session_lease WHERE false").execute(sqlite).await?;
    Ok(())
}

// Every write is read to its end with `fetch_all` or `execute`. sqlx's `fetch_one` and `fetch_optional` reset the
// statement after its first row and ignore the result, so that a failed commit would look like a success.
impl LeaseConnection for Connection {
    fn acquire<'a>(
        &'a mut self,
        items: &'a [Acquire],
    ) -> BoxFuture<'a, Result<Vec<AcquireOutcome>, StoreError>> {
        Box::pin(async move {
            self.follow_to_work().await?;
            let outcomes = writing!(self.sqlite, acquire::acquire(&mut self.sqlite, items));
            self.answer(outcomes)
        })
    }

    fn renew<'a>(&'a mut self, items: &'a [Renew]) -> BoxFuture<'a, Result<Vec<RenewOutcome>, StoreError>> {
        Box::pin(async move {
            if !self.follow_runs().await? {
                return Err(self.file.removed());
            }
            let outcomes = writing!(self.sqlite, renew::renew(&mut self.sqlite, items));
            self.answer(outcomes)
        })
    }

    fn release<'a>(
        &'a mut self,
        items: &'a [Release],
    ) -> BoxFuture<'a, Result<Vec<ReleaseOutcome>, StoreError>> {
        Box::pin(async move {
            if !self.follow_runs().await? {
                return Ok(vec![ReleaseOutcome::NotFound; items.len()]);
            }
            let outcomes = writing!(self.sqlite, self.release_at_once(items));
            self.answer(outcomes)
        })
    }

    fn request_stop<'a>(&'a mut self, item: &'a StopRun) -> BoxFuture<'a, Result<StopOutcome, StoreError>> {
        Box::pin(async move {
            self.follow_to_work().await?;
            let outcome = stop::request(&mut self.sqlite, item).await;
            self.answer(outcome)
        })
    }

    fn break_lease<'a>(
        &'a mut self,
        item: &'a BreakLease,
    ) -> BoxFuture<'a, Result<BreakOutcome, StoreError>> {
        Box::pin(async move {
            self.follow_to_work().await?;
            let outcome =
                writing!(self.sqlite, breaking::break_lease(&mut self.sqlite, &mut self.history, item));
            self.answer(outcome)
        })
    }

    fn history<'a>(
        &'a mut self,
        page: &'a HistoryPage,
    ) -> BoxFuture<'a, Result<Option<Vec<PastRun>>, StoreError>> {
        Box::pin(async move {
            self.follow_to_work().await?;
            let runs = history::history(&mut self.sqlite, page).await;
            self.answer(runs)
        })
    }

    fn sweep_history(&mut self, keep: Duration, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            self.follow_to_work().await?;
            let deleted = history::sweep(&mut self.sqlite, keep, limit).await;
            self.answer(deleted)
        })
    }

    fn inspect<'a>(
        &'a mut self,
        keys: &'a [SessionKey],
    ) -> BoxFuture<'a, Result<Vec<Option<Holder>>, StoreError>> {
        Box::pin(async move {
            self.follow_to_work().await?;
            let holders = read::inspect(&mut self.sqlite, keys).await;
            self.answer(holders)
        })
    }

    fn list<'a>(
        &'a mut self,
        page: &'a Page,
    ) -> BoxFuture<'a, Result<Vec<(SessionKey, Holder)>, StoreError>> {
        Box::pin(async move {
            self.follow_to_work().await?;
            let holders = read::list(&mut self.sqlite, page).await;
            self.answer(holders)
        })
    }

    fn sweep(&mut self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            self.follow_to_work().await?;
            let deleted = writing!(self.sqlite, sweep::sweep(&mut self.sqlite, limit));
            self.answer(deleted)
        })
    }

    fn probe(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            self.follow_to_work().await?;
            let usable = async {
                schema::check(&mut self.sqlite).await?;
                if self.file.access() == Access::ReadOnly {
                    return Ok(());
                }
                // Unlike in `open`, a busy file is a failure here: a writer that takes so long delays a grant, too.
                write_nothing(&mut self.sqlite).await
            };
            let usable = usable.await;
            self.answer(usable)
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.say_goodbye().await;
        })
    }
}

pub(super) fn options(file: &DatabaseFile, lock_timeout: Duration) -> SqliteConnectOptions {
    // sqlx panics if the milliseconds do not fit an i32.
    const LONGEST: Duration = Duration::from_secs(24 * 3600);
    SqliteConnectOptions::new()
        .filename(file.path())
        .read_only(file.access() == Access::ReadOnly)
        .create_if_missing(file.access() == Access::Create)
        .busy_timeout(lock_timeout.min(LONGEST))
        // A statement commits when sqlx has buffered its last row. With room for all rows of a batch, the statement
        // never holds the write lock while it waits for the task that reads the rows.
        .row_buffer_size(2 * MAX_BATCH)
        .disable_statement_logging()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        session::{Label, NodeId, RunId, RunPhase},
        store::SWEEP_AFTER,
    };

    const BOUNDS: Bounds = Bounds { statement: Duration::from_secs(5), lock: Duration::from_secs(5) };

    async fn new_file() -> (tempfile::TempDir, Connection) {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", dir.path().join("t.db").display());
        let connection = Connection::open(DatabaseFile::from_url(&url).unwrap(), BOUNDS).await.unwrap();
        (dir, connection)
    }

    fn acquires(count: usize) -> Vec<Acquire> {
        let item = |n| Acquire {
            key: SessionKey::new("acct", format!("chat-{n}")).unwrap(),
            run_id: RunId::random(),
            node: NodeId::random(),
            label: Label::new("x".repeat(255)).unwrap(),
            phase: RunPhase::default(),
            ttl: Duration::from_secs(30),
            limit_per_account: None,
        };
        (0..count).map(item).collect()
    }

    #[tokio::test]
    async fn a_full_disk_grants_nothing_and_names_the_remedy() {
        let (_dir, mut connection) = new_file().await;
        sqlx::raw_sql("PRAGMA max_page_count = 10").execute(&mut connection.sqlite).await.unwrap();
        let items = acquires(MAX_BATCH);
        let full = connection.acquire(&items).await.unwrap_err();
        assert!(full.is_uncertain() && full.to_string().contains("free some disk space"), "{full}");

        sqlx::raw_sql("PRAGMA max_page_count = 10000").execute(&mut connection.sqlite).await.unwrap();
        let keys: Vec<_> = items.iter().map(|item| item.key.clone()).collect();
        assert!(connection.inspect(&keys).await.unwrap().iter().all(Option::is_none));
        let outcomes = connection.acquire(&items).await.unwrap();
        assert!(outcomes.iter().all(|outcome| matches!(outcome, AcquireOutcome::Granted(_))));
    }

    #[tokio::test]
    async fn a_release_leaves_a_long_log_to_the_next_acquire() {
        let (dir, mut connection) = new_file().await;
        let written_back = || std::fs::metadata(dir.path().join("t.db")).unwrap().len();
        let item = acquires(1).remove(0);
        connection.acquire(std::slice::from_ref(&item)).await.unwrap();
        connection.write_log_back_after(0).await.unwrap();
        let fill = "CREATE TABLE filler (data BLOB); INSERT INTO filler VALUES (zeroblob(6000000));";
        sqlx::raw_sql(fill).execute(&mut connection.sqlite).await.unwrap();
        let before = written_back();
        let released = connection
            .release(&[Release { key: item.key, run_id: item.run_id, reason: None }])
            .await
            .unwrap();
        assert_eq!((released, written_back()), (vec![ReleaseOutcome::Released], before));
        connection.acquire(&acquires(1)).await.unwrap();
        assert!(written_back() > before);
    }

    #[tokio::test]
    async fn a_sweep_is_bounded_and_spares_what_expired_within_the_hour() {
        let (_dir, mut connection) = new_file().await;
        connection.acquire(&acquires(10)).await.unwrap();
        let expired_for = |seconds: u64| {
            let sql =
                format!("UPDATE tenure_session_lease SET expires_at = (unixepoch() - {seconds}) * 1000");
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
        };
        expired_for(SWEEP_AFTER.as_secs() - 60).execute(&mut connection.sqlite).await.unwrap();
        assert_eq!(connection.sweep(100).await.unwrap(), 0);
        expired_for(SWEEP_AFTER.as_secs() + 1).execute(&mut connection.sqlite).await.unwrap();
        let mut swept = Vec::new();
        for _ in 0..4 {
            swept.push(connection.sweep(4).await.unwrap());
        }
        assert_eq!(swept, [4, 4, 2, 0]);
    }

    #[tokio::test]
    async fn no_batch_scans_the_table() {
        let (_dir, mut connection) = new_file().await;
        for verb in [
            acquire::REFUSE,
            acquire::GRANT,
            renew::EXTEND,
            renew::EXPLAIN,
            release::RELEASE,
            sweep::SWEEP,
            read::INSPECT,
            stop::STOP,
        ] {
            let plan: Vec<(i64, i64, i64, String)> =
                sqlx::query_as(sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {verb}")))
                    .bind("[]")
                    .fetch_all(&mut connection.sqlite)
                    .await
                    .unwrap();
            let scans =
                |step: &str| step.starts_with("SCAN lease") || step.starts_with("SCAN tenure_session");
            assert!(!plan.iter().any(|(.., step)| scans(step)), "{verb}: {plan:?}");
        }
    }
}
