//! SQLite's one write lock in a stranger's hands.

use sqlx::SqliteConnection;

use super::{support::sqlite_backend::SqliteBackend, *};
use crate::support::backend::Reachable as _;

const TTL: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn i9_a_write_lock_held_for_less_than_the_tolerated_outage_costs_no_run() {
    let backend = SqliteBackend::start().await;
    let supervisor = supervisor(&backend.url(), TTL).await;
    let runs = held_all(&supervisor, 50).await;
    for _ in 0..3 {
        let stranger = Writer::begin(&backend).await;
        // The rest is for the machine, which may be busy.
        background::sleep(supervisor.timing().tolerated_outage() / 2).await;
        stranger.end().await;
        background::sleep(TTL / 2).await;
    }
    for run in &runs {
        assert!(run.is_held(), "{run:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_a_write_lock_held_for_good_ends_every_run_by_its_trusted_time() {
    let backend = SqliteBackend::start().await;
    let supervisor = supervisor(&backend.url(), TTL).await;
    let timing = supervisor.timing();
    let watch = Watch::over(held_all(&supervisor, 50).await);
    let stranger = Writer::begin(&backend).await;
    let (runs, ends) = watch.all_ended_on_time(timing).await;
    had_time_to_stop(&supervisor, &runs, &ends, timing).await;
    let refused = supervisor.acquire(&key("new")).await.unwrap_err();
    assert!(refused.to_string().contains("another connection is writing"), "{refused}");
    // Reading needs no lock: every device sees how things are.
    seen_at_last(&supervisor, "chat-0", |status| status.state == SessionState::Expired).await;

    let fences: Vec<_> = runs.iter().map(|run| run.fence()).collect();
    drop(runs);
    stranger.end().await;
    for (index, fence) in fences.into_iter().enumerate() {
        let again = held_at_last(&supervisor, &format!("chat-{index}")).await;
        assert!(again.fence() > fence);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_is_not_ready_while_a_stranger_keeps_the_write_lock() {
    let backend = SqliteBackend::start().await;
    let supervisor = supervisor(&backend.url(), TTL).await;
    let stranger = Writer::begin(&backend).await;
    assert!(!supervisor.is_ready().await);
    stranger.end().await;
    at_last("readiness", async || supervisor.is_ready().await.then_some(()).ok_or_else(String::new)).await;
}

/// Somebody else's open write transaction.
struct Writer(SqliteConnection);

impl Writer {
    async fn begin(backend: &SqliteBackend) -> Self {
        let mut connection = backend.raw().await;
        sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut connection).await.unwrap();
        Self(connection)
    }

    async fn end(mut self) {
        sqlx::raw_sql("ROLLBACK").execute(&mut self.0).await.unwrap();
    }
}
