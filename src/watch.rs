//! What watchers of a session see.

use std::time::SystemTime;

pub use crate::session::Standby;
use crate::session::{FencingToken, Holder, Label, RunId, RunPhase, RunStage, SessionStatus, StopRequest};

/// A session as its watchers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Observed {
    /// The database's last answer. It still holds: a lease in it has not passed its known expiry.
    Known(SessionStatus),
    /// It is not known whether anybody holds the session. The database does not answer, or the lease that it showed
    /// last would have expired by now.
    #[non_exhaustive]
    Unknown {
        /// The last known state. It need not be the present one. `None` if no state was ever known.
        last_known: Option<SessionStatus>,
        /// When `last_known` was read, by the local wall clock. If it is `None`, when the watching began.
        #[cfg_attr(feature = "serde", serde(serialize_with = "crate::session::rfc3339"))]
        since: SystemTime,
    },
}

impl Observed {
    /// A state that is not known now, was last known as this, and was read at this instant.
    pub fn unknown(last_known: Option<SessionStatus>, since: SystemTime) -> Self {
        Self::Unknown { last_known, since }
    }

    /// The present state, if it is known.
    pub fn known(&self) -> Option<&SessionStatus> {
        match self {
            Self::Known(status) => Some(status),
            Self::Unknown { .. } => None,
        }
    }

    /// Whether a watcher would see no difference. A renewal alone is no difference.
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
