//! The registry: which sessions this process works on.
//!
//! It refuses from memory, but only the database grants (invariant I1). It starts one run actor per grant,
//! hears of every end, and watches the local clocks for all of them.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use actix::{
    Actor, Addr, AsyncContext, Context, Handler, Message,
    fut::{ActorFutureExt as _, wrap_future},
};
use tokio::sync::watch;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tracing::warn;

use crate::{
    actor::{
        acquisition::{Orphan, compensate},
        lane::{Acquiring, LaneAddr},
        pool::Pool,
        query::Queries,
        run::{Recheck, RunActor, RunFinished, RunLinks},
    },
    clock::{Gap, Reading, instant},
    end::EndReason,
    pulse::Pulse,
    run::{RunMessage, Shared},
    session::{Holder, Label, NodeId, RunId, SessionKey},
};

mod acquiring;
mod closing;
mod stops;

pub(crate) use acquiring::AcquireSession;
use acquiring::Pending;
use closing::Closing;
pub(crate) use closing::{Drain, Farewell, Shutdown};
pub use closing::{EndedRun, ShutdownReport};
pub(crate) use stops::{LookForStops, StopSession};

pub(crate) struct Registry {
    sessions: HashMap<SessionKey, LocalSession>,
    links: Links,
    last_reading: Reading,
    /// Until it has started.
    tick: Option<Pulse>,
    /// Runs that must not live, whose releases are under way.
    orphans: HashMap<RunId, SessionKey>,
    stop_compensating: CancellationToken,
    closing: Option<Closing>,
    /// The parent of all run tokens: cancelled with the registry, however it ends.
    root: CancellationToken,
    _root: DropGuard,
    /// Tells the thread that there is nothing left to drive.
    _over: DropGuard,
}

/// What the registry reaches.
pub(crate) struct Links {
    pub(crate) node: NodeId,
    pub(crate) location: String,
    pub(crate) acquires: LaneAddr<Acquiring>,
    /// The connections that renew and release.
    pub(crate) means: Vec<Pool>,
    pub(crate) run: RunLinks,
    /// Cancelled when the registry has ended.
    pub(crate) over: CancellationToken,
    /// Keeps the thread until all has been said.
    pub(crate) goodbyes: TaskTracker,
    pub(crate) queries: Queries,
    /// Whether there is any session to hear hints for.
    pub(crate) is_busy: watch::Sender<bool>,
    /// Where the report of a shutdown is left.
    pub(crate) report: Arc<OnceLock<ShutdownReport>>,
}

/// One session of this process: the run that works on it, and a request for it on its way. Both exist at once
/// only when the run's work has ended and its release is under way.
#[derive(Default)]
struct LocalSession {
    running: Option<Running>,
    acquiring: Option<Pending>,
}

struct Running {
    shared: Arc<Shared>,
    actor: Addr<RunActor>,
    label: Label,
    /// Attempts to acquire before the one that was granted, whose effect is unknown.
    unknown: u32,
}

/// Whether the runs still hold their sessions is in doubt: each is renewed at once.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct ConfirmAll;

/// An orphan is dealt with, or given up.
#[derive(Message)]
#[rtype(result = "()")]
struct Compensated {
    run_id: RunId,
    is_gone: bool,
}

/// How often the local clocks are compared.
pub(crate) const TICK: Duration = Duration::from_secs(1);

impl Registry {
    pub(crate) fn new(links: Links, tick: Pulse, root: CancellationToken, over: DropGuard) -> Self {
        let last_reading = links.run.clock.reading();
        Self {
            _root: root.clone().drop_guard(),
            sessions: HashMap::new(),
            links,
            tick: Some(tick),
            last_reading,
            orphans: HashMap::new(),
            stop_compensating: CancellationToken::new(),
            closing: None,
            root,
            _over: over,
        }
    }

    /// Gives back what was, or may be, granted to a run that does not live.
    fn compensate(&mut self, orphan: Orphan, ctx: &mut Context<Self>) {
        let run_id = orphan.run_id;
        self.orphans.insert(run_id, orphan.key.clone());
        let (lane, timing) = (self.links.run.releases.clone(), self.links.run.timing);
        let work = compensate(orphan, lane, timing, self.stop_compensating.clone());
        let registry = ctx.address();
        actix_rt::spawn(async move {
            let is_gone = work.await;
            registry.do_send(Compensated { run_id, is_gone });
        });
    }

    /// Drops what is known of a session when nothing is known of it any more.
    fn tidy(&mut self, key: &SessionKey, ctx: &mut Context<Self>) {
        let idle = |session: &LocalSession| session.running.is_none() && session.acquiring.is_none();
        if self.sessions.get(key).is_some_and(idle) {
            self.sessions.remove(key);
            self.tell_whether_busy();
        }
        self.end_when_empty(ctx);
    }

    fn recheck(&self, recheck: Recheck) {
        for running in self.sessions.values().filter_map(|session| session.running.as_ref()) {
            running.actor.do_send(recheck);
        }
    }
}

impl Actor for Registry {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if let Some(pulse) = self.tick.take() {
            tick(pulse, ctx);
        }
    }
}

/// The root token goes with the registry and cancels all work; this lets the run actors know, so that work
/// which ignores its token is not waited for without end.
impl Drop for Registry {
    fn drop(&mut self) {
        for running in self.sessions.values().filter_map(|session| session.running.as_ref()) {
            running.actor.do_send(RunMessage::Stop { reason: EndReason::Panicked, grace: None });
        }
    }
}

/// Re-armed instead of an interval: after a freeze an interval would fire once for every second missed.
fn tick(mut pulse: Pulse, ctx: &mut Context<Registry>) {
    let next = async move {
        pulse.next().await;
        pulse
    };
    ctx.spawn(wrap_future::<_, Registry>(next).map(|pulse, registry, ctx| {
        let reading = registry.links.run.clock.reading();
        let earlier = std::mem::replace(&mut registry.last_reading, reading);
        let recheck = match Gap::between(&earlier, &reading, registry.links.run.timing.safety_margin()) {
            Gap::None => None,
            Gap::Suspended(by) => {
                warn!(suspended_ms = by.as_millis() as u64, "the machine was suspended");
                Some(Recheck::Suspended)
            }
            Gap::WallAhead(by) => {
                warn!(
                    ahead_ms = by.as_millis() as u64,
                    "wall time ran ahead: paused machine or stepped clock"
                );
                Some(Recheck::InDoubt)
            }
        };
        if let Some(recheck) = recheck {
            registry.recheck(recheck);
        }
        tick(pulse, ctx);
    }));
}

impl Handler<ConfirmAll> for Registry {
    type Result = ();

    fn handle(&mut self, _: ConfirmAll, _: &mut Context<Self>) {
        self.recheck(Recheck::InDoubt);
    }
}

impl Handler<RunFinished> for Registry {
    type Result = ();

    fn handle(&mut self, finished: RunFinished, ctx: &mut Context<Self>) {
        if let Some(until) = finished.quarantine_until {
            let pause = until.saturating_since(self.links.run.clock.now());
            ctx.notify_later(RunFinished { quarantine_until: None, ..finished }, pause);
            return;
        }
        let session = self.sessions.get_mut(&finished.key);
        let run_id = finished.run_id;
        let ended = session.and_then(|session| session.running.take_if(|run| run.shared.run_id == run_id));
        if let Some(run) = &ended {
            self.note_ended(run);
        }
        // An attempt that a frozen server still holds would make a row for a run that is over.
        if let Some(Running { unknown: rows @ 1.., .. }) = ended {
            self.compensate(Orphan { key: finished.key.clone(), run_id, rows }, ctx);
        }
        self.tidy(&finished.key, ctx);
    }
}

impl Handler<Compensated> for Registry {
    type Result = ();

    fn handle(&mut self, compensated: Compensated, ctx: &mut Context<Self>) {
        let key = self.orphans.remove(&compensated.run_id);
        if let Some(key) = key.filter(|_| !compensated.is_gone) {
            self.note_left(key);
        }
        self.end_when_empty(ctx);
    }
}

impl Running {
    /// What this process knows of its own run, for a refusal that needs no database.
    fn holder(&self, links: &Links) -> Holder {
        // Not the trust, which ends with a stop: the row is renewed until the work has ended.
        let expires_at = self.shared.renewed_until() + links.run.timing.safety_margin();
        Holder {
            run_id: self.shared.run_id,
            node: links.node,
            label: self.label.clone(),
            fence: self.shared.fence,
            stage: self.shared.stage(),
            phase: self.shared.phase(),
            since: instant(self.shared.acquired_at_micros),
            expires_at: instant(self.shared.expires_at_micros()),
            expires_in: match self.shared.reason().is_some_and(EndReason::is_loss) {
                true => Duration::ZERO,
                false => expires_at.saturating_since(links.run.clock.now()),
            },
            stop: self.shared.stop_request(),
        }
    }
}
