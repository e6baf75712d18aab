//! The lease of one run as a pure state machine.
//!
//! ```text
//! Held ── stop, limit, panic, shutdown ──► Draining ── grace passed ──► Killing ── still not ended ──► Stuck
//!   │                                         │                          │                            │
//!   └── work ended ─────────► Releasing ◄─────┴──────── work ended ──────┴──── work ended, given up ──┘
//!                                 │
//!                                 └── the row is gone ──► Ended
//!
//! any state but Ended ── lost, or trusted_until reached ──► Ended
//! ```
//!
//! In `Draining`, `Killing` and `Stuck` the run is renewed until its work has ended. In `Ended` nothing is renewed any
//! more. If the lease was lost, the work may still be ending in that state. It is killed at once if the loss is
//! certain, and when its grace is over otherwise.
//!
//! The machine does no I/O, is not async, and reads no clock. Every input carries `now`, and every output is an
//! [`Action`] for the run's actor. Every input first checks `now >= trusted_until` (invariant I3), so a reply cannot
//! revive a run, however late or out of order it comes.

use std::{collections::VecDeque, time::Duration};

use crate::{
    clock::BootInstant,
    config::Timing,
    end::{EndReason, Limit},
    session::{RunPhase, RunStage},
};

mod action;
mod limits;
mod statements;

pub(crate) use action::{Action, News, Released, Renewal};
use limits::Silence;
use statements::{Call, trust};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Held,
    Draining {
        grace_until: BootInstant,
    },
    /// The work was killed at the end of its grace. Whether it survives is not known yet.
    Killing {
        stuck_at: BootInstant,
    },
    Stuck {
        give_up_at: Option<BootInstant>,
    },
    Releasing,
    Ended,
}

/// The state machine of one run's lease.
#[derive(Debug)]
pub(crate) struct Lease {
    timing: Timing,
    jitter: fastrand::Rng,
    trusted_until: BootInstant,
    state: State,
    renewal: Call,
    release: Call,
    /// How many attempts were ever made. Each answer carries the number of its attempt, so that a late answer to an
    /// earlier attempt is recognised.
    attempts: u64,
    /// Unanswered attempts in a row.
    failures: u32,
    at_risk: bool,
    reason: Option<EndReason>,
    shown_stage: RunStage,
    /// The run's newest phase, until a renewal that carried it is confirmed.
    unshown_phase: Option<RunPhase>,
    /// The phase that the renewal in flight carries.
    sent_phase: Option<RunPhase>,
    /// When the run reaches its limit on duration.
    over_at: Option<(BootInstant, Limit)>,
    silence: Option<Silence>,
    /// The work has ended, or was given up.
    work_ended: bool,
    /// Set on loss, until the work is killed: when to kill it.
    kill_at: Option<BootInstant>,
    /// Set on loss: when to give up work that was killed and lives on.
    give_up_lost_at: Option<BootInstant>,
    finished: bool,
    actions: VecDeque<Action>,
}

impl Lease {
    /// The lease of a run that was granted. `None` when its trust has already ended: such a grant must not be handed
    /// out (invariant I1).
    pub(crate) fn granted(
        timing: Timing,
        sent_at: BootInstant,
        remaining: Duration,
        now: BootInstant,
        seed: u64,
    ) -> Option<Self> {
        let mut jitter = fastrand::Rng::with_seed(seed);
        let trusted_until = trust(&timing, sent_at, remaining);
        // Spread the first renewals of runs that were granted together.
        let first = timing.renew_interval().mul_f64(0.6 + 0.5 * jitter.f64());
        (now < trusted_until).then(|| Self {
            timing,
            jitter,
            trusted_until,
            state: State::Held,
            renewal: Call::Due { at: sent_at + first, alone: false },
            release: Call::Never,
            attempts: 0,
            failures: 0,
            at_risk: false,
            reason: None,
            shown_stage: RunStage::Running,
            unshown_phase: None,
            sent_phase: None,
            over_at: None,
            silence: None,
            work_ended: false,
            kill_at: None,
            give_up_lost_at: None,
            finished: false,
            actions: VecDeque::new(),
        })
    }

    /// The end of trust. After the run's end it keeps its last value.
    pub(crate) fn trusted_until(&self) -> BootInstant {
        self.trusted_until
    }

    /// Whether the run may act.
    #[cfg(test)]
    pub(crate) fn is_held(&self, now: BootInstant) -> bool {
        self.state == State::Held && now < self.trusted_until
    }

    /// The next thing to do.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`on_timeout`](Self::on_timeout) is to be called. `None` when only another input can change anything.
    pub(crate) fn poll_timeout(&self) -> Option<BootInstant> {
        let trust_ends = (self.state != State::Ended).then_some(self.trusted_until);
        let state = match self.state {
            State::Held => self.next_limit().map(|(at, _)| at),
            State::Draining { grace_until } => Some(grace_until),
            State::Killing { stuck_at } => Some(stuck_at),
            State::Stuck { give_up_at } => give_up_at,
            State::Releasing => None,
            State::Ended => self.kill_at.or(self.give_up_lost_at),
        };
        let renewal = match self.renewal {
            Call::Due { at, .. } => Some(at),
            Call::InFlight { overdue_at, .. } if !self.at_risk => Some(overdue_at),
            Call::InFlight { .. } | Call::Never => None,
        };
        let release = match self.release {
            Call::Due { at, .. } => Some(at),
            Call::InFlight { .. } | Call::Never => None,
        };
        [trust_ends, state, renewal, release].into_iter().flatten().min()
    }

    /// Time has passed, or a clock may have jumped: does everything that is due.
    pub(crate) fn on_timeout(&mut self, now: BootInstant) {
        self.check_trust(now);
        self.check_limits(now);
        match self.state {
            State::Draining { grace_until } if now >= grace_until => {
                self.kill();
                self.state = State::Killing { stuck_at: now + self.timing.loss_grace() };
            }
            State::Killing { stuck_at } if now >= stuck_at => self.become_stuck(now),
            State::Stuck { give_up_at: Some(at) } if now >= at => self.give_up(now),
            State::Ended if self.kill_at.is_some_and(|at| now >= at) => self.kill_lost(now),
            State::Ended if self.give_up_lost_at.is_some_and(|at| now >= at) => self.give_up(now),
            _ => {}
        }
        self.send_due(now);
    }

    /// A renewal was answered, or never will be.
    pub(crate) fn on_renewal(&mut self, attempt: u64, renewal: Renewal, now: BootInstant) {
        self.check_trust(now);
        // A late answer cannot revive the run, but it can show that another run is at work.
        if let (State::Ended, Renewal::Lost(EndReason::Superseded)) = (self.state, &renewal) {
            return self.be_overtaken(now);
        }
        let current = matches!(self.renewal, Call::InFlight { attempt: sent, .. } if sent == attempt);
        if !current || matches!(self.state, State::Releasing | State::Ended) {
            return;
        }
        match renewal {
            Renewal::Confirmed { sent_at, remaining, stop } => {
                if self.sent_phase == self.unshown_phase
                    && let Some(shown) = self.unshown_phase.take()
                {
                    self.actions.push_back(Action::PhaseShown(shown));
                }
                self.confirm(sent_at, remaining, now);
                if let Some(request) = stop {
                    self.on_stop(EndReason::asked(&request), None, now);
                }
            }
            Renewal::Lost(reason) => self.lose(reason, now),
            Renewal::Unanswered { locked } => {
                self.become_at_risk(now);
                self.renewal = self.retry(locked, now);
            }
        }
        self.send_due(now);
    }

    /// The work is to end: cancels it, and waits for it while renewals go on (invariant I6). Its grace is `stop_grace`
    /// unless given. A later request can only shorten the grace.
    pub(crate) fn on_stop(&mut self, reason: EndReason, grace: Option<Duration>, now: BootInstant) {
        self.check_trust(now);
        match &mut self.state {
            State::Held => {
                self.cancel(reason);
                let grace_until = now + grace.unwrap_or(self.timing.stop_grace());
                self.state = State::Draining { grace_until };
                self.actions.push_back(Action::Tell(News::Stopping));
                self.show(now);
            }
            State::Draining { grace_until } => {
                *grace_until = grace.map_or(*grace_until, |grace| (*grace_until).min(now + grace));
            }
            State::Killing { .. } | State::Stuck { .. } | State::Releasing | State::Ended => {}
        }
    }

    /// The work has ended. `reason` counts only if the run has no reason yet.
    pub(crate) fn on_work_ended(&mut self, reason: EndReason, now: BootInstant) {
        self.check_trust(now);
        if std::mem::replace(&mut self.work_ended, true) {
            return;
        }
        (self.kill_at, self.give_up_lost_at) = (None, None);
        match self.state {
            State::Ended => self.finish_after_loss(now),
            State::Releasing => {}
            State::Held | State::Draining { .. } | State::Killing { .. } | State::Stuck { .. } => {
                self.cancel(reason);
                self.begin_release(now);
            }
        }
    }

    /// A reader of the shared state has seen trust end before this machine did.
    pub(crate) fn on_trust_gone(&mut self, now: BootInstant) {
        if self.state != State::Ended {
            self.lose(EndReason::Unconfirmed, now);
        }
    }

    fn check_trust(&mut self, now: BootInstant) {
        if self.state != State::Ended && now >= self.trusted_until {
            self.lose(EndReason::Unconfirmed, now);
        }
    }

    fn lose(&mut self, reason: EndReason, now: BootInstant) {
        let (was_told, is_certain) = (self.reason.is_some(), reason.is_certain_loss());
        self.cancel(reason);
        let released_by_now = matches!(self.release, Call::InFlight { .. });
        self.state = State::Ended;
        self.renewal = Call::Never;
        // The answer to a release under way still counts.
        if !released_by_now {
            self.release = Call::Never;
        }
        self.actions.push_back(Action::Tell(News::Ended { released: false }));
        if self.work_ended {
            return self.finish_after_loss(now);
        }
        // Work that was told to stop earlier gets no further grace. Other work gets the grace of assumption A4.
        let kill_at = if was_told { now } else { now.min(self.trusted_until) + self.timing.loss_grace() };
        self.kill_at = Some(kill_at);
        if is_certain {
            self.be_overtaken(now);
        } else if now >= kill_at {
            self.kill_lost(now);
        }
    }

    /// Another run may hold the session now, and must not meet work of this run (invariant I13). This also ends the
    /// grace of work whose trust ended before the loss was certain.
    fn be_overtaken(&mut self, now: BootInstant) {
        if self.work_ended {
            return;
        }
        self.actions.push_back(Action::Overtaken);
        if self.kill_at.is_some() {
            self.kill_lost(now);
        }
    }

    fn kill_lost(&mut self, now: BootInstant) {
        self.kill_at = None;
        self.kill();
        self.give_up_lost_at = self.give_up_after(now + self.timing.loss_grace());
    }

    /// The work has ended, but the lease was lost before it was released. If the row may still belong to this run,
    /// sends one release, so that the next run need not wait for the ttl to pass.
    fn finish_after_loss(&mut self, now: BootInstant) {
        match self.release {
            Call::InFlight { .. } => {}
            _ if self.row_may_remain() => {
                self.release = Call::Due { at: now, alone: false };
                self.send_due(now);
            }
            _ => self.finish(),
        }
    }

    fn row_may_remain(&self) -> bool {
        self.reason != Some(EndReason::Superseded)
    }

    fn finish(&mut self) {
        if !std::mem::replace(&mut self.finished, true) {
            self.actions.push_back(Action::Finish);
        }
    }

    fn cancel(&mut self, reason: EndReason) {
        if self.reason.is_none() {
            self.reason = Some(reason.clone());
            self.actions.push_back(Action::Cancel(reason));
        }
    }

    fn kill(&mut self) {
        if !self.work_ended {
            self.actions.push_back(Action::Kill);
        }
    }

    /// Gives the session up because the user's `stuck_limit` says so, although the work may still act.
    fn give_up(&mut self, now: BootInstant) {
        self.work_ended = true;
        self.give_up_lost_at = None;
        self.actions.push_back(Action::GiveUp);
        match self.state {
            // The lease was already lost: the row is left to expire.
            State::Ended => self.finish(),
            _ => self.begin_release(now),
        }
    }

    fn give_up_after(&self, stuck_at: BootInstant) -> Option<BootInstant> {
        self.timing.stuck_limit().map(|limit| stuck_at + limit)
    }

    fn begin_release(&mut self, now: BootInstant) {
        self.state = State::Releasing;
        self.renewal = Call::Never;
        self.release = Call::Due { at: now, alone: false };
        self.failures = 0;
        self.at_risk = false;
        self.send_due(now);
    }

    fn become_stuck(&mut self, now: BootInstant) {
        self.state = State::Stuck { give_up_at: self.give_up_after(now) };
        self.actions.push_back(Action::Tell(News::Stuck));
        self.show(now);
    }

    fn stage(&self) -> RunStage {
        match self.state {
            State::Held => RunStage::Running,
            State::Stuck { .. } => RunStage::Stuck,
            State::Draining { .. } | State::Killing { .. } | State::Releasing | State::Ended => {
                RunStage::Stopping
            }
        }
    }
}

#[cfg(test)]
mod tests;
