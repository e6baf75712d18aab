//! What those see who watch a session.

use std::time::SystemTime;

pub use crate::session::Standby;
use crate::session::{FencingToken, Holder, Label, RunId, RunPhase, RunStage, SessionStatus, StopRequest};

/// A session as somebody sees it who watches it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Observed {
    /// The database has said so, and what it said still holds: no lease in it has passed its known expiry.
    Known(SessionStatus),
    /// The database does not answer, or the lease it showed last would have expired by now: whether anybody holds the
    /// session is not known.
    Unknown {
        /// What was known last: not how it is now. `None` when nothing was ever known.
        last_known: Option<SessionStatus>,
        /// When that was, or when the watching began, by the local wall clock.
        #[cfg_attr(feature = "serde", serde(serialize_with = "crate::session::rfc3339"))]
        since: SystemTime,
    },
}

impl Observed {
    /// What is known now.
    pub fn known(&self) -> Option<&SessionStatus> {
        match self {
            Self::Known(status) => Some(status),
            Self::Unknown { .. } => None,
        }
    }

    /// Whether somebody who looks would see no difference: a lease that was merely renewed is none.
    pub(crate) fn shows_the_same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Known(one), Self::Known(other)) => is_same(one, other),
            (Self::Unknown { .. }, Self::Unknown { .. }) => true,
            _ => false,
        }
    }
}

fn is_same(one: &SessionStatus, other: &SessionStatus) -> bool {
    let is_same_holder = match (&one.holder, &other.holder) {
        (Some(one), Some(other)) => shown(one) == shown(other),
        (None, None) => true,
        _ => false,
    };
    one.state == other.state && is_same_holder && one.standby.is_some() == other.standby.is_some()
}

fn shown(holder: &Holder) -> (RunId, FencingToken, &Label, RunStage, &RunPhase, &Option<StopRequest>) {
    (holder.run_id, holder.fence, &holder.label, holder.stage, &holder.phase, &holder.stop)
}
