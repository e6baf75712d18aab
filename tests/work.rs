//! Work under a lease of a real database: sub-tasks, child processes, and a shutdown of very many at once. The same
//! promises in virtual time, where every instant can be chosen, are in `simulated.rs`.

#![cfg(any(feature = "postgres", feature = "sqlite"))]

mod support;

// Not part of `support`: a macro that a test binary does not use is a warning.
#[macro_use]
#[path = "support/every_backend.rs"]
mod every_backend;

#[cfg(all(target_os = "linux", feature = "process"))]
#[path = "work/children.rs"]
mod children;

use std::time::Duration;

use futures::future::join_all;
use support::{backend::Reachable, background, device::key};
use tenure::{AcquireError, EndReason, EndedRun, LeaseSupervisor, SessionState};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const TTL: Duration = Duration::from_secs(60);
/// Longer than any test.
const LONG_GRACE: Duration = Duration::from_secs(600);

on_every_backend! {
    i6_a_thousand_scopes_that_are_shut_down_under_load_leave_nothing_behind
    work_bound_to_its_run_is_found_by_its_session_and_ends_with_it
    i6_work_that_fails_is_not_completed_and_frees_its_session_last
    i6_blocking_work_keeps_its_session_until_it_returns
    i10_a_run_that_says_its_phase_all_the_time_disturbs_no_other
}

async fn supervisor(backend: &impl Reachable, ttl: Duration) -> LeaseSupervisor {
    let started = LeaseSupervisor::builder(backend.url()).holder_label("api").ttl(ttl).start().await;
    started.unwrap_or_else(|error| panic!("{error}"))
}

/// Each with a sub-task that takes a moment to end, while others ask for the same and for other sessions.
async fn i6_a_thousand_scopes_that_are_shut_down_under_load_leave_nothing_behind(backend: impl Reachable) {
    const SCOPES: usize = 1_000;
    let (leaving, staying) = (supervisor(&backend, TTL).await, supervisor(&backend, TTL).await);
    let names: Vec<_> = (0..SCOPES).map(|n| format!("chat-{n}")).collect();
    let runs = join_all(names.iter().map(|name| leaving.acquire(&key(name)).into_future())).await;
    let (begun, mut all_begun) = mpsc::unbounded_channel();
    let scopes = runs.into_iter().map(|run| {
        let run = run.unwrap_or_else(|error| panic!("{error}"));
        let begun = begun.clone();
        run.spawn_scope(|ctx| async move {
            begun.send(()).expect("the test counts");
            let inner = ctx.clone();
            drop(ctx.spawn(async move {
                inner.cancelled().await;
                tokio::time::sleep(Duration::from_millis(fastrand::u64(0..500))).await;
            }));
            ctx.cancelled().await
        })
    });
    let scopes: Vec<_> = scopes.collect();
    for _ in 0..SCOPES {
        all_begun.recv().await;
    }
    let (load, over) = (load_of(&staying), CancellationToken::new());
    let load = tokio::spawn(over.clone().run_until_cancelled_owned(load));

    let shutdown = leaving.shutdown(LONG_GRACE);
    let late = async {
        tokio::task::yield_now().await;
        leaving.acquire(&key("late")).await
    };
    let (report, late) = futures::join!(shutdown, late);
    assert!(matches!(late, Err(AcquireError::Draining | AcquireError::Closed(_))), "{late:?}");
    assert!(report.left.is_empty() && !report.failed, "{:?}", report.left);
    assert_eq!(report.ended.len(), SCOPES);
    let told = |ended: &EndedRun| ended.ended.reason == EndReason::Shutdown && ended.ended.released;
    assert!(report.ended.iter().all(told));
    for scope in &scopes {
        let error = scope.attach().await.unwrap_err();
        assert_eq!((error.reason(), error.ended().released), (&EndReason::Shutdown, true));
        assert_eq!(error.into_value(), Some(EndReason::Shutdown), "the work was told so, too");
    }
    over.cancel();
    load.await.expect("the load does not panic");

    // Nobody has to wait for a ttl.
    let next = join_all(names.iter().map(|name| staying.acquire(&key(name)).into_future())).await;
    for run in next {
        drop(run.unwrap_or_else(|error| panic!("{error}")));
    }
    let report = staying.shutdown(LONG_GRACE).await;
    assert!(report.left.is_empty(), "{:?}", report.left);
    let looking = supervisor(&backend, TTL).await;
    assert_eq!(looking.list().include_expired().await.unwrap(), []);
}

/// Asks for sessions that are held, and takes and gives back others.
fn load_of(supervisor: &LeaseSupervisor) -> impl Future<Output = ()> + use<> {
    let clients: Vec<_> = (0..16).map(|n| client(supervisor.clone(), n)).collect();
    async move {
        join_all(clients).await;
    }
}

async fn client(supervisor: LeaseSupervisor, n: usize) {
    for round in 0.. {
        let (held, own) = (key(&format!("chat-{}", (n * 61 + round) % 900)), key(&format!("own-{n}")));
        match supervisor.acquire(&held).await {
            Ok(run) => drop(run.release().await),
            Err(AcquireError::Busy(_)) => {}
            Err(error) => panic!("{error}"),
        }
        let run = supervisor.acquire(&own).await.unwrap_or_else(|error| panic!("{error}"));
        assert!(run.release().await.released);
    }
}

async fn work_bound_to_its_run_is_found_by_its_session_and_ends_with_it(backend: impl Reachable) {
    let (supervisor, other) = (supervisor(&backend, TTL).await, supervisor(&backend, TTL).await);
    let run = supervisor.acquire(&key("chat")).phase("working").await.unwrap();
    let (run_id, go_on) = (run.run_id(), CancellationToken::new());
    let gate = go_on.clone();
    let handle = run.spawn_scope(|ctx| async move {
        gate.cancelled().await;
        ctx.fence()
    });
    let busy = match other.acquire(&key("chat")).await {
        Err(AcquireError::Busy(busy)) => busy,
        other => panic!("{other:?}"),
    };
    let found = supervisor.local(&key("chat")).await.expect("it works here");
    let found = found.scope_handle::<tenure::FencingToken>().expect("in a task of its own");
    assert!(found.context().run_id() == run_id && other.local(&key("chat")).await.is_none());
    assert!(supervisor.runs().await.len() == 1 && other.runs().await.is_empty());
    assert_eq!((busy.holder().run_id, busy.holder().phase.as_str()), (run_id, "working"));
    go_on.cancel();
    assert_eq!(handle.attach().await.unwrap(), busy.holder().fence);
    assert_eq!(found.join().await.unwrap(), busy.holder().fence);
    let next = other.acquire(&key("chat")).await.unwrap();
    assert!(next.fence() > busy.holder().fence);
    assert!(next.release().await.released);
}

async fn i6_work_that_fails_is_not_completed_and_frees_its_session_last(backend: impl Reachable) {
    let (supervisor, other) = (supervisor(&backend, TTL).await, supervisor(&backend, TTL).await);
    let run = supervisor.acquire(&key("chat")).await.unwrap();
    let (context, looks) = (run.context(), other.clone());
    let (saw, seen) = tokio::sync::oneshot::channel();
    let returned = run
        .try_scope(async |ctx| {
            drop(ctx.spawn(async move {
                context.cancelled().await;
                let refused = looks.acquire(&key("chat")).await;
                saw.send((context.cancelled().await, matches!(refused, Err(AcquireError::Busy(_)))))
            }));
            Err::<(), _>("no such model")
        })
        .await;
    assert_eq!(returned.unwrap(), Err("no such model"));
    let failed = EndReason::failed("no such model");
    assert_eq!(seen.await, Ok((failed, true)), "the session was kept until the sub-task had ended");
    other.acquire(&key("chat")).await.unwrap().fail("nothing was done");
    let report = supervisor.shutdown(LONG_GRACE).await;
    assert!(report.left.is_empty(), "{:?}", report.left);
}

/// It outlives its grace, and nothing can drop it.
async fn i6_blocking_work_keeps_its_session_until_it_returns(backend: impl Reachable) {
    let started =
        LeaseSupervisor::builder(backend.url()).ttl(Duration::from_secs(6)).stop_grace(Duration::ZERO);
    let (supervisor, other) = (started.start().await.unwrap(), supervisor(&backend, TTL).await);
    let run = supervisor.acquire(&key("chat")).await.unwrap();
    let (go_on, gate) = std::sync::mpsc::channel::<()>();
    let (blocks, is_blocked) = tokio::sync::oneshot::channel();
    let handle = run.spawn_scope(|ctx| async move {
        ctx.spawn_blocking(move || {
            let _ = blocks.send(());
            let _ = gate.recv();
            7
        })
        .await
    });
    is_blocked.await.expect("the work begins");
    handle.context().stop("tea");
    while other.inspect(&key("chat")).await.unwrap().state != SessionState::Stuck {
        background::sleep(Duration::from_millis(20)).await;
    }
    assert!(!handle.is_finished());
    match other.acquire(&key("chat")).await {
        Err(AcquireError::Busy(busy)) => assert_eq!(busy.holder().run_id, handle.context().run_id()),
        other => panic!("granted while the work may act: {other:?}"),
    }
    drop(go_on);
    let error = handle.attach().await.unwrap_err();
    assert!(matches!(error.reason(), EndReason::Stopped { .. }) && error.ended().released, "{error:?}");
    assert!(other.acquire(&key("chat")).await.unwrap().release().await.released);
}

async fn i10_a_run_that_says_its_phase_all_the_time_disturbs_no_other(backend: impl Reachable) {
    let ttl = Duration::from_secs(3);
    let supervisor = supervisor(&backend, ttl).await;
    let quiet = supervisor.acquire(&key("quiet")).await.unwrap();
    let noisy = supervisor.acquire(&key("noisy")).await.unwrap();
    let (context, over) = (noisy.context(), CancellationToken::new());
    let until = over.clone();
    let noise = std::thread::spawn(move || {
        let mut said = 0;
        while !until.is_cancelled() {
            context.set_phase(format!("step {said}")).expect("a short text");
            context.beat();
            said += 1;
        }
        said
    });
    background::sleep(3 * ttl).await;
    assert!(quiet.is_held() && noisy.is_held());
    over.cancel();
    let said = background::run_blocking(|| noise.join()).await.expect("it does not panic");
    let last = format!("step {}", said - 1);
    while supervisor.inspect(&key("noisy")).await.unwrap().holder.unwrap().phase.as_str() != last {
        background::sleep(Duration::from_millis(20)).await;
    }
}
