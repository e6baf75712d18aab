//! Watching sessions that other processes hold, and a database that goes away meanwhile: this process watches.

#![cfg(any(feature = "postgres", feature = "sqlite"))]

mod support;

// Not part of `support`: a macro that a test binary does not use is a warning.
#[macro_use]
#[path = "support/every_backend.rs"]
mod every_backend;

use std::time::{Duration, Instant, SystemTime};

use futures::{FutureExt as _, Stream, StreamExt as _};
use support::{
    backend::Reachable,
    device::{self, Device, key},
};
use tenure::{LeaseSupervisor, Observed, SessionState, SessionStatus, StopAnswer};
use tokio::time::timeout;

/// The shortest there is.
const TTL: Duration = Duration::from_secs(1);
const LONG_TTL: Duration = Duration::from_secs(60);
/// Two seconds are promised; the rest is for a machine at full load.
const SOON: Duration = Duration::from_secs(6);
/// How long whatever must come at last may take.
const AT_LAST: Duration = Duration::from_secs(30);

#[test]
fn worker_entry() {
    device::enter();
}

on_every_backend! {
    what_another_process_does_is_seen
    a_dead_holder_is_seen_until_its_lease_expires_and_no_longer
    many_sessions_are_watched_and_each_sees_its_own
    i10_however_many_watch_the_runs_of_their_supervisor_keep_their_leases
    a_watch_ends_with_its_supervisor
    watching_writes_nothing
}

async fn what_another_process_does_is_seen(backend: impl Reachable) {
    let url = backend.url();
    let (mut holder, watcher) = (Device::start(&url, "holder", 3 * TTL).await, watcher(&url).await);
    let mut watching = watcher.watch(&key("chat"));
    assert_eq!(soon(&mut watching, |_| true).await.state, SessionState::Idle);
    for round in 0..3 {
        let (run, fence) = holder.granted("chat").await;
        let seen = soon(&mut watching, SessionStatus::is_held).await;
        let named = seen.holder.unwrap();
        assert_eq!(
            (named.run_id.as_uuid(), named.fence.as_i64(), named.label.as_str()),
            (run, fence, "holder")
        );
        assert_eq!(seen.state, SessionState::Running);

        let StopAnswer::Asked(asked) = watcher.stop(&key("chat")).by("browser").await.unwrap() else {
            panic!("it is held");
        };
        let seen = soon(&mut watching, |status| status.state == SessionState::Stopping).await;
        assert_eq!(seen.holder.unwrap().stop.unwrap().by.as_deref(), Some("browser"));
        holder.process().send("phase chat tidying");
        let phase = |status: &SessionStatus| {
            status.holder.as_ref().is_some_and(|holder| holder.phase.as_str() == "tidying")
        };
        soon(&mut watching, phase).await;
        if round == 0 {
            at_last(&mut watching, |status| status.state == SessionState::Stuck).await;
        }
        assert!(holder.release("chat").await);
        soon(&mut watching, |status| status.state == SessionState::Idle).await;
        timeout(AT_LAST, asked.stopped()).await.expect("it is gone").unwrap();
    }
}

/// By the clock that the database and this process share.
async fn a_dead_holder_is_seen_until_its_lease_expires_and_no_longer(backend: impl Reachable) {
    let url = backend.url();
    let (mut holder, watcher) = (Device::start(&url, "holder", 3 * TTL).await, watcher(&url).await);
    holder.granted("chat").await;
    holder.process().kill();
    let expires_at = watcher.inspect(&key("chat")).await.unwrap().holder.unwrap().expires_at;
    let mut watching = watcher.watch(&key("chat"));
    assert!(soon(&mut watching, |_| true).await.is_held());
    let ended = at_last(&mut watching, |status| !status.is_held()).await;
    let now = SystemTime::now();
    assert_eq!(ended.state, SessionState::Expired);
    assert!(now >= expires_at, "said to have expired {:?} early", expires_at.duration_since(now));
    let late = now.duration_since(expires_at).unwrap();
    println!("seen {late:?} after its expiry");
    assert!(late < SOON, "{late:?}");
}

async fn many_sessions_are_watched_and_each_sees_its_own(backend: impl Reachable) {
    const SESSIONS: usize = 600;
    let url = backend.url();
    let (mut holder, watcher) = (Device::start(&url, "holder", LONG_TTL).await, watcher(&url).await);
    let name = |n: usize| format!("chat-{n}");
    let mut all: Vec<_> = (0..SESSIONS).map(|n| watcher.watch(&key(&name(n)))).collect();
    for watching in &mut all {
        assert_eq!(soon(watching, |_| true).await.state, SessionState::Idle);
    }
    for n in [0, 299, SESSIONS - 1] {
        let (run, _) = holder.granted(&name(n)).await;
        let seen = soon(&mut all[n], SessionStatus::is_held).await;
        assert_eq!((seen.key, seen.holder.unwrap().run_id.as_uuid()), (key(&name(n)), run));
    }
    for (n, watching) in all.iter_mut().enumerate() {
        while let Some(Some(seen)) = watching.next().now_or_never() {
            let is_held = seen.known().is_some_and(SessionStatus::is_held);
            assert!(!is_held || [0, 299, SESSIONS - 1].contains(&n), "{seen:?}");
        }
    }
}

/// They all come at once, and all that they watch changes at once.
async fn i10_however_many_watch_the_runs_of_their_supervisor_keep_their_leases(backend: impl Reachable) {
    const SESSIONS: usize = 3_000;
    let builder = LeaseSupervisor::builder(backend.url()).ttl(2 * TTL).acquire_timeout(AT_LAST);
    let supervisor = builder.start().await.unwrap();
    let keys: Vec<_> = (0..SESSIONS).map(|n| key(&format!("chat-{n}"))).collect();
    let run = supervisor.acquire(&key("the run")).await.unwrap();
    let mut all: Vec<_> = keys.iter().map(|key| supervisor.watch(key)).collect();
    for watching in &mut all {
        assert_eq!(at_last(watching, |_| true).await.state, SessionState::Idle);
    }
    for some in keys.chunks(SESSIONS / 10).take(3) {
        let acquired =
            futures::future::join_all(some.iter().map(|key| supervisor.acquire(key).into_future()));
        assert!(acquired.await.iter().all(Result::is_ok));
    }
    tokio::time::sleep(4 * TTL).await;
    assert!(run.is_held(), "{run:?}");
    supervisor.shutdown(Duration::ZERO).await;
}

async fn a_watch_ends_with_its_supervisor(backend: impl Reachable) {
    let watcher = watcher(&backend.url()).await;
    let mut watching = watcher.watch(&key("chat"));
    soon(&mut watching, |_| true).await;
    watcher.shutdown(Duration::ZERO).await;
    assert_eq!(timeout(AT_LAST, watching.next()).await.expect("it ends"), None);
    assert_eq!(timeout(AT_LAST, watcher.watch(&key("chat")).next()).await.expect("it has ended"), None);
}

async fn watching_writes_nothing(backend: impl Reachable) {
    let url = backend.url();
    let (mut holder, watcher) = (Device::start(&url, "holder", LONG_TTL).await, watcher(&url).await);
    holder.granted("chat").await;
    let before = backend.image(&key("chat")).await;
    let mut watching = watcher.watch(&key("chat"));
    soon(&mut watching, SessionStatus::is_held).await;
    unchanged(&mut watching, SessionState::Running).await;
    assert_eq!(backend.image(&key("chat")).await, before);
}

/// The file is moved away for a while, as a backup or an operator might.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_file_that_goes_away_and_returns_is_unknown_meanwhile() {
    use support::sqlite_backend::SqliteBackend;

    let backend = SqliteBackend::start().await;
    let url = format!("{}?mode=rw", backend.url());
    let (mut holder, watcher) = (Device::start(&url, "holder", LONG_TTL).await, watcher(&url).await);
    holder.granted("chat").await;
    let mut watching = watcher.watch(&key("chat"));
    soon(&mut watching, SessionStatus::is_held).await;
    let file = backend.url().trim_start_matches("sqlite://").to_owned();
    let rename = |from: &str, to: &str| {
        for part in ["", "-wal", "-shm"] {
            std::fs::rename(format!("{from}{part}"), format!("{to}{part}")).unwrap();
        }
    };
    rename(&file, &format!("{file}.away"));
    until_unknown(&mut watching).await;
    rename(&format!("{file}.away"), &file);
    soon(&mut watching, SessionStatus::is_held).await;
}

#[cfg(feature = "postgres")]
mod over_a_network {
    use super::{
        support::{postgres::Server, postgres_backend::PostgresBackend, proxy::Proxy},
        *,
    };

    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_that_stops_or_stands_still_is_unknown_meanwhile() {
        let server = Server::start();
        let backend = PostgresBackend::start(&server, "").await;
        let url = backend.database().url();
        let (mut holder, watcher) = (Device::start(&url, "holder", LONG_TTL).await, watcher(&url).await);
        let (run, _) = holder.granted("chat").await;
        let mut held = watcher.watch(&key("chat"));
        let mut idle = watcher.watch(&key("another"));
        soon(&mut held, SessionStatus::is_held).await;
        soon(&mut idle, |_| true).await;

        server.stop().await;
        until_unknown(&mut held).await;
        until_unknown(&mut idle).await;
        server.start_again().await;
        back_again(&mut held, &mut idle, run).await;

        let frozen = server.freeze();
        until_unknown(&mut held).await;
        until_unknown(&mut idle).await;
        frozen.thaw();
        back_again(&mut held, &mut idle, run).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_network_that_goes_away_is_unknown_meanwhile() {
        let backend = PostgresBackend::start(Server::shared(), "").await;
        let proxy = Proxy::start(backend.database().server().address());
        let mut holder = Device::start(&backend.url(), "holder", LONG_TTL).await;
        let watcher = watcher(&proxy.url_for(backend.database())).await;
        let (run, _) = holder.granted("chat").await;
        let mut held = watcher.watch(&key("chat"));
        let mut idle = watcher.watch(&key("another"));
        soon(&mut held, SessionStatus::is_held).await;
        soon(&mut idle, |_| true).await;
        for fault in [Proxy::cut, Proxy::swallow, Proxy::swallow_replies] {
            fault(&proxy);
            until_unknown(&mut held).await;
            until_unknown(&mut idle).await;
            proxy.pass();
            back_again(&mut held, &mut idle, run).await;
        }
    }

    /// Connecting takes many times as long as a look.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_slow_line_is_watched_and_tells_that_a_run_has_stopped() {
        let backend = PostgresBackend::start(Server::shared(), "").await;
        let proxy = Proxy::start(backend.database().server().address());
        let mut holder = Device::start(&backend.url(), "holder", LONG_TTL).await;
        holder.granted("chat").await;
        proxy.delay(Duration::from_millis(200));
        let builder = LeaseSupervisor::builder(proxy.url_for(backend.database())).ttl(LONG_TTL);
        let watcher = builder.connect_timeout(AT_LAST).start().await.unwrap();
        let mut watching = watcher.watch(&key("chat"));
        at_last(&mut watching, SessionStatus::is_held).await;
        let StopAnswer::Asked(asked) = watcher.stop(&key("chat")).await.unwrap() else {
            panic!("it is held");
        };
        at_last(&mut watching, |status| status.state == SessionState::Stopping).await;
        assert!(holder.release("chat").await);
        timeout(AT_LAST, asked.stopped()).await.expect("it is gone").unwrap();
        at_last(&mut watching, |status| status.state == SessionState::Idle).await;
    }

    /// The connection of the watchers is one that nothing else uses.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_killed_connection_is_replaced() {
        let backend = PostgresBackend::start(Server::shared(), "").await;
        let watcher = watcher(&backend.url()).await;
        let mut watching = watcher.watch(&key("chat"));
        soon(&mut watching, |_| true).await;
        for _ in 0..3 {
            assert!(backend.database().terminate_backends().await > 0);
            unchanged(&mut watching, SessionState::Idle).await;
        }
        let mut holder = Device::start(&backend.url(), "holder", LONG_TTL).await;
        holder.granted("chat").await;
        soon(&mut watching, SessionStatus::is_held).await;
    }

    async fn back_again(
        held: &mut (impl Stream<Item = Observed> + Unpin),
        idle: &mut (impl Stream<Item = Observed> + Unpin),
        run: uuid::Uuid,
    ) {
        let back = Instant::now();
        let seen = soon(held, SessionStatus::is_held).await;
        assert_eq!(seen.holder.unwrap().run_id.as_uuid(), run);
        soon(idle, |status| status.state == SessionState::Idle).await;
        println!("right again after {:?}", back.elapsed());
    }
}

async fn watcher(url: &str) -> LeaseSupervisor {
    LeaseSupervisor::builder(url).holder_label("browser").ttl(5 * TTL).start().await.unwrap()
}

/// Waits for what is wanted, which is promised sooner.
async fn soon(
    watching: &mut (impl Stream<Item = Observed> + Unpin),
    wanted: impl Fn(&SessionStatus) -> bool,
) -> SessionStatus {
    let began = Instant::now();
    let seen = at_last(watching, wanted).await;
    assert!(began.elapsed() < SOON, "only after {:?}: {seen:?}", began.elapsed());
    seen
}

/// Waits for what is wanted. On a machine at full load the database may be unknown in between.
async fn at_last(
    watching: &mut (impl Stream<Item = Observed> + Unpin),
    wanted: impl Fn(&SessionStatus) -> bool,
) -> SessionStatus {
    let mut seen = Vec::new();
    loop {
        match timeout(AT_LAST, watching.next()).await {
            Ok(Some(Observed::Known(status))) if wanted(&status) => return status,
            Ok(Some(other)) => seen.push(other),
            other => panic!("{other:?} after {seen:?}"),
        }
    }
}

/// On a machine at full load the database may be unknown in between.
async fn unchanged(watching: &mut (impl Stream<Item = Observed> + Unpin), state: SessionState) {
    let until = Instant::now() + 2 * TTL;
    while let Ok(seen) = timeout(until.saturating_duration_since(Instant::now()), watching.next()).await {
        let seen = seen.expect("it goes on");
        assert!(seen.known().is_none_or(|status| status.state == state), "{seen:?}");
    }
}

async fn until_unknown(watching: &mut (impl Stream<Item = Observed> + Unpin)) {
    let began = Instant::now();
    loop {
        match timeout(AT_LAST, watching.next()).await {
            Ok(Some(Observed::Unknown { last_known, .. })) => {
                assert!(last_known.is_some());
                assert!(began.elapsed() < SOON, "unknown only after {:?}", began.elapsed());
                println!("unknown after {:?}", began.elapsed());
                return;
            }
            Ok(Some(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}
