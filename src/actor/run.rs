//! The actor of one run. It owns the lease, the timer and the token, and awaits nothing.
//!
//! This file handles the inputs: answers of the database, messages, and time. Each goes to the state machine of the
//! [lease](crate::lease). [`acting`] then carries out what the machine decides.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use actix::{
    Actor, AsyncContext, Context, Handler, Message, Recipient, SpawnHandle, WrapFuture, fut::ActorFutureExt,
};
use tracing::{Span, debug};

use crate::{
    actor::{
        lane::{LaneAddr, LaneAnswer, Releasing, Renewing},
        starting::may_start,
    },
    clock::{BootInstant, SharedClock, micros},
    config::Timing,
    end::EndReason,
    event::EventSender,
    lease::{Lease, Released, Renewal},
    origin::Deserted,
    run::{RunMessage, Shared},
    session::{RunId, RunPhase, RunStage, SessionKey},
    store::{Release, ReleaseOutcome, Renew, RenewOutcome, StoreError},
    trace,
};

mod acting;

pub(crate) struct RunActor {
    lease: Lease,
    shared: Arc<Shared>,
    links: RunLinks,
    timer: Option<(BootInstant, SpawnHandle)>,
    /// The error of the last attempt to renew.
    last_error: Option<StoreError>,
    /// For a listener to this run only.
    own_events: Option<EventSender>,
    /// Dropped with the actor. That tells those who wait for its end.
    farewells: Vec<mpsc::Sender<()>>,
    span: Span,
}

/// What a run actor sends to.
#[derive(Clone)]
pub(crate) struct RunLinks {
    pub(crate) timing: Timing,
    pub(crate) clock: SharedClock,
    pub(crate) renewals: LaneAddr<Renewing>,
    pub(crate) releases: LaneAddr<Releasing>,
    pub(crate) events: EventSender,
    pub(crate) registry: Recipient<RunFinished>,
    /// The schema that holds the leases, for pins in transactions of the host.
    pub(crate) schema: Arc<str>,
    pub(crate) is_deserted: Deserted,
}

/// A clock may have jumped, or the lease is in doubt.
#[derive(Message, Clone, Copy)]
#[rtype(result = "()")]
pub(crate) enum Recheck {
    /// Time has passed that timers do not count: check the time now.
    Suspended,
    /// Time may have passed that not even the boot clock counts, or the database may be another one: renew now.
    InDoubt,
}

/// Tells the registry that this run is over.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct RunFinished {
    pub(crate) key: SessionKey,
    pub(crate) run_id: RunId,
    /// Set if the actor has died before its work had ended: this process refuses the session until this instant.
    pub(crate) quarantine_until: Option<BootInstant>,
}

/// The pause between the message that a phase was set and the reading of the phase. Phases that were set meanwhile are
/// skipped.
const PHASE_PAUSE: Duration = Duration::from_millis(25);

impl RunActor {
    pub(crate) fn new(
        lease: Lease,
        shared: Arc<Shared>,
        links: RunLinks,
        own_events: Option<EventSender>,
    ) -> Self {
        let span = shared.span();
        Self { lease, shared, links, timer: None, last_error: None, own_events, farewells: Vec::new(), span }
    }

    fn arm(&mut self, ctx: &mut Context<Self>) {
        let wanted = self.lease.poll_timeout();
        if self.timer.map(|(at, _)| at) == wanted {
            return;
        }
        if let Some((_, timer)) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        let Some(at) = wanted else { return };
        let pause = at.saturating_since(self.links.clock.now());
        let timer = ctx.run_later(pause, |actor, ctx| {
            actor.timer = None;
            actor.look_at_the_time();
            actor.act(ctx);
        });
        self.timer = Some((at, timer));
    }

    fn look_at_the_time(&mut self) {
        self.lease.on_beat(self.shared.last_beat());
        self.lease.on_timeout(self.links.clock.now());
    }

    fn renewal(&self, stage: RunStage, phase: Option<RunPhase>) -> Renew {
        Renew {
            key: self.shared.key.clone(),
            run_id: self.shared.run_id,
            ttl: self.links.timing.ttl(),
            safety_margin: self.links.timing.safety_margin(),
            stage,
            phase,
        }
    }

    /// Asks the lane for a renewal. The answer comes to [`renewed`](Self::renewed).
    fn renew(&mut self, attempt: u64, item: Renew, alone: bool, ctx: &mut Context<Self>) {
        let answer = self.links.renewals.ask(item, alone);
        ctx.spawn(answer.into_actor(self).map(move |answer, actor, ctx| actor.renewed(attempt, answer, ctx)));
    }

    /// Asks the lane for the release. The answer comes to [`released`](Self::released).
    fn release(&mut self, attempt: u64, alone: bool, ctx: &mut Context<Self>) {
        let (key, run_id) = (self.shared.key.clone(), self.shared.run_id);
        let item = Release { key, run_id, reason: self.shared.reason().cloned() };
        let answer = self.links.releases.ask(item, alone);
        ctx.spawn(answer.into_actor(self).map(move |answer, actor, ctx| {
            actor.released(attempt, answer, ctx);
        }));
    }

    /// Tells the machine what the answer to a renewal means, and carries out its decisions.
    fn renewed(&mut self, attempt: u64, answer: LaneAnswer<RenewOutcome>, ctx: &mut Context<Self>) {
        let sent_at = answer.sent_at;
        let mut expires_at_micros = None;
        let renewal = match answer.outcome {
            Ok(RenewOutcome::Renewed(renewed)) => {
                self.last_error = None;
                let remaining = renewed.remaining;
                if let Some(request) = &renewed.stop {
                    self.shared.note_recorded_stop(request);
                }
                expires_at_micros = Some(renewed.clock_micros.saturating_add(micros(remaining)));
                Renewal::Confirmed { sent_at, remaining, stop: renewed.stop }
            }
            Ok(RenewOutcome::Superseded { .. } | RenewOutcome::Gone { .. }) => {
                Renewal::Lost(EndReason::Superseded)
            }
            Ok(RenewOutcome::Expired { .. }) => Renewal::Lost(EndReason::Expired),
            Ok(RenewOutcome::Locked) => Renewal::Unanswered { locked: true },
            Err(error @ StoreError::Lost { .. }) => {
                self.last_error = Some(error);
                Renewal::Lost(EndReason::Superseded)
            }
            Err(error) => {
                self.span.in_scope(|| debug!(target: trace::RUN, %error, "renewal not confirmed"));
                self.last_error = Some(error);
                Renewal::Unanswered { locked: false }
            }
        };
        let trusted = self.lease.trusted_until();
        self.lease.on_renewal(attempt, renewal, self.links.clock.now());
        if let Some(expires_at_micros) = expires_at_micros
            && self.lease.trusted_until() != trusted
        {
            self.publish_trust(expires_at_micros);
        }
        self.act(ctx);
    }

    /// Lets `is_held` see the new end of trust. If `is_held` has already seen the old one pass, tells the machine.
    fn publish_trust(&mut self, expires_at_micros: i64) {
        let extended = self.shared.extend(self.lease.trusted_until(), expires_at_micros);
        if !extended && self.shared.reason().is_none() {
            self.lease.on_trust_gone(self.links.clock.now());
        }
    }

    fn released(&mut self, attempt: u64, answer: LaneAnswer<ReleaseOutcome>, ctx: &mut Context<Self>) {
        let released = match answer.outcome {
            Ok(ReleaseOutcome::Released | ReleaseOutcome::NotFound) => Released::Gone,
            Ok(ReleaseOutcome::Locked) => {
                self.shared.note_release_refusal("its row is locked by another transaction".to_owned());
                Released::Unanswered { locked: true }
            }
            Err(error) => {
                self.shared.note_release_refusal(error.to_string());
                self.span.in_scope(|| debug!(target: trace::RUN, %error, "release not confirmed"));
                Released::Unanswered { locked: false }
            }
        };
        self.lease.on_release(attempt, released, self.links.clock.now());
        self.act(ctx);
    }
}

impl Actor for RunActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if may_start(ctx) {
            self.act(ctx);
        }
    }
}

/// In whatever way the actor ends, its run ends with it (invariant I7).
///
/// This also runs while unwinding, where a panic would abort the process. So it does nothing that can fail.
impl Drop for RunActor {
    fn drop(&mut self) {
        self.shared.end(EndReason::Panicked);
        self.shared.kill();
        self.shared.tell_released(false);
        self.shared.close_span();
        // Work may go on without its actor. By assumption A4 it is over by the time the row expires.
        let orphaned = !self.shared.is_work_over();
        let expiry = self.lease.trusted_until() + self.links.timing.safety_margin();
        self.links.registry.do_send(RunFinished {
            key: self.shared.key.clone(),
            run_id: self.shared.run_id,
            quarantine_until: orphaned.then_some(expiry),
        });
    }
}

impl Handler<RunMessage> for RunActor {
    type Result = ();

    fn handle(&mut self, message: RunMessage, ctx: &mut Context<Self>) {
        let now = self.links.clock.now();
        match message {
            RunMessage::Stop { reason, grace } => self.lease.on_stop(reason, grace, now),
            RunMessage::WorkEnded(reason) => {
                self.lease.on_work_ended(reason, now);
                self.bound_the_release(ctx);
            }
            RunMessage::PhaseChanged => return look_at_the_phase_soon(ctx),
            RunMessage::Farewell(released) => return self.farewells.push(released),
        }
        self.act(ctx);
    }
}

/// Reads the newest phase after a short pause. The work may set phases without pause. It sends no other message until
/// the phase is read, so the work's thread and the supervisor's do not keep each other busy (invariant I10).
fn look_at_the_phase_soon(ctx: &mut Context<RunActor>) {
    ctx.run_later(PHASE_PAUSE, |actor, ctx| {
        actor.lease.on_phase(actor.shared.take_new_phase(), actor.links.clock.now());
        actor.act(ctx);
    });
}

impl Handler<Recheck> for RunActor {
    type Result = ();

    fn handle(&mut self, recheck: Recheck, ctx: &mut Context<Self>) {
        match recheck {
            Recheck::Suspended => self.look_at_the_time(),
            Recheck::InDoubt => self.lease.on_doubt(self.links.clock.now()),
        }
        // The timer does not count suspended time, so set it again with a new pause.
        if let Some((_, timer)) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        self.act(ctx);
    }
}
