//! The registry: the sessions that this process works on.
//!
//! It may refuse from memory, but only the database grants (invariant I1). It starts one run actor per grant, is told
//! when each run ends, and watches the local clocks for all runs.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use actix::{
    Actor, Addr, AsyncContext, Context, Handler, Message,
    fut::{ActorFutureExt as _, wrap_future},
};
use futures::channel::oneshot;
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
        means::Means,
        query::Queries,
        run::{Recheck, RunActor, RunFinished, RunLinks},
        starting::may_start,
    },
    clock::{Gap, Reading, instant},
    end::EndReason,
    pulse::Pulse,
    run::{RunContext, RunMessage, Shared},
    session::{Holder, Label, NodeId, RunId, SessionKey},
    trace,
};

mod acquiring;
mod breaks;
mod closing;
mod stops;

pub(crate) use acquiring::AcquireSession;
use acquiring::Pending;
pub(crate) use breaks::{BreakSession, Breaking, Broke};
use closing::Closing;
pub(crate) use closing::{Drain, Farewell, Shutdown};
pub use closing::{EndedRun, ShutdownReport};
pub(crate) use stops::{LookForStops, StopSession};

pub(crate) struct Registry {
    sessions: HashMap<SessionKey, LocalSession>,
    links: Links,
    last_reading: Reading,
    /// Wakes the registry to compare the clocks. `None` once the registry has started.
    tick: Option<Pulse>,
    /// Runs without an owner, whose releases are under way.
    orphans: HashMap<RunId, SessionKey>,
    stop_compensating: CancellationToken,
    closing: Option<Closing>,
    /// The parent of all run tokens. It is cancelled when the registry ends, in whatever way.
    root: CancellationToken,
    _root: DropGuard,
    /// Tells the supervisor's thread that the registry has ended.
    _over: DropGuard,
}

/// What the registry sends to, and what it passes on.
pub(crate) struct Links {
    pub(crate) node: NodeId,
    pub(crate) location: String,
    pub(crate) acquires: LaneAddr<Acquiring>,
    pub(crate) means: Means,
    pub(crate) run: RunLinks,
    /// Cancelled when the registry has ended.
    pub(crate) over: CancellationToken,
    /// Keeps the supervisor's thread alive until the last tasks have ended.
    pub(crate) goodbyes: TaskTracker,
    pub(crate) queries: Queries,
    /// Whether this process has a session, or asks for one.
    pub(crate) is_busy: watch::Sender<bool>,
    /// Where the report of a shutdown is left.
    pub(crate) report: Arc<OnceLock<ShutdownReport>>,
}

/// One session of this process: the run that works on it, and a request for it that is under way. Both exist at the
/// same time only if the run's work has ended and its release is under way.
#[derive(Default)]
struct LocalSession {
    running: Option<Running>,
    acquiring: Option<Pending>,
}

struct Running {
    shared: Arc<Shared>,
    actor: Addr<RunActor>,
    label: Label,
    /// Earlier attempts to acquire under this run id whose effect is unknown.
    unknown: u32,
}

/// It is in doubt whether the runs still hold their sessions: renew each at once.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct ConfirmAll;

/// A caller looks for the run of one session in this process, or for all runs.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct FindRuns {
    pub(crate) of: Option<SessionKey>,
    pub(crate) reply: oneshot::Sender<Vec<RunContext>>,
}

/// An orphan was released or given up.
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

    /// Releases what was or may be granted to a run without an owner.
    fn compensate(&mut self, orphan: Orphan, ctx: &mut Context<Self>) {
        let run_id = orphan.run_id;
        self.orphans.insert(run_id, orphan.key.clone());
        let work = compensate(orphan, self.links.run.releases.clone(), self.stop_compensating.clone());
        let registry = ctx.address();
        actix_rt::spawn(async move {
            let is_gone = work.await;
            registry.do_send(Compensated { run_id, is_gone });
        });
    }

    /// Forgets a session that has neither a run nor a request any more.
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
        if may_start(ctx)
            && let Some(pulse) = self.tick.take()
        {
            tick(pulse, ctx);
        }
    }
}

/// The drop of the root token cancels all work. This also tells the run actors, so that they do not wait for ever for
/// work that ignores its token.
impl Drop for Registry {
    fn drop(&mut self) {
        for running in self.sessions.values().filter_map(|session| session.running.as_ref()) {
            running.actor.do_send(RunMessage::Stop { reason: EndReason::Panicked, grace: None });
        }
    }
}

/// Compares the clocks with each pulse.
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
                warn!(
                    target: trace::SUPERVISOR,
                    suspended_ms = trace::millis(by),
                    "the machine was suspended"
                );
                Some(Recheck::Suspended)
            }
            Gap::WallAhead(by) => {
                warn!(
                    target: trace::SUPERVISOR,
                    ahead_ms = trace::millis(by),
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

impl Handler<FindRuns> for Registry {
    type Result = ();

    fn handle(&mut self, FindRuns { of, reply }: FindRuns, _: &mut Context<Self>) {
        let run_of = |session: &LocalSession| session.running.as_ref().map(Running::context);
        let found = match of {
            Some(key) => self.sessions.get(&key).and_then(run_of).into_iter().collect(),
            None => self.sessions.values().filter_map(run_of).collect(),
        };
        // Whoever does not wait any more has dropped the receiver.
        let _ = reply.send(found);
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
        // A frozen server may still run an earlier attempt, and create a row for a run that is over.
        if let Some(Running { shared, unknown: rows @ 1.., .. }) = ended {
            self.compensate(
                Orphan { key: finished.key.clone(), run_id, ttl: shared.timing.ttl(), rows },
                ctx,
            );
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
    fn context(&self) -> RunContext {
        RunContext::new(self.shared.clone(), self.actor.clone().recipient())
    }

    /// What this process knows of its own run, for a refusal without the database.
    fn holder(&self, links: &Links) -> Holder {
        // This is not the end of trust that the work sees. For the work, trust ends with a stop, but the row is renewed
        // until the work has ended.
        let expires_at = self.shared.renewed_until() + self.shared.timing.safety_margin();
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
