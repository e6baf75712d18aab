//! Real faults of real databases and hosts, and what runs promise through them. The same promises in virtual time,
//! where instants can be chosen, are in `simulated.rs`.

#![cfg(any(feature = "postgres", feature = "sqlite"))]

mod support;

// Not part of `support`: a macro that a test binary does not use is a warning.
#[macro_use]
#[path = "support/every_backend.rs"]
mod every_backend;

#[cfg(feature = "postgres")]
#[path = "faults/connections.rs"]
mod connections;
#[cfg(feature = "postgres")]
#[path = "faults/failover.rs"]
mod failover;
#[path = "faults/host.rs"]
mod host;
#[cfg(feature = "postgres")]
#[path = "faults/locks.rs"]
mod locks;
#[cfg(feature = "postgres")]
#[path = "faults/passwords.rs"]
mod passwords;
#[path = "faults/rejecting.rs"]
mod rejecting;
#[cfg(feature = "postgres")]
#[path = "faults/secrets.rs"]
mod secrets;
#[cfg(feature = "postgres")]
#[path = "faults/server.rs"]
mod server;
#[cfg(feature = "postgres")]
#[path = "faults/silence.rs"]
mod silence;
#[cfg(feature = "sqlite")]
#[path = "faults/sqlite.rs"]
mod sqlite;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime},
};

use futures::{Stream, StreamExt, future::join_all};
use support::{background, device::key, process};
use tenure::{
    EndReason, LeaseSupervisor, Run, RunEvent, SessionState, SessionStatus, Timing,
    clock::{BootInstant, Clock as _, SystemClock},
};

#[test]
fn worker_entry() {
    process::enter(|role, commands| match role {
        #[cfg(feature = "postgres")]
        secrets::ROLE => secrets::work(commands),
        _ => host::work(role, commands),
    });
}

/// How long a test waits for what must come at last, on a machine at full load.
const AT_LAST: Duration = Duration::from_secs(30);

async fn supervisor(url: &str, ttl: Duration) -> LeaseSupervisor {
    let started = LeaseSupervisor::builder(url).holder_label("api").ttl(ttl).start().await;
    started.unwrap_or_else(|error| panic!("{error}"))
}

async fn held(supervisor: &LeaseSupervisor, session: &str) -> Run {
    let acquired = supervisor.acquire(&key(session)).await;
    acquired.unwrap_or_else(|error| panic!("{session}: {error}"))
}

async fn held_all(supervisor: &LeaseSupervisor, count: usize) -> Vec<Run> {
    let names: Vec<_> = (0..count).map(|index| format!("chat-{index}")).collect();
    join_all(names.iter().map(|name| held(supervisor, name))).await
}

/// Asks until the session is granted: after a fault, what is uncertain at first must become certain at last.
async fn held_at_last(supervisor: &LeaseSupervisor, session: &str) -> Run {
    at_last(session, async || supervisor.acquire(&key(session)).await.map_err(|error| error.to_string()))
        .await
}

/// Looks until the session is as wanted.
async fn seen_at_last(
    supervisor: &LeaseSupervisor,
    session: &str,
    wanted: impl Fn(&SessionStatus) -> bool,
) -> SessionStatus {
    at_last(session, async || match supervisor.inspect(&key(session)).await {
        Ok(status) if wanted(&status) => Ok(status),
        seen => Err(format!("{seen:?}")),
    })
    .await
}

async fn at_last<T>(what: &str, attempt: impl AsyncFn() -> Result<T, String>) -> T {
    let until = SystemClock.now() + AT_LAST;
    loop {
        match attempt().await {
            Ok(value) => return value,
            Err(error) => assert!(SystemClock.now() < until, "{what}: {error}"),
        }
        background::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits for an event; events before are passed over.
async fn told(events: &mut (impl Stream<Item = RunEvent> + Unpin), wanted: impl Fn(&RunEvent) -> bool) {
    let found = async {
        while let Some(event) = events.next().await {
            if wanted(&event) {
                return;
            }
        }
        panic!("the supervisor ended");
    };
    tokio::select! {
        () = found => {}
        () = background::sleep(AT_LAST) => panic!("the event did not come"),
    }
}

/// The end of one run, as its work could see it.
struct End {
    reason: EndReason,
    at: BootInstant,
    wall: SystemTime,
}

/// Between its cancellation and the end of its lease the work of every run had its time. The database's clock is
/// this machine's, so that the two instants can be compared here.
async fn had_time_to_stop(observer: &LeaseSupervisor, runs: &[Run], ends: &[End], timing: Timing) {
    let list = async || observer.list().include_expired().await.map_err(|error| error.to_string());
    let rows = at_last("list", list).await;
    for (run, end) in runs.iter().zip(ends) {
        let row = rows.iter().find(|row| row.key == *run.key()).and_then(|row| row.holder.as_ref());
        let row = row.filter(|row| row.run_id == run.run_id()).expect("nobody else has asked");
        let left = row.expires_at.duration_since(end.wall).unwrap_or_default();
        assert!(left >= timing.safety_margin() / 2, "{run:?} had only {left:?} to stop its work");
    }
}

/// Keeps an eye on runs from a thread of its own, from now until all have ended.
struct Watch {
    thread: JoinHandle<(Vec<Run>, Vec<Trust>)>,
    ends: Vec<tokio::task::JoinHandle<End>>,
}

#[derive(Clone, Copy)]
struct Trust {
    /// The end of trust, or a little less.
    until: BootInstant,
    last_held: BootInstant,
}

impl Watch {
    fn over(runs: Vec<Run>) -> Self {
        let end = async |reason: EndReason| End { reason, at: SystemClock.now(), wall: SystemTime::now() };
        let ends = runs.iter().map(|run| {
            let cancelled = run.cancelled();
            background::handle().spawn(async move { end(cancelled.await).await })
        });
        Self { ends: ends.collect(), thread: thread::spawn(move || sample(runs)) }
    }

    /// Every run was cancelled for want of an answer, no later than its trusted time and what the operating system
    /// takes to wake us, for which half of the work's own time is allowed.
    async fn all_ended_on_time(self, timing: Timing) -> (Vec<Run>, Vec<End>) {
        let slack = timing.safety_margin() / 4;
        let mut ends = Vec::new();
        for end in self.ends {
            ends.push(end.await.expect("the watch does not panic"));
        }
        let (runs, trusts) = self.thread.join().expect("the watch does not panic");
        for (run, (end, trust)) in runs.iter().zip(ends.iter().zip(trusts)) {
            assert_eq!(end.reason, EndReason::Unconfirmed, "{run:?}");
            assert!(!run.is_held());
            assert!(trust.last_held <= trust.until + Duration::from_millis(1), "{run:?} outlived its trust");
            let late = end.at.saturating_since(trust.until);
            assert!(late <= slack, "{run:?} was cancelled {late:?} after its trusted time");
        }
        (runs, ends)
    }
}

fn sample(runs: Vec<Run>) -> (Vec<Run>, Vec<Trust>) {
    let start = BootInstant::from_nanos(0);
    let mut trusts = vec![Trust { until: start, last_held: start }; runs.len()];
    loop {
        let mut any = false;
        for (run, trust) in runs.iter().zip(&mut trusts) {
            // The clock first: what is true later was true then, as trust never comes back.
            let now = SystemClock.now();
            let trusted_for = run.trusted_for();
            if run.is_held() {
                any = true;
                trust.last_held = now;
                trust.until = trust.until.max(now + trusted_for);
            }
        }
        if !any {
            return (runs, trusts);
        }
        thread::sleep(Duration::from_micros(500));
    }
}

/// Every core is busy until this is dropped.
struct BusyCores {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyCores {
    fn start() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let cores = thread::available_parallelism().map_or(2, Into::into);
        let spin = |over: Arc<AtomicBool>| {
            move || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        };
        let threads = (0..cores).map(|_| thread::spawn(spin(over.clone()))).collect();
        Self { over, threads }
    }
}

impl Drop for BusyCores {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(feature = "postgres")]
fn is_idle(status: &SessionStatus) -> bool {
    status.state == SessionState::Idle
}
