//! All that a supervisor does, through a real PgBouncer in transaction mode: no two statements need reach the same
//! server session.

#![cfg(feature = "postgres")]

mod support;

use std::time::Duration;

use futures::{future::join_all, stream::StreamExt as _};
use support::{
    background,
    client::{Client, acquire, key},
    pgbouncer::{POOL, PgBouncer},
    postgres::Server,
    postgres_backend::PostgresBackend,
};
use tenure::{
    AcquireError, EndReason, LeaseSupervisor, Observed, Run, RunEvent, RunId, SessionState, StopAnswer,
    clock::{Clock as _, SystemClock},
    store::{LeaseStore as _, PostgresStore},
};

/// The least for which a renewal may be late by most of a second.
const TTL: Duration = Duration::from_secs(5);

/// A database, a PgBouncer in front of it, and the URL that leads through it; `None` where there is none.
async fn pooled() -> Option<(PostgresBackend, PgBouncer, String)> {
    let pgbouncer = PgBouncer::start(Server::shared())?;
    let backend = PostgresBackend::start(Server::shared(), "").await;
    let url = format!("{}?pgbouncer=true", backend.database().url_at(pgbouncer.address()));
    Some((backend, pgbouncer, url))
}

async fn supervisor(url: &str, holder: &str) -> LeaseSupervisor {
    let started = LeaseSupervisor::builder(url).holder_label(holder).ttl(TTL).start().await;
    started.unwrap_or_else(|error| panic!("{error}"))
}

async fn held(supervisor: &LeaseSupervisor, session: String) -> Run {
    let acquired = supervisor.acquire(&key(&session)).await;
    acquired.unwrap_or_else(|error| panic!("{session}: {error}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_two_supervisors_are_kept_shown_and_released() {
    let Some((backend, _pgbouncer, url)) = pooled().await else { return };
    let supervisors = [supervisor(&url, "one").await, supervisor(&url, "other").await];
    let ask = |n: usize| held(&supervisors[n % 2], format!("chat-{n:02}"));
    let runs = join_all((0..60).map(ask)).await;
    join_all(runs.iter().map(|run| renewed(run, 3))).await;

    let (own, others) = (key("chat-00"), key("chat-01"));
    let refused = supervisors[0].acquire(&others).await.unwrap_err();
    let AcquireError::Busy(busy) = refused else { panic!("{refused}") };
    assert_eq!((busy.holder().label.as_str(), busy.holder().run_id), ("other", runs[1].run_id()));
    let status = supervisors[1].inspect(&own).await.expect("it reads");
    assert_eq!(
        (status.state, status.holder.map(|holder| holder.run_id)),
        (SessionState::Running, Some(runs[0].run_id()))
    );
    let list = supervisors[0].list().await.expect("it reads");
    let listed = list.iter().map(|status| status.holder.as_ref().map(|holder| holder.run_id));
    assert!(listed.eq(runs.iter().map(|run| Some(run.run_id()))), "{list:?}");
    let sessions =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'app'";
    let sessions: i64 =
        sqlx::query_scalar(sessions).fetch_one(&mut backend.admin().await).await.expect("it reads");
    assert!((1..=POOL as i64).contains(&sessions), "{sessions} server sessions: nothing was shared");

    for ended in join_all(runs.into_iter().map(Run::release)).await {
        assert!(ended.released, "{ended:?}");
    }
    assert_eq!(supervisors[0].list().include_expired().await.expect("it reads"), []);
    assert_eq!(supervisors[0].sweep().await.expect("it may"), 0);
    drop(held(&supervisors[1], "chat-00".to_owned()).await);
    for supervisor in supervisors {
        assert!(!supervisor.shutdown(supervisor.timing().stop_grace()).await.failed);
    }
}

/// No hint gets through: the request arrives with the next renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_stop_reaches_its_run_and_no_other() {
    let Some((_backend, _pgbouncer, url)) = pooled().await else { return };
    let (holding, asking) = (supervisor(&url, "api").await, supervisor(&url, "phone").await);
    let run = held(&holding, "chat".to_owned()).await;
    let other = held(&holding, "other".to_owned()).await;
    let mut watched = Box::pin(asking.watch(run.key()));
    let asked = asking.stop(run.key()).by("alice").reason("it's \\ enough").await.expect("it is asked");
    let StopAnswer::Asked(asked) = asked else { panic!("{asked:?}") };
    assert!(asked.is_first() && asked.holder().run_id == run.run_id(), "{asked:?}");
    let reason = within(run.cancelled()).await;
    let EndReason::Stopped { by, reason, .. } = reason else { panic!("{reason}") };
    assert_eq!((by.as_deref(), reason.as_deref()), (Some("alice"), Some("it's \\ enough")));
    drop(run);
    within(asked.stopped()).await.expect("the supervisor goes on");
    let is_idle = |seen: &Observed| seen.known().is_some_and(|status| status.state == SessionState::Idle);
    let seen_idle = async { while !is_idle(&watched.next().await.expect("the supervisor goes on")) {} };
    within(seen_idle).await;
    assert!(other.is_held());
}

#[tokio::test(flavor = "multi_thread")]
async fn server_sessions_that_end_cost_no_run() {
    let Some((backend, _pgbouncer, url)) = pooled().await else { return };
    let supervisor = supervisor(&url, "api").await;
    let runs = join_all((0..20).map(|n| held(&supervisor, format!("chat-{n}")))).await;
    let mut events = supervisor.events();
    let since = SystemClock.now();
    while SystemClock.now().saturating_since(since) < TTL {
        backend.database().terminate_backends().await;
        background::sleep(Duration::from_millis(200)).await;
    }
    join_all(runs.iter().map(|run| renewed(run, 1))).await;
    for run in &runs {
        assert!(run.is_held(), "{run:?}");
    }
    while let Some(Some(event)) = futures::FutureExt::now_or_never(events.next()) {
        assert!(!matches!(event, RunEvent::Ended { .. }), "{event:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_parameter_the_refusal_names_it() {
    let Some((backend, pgbouncer, url)) = pooled().await else { return };
    let plain = PostgresStore::new(&backend.database().url_at(pgbouncer.address())).expect("the URL is good");
    let bounds = support::client::BOUNDS;
    let refused = plain.connect(bounds).await.err().expect("PgBouncer refuses settings of the session");
    assert!(refused.to_string().contains("add pgbouncer=true"), "{refused}");
    let mut client = Client::connect(&PostgresStore::new(&url).expect("the URL is good")).await;
    client.granted(acquire(&key("chat"), RunId::random())).await;
}

/// Waits until the run's trust has been extended so many times.
async fn renewed(run: &Run, times: usize) {
    let mut trust = run.trust();
    // The first one is what it has now.
    let extended = async {
        for _ in 0..=times {
            trust.next().await.unwrap_or_else(|| panic!("{run:?} has ended"));
        }
    };
    within(extended).await;
}

/// Bounded by far more than it takes on a machine at full load.
async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::select! {
        done = future => done,
        () = background::sleep(6 * TTL) => panic!("it takes too long"),
    }
}
