//! Whole supervisors in virtual time, on the in-memory store: what runs promise, and every way they end.

#![cfg(feature = "testing")]

#[path = "simulated/acquiring.rs"]
mod acquiring;
#[path = "simulated/closing.rs"]
mod closing;
#[path = "simulated/ending.rs"]
mod ending;
#[path = "simulated/failing.rs"]
mod failing;
#[path = "simulated/limits.rs"]
mod limits;
#[path = "simulated/listeners.rs"]
mod listeners;
#[path = "simulated/outages.rs"]
mod outages;
#[path = "simulated/scopes.rs"]
mod scopes;
#[path = "simulated/stopping.rs"]
mod stopping;
#[path = "simulated/watching.rs"]
mod watching;

use std::time::Duration;

use futures::{FutureExt, Stream, StreamExt};
use tenure::{EndReason, Run, RunEvent, SessionKey, Supervisor, testing::Simulation};

const TTL: Duration = Duration::from_secs(30);
const MARGIN: Duration = Duration::from_secs(6);

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn key(session: &str) -> SessionKey {
    SessionKey::new("acct-1", session).unwrap()
}

async fn supervisor(sim: &Simulation) -> Supervisor {
    sim.supervisor().holder("desktop").ttl(TTL).start_here().await.unwrap()
}

async fn held(supervisor: &Supervisor, session: &str) -> Run {
    supervisor.acquire(&key(session)).await.unwrap()
}

/// Events that have come so far, by name.
fn names(events: &mut (impl Stream<Item = RunEvent> + Unpin)) -> Vec<&'static str> {
    let mut names = Vec::new();
    while let Some(Some(event)) = events.next().now_or_never() {
        names.push(match event {
            RunEvent::Acquired { .. } => "acquired",
            RunEvent::AtRisk { .. } => "at risk",
            RunEvent::Recovered { .. } => "recovered",
            RunEvent::Stopping { .. } => "stopping",
            RunEvent::Stuck { .. } => "stuck",
            RunEvent::Ended { .. } => "ended",
            other => panic!("unexpected {other:?}"),
        });
    }
    names
}

/// Why the first run that has ended so far did.
fn first_end(events: &mut (impl Stream<Item = RunEvent> + Unpin)) -> EndReason {
    loop {
        match events.next().now_or_never() {
            Some(Some(RunEvent::Ended { reason, .. })) => return reason,
            Some(Some(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}
