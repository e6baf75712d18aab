//! Whole supervisors in virtual time, on the in-memory store: what runs promise, and every way they end.

#![cfg(feature = "testing")]

#[path = "simulated/acquiring.rs"]
mod acquiring;
#[path = "simulated/asking.rs"]
mod asking;
#[path = "simulated/closing.rs"]
mod closing;
#[path = "simulated/connecting.rs"]
mod connecting;
#[path = "simulated/ending.rs"]
mod ending;
#[path = "simulated/failed.rs"]
mod failed;
#[path = "simulated/failing.rs"]
mod failing;
#[path = "simulated/limits.rs"]
mod limits;
#[path = "simulated/listeners.rs"]
mod listeners;
#[path = "simulated/local.rs"]
mod local;
#[path = "simulated/options.rs"]
mod options;
#[path = "simulated/outages.rs"]
mod outages;
#[path = "support/panics.rs"]
mod panics;
#[path = "simulated/rejecting.rs"]
mod rejecting;
#[path = "simulated/scopes.rs"]
mod scopes;
#[path = "simulated/stopping.rs"]
mod stopping;
#[path = "simulated/watching.rs"]
mod watching;

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{FutureExt, Stream, StreamExt};
use tenure::{EndReason, LeaseSupervisor, Run, RunEvent, SessionKey, testing::Simulation};

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

async fn supervisor(sim: &Simulation) -> LeaseSupervisor {
    sim.supervisor().holder_label("desktop").ttl(TTL).start_here().await.unwrap()
}

async fn held(supervisor: &LeaseSupervisor, session: &str) -> Run {
    supervisor.acquire(&key(session)).await.unwrap()
}

/// What the library logs on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn listen(&self) -> tracing::subscriber::DefaultGuard {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || log.clone());
        tracing::subscriber::set_default(subscriber.finish())
    }

    fn lines(&self, with: &str) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned();
        text.lines().filter(|line| line.contains(with)).map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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
