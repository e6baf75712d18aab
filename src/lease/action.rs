//! What the machine tells its actor to do, and how the actor reports answers to the machine.

use std::time::Duration;

#[cfg(doc)]
use super::Lease;
use crate::{
    clock::BootInstant,
    end::EndReason,
    session::{RunPhase, RunStage, StopRequest},
};

/// What the actor has to do. Actions are carried out in the order in which they come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send a renewal. Report the answer to [`Lease::on_renewal`] with the same `attempt`.
    Renew { attempt: u64, stage: RunStage, phase: Option<RunPhase>, alone: bool },
    /// Others can see this phase now.
    PhaseShown(RunPhase),
    /// Cancel the run's token. Comes at most once.
    Cancel(EndReason),
    /// The work has no grace, or none is left: drop or kill the work.
    Kill,
    /// Another run may already hold the session. Comes at most once: before [`Kill`](Self::Kill), or after it if the
    /// loss becomes certain only then.
    Overtaken,
    /// Stop waiting for the work, though it has not ended. Comes at most once, and only if `stuck_limit` is set.
    GiveUp,
    /// Send a release. Report the answer to [`Lease::on_release`] with the same `attempt`.
    Release { attempt: u64, alone: bool },
    /// Tell the listeners.
    Tell(News),
    /// The work has ended or was given up, and the row is released or left to expire. Comes once, as the last action.
    Finish,
}

/// News for listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    Renewed { trusted_for: Duration },
    AtRisk { trusted_for: Duration },
    Recovered,
    Stopping,
    Stuck,
    Ended { released: bool },
}

/// The result of one attempt to renew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// `sent_at` is when the statement was sent. `remaining` is what was left of the lease when the statement ran.
    Confirmed { sent_at: BootInstant, remaining: Duration, stop: Option<StopRequest> },
    /// Certain: the lease is lost, for this reason.
    Lost(EndReason),
    /// Uncertain (invariant I9). If `locked`, another transaction has locked the row, so the next attempt should go in
    /// a statement of its own.
    Unanswered { locked: bool },
}

/// The result of one attempt to release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    /// The row of this run is gone.
    Gone,
    /// Uncertain, as for a renewal.
    Unanswered { locked: bool },
}
