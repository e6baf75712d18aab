//! The registry: which sessions this process works on.
//!
//! It refuses from memory, but only the database grants (invariant I1). It starts one run actor per grant,
//! hears of every end, and watches the local clocks for all of them.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, Recipient};
use futures::channel::oneshot;
use tokio::{sync::watch, time::Instant};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tracing::{info, warn};

use crate::{
    actor::{
        acquisition::{Acquired, Acquisition, AcquisitionEnd, Orphan, compensate},
        lane::{Acquiring, LaneAddr},
        pool::Pool,
        query::Queries,
        run::{Recheck, RunActor, RunFinished, RunLinks},
    },
    clock::{BootInstant, Gap, Reading, instant},
    end::{EndReason, Limit},
    error::{AcquireError, Busy},
    event::{EventSender, RunEvent, forward},
    lease::Lease,
    run::{Run, RunMessage, Shared, Start},
    session::{Holder, Label, NodeId, RunId, RunPhase, SessionKey, StopRequest},
    store::{Acquire, Grant, StoreError},
};

mod closing;
mod stops;

use closing::Closing;
pub(crate) use closing::{Drain, Farewell, Shutdown};
pub use closing::{EndedRun, ShutdownReport};
pub(crate) use stops::{LookForStops, StopSession};

pub(crate) struct Registry {
    sessions: HashMap<SessionKey, LocalSession>,
    links: Links,
    last_reading: Reading,
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

/// A grant that may be handed out.
struct Granted {
    run_id: RunId,
    lease: Lease,
    grant: Grant,
    unknown: u32,
}

/// A request that was sent, and those that came after it for the same session.
struct Pending {
    run_id: RunId,
    first: AcquireSession,
    parked: Vec<AcquireSession>,
    /// A request to stop the run that this may become.
    stop: Option<StopRequest>,
    /// There may be one in its row.
    is_hinted: bool,
}

/// Whether the runs still hold their sessions is in doubt: each is renewed at once.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Doubt;

/// A caller wants a session.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct AcquireSession {
    pub(crate) key: SessionKey,
    pub(crate) label: Label,
    pub(crate) phase: RunPhase,
    pub(crate) limits: Vec<Limit>,
    /// Whom to tell of this run, besides those who are told of all.
    pub(crate) events: Option<Recipient<RunEvent>>,
    /// When the caller is to be answered at the latest, by the supervisor's clock: the caller's runtime may have one that
    /// is paused.
    pub(crate) until: BootInstant,
    /// Cancelled when the caller does not wait any more.
    pub(crate) abandoned: CancellationToken,
    pub(crate) reply: oneshot::Sender<Result<Run, AcquireError>>,
}

/// An orphan is dealt with, or given up.
#[derive(Message)]
#[rtype(result = "()")]
struct Compensated {
    run_id: RunId,
    is_gone: bool,
}

/// How often the local clocks are compared.
const TICK: Duration = Duration::from_secs(1);

impl Registry {
    pub(crate) fn new(links: Links, root: CancellationToken, over: DropGuard) -> Self {
        let last_reading = links.run.clock.reading();
        Self {
            _root: root.clone().drop_guard(),
            sessions: HashMap::new(),
            links,
            last_reading,
            orphans: HashMap::new(),
            stop_compensating: CancellationToken::new(),
            closing: None,
            root,
            _over: over,
        }
    }

    /// Sends a request to the database. Those that come after it for the same session wait for its answer.
    fn begin(&mut self, first: AcquireSession, parked: Vec<AcquireSession>, ctx: &mut Context<Self>) {
        let session = self.sessions.entry(first.key.clone()).or_default();
        let run_id = RunId::random();
        let acquisition = Acquisition {
            item: Acquire {
                key: first.key.clone(),
                run_id,
                node: self.links.node,
                label: first.label.clone(),
                phase: first.phase.clone(),
                ttl: self.links.run.timing.ttl(),
            },
            lane: self.links.acquires.clone(),
            means: self.links.means.clone(),
            timing: self.links.run.timing,
            deadline: Instant::now() + first.until.saturating_since(self.links.run.clock.now()),
            location: self.links.location.clone(),
            after: session.running.as_ref().map(|earlier| earlier.shared.clone()),
            abandoned: first.abandoned.clone(),
        };
        session.acquiring = Some(Pending { run_id, first, parked, stop: None, is_hinted: false });
        self.tell_whether_busy();
        acquisition.spawn(ctx.address().recipient());
    }

    /// Sends the next request that somebody still waits for; those whose time is up are answered alike.
    fn begin_next(
        &mut self,
        parked: Vec<AcquireSession>,
        answer: impl Fn() -> AcquireError,
        ctx: &mut Context<Self>,
    ) {
        let now = self.links.run.clock.now();
        let in_time = |request: &AcquireSession| now < request.until;
        let (waiting, late): (Vec<_>, Vec<_>) = parked.into_iter().partition(in_time);
        late.into_iter().for_each(|request| request.answer(Err(answer())));
        let mut waiting = waiting.into_iter().filter(|request| !request.abandoned.is_cancelled());
        if self.is_closing() {
            return waiting.for_each(|request| request.answer(Err(AcquireError::Draining)));
        }
        if let Some(first) = waiting.next() {
            self.begin(first, waiting.collect(), ctx);
        }
    }

    /// Whether a grant may still be handed out.
    fn accept(&self, sent_at: BootInstant, grant: &Grant) -> Result<Lease, AcquireError> {
        let given_back = |why: &str| {
            let (location, detail) = (self.links.location.clone(), format!("{why}; it is being given back"));
            AcquireError::Unavailable(StoreError::Unavailable { location, detail })
        };
        if self.is_shutting_down() {
            return Err(given_back("the grant came while the supervisor was shutting down"));
        }
        let (timing, now) = (self.links.run.timing, self.links.run.clock.now());
        Lease::granted(timing, sent_at, grant.remaining, now, fastrand::u64(..))
            .ok_or_else(|| given_back("the grant came after its own trusted time had passed"))
    }

    /// Gives a granted session to its caller, under a run actor of its own.
    fn hand_out(
        &mut self,
        first: AcquireSession,
        parked: Vec<AcquireSession>,
        granted: Granted,
        ctx: &mut Context<Self>,
    ) {
        let Granted { run_id, mut lease, grant, unknown } = granted;
        for limit in &first.limits {
            lease.limit_to(*limit, self.links.run.clock.now());
        }
        let key = first.key.clone();
        info!(account = key.account(), session = key.session(), %run_id, fence = grant.fence.as_i64(), "acquired");
        let start = Start {
            key: key.clone(),
            run_id,
            fence: grant.fence,
            acquired_at_micros: grant.acquired_at_micros,
            trusted_until: lease.trusted_until(),
            expires_at_micros: grant.expires_at_micros,
            phase: first.phase.clone(),
            schema: self.links.run.schema.clone(),
        };
        let (timing, clock) = (self.links.run.timing, self.links.run.clock.clone());
        let shared = Arc::new(Shared::new(start, clock, timing, self.root.child_token()));
        let own_events = first.events.map(|recipient| self.links.forward_one_run(recipient));
        let mut actor = RunActor::new(lease, shared.clone(), self.links.run.clone(), own_events);
        actor.say(RunEvent::Acquired { run: shared.to_ref(), ttl: timing.ttl() });
        let actor = actor.start();
        if let Some(request) = &grant.stop {
            let reason = EndReason::stopped(request);
            shared.note_recorded_stop(request);
            // Before anybody can begin to work under it.
            shared.end(reason.clone());
            actor.do_send(RunMessage::Stop { reason, grace: None });
        }
        let AcquireSession { label, reply, .. } = first;
        let running = Running { shared: shared.clone(), actor: actor.clone(), label, unknown };
        let holder = running.holder(&self.links);
        self.sessions.entry(key).or_default().running = Some(running);
        // A guard that cannot be delivered is dropped, which frees the session (invariant I7) for the next.
        match reply.send(Ok(Run::new(shared, actor.recipient()))) {
            Ok(()) => parked.into_iter().for_each(|request| request.answer(Err(busy(holder.clone())))),
            Err(undelivered) => {
                drop(undelivered);
                self.begin_next(parked, || busy(holder.clone()), ctx);
            }
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
        tick(ctx);
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
fn tick(ctx: &mut Context<Registry>) {
    ctx.run_later(TICK, |registry, ctx| {
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
        tick(ctx);
    });
}

impl Handler<Doubt> for Registry {
    type Result = ();

    fn handle(&mut self, _: Doubt, _: &mut Context<Self>) {
        self.recheck(Recheck::InDoubt);
    }
}

impl Handler<AcquireSession> for Registry {
    type Result = ();

    fn handle(&mut self, request: AcquireSession, ctx: &mut Context<Self>) {
        if self.is_closing() {
            return request.answer(Err(AcquireError::Draining));
        }
        let (running, acquiring) = match self.sessions.get_mut(&request.key) {
            Some(LocalSession { running, acquiring }) => (running.as_ref(), acquiring.as_mut()),
            None => (None, None),
        };
        if let Some(pending) = acquiring {
            return pending.parked.push(request);
        }
        match running.filter(|running| !running.shared.is_work_over()) {
            Some(running) => request.answer(Err(busy(running.holder(&self.links)))),
            None => self.begin(request, Vec::new(), ctx),
        }
    }
}

impl Handler<Acquired> for Registry {
    type Result = ();

    fn handle(&mut self, acquired: Acquired, ctx: &mut Context<Self>) {
        let Some(acquired) = self.look_first(acquired, ctx) else { return };
        let Acquired { key, run_id, end, unknown } = acquired;
        let session = self.sessions.get_mut(&key);
        let pending = session.and_then(|session| session.acquiring.take_if(|sent| sent.run_id == run_id));
        let Some(Pending { first, parked, stop, .. }) = pending else { return };
        let granted = matches!(end, AcquisitionEnd::Granted { .. });
        let rows = unknown.saturating_add(u32::from(granted));
        let refusal = match end {
            AcquisitionEnd::Granted { sent_at, mut grant } => match self.accept(sent_at, &grant) {
                Ok(lease) => {
                    grant.stop = grant.stop.or(stop);
                    let granted = Granted { run_id, lease, grant, unknown };
                    return self.hand_out(first, parked, granted, ctx);
                }
                Err(refusal) => refusal,
            },
            AcquisitionEnd::Busy(holder) => AcquireError::Busy(Box::new(Busy::new(*holder))),
            AcquisitionEnd::Late(error) | AcquisitionEnd::Refused(error) if unknown > 0 => {
                AcquireError::Unavailable(error)
            }
            AcquisitionEnd::Late(error) => AcquireError::NotAcquired(error),
            AcquisitionEnd::Refused(error) => AcquireError::Refused(error),
        };
        if rows > 0 {
            self.compensate(Orphan { key: key.clone(), run_id, rows }, ctx);
        }
        // A refusal holds for whoever asked meanwhile; another failure need not.
        if let AcquireError::Busy(_) = refusal {
            for request in parked {
                request.answer(Err(refusal.clone()));
            }
        } else {
            self.begin_next(parked, || refusal.clone(), ctx);
        }
        first.answer(Err(refusal));
        self.tidy(&key, ctx);
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

impl AcquireSession {
    fn answer(self, answer: Result<Run, AcquireError>) {
        // Whoever does not wait any more has dropped the receiver.
        let _ = self.reply.send(answer);
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

impl Links {
    fn forward_one_run(&self, recipient: Recipient<RunEvent>) -> EventSender {
        let events = EventSender::of_one_run();
        actix_rt::spawn(self.goodbyes.track_future(forward(
            events.source().subscribe(),
            recipient,
            self.over.clone(),
        )));
        events
    }
}

fn busy(holder: Holder) -> AcquireError {
    AcquireError::Busy(Box::new(Busy::new(holder)))
}
