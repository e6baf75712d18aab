//! What a run's actor is told.

use std::time::Duration;

use actix::Message;

use crate::end::EndReason;

/// From the guard, the work, and the registry.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) enum RunMessage {
    /// Ask the work to end.
    Stop {
        reason: EndReason,
        /// `stop_grace` unless given.
        grace: Option<Duration>,
    },
    /// The work has ended; the reason is the first one, as the guard has set it.
    WorkEnded(EndReason),
    /// The run says that it does something else now.
    PhaseChanged,
}
