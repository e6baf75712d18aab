//! On SQLite: the one write lock.

use std::{
    io,
    sync::{Arc, Mutex},
};

use sqlx::{Connection as _, Executor as _, Sqlite, SqliteConnection, Transaction};
use tenure::{
    RunId,
    pin::{self, PinError},
    store::{AcquireOutcome, Bounds},
};
use tokio::time::sleep;
use tracing_subscriber::fmt::MakeWriter;

use super::{
    support::{
        backend::{Backend, Reachable},
        client::{BOUNDS, Client, acquire, key},
        sqlite_backend::SqliteBackend,
    },
    *,
};

#[tokio::test]
async fn what_was_pinned_commits_before_another_run_is_granted_though_the_lease_expires_meanwhile() {
    let backend = SqliteBackend::start().await;
    let mut client = Client::connect(&*backend.store()).await;
    backend.execute("CREATE TABLE write (fence INTEGER)").await;
    let (key, run, next) = (key("chat"), RunId::random(), RunId::random());
    let mut item = acquire(&key, run);
    item.ttl = Duration::from_millis(500);
    let fence = client.granted(item).await.fence;
    let mut host = backend.raw().await;
    let mut tx = begin(&mut host).await;
    assert_eq!(pin::pin(&mut *tx, &key, run).await.unwrap().fence, fence);
    sleep(Duration::from_millis(510)).await;

    let bounds = Bounds { lock: Duration::from_millis(20), ..BOUNDS };
    let mut other = backend.store().connect(bounds).await.unwrap();
    let answer = other.acquire(&[acquire(&key, next)]).await;
    assert!(!matches!(answer.as_deref(), Ok([AcquireOutcome::Granted(_)])), "{answer:?}");
    sqlx::query("INSERT INTO write VALUES (?1)").bind(fence.as_i64()).execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    let answer = other.acquire(&[acquire(&key, next)]).await;
    assert!(matches!(answer.as_deref(), Ok([AcquireOutcome::Granted(grant)]) if grant.fence > fence));
}

#[tokio::test]
async fn a_pin_that_comes_too_late_says_what_has_happened() {
    let backend = SqliteBackend::start().await;
    let mut client = Client::connect(&*backend.store()).await;
    let (taken, released, expired) = (key("taken"), key("released"), key("expired"));
    let (run, next) = (RunId::random(), RunId::random());
    for key in [&taken, &released, &expired] {
        client.granted(acquire(key, run)).await;
    }
    backend.set_remaining(&taken, -1).await;
    backend.set_remaining(&expired, -1).await;
    let fence = client.granted(acquire(&taken, next)).await.fence;
    client.release(&released, run).await;

    let mut host = backend.raw().await;
    let mut tx = begin(&mut host).await;
    let error = pin::pin(&mut *tx, &taken, run).await.unwrap_err();
    assert!(matches!(error, PinError::Superseded { run_id, fence: f, .. } if (run_id, f) == (next, fence)));
    let error = pin::pin(&mut *tx, &released, run).await.unwrap_err();
    assert!(matches!(error, PinError::Released), "{error:?}");
    let error = pin::pin(&mut *tx, &expired, run).await.unwrap_err();
    assert!(matches!(error, PinError::Expired), "{error:?}");
}

/// A transaction that began by reading shows what was then. It cannot become a writer.
#[tokio::test]
async fn a_pin_does_not_succeed_on_a_snapshot_from_before_the_loss() {
    let backend = SqliteBackend::start().await;
    let mut client = Client::connect(&*backend.store()).await;
    let (key, run) = (key("chat"), RunId::random());
    client.granted(acquire(&key, run)).await;
    let mut host = backend.raw().await;
    let mut tx = host.begin().await.unwrap();
    tx.execute("SELECT count(*) FROM tenure_session_lease").await.unwrap();
    client.release(&key, run).await;
    let error = pin::pin(&mut *tx, &key, run).await.unwrap_err();
    assert!(matches!(error, PinError::Database(_)), "{error:?}");
}

#[tokio::test]
async fn without_a_transaction_nothing_is_pinned_and_one_that_was_begun_by_hand_will_do() {
    let backend = SqliteBackend::start().await;
    let supervisor = supervisor(&backend.url(), LONG_TTL).await;
    let run = held(&supervisor, "chat").await;
    let mut host = backend.raw().await;
    for _ in 0..2 {
        let error = run.pin(&mut host).await.unwrap_err();
        assert!(matches!(error, PinError::NoTransaction), "{error:?}");
        host.execute("BEGIN IMMEDIATE").await.unwrap();
        run.pin(&mut host).await.unwrap();
        host.execute("COMMIT").await.unwrap();
    }
    // No transaction was left open by the question.
    assert!(run.release().await.released);
}

#[tokio::test]
async fn a_file_without_leases_is_named_as_such() {
    let backend = SqliteBackend::start().await;
    let supervisor = supervisor(&backend.url(), LONG_TTL).await;
    let run = held(&supervisor, "chat").await;
    let mut host = SqliteConnection::connect("sqlite::memory:").await.unwrap();
    let mut tx = begin(&mut host).await;
    let error = run.pin(&mut *tx).await.unwrap_err();
    assert!(matches!(error, PinError::NoLeases(_)), "{error:?}");
}

#[tokio::test]
async fn a_pin_that_holds_up_renewals_warns_only_where_little_time_is_left() {
    let backend = SqliteBackend::start().await;
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    // Renewed at three quarters: what is left is never as little as the time-out, until nothing is renewed any more.
    let supervisor = supervisor(&backend.url(), TTL).await;
    let run = held(&supervisor, "chat").await;
    let mut host = backend.raw().await;
    let mut tx = begin(&mut host).await;
    run.pin(&mut *tx).await.unwrap();
    assert!(!log.text().contains("holds up renewals"), "{}", log.text());
    let bound = supervisor.timing().renew_timeout();
    while run.trusted_for() >= bound {
        sleep(Duration::from_millis(5)).await;
    }
    run.pin(&mut *tx).await.unwrap();
    assert!(log.text().contains("holds up renewals"), "{}", log.text());
    assert!(log.text().contains(&run.run_id().to_string()), "{}", log.text());
}

async fn begin(host: &mut SqliteConnection) -> Transaction<'_, Sqlite> {
    host.begin_with("BEGIN IMMEDIATE").await.unwrap()
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
