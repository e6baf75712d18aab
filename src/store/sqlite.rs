//! Leases in one SQLite file: the embedded authority for the processes of one machine.
//!
//! Every verb is one or a few single statements. A write takes SQLite's one write lock when it begins, so it
//! sees the latest state, and nothing changes under it. Items travel as JSON and are spread by `json_each`.
//!
//! The clock is `CAST(round(unixepoch('subsec') * 1000) AS INTEGER)`: integer milliseconds since 1970. SQLite
//! reads it at most once while a statement works towards its next row, and for a write only after it has got
//! the write lock; all rows of a write are written before its first row is returned.

use std::{path::Path, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};

use self::{
    failure::Failure,
    file::{Access, DatabaseFile},
    standing::{Identity, Opened, Standing},
};
use super::{
    Acquire, AcquireOutcome, Bounds, LeaseConnection, LeaseStore, Listening, MAX_BATCH, Migrated, Page,
    Release, ReleaseOutcome, Renew, RenewOutcome, StopOutcome, StopRun, StoreError,
};
use crate::session::{Holder, NodeId, SessionKey};

mod acquire;
mod changes;
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

/// Leases in a SQLite file, for the processes of one machine.
///
/// The URL is `sqlite://PATH`, `sqlite:PATH` or `sqlite:///ABSOLUTE/PATH`; what would be special in a URL
/// (`?`, `%`) is percent-encoded, and `~/` at the beginning of the path is the home directory. The option `mode` says what may be created:
///
/// | `mode` | file | schema |
/// |---|---|---|
/// | `rwc` (default) | created, but not its directory | applied by the first connection |
/// | `rw` | must be there | must be there, or be applied by [`migrate`](LeaseStore::migrate) |
/// | `ro` | must be there | must be there; only inspect and list work |
///
/// The file may be the host application's own: all names begin with `tenure_`. A file of its own is better,
/// because SQLite knows one writer at a time, and a long write transaction of the application would hold up
/// the renewals.
///
/// - The file is switched to write-ahead logging. Its directory must be on a local disk: SQLite's locks do not
///   work over network file systems.
/// - `synchronous` is `NORMAL`: a crashed process loses nothing; a power loss may take the last commits with
///   it, and with the same stroke every holder on the machine.
/// - The clock is the machine's wall clock. Stepping it moves every lease, but never a fence back.
/// - The file must have one name. One with a second hard link, or one that is mounted as a single file away from its
///   directory, is refused: SQLite keeps a log for each name, and neither shows what was granted under the other. A
///   symbolic link to the file, and a directory that is mounted in two places, are no second names.
/// - A connection follows its path. When the file was removed, moved or replaced while it was open, the next call works
///   with what stands there now; a run without a row in it is lost, at its next renewal at the latest. So are all runs
///   when the log or the shared memory beside the file (`-wal`, `-shm`) was removed while it was in use
///   ([`StoreError::Lost`]); then nothing is granted until every process that has the file open has closed it.
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

    /// For those who only look: neither the file nor its schema is created, whatever the URL says.
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

    /// No server tells of a change: the file is looked at, five times a second.
    fn listen(&self, _: NodeId, bounds: Bounds) -> Option<Listening> {
        Some(Box::pin(changes::open(self.file.without_creating(), bounds)))
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

fn options(file: &DatabaseFile, lock_timeout: Duration) -> SqliteConnectOptions {
    // sqlx panics on more milliseconds than fit an i32.
    const LONGEST: Duration = Duration::from_secs(24 * 3600);
    SqliteConnectOptions::new()
        .filename(file.path())
        .read_only(file.access() == Access::ReadOnly)
        .create_if_missing(file.access() == Access::Create)
        .busy_timeout(lock_timeout.min(LONGEST))
        // A statement commits when its last row has been taken over. With room for all rows of a batch, the
        // write lock never waits for the task that reads them.
        .row_buffer_size(2 * MAX_BATCH)
        .disable_statement_logging()
}

struct Connection {
    sqlite: SqliteConnection,
    file: DatabaseFile,
    bounds: Bounds,
    opened: Arc<Opened>,
    only_looks: bool,
}

impl Connection {
    async fn say_goodbye(self) {
        let _turn = self.file.turn_to_close().await;
        // The answers are in already; a goodbye that fails changes none of them.
        let _ = self.sqlite.close().await;
    }

    async fn open(file: DatabaseFile, bounds: Bounds) -> Result<Self, Failure> {
        let there = file.there()?;
        let mut sqlite = options(&file, bounds.lock).connect().await?;
        if file.access() == Access::Create {
            schema::ensure(&mut sqlite).await?;
        }
        schema::check(&mut sqlite).await?;
        if file.access() != Access::ReadOnly {
            accept_writes(&mut sqlite).await?;
        }
        if schema::uses_wal(&mut sqlite).await? {
            sqlx::query("PRAGMA synchronous = NORMAL").execute(&mut sqlite).await?;
        } else {
            tracing::warn!(database = %file, "the file does not use write-ahead logging: commits are slower");
        }
        Self::of(sqlite, file, bounds, there)
    }

    /// `there` stood at the path before it was opened.
    fn of(
        sqlite: SqliteConnection,
        file: DatabaseFile,
        bounds: Bounds,
        there: Option<Identity>,
    ) -> Result<Self, Failure> {
        let opened = file.opened(there)?;
        Ok(Self { sqlite, file, bounds, opened, only_looks: false })
    }

    /// Goes on with what stands at the path now, which alone rules (invariant I1). `false`: there is nothing, and
    /// nothing was made.
    async fn follow(&mut self, access: Access) -> Result<bool, StoreError> {
        let file = match access {
            Access::Create => self.file.clone(),
            Access::ReadWrite | Access::ReadOnly => self.file.without_creating(),
        };
        match self.look()? {
            Standing::Same => return Ok(true),
            Standing::Torn => return Err(self.file.torn()),
            Standing::Nothing if file.access() != Access::Create => return Ok(false),
            // Whether it can be read by this user has to be found out anew.
            Standing::Nothing | Standing::Other if self.only_looks => return Err(self.file.replaced()),
            Standing::Nothing | Standing::Other => {}
        }
        tracing::warn!(database = %self.file, "the file was removed or replaced while it was open");
        let now = Self::open(file, self.bounds).await.map_err(|failure| failure.in_file(&self.file))?;
        *self = Self { file: self.file.clone(), ..now };
        Ok(true)
    }

    /// The same for a verb of a run, whose row is certainly not in a file without the schema.
    async fn follow_runs(&mut self) -> Result<bool, StoreError> {
        match self.follow(Access::ReadWrite).await {
            Err(StoreError::SchemaMissing { .. }) => Ok(false),
            followed => followed,
        }
    }

    /// The same for all other verbs, which need a database.
    async fn follow_to_work(&mut self) -> Result<(), StoreError> {
        match self.follow(self.file.access()).await? {
            true => Ok(()),
            false => Err(self.file.removed()),
        }
    }

    fn look(&self) -> Result<Standing, StoreError> {
        self.file.look(&self.opened)
    }

    /// Turns a failure into the contract's words, and distrusts an answer that came from a file which no longer
    /// stands at the path: another process may meanwhile grant the same session in the new one (invariant I1).
    fn answer<T>(&mut self, answer: Result<T, Failure>) -> Result<T, StoreError> {
        match self.look()? {
            Standing::Same => answer.map_err(|failure| failure.in_file(&self.file)),
            Standing::Torn => Err(self.file.torn()),
            Standing::Other | Standing::Nothing => Err(self.file.replaced()),
        }
    }
}

/// SQLite opens a write-protected file silently for reading. A write that matches no row tells.
async fn accept_writes(sqlite: &mut SqliteConnection) -> Result<(), Failure> {
    match write_nothing(sqlite).await {
        Err(failure) if !failure.is_busy() => Err(failure),
        // Somebody else is writing: so the file can be written.
        _ => Ok(()),
    }
}

async fn write_nothing(sqlite: &mut SqliteConnection) -> Result<(), Failure> {
    sqlx::query("DELETE FROM tenure_session_lease WHERE false").execute(sqlite).await?;
    Ok(())
}

// Writes are read to their end with `fetch_all` or `execute`. sqlx's `fetch_one` and `fetch_optional` reset the
// statement after its first row and ignore the result, so that a failed commit would look like a success.
impl LeaseConnection for Connection {
    fn acquire<'a>(
        &'a mut self,
        items: &'a [Acquire],
    ) -> BoxFuture<'a, Result<Vec<AcquireOutcome>, StoreError>> {
        Box::pin(async move {
            self.follow_to_work().await?;
            let outcomes = acquire::acquire(&mut self.sqlite, items).await;
            self.answer(outcomes)
        })
    }

    fn renew<'a>(&'a mut self, items: &'a [Renew]) -> BoxFuture<'a, Result<Vec<RenewOutcome>, StoreError>> {
        Box::pin(async move {
            if !self.follow_runs().await? {
                return Err(self.file.removed());
            }
            let outcomes = renew::renew(&mut self.sqlite, items).await;
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
            let outcomes = remove::release(&mut self.sqlite, items).await;
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
            let deleted = remove::sweep(&mut self.sqlite, limit).await;
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
                // Unlike at connecting: whoever writes for so long keeps a grant waiting, too.
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

/// The items of one call, as `json_each` spreads them.
fn batch(items: impl Iterator<Item = serde_json::Value>) -> String {
    serde_json::Value::Array(items.collect()).to_string()
}

/// Whole milliseconds, bounded far above the longest ttl so that the sum with a clock never overflows.
fn millis(duration: Duration) -> u32 {
    duration.as_millis().try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        session::{Label, RunId, RunPhase},
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
            remove::RELEASE,
            remove::SWEEP,
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
