//! Many runs on one server: how many connections each takes, and what happens when there are no more.

use std::time::Duration;

use sqlx::Row as _;

use crate::{
    scene::{Running, Scene},
    support::{
        backend::Reachable as _,
        postgres::{Options, Server},
        postgres_backend::PostgresBackend,
    },
};

async fn backend(max_connections: u32) -> PostgresBackend {
    let conf = format!("max_connections = {max_connections}");
    PostgresBackend::start(&Server::start_with(&Options { conf, ..Options::default() }), "").await
}

/// The end of each is its program's, or it never began.
fn assert_done_or_refused(runs: impl IntoIterator<Item = Running>) -> usize {
    let codes: Vec<_> = runs.into_iter().map(|run| run.finish()).collect();
    for done in &codes {
        assert!([0, 69].contains(&done.code), "{done:?}");
    }
    codes.iter().filter(|done| done.code == 0).count()
}

/// For longer than a lease that nobody renews.
const WORK: &str = "sleep 8.5";

#[tokio::test(flavor = "multi_thread")]
async fn i11_more_runs_at_once_than_there_are_connections_work_to_their_end_or_do_not_begin() {
    let (backend, scene) = (backend(30).await, Scene::new());
    let start = |n| scene.run(&backend.url(), &format!("chat-{n}"), &["--ttl", "10s"], WORK);
    let done = assert_done_or_refused((0..35).map(start).collect::<Vec<_>>());
    assert!((10..35).contains(&done), "{done} have worked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_takes_one_connection_for_its_statements_and_one_to_listen() {
    let (backend, scene) = (backend(30).await, Scene::new());
    let mut run = scene.run(&backend.url(), "chat", &["--ttl", "60s"], "ready; sleep 6000");
    run.event("acquired");
    scene.wait_for("ready");
    for _ in 0..20 {
        let open = sqlx::query(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'app'",
        )
        .fetch_one(&mut backend.admin().await)
        .await
        .expect("the superuser may look");
        assert!(open.get::<i64, _>(0) <= 2, "{open:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    run.signal(rustix::process::Signal::TERM);
    run.event("ended");
}
