//! The statements of one lease: when a renewal or a release is sent, and what its answer changes.
//!
//! At most one renewal and one release are under way. [`lease`](super) decides what an answer means for the run.

use std::time::Duration;

use super::{Action, Lease, News, Released, State};
use crate::{backoff::backoff_by, clock::BootInstant, config::Timing, session::RunPhase};

/// The state of the renewal or of the release: when it is due, or when its answer becomes overdue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Due { at: BootInstant, alone: bool },
    InFlight { attempt: u64, overdue_at: BootInstant },
    Never,
}

/// How soon a change of stage or phase is sent, so that others can see it. It is not sent if the run ends first.
const SHOW_WITHIN: Duration = Duration::from_millis(75);

impl Lease {
    /// The work has set a new phase. Others see it with the next renewal.
    pub(crate) fn on_phase(&mut self, phase: RunPhase, now: BootInstant) {
        self.check_trust(now);
        if self.is_renewing() {
            self.unshown_phase = Some(phase);
            self.show(now);
        }
    }

    /// A release was answered, or never will be.
    pub(crate) fn on_release(&mut self, attempt: u64, released: Released, now: BootInstant) {
        // The answer to a release counts even if trust has ended since: it may say that the row is gone.
        if !matches!(self.release, Call::InFlight { attempt: sent, .. } if sent == attempt) {
            return;
        }
        match (self.state, released) {
            (State::Releasing, Released::Gone) => {
                self.state = State::Ended;
                self.release = Call::Never;
                self.actions.push_back(Action::Tell(News::Ended { released: true }));
                self.finish();
            }
            (State::Releasing, Released::Unanswered { locked }) if now < self.trusted_until => {
                self.release = self.retry(locked, now);
                self.send_due(now);
            }
            (State::Releasing, Released::Unanswered { .. }) => {
                self.release = Call::Never;
                self.check_trust(now);
            }
            // This was the one best-effort release after a loss. It is not repeated.
            _ => {
                self.release = Call::Never;
                self.finish();
            }
        }
    }

    /// The lease is in doubt, for example because the local clocks disagree: confirms it now.
    pub(crate) fn on_doubt(&mut self, now: BootInstant) {
        self.check_trust(now);
        if !self.is_renewing() {
            return;
        }
        self.become_at_risk(now);
        if let Call::Due { .. } = self.renewal {
            self.renewal = Call::Due { at: now, alone: false };
        }
        self.send_due(now);
    }

    pub(super) fn confirm(&mut self, sent_at: BootInstant, remaining: Duration, now: BootInstant) {
        self.trusted_until = trust(&self.timing, sent_at, remaining);
        let spread = 0.9 + 0.2 * self.jitter.f64();
        self.renewal = Call::Due { at: sent_at + self.timing.renew_interval().mul_f64(spread), alone: false };
        self.failures = 0;
        // A confirmation that took longer than its trust lasts confirms nothing: trust has already ended.
        self.check_trust(now);
        if self.state == State::Ended {
            return;
        }
        let trusted_for = self.trusted_until.saturating_since(now);
        self.actions.push_back(Action::Tell(News::Renewed { trusted_for }));
        if std::mem::take(&mut self.at_risk) {
            self.actions.push_back(Action::Tell(News::Recovered));
        }
        if self.stage() != self.shown_stage || self.unshown_phase.is_some() {
            self.show(now);
        }
    }

    pub(super) fn become_at_risk(&mut self, now: BootInstant) {
        if std::mem::replace(&mut self.at_risk, true) {
            return;
        }
        let trusted_for = self.trusted_until.saturating_since(now);
        self.actions.push_back(Action::Tell(News::AtRisk { trusted_for }));
    }

    /// Brings the next renewal forward, because others learn of a new stage or phase with it. If a renewal is under
    /// way, its confirmation calls this again.
    pub(super) fn show(&mut self, now: BootInstant) {
        if let Call::Due { at, alone } = self.renewal {
            self.renewal = Call::Due { at: at.min(now + SHOW_WITHIN), alone };
        }
    }

    pub(super) fn is_renewing(&self) -> bool {
        !matches!(self.state, State::Releasing | State::Ended)
    }

    pub(super) fn send_due(&mut self, now: BootInstant) {
        let overdue_at = now + self.timing.renew_timeout();
        if let Call::Due { at, alone } = self.renewal
            && now >= at
            && self.is_renewing()
        {
            let (attempt, stage) = (self.next_attempt(), self.stage());
            self.shown_stage = stage;
            self.sent_phase.clone_from(&self.unshown_phase);
            self.renewal = Call::InFlight { attempt, overdue_at };
            let phase = self.sent_phase.clone();
            self.actions.push_back(Action::Renew { attempt, stage, phase, alone });
        }
        if let Call::Due { at, alone } = self.release
            && now >= at
        {
            let attempt = self.next_attempt();
            self.release = Call::InFlight { attempt, overdue_at: self.trusted_until };
            self.actions.push_back(Action::Release { attempt, alone });
        }
        if let Call::InFlight { overdue_at, .. } = self.renewal
            && now >= overdue_at
        {
            self.become_at_risk(now);
        }
    }

    pub(super) fn next_attempt(&mut self) -> u64 {
        self.attempts += 1;
        self.attempts
    }

    pub(super) fn retry(&mut self, alone: bool, now: BootInstant) -> Call {
        self.failures = self.failures.saturating_add(1);
        let longest = self.timing.longest_backoff();
        Call::Due { at: now + backoff_by(self.failures, longest, self.jitter.f64()), alone }
    }
}

/// `sent_at + min(remaining, ttl) − safety_margin` (invariant I2). More than a ttl can remain after the database's
/// clock was set back. The surplus is not trusted, because the local clock cannot confirm it.
pub(super) fn trust(timing: &Timing, sent_at: BootInstant, remaining: Duration) -> BootInstant {
    sent_at + remaining.min(timing.ttl()).saturating_sub(timing.safety_margin())
}
