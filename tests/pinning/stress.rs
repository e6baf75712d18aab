//! Random interleavings of pin-and-write, expiry, stop and takeover: no write of a run after one of a later run.
//!
//! A write gets the next number of one sequence while its transaction is open. Those that were committed are then
//! looked at in this order: within a session, the fences must not fall. Without the pin, they do.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::future::join_all;
use tenure::{
    FencingToken, RunId, SessionKey,
    pin::PinError,
    store::{AcquireOutcome, RenewOutcome, SharedStore, StopOutcome},
};
use tokio::{task::JoinSet, time::sleep};

use super::{
    support::client::{Client, acquire, key, renew, stop},
    *,
};

/// A database with a table of writes.
trait Host: Send + Sync + 'static {
    fn store(&self) -> SharedStore;

    /// Opens a transaction, pins the run in it, writes, and commits, with pauses between.
    fn write(&self, write: Write) -> impl Future<Output = Result<(), Failed>> + Send;

    /// Session and fence of each write, in their order.
    fn writes(&self) -> impl Future<Output = Vec<(String, i64)>> + Send;
}

struct Write {
    key: SessionKey,
    run_id: RunId,
    fence: FencingToken,
    pauses: [Duration; 3],
}

enum Failed {
    /// The pin has said so.
    Refused,
    /// The database has: a serialization failure, or a lock that took too long.
    Database,
}

impl From<PinError> for Failed {
    fn from(error: PinError) -> Self {
        match error {
            error if error.is_loss() => Self::Refused,
            PinError::StaleSnapshot => Self::Refused,
            PinError::Database(_) => Self::Database,
            other => panic!("{other}"),
        }
    }
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        assert!(error.as_database_error().is_some(), "{error}");
        Self::Database
    }
}

#[derive(Default)]
struct Seen {
    committed: AtomicUsize,
    refused: AtomicUsize,
    failed: AtomicUsize,
    taken_over: AtomicUsize,
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn no_write_of_a_run_follows_one_of_a_later_run_on_postgres() {
    let host = on_postgres::OnPostgres::start().await;
    writes_are_in_the_order_of_runs(host, rounds(2_000), 16).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn no_write_of_a_run_follows_one_of_a_later_run_on_sqlite() {
    let host = on_sqlite::OnSqlite::start().await;
    writes_are_in_the_order_of_runs(host, rounds(2_000), 16).await;
}

/// More of them in `scripts/soak`.
fn rounds(usual: usize) -> usize {
    env::var("TENURE_SOAK_ROUNDS")
        .map_or(usual, |rounds| rounds.parse().expect("TENURE_SOAK_ROUNDS is a number"))
}

async fn writes_are_in_the_order_of_runs<H: Host>(host: H, rounds: usize, sessions: usize) {
    let (host, seen) = (Arc::new(host), Arc::new(Seen::default()));
    let sessions = (0..sessions).map(|session| {
        let (host, seen) = (host.clone(), seen.clone());
        tokio::spawn(session_of_runs(host, seen, key(format!("chat-{session}")), rounds / sessions))
    });
    for session in join_all(sessions).await {
        session.expect("nobody panics");
    }

    let writes = host.writes().await;
    let mut latest = std::collections::HashMap::new();
    for (n, (session, fence)) in writes.iter().enumerate() {
        let latest = latest.entry(session).or_insert(*fence);
        assert!(fence >= latest, "write {n} in {session} is of {fence}, after one of {latest}");
        *latest = *fence;
    }
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    let (committed, refused) = (count(&seen.committed), count(&seen.refused));
    let (failed, taken_over) = (count(&seen.failed), count(&seen.taken_over));
    println!(
        "{rounds} rounds: {committed} writes, {refused} pins refused, {failed} failed, {taken_over} takeovers"
    );
    assert_eq!(committed, writes.len());
    assert!(
        committed > rounds / 20 && refused > rounds / 20 && taken_over > rounds / 20,
        "too little has happened"
    );
}

/// One run after the other, as soon as it is granted; the writes of each go on while the next ones ask.
async fn session_of_runs<H: Host>(host: Arc<H>, seen: Arc<Seen>, key: SessionKey, rounds: usize) {
    let mut client = Client::connect(&*host.store()).await;
    let mut writers = JoinSet::new();
    for _ in 0..rounds {
        let run_id = RunId::random();
        let mut item = acquire(&key, run_id);
        item.ttl = millis(10..60);
        let fence = loop {
            // On SQLite, a writer may take longer than an acquire waits.
            match client.raw().acquire(std::slice::from_ref(&item)).await.as_deref() {
                Ok([AcquireOutcome::Granted(grant)]) => break grant.fence,
                Ok(_) | Err(_) => sleep(millis(0..3)).await,
            }
        };
        for _ in 0..fastrand::u8(1..=2) {
            // Of the earlier ones, a few may still be at it.
            while writers.len() >= 4 {
                writers.join_next().await.expect("there are four").expect("nobody panics");
            }
            let pauses = [millis(0..20), millis(0..30), millis(0..30)];
            let write = Write { key: key.clone(), run_id, fence, pauses };
            let (host, seen) = (host.clone(), seen.clone());
            writers.spawn(async move {
                let counter = match host.write(write).await {
                    Ok(()) => &seen.committed,
                    Err(Failed::Refused) => &seen.refused,
                    Err(Failed::Database) => &seen.failed,
                };
                counter.fetch_add(1, Ordering::Relaxed);
            });
        }
        if !live(&mut client, &key, run_id).await {
            seen.taken_over.fetch_add(1, Ordering::Relaxed);
        }
    }
    while let Some(writer) = writers.join_next().await {
        writer.expect("nobody panics");
    }
}

/// What becomes of a run: whether it gave its lease back.
async fn live(client: &mut Client, key: &SessionKey, run_id: RunId) -> bool {
    sleep(millis(0..10)).await;
    match fastrand::u8(0..4) {
        // It is renewed for a while, and then forgotten.
        0 => {
            let mut item = renew(key, run_id);
            (item.ttl, item.safety_margin) = (millis(5..40), Duration::ZERO);
            while let Ok([RenewOutcome::Renewed(_)]) = client.raw().renew(&[item.clone()]).await.as_deref() {
                if fastrand::bool() {
                    break;
                }
            }
            false
        }
        1 => client.release(key, run_id).await == tenure::store::ReleaseOutcome::Released,
        2 => {
            let asked = client.stop(stop(key, Some(run_id), "ops", "deploy")).await;
            matches!(asked, StopOutcome::Asked { .. })
                && client.release(key, run_id).await == tenure::store::ReleaseOutcome::Released
        }
        _ => false,
    }
}

fn millis(range: std::ops::Range<u64>) -> Duration {
    Duration::from_micros(fastrand::u64(range.start * 1_000..range.end * 1_000))
}

#[cfg(feature = "postgres")]
mod on_postgres {
    use sqlx::{AssertSqlSafe, PgPool, postgres::PgPoolOptions};

    use super::{
        super::support::{
            backend::{Backend as _, Reachable as _},
            postgres::Server,
            postgres_backend::PostgresBackend,
        },
        *,
    };

    pub(super) struct OnPostgres {
        backend: PostgresBackend,
        pool: PgPool,
    }

    impl OnPostgres {
        pub(super) async fn start() -> Self {
            let backend = PostgresBackend::start(Server::shared(), "").await;
            let table = "CREATE TABLE write (n bigserial PRIMARY KEY, session text, fence bigint); \
                         GRANT ALL ON write, write_n_seq TO app";
            backend.execute(table).await;
            let pool = PgPoolOptions::new().max_connections(64).connect(&backend.url()).await.unwrap();
            Self { backend, pool }
        }
    }

    impl Host for OnPostgres {
        fn store(&self) -> SharedStore {
            self.backend.store()
        }

        async fn write(&self, write: Write) -> Result<(), Failed> {
            let [before, between, after] = write.pauses;
            let level = fastrand::choice(["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]);
            let begin = format!("BEGIN ISOLATION LEVEL {}", level.unwrap());
            let mut tx = self.pool.begin_with(AssertSqlSafe(begin)).await?;
            if fastrand::bool() {
                // Takes the snapshot.
                sqlx::query("SELECT 1").execute(&mut *tx).await?;
            }
            sleep(before).await;
            tenure::pin::pin(&mut *tx, &write.key, write.run_id).await?;
            sleep(between).await;
            sqlx::query("INSERT INTO write (session, fence) VALUES ($1, $2)")
                .bind(write.key.session())
                .bind(write.fence.as_i64())
                .execute(&mut *tx)
                .await?;
            sleep(after).await;
            Ok(tx.commit().await?)
        }

        async fn writes(&self) -> Vec<(String, i64)> {
            let sql = "SELECT session, fence FROM write ORDER BY n";
            sqlx::query_as(sql).fetch_all(&self.pool).await.unwrap()
        }
    }
}

#[cfg(feature = "sqlite")]
mod on_sqlite {
    use sqlx::{SqlitePool, sqlite::SqlitePoolOptions};

    use super::{
        super::support::{
            backend::{Backend as _, Reachable as _},
            sqlite_backend::SqliteBackend,
        },
        *,
    };

    pub(super) struct OnSqlite {
        backend: SqliteBackend,
        pool: SqlitePool,
    }

    impl OnSqlite {
        pub(super) async fn start() -> Self {
            let backend = SqliteBackend::start().await;
            let table =
                "CREATE TABLE write (n INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT, fence INTEGER)";
            backend.execute(table).await;
            let pool = SqlitePoolOptions::new().max_connections(8).connect(&backend.url()).await.unwrap();
            Self { backend, pool }
        }
    }

    impl Host for OnSqlite {
        fn store(&self) -> SharedStore {
            self.backend.store()
        }

        /// With pauses that are as short as a transaction should be that holds up everybody.
        async fn write(&self, write: Write) -> Result<(), Failed> {
            let [before, between, after] = write.pauses;
            sleep(before).await;
            let begin = if fastrand::bool() { "BEGIN IMMEDIATE" } else { "BEGIN" };
            let mut tx = self.pool.begin_with(begin).await?;
            tenure::pin::pin(&mut *tx, &write.key, write.run_id).await?;
            sleep(between / 10).await;
            sqlx::query("INSERT INTO write (session, fence) VALUES (?1, ?2)")
                .bind(write.key.session())
                .bind(write.fence.as_i64())
                .execute(&mut *tx)
                .await?;
            sleep(after / 10).await;
            Ok(tx.commit().await?)
        }

        async fn writes(&self) -> Vec<(String, i64)> {
            let sql = "SELECT session, fence FROM write ORDER BY n";
            sqlx::query_as(sql).fetch_all(&self.pool).await.unwrap()
        }
    }
}
