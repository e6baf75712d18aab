//! The messages to a run's actor.

use std::{sync::mpsc, time::Duration};

use actix::Message;

use crate::end::EndReason;

/// A message from the guard, the work or the registry.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) enum RunMessage {
    /// Ask the work to end.
    Stop {
        reason: EndReason,
        /// `stop_grace` unless given.
        grace: Option<Duration>,
    },
    /// The work has ended. The reason is the run's first one, as [`Shared::end`](super::Shared::end) returned it.
    WorkEnded(EndReason),
    /// The work has set a new phase.
    PhaseChanged,
    /// The process may be about to end. The sender is dropped with the actor, when the release is known.
    Farewell(mpsc::Sender<()>),
}
