//! Carries out what the machine of a run has decided.

use std::sync::atomic::Ordering;

use actix::{ActorContext, AsyncContext, Context};
use tracing::{debug, info, warn};

use super::RunActor;
use crate::{
    end::EndReason,
    event::RunEvent,
    lease::{Action, News},
    trace,
};

impl RunActor {
    /// Tells the listeners.
    pub(crate) fn say(&mut self, event: RunEvent) {
        if let Some(events) = &self.own_events {
            events.send(event.clone());
        }
        self.links.events.send(event);
    }

    /// Carries out what the machine has decided, and sets the timer for its next time-out.
    pub(super) fn act(&mut self, ctx: &mut Context<Self>) {
        let span = self.span.clone();
        let _entered = span.enter();
        while let Some(action) = self.lease.poll_action() {
            match action {
                Action::Renew { attempt, stage, phase, alone } => {
                    let item = self.renewal(stage, phase);
                    self.renew(attempt, item, alone, ctx);
                }
                Action::Release { attempt, alone } => self.release(attempt, alone, ctx),
                Action::Cancel(reason) => {
                    self.shared.end(reason);
                }
                Action::PhaseShown(phase) => self.shared.say_phase_shown(phase),
                Action::Kill => self.shared.kill(),
                Action::Overtaken => self.shared.say_overtaken(),
                Action::GiveUp => {
                    warn!(
                        name: "gave_up",
                        target: trace::RUN,
                        "gave up: the work has not ended, and its session is not kept any longer"
                    );
                    self.shared.give_up();
                    self.bound_the_release(ctx);
                }
                Action::Tell(news) => self.tell(news),
                Action::Finish => return ctx.stop(),
            }
        }
        self.arm(ctx);
    }

    /// Callers wait for the release no longer than one attempt may take.
    pub(super) fn bound_the_release(&self, ctx: &mut Context<Self>) {
        let patience = self.links.timing.renew_timeout();
        ctx.run_later(patience, |actor, _| actor.shared.await_release_no_longer());
    }

    fn tell(&mut self, news: News) {
        let run = self.shared.to_ref();
        let event = match news {
            News::Renewed { trusted_for } => {
                debug!(name: "renewed", target: trace::RUN, trusted_for_ms = trace::millis(trusted_for), "renewed");
                return;
            }
            News::AtRisk { trusted_for } => {
                let cause = self.last_error.clone();
                let shown = cause.as_ref().map(ToString::to_string);
                warn!(
                    name: "at_risk",
                    target: trace::RUN,
                    trusted_for_ms = trace::millis(trusted_for),
                    cause = shown,
                    "at risk: a renewal is not confirmed"
                );
                RunEvent::AtRisk { run, trusted_for, cause }
            }
            News::Recovered => {
                info!(name: "recovered", target: trace::RUN, "recovered: renewals are confirmed again");
                RunEvent::Recovered { run }
            }
            News::Stopping => {
                let reason = self.first_reason();
                info!(name: "stopping", target: trace::RUN, %reason, "stopping");
                RunEvent::Stopping { run, reason }
            }
            News::Stuck => {
                warn!(
                    name: "stuck",
                    target: trace::RUN,
                    "stuck: the work has outlived its grace; the lease is kept until it ends"
                );
                self.shared.is_stuck.store(true, Ordering::Relaxed);
                RunEvent::Stuck { run }
            }
            News::Ended { released } => {
                let reason = self.first_reason();
                if reason.is_loss() {
                    let cause = self.last_error.as_ref().map(ToString::to_string);
                    warn!(name: "ended", target: trace::RUN, %reason, released, cause, "ended");
                } else {
                    info!(name: "ended", target: trace::RUN, %reason, released, "ended");
                }
                self.shared.tell_released(released);
                let gave_up = self.shared.gave_up();
                RunEvent::Ended { run, reason, released, gave_up }
            }
        };
        self.say(event);
    }

    fn first_reason(&self) -> EndReason {
        self.shared.reason().cloned().unwrap_or(EndReason::Panicked)
    }
}
