//! How this process acquires a session: it refuses from memory, or asks the database and hands out the grant.

use std::sync::Arc;

use actix::{Actor, AsyncContext, Context, Handler, Message, Recipient};
use futures::channel::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{Links, LocalSession, Registry, Running};
use crate::{
    actor::{
        acquisition::{Acquired, Acquisition, AcquisitionEnd, Orphan},
        run::{RunActor, RunLinks},
    },
    clock::BootInstant,
    config::Timing,
    end::{EndReason, Limit},
    error::{AcquireError, Busy},
    event::{EventSender, RunEvent, forward},
    lease::Lease,
    run::{Run, RunMessage, Shared, Start},
    session::{Holder, Label, RunId, RunPhase, SessionKey, StopRequest},
    store::{Acquire, Grant, StoreError},
    trace,
};

/// A caller wants a session.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct AcquireSession {
    pub(crate) key: SessionKey,
    pub(crate) label: Label,
    pub(crate) phase: RunPhase,
    /// The supervisor's, but for the ttl, what derives from it, and the grace.
    pub(crate) timing: Timing,
    pub(crate) limits: Vec<Limit>,
    pub(crate) limit_per_account: Option<u32>,
    /// A listener for the events of this run only.
    pub(crate) events: Option<Recipient<RunEvent>>,
    /// The latest instant for an answer, by the supervisor's clock. The clock of the caller's runtime may be paused.
    pub(crate) until: BootInstant,
    /// Cancelled when the caller no longer waits.
    pub(crate) abandoned: CancellationToken,
    /// The code that asks.
    pub(crate) origin: trace::Origin,
    pub(crate) reply: oneshot::Sender<Result<Run, AcquireError>>,
}

/// A request that is under way, and later requests for the same session, which wait for its answer.
pub(super) struct Pending {
    pub(super) run_id: RunId,
    pub(super) first: AcquireSession,
    parked: Vec<AcquireSession>,
    /// A request to stop the run that this acquire may become.
    pub(super) stop: Option<StopRequest>,
    /// A hint says that the row may hold a request to stop.
    pub(super) is_hinted: bool,
}

/// A grant that may be handed out.
struct Granted {
    run_id: RunId,
    lease: Lease,
    grant: Grant,
    unknown: u32,
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
            AcquisitionEnd::Granted { sent_at, mut grant } => {
                match self.accept(first.timing, sent_at, &grant) {
                    Ok(lease) => {
                        grant.stop = grant.stop.or(stop);
                        let granted = Granted { run_id, lease, grant, unknown };
                        return self.hand_out(first, parked, granted, ctx);
                    }
                    Err(refusal) => refusal,
                }
            }
            AcquisitionEnd::Busy(holder) => AcquireError::Busy(Box::new(Busy::new(*holder))),
            AcquisitionEnd::Full { running } => AcquireError::AccountLimit {
                account: key.account().to_owned(),
                limit: first.limit_per_account.unwrap_or(running),
                running,
            },
            AcquisitionEnd::Late(error) | AcquisitionEnd::Refused(error) if unknown > 0 => {
                AcquireError::Unavailable(error)
            }
            AcquisitionEnd::Late(error) => AcquireError::NotAcquired(error),
            AcquisitionEnd::Refused(error) => AcquireError::Refused(error),
        };
        if rows > 0 {
            self.compensate(Orphan { key: key.clone(), run_id, ttl: first.timing.ttl(), rows }, ctx);
        }
        // `Busy` is the answer for the parked requests too. After another failure the next of them may still succeed.
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

impl Registry {
    /// Sends a request to the database. Later requests for the same session wait for its answer.
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
                ttl: first.timing.ttl(),
                limit_per_account: first.limit_per_account,
            },
            lane: self.links.acquires.clone(),
            means: self.links.means.clone(),
            timing: first.timing,
            deadline: Instant::now() + first.until.saturating_since(self.links.run.clock.now()),
            location: self.links.location.clone(),
            after: session.running.as_ref().map(|earlier| earlier.shared.clone()),
            abandoned: first.abandoned.clone(),
        };
        session.acquiring = Some(Pending { run_id, first, parked, stop: None, is_hinted: false });
        self.tell_whether_busy();
        acquisition.spawn(ctx.address().recipient());
    }

    /// Sends the next request whose caller still waits. Requests whose time is up get `answer`.
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

    /// Checks that a grant may still be handed out.
    fn accept(&self, timing: Timing, sent_at: BootInstant, grant: &Grant) -> Result<Lease, AcquireError> {
        let given_back = |why: &str| {
            let (location, detail) = (self.links.location.clone(), format!("{why}; it is being released"));
            AcquireError::Unavailable(StoreError::Unavailable { location, detail })
        };
        if self.is_shutting_down() {
            return Err(given_back("the grant came while the supervisor was shutting down"));
        }
        let now = self.links.run.clock.now();
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
        let span = first.origin.run_span(&key, run_id, grant.fence);
        let ttl_ms = trace::millis(first.timing.ttl());
        span.in_scope(
            || info!(name: "acquired", target: trace::RUN, holder = %first.label, ttl_ms, "acquired"),
        );
        let start = Start {
            key: key.clone(),
            run_id,
            fence: grant.fence,
            acquired_at_micros: grant.acquired_at_micros,
            trusted_until: lease.trusted_until(),
            expires_at_micros: grant.expires_at_micros,
            phase: first.phase.clone(),
            schema: self.links.run.schema.clone(),
            is_deserted: self.links.run.is_deserted.clone(),
            span,
        };
        let links = RunLinks { timing: first.timing, ..self.links.run.clone() };
        let (timing, clock) = (links.timing, links.clock.clone());
        let shared = Arc::new(Shared::new(start, clock, timing, self.root.child_token()));
        let own_events = first.events.map(|recipient| self.links.forward_one_run(recipient));
        let mut actor = RunActor::new(lease, shared.clone(), links, own_events);
        actor.say(RunEvent::Acquired { run: shared.to_ref(), ttl: timing.ttl() });
        let actor = actor.start();
        if let Some(request) = &grant.stop {
            let reason = EndReason::asked(request);
            shared.note_recorded_stop(request);
            // Ends the run before anybody can begin to work under it.
            shared.end(reason.clone());
            actor.do_send(RunMessage::Stop { reason, grace: None });
        }
        let AcquireSession { label, reply, .. } = first;
        let running = Running { shared: shared.clone(), actor: actor.clone(), label, unknown };
        let holder = running.holder(&self.links);
        self.sessions.entry(key).or_default().running = Some(running);
        // If the guard cannot be delivered, its drop frees the session (invariant I7) for the next request.
        match reply.send(Ok(Run::new(shared, actor.recipient()))) {
            Ok(()) => parked.into_iter().for_each(|request| request.answer(Err(busy(holder.clone())))),
            Err(undelivered) => {
                drop(undelivered);
                self.begin_next(parked, || busy(holder.clone()), ctx);
            }
        }
    }
}

impl AcquireSession {
    fn answer(self, answer: Result<Run, AcquireError>) {
        // Fails if nobody waits for the answer any more.
        let _ = self.reply.send(answer);
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
