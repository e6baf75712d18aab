//! What the machine says to its actor, and what the actor says of the answers that came.

use std::time::Duration;

#[cfg(doc)]
use super::Lease;
use crate::{
    clock::BootInstant,
    end::EndReason,
    session::{RunPhase, RunStage, StopRequest},
};

/// What the actor has to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send a renewal; answer with [`Lease::on_renewal`] and the same attempt.
    Renew { attempt: u64, stage: RunStage, phase: Option<RunPhase>, alone: bool },
    /// Others can see this one now.
    PhaseShown(RunPhase),
    /// Cancel the run's token. Comes once.
    Cancel(EndReason),
    /// The work has had its time: drop or kill it.
    Kill,
    /// Another run may hold the session already. Comes at most once, before the work is killed.
    Overtaken,
    /// Nobody waits for the work any more, though it has not ended. Comes once, if `stuck_limit` is set.
    GiveUp,
    /// Send a release; answer with [`Lease::on_release`] and the same attempt.
    Release { attempt: u64, alone: bool },
    /// Tell whoever listens.
    Tell(News),
    /// Nothing more will come: the work has ended and the row is dealt with. Comes once.
    Finish,
}

/// What listeners are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    Renewed { trusted_for: Duration },
    AtRisk { trusted_for: Duration },
    Recovered,
    Stopping,
    Stuck,
    Ended { released: bool },
}

/// What is known of one attempt to renew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// `sent_at` is when the statement was sent, `remaining` what was left when it ran.
    Confirmed { sent_at: BootInstant, remaining: Duration, stop: Option<StopRequest> },
    /// Certain: the lease is lost, for this reason.
    Lost(EndReason),
    /// Uncertain (invariant I9). `locked`: the row is locked by a stranger, so that the next attempt should
    /// not ride in a batch.
    Unanswered { locked: bool },
}

/// What is known of one attempt to release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    /// The row of this run is gone.
    Gone,
    /// Uncertain, as with renewals.
    Unanswered { locked: bool },
}
