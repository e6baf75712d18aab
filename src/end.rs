//! Why and how runs end.

use std::{fmt, time::Duration};

use crate::{
    session::StopRequest,
    text::{printable, printable_start},
};

/// Why a run ended. The first reason wins and stays (invariant I3).
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "reason", rename_all = "snake_case"))]
#[non_exhaustive]
pub enum EndReason {
    /// The work ended by itself.
    Completed,
    /// The work failed, by its own account: it returned an error to [`try_scope`](crate::Run::try_scope), or said so with
    /// [`fail`](crate::RunContext::fail).
    #[non_exhaustive]
    Failed {
        /// The error's text, for people: at most 1,000 bytes, the rest is cut off. As JSON it is called `why`.
        #[cfg_attr(feature = "serde", serde(rename = "why"))]
        reason: String,
    },
    /// The guard, or the future of its scope, was dropped.
    Dropped,
    /// The work panicked, or the supervisor's own actor did.
    Panicked,
    /// Somebody asked the run to stop.
    #[non_exhaustive]
    Stopped {
        /// Who asked, for people.
        by: Option<String>,
        /// Why, for people. In JSON this field is called `why`, because `reason` names the kind of end there.
        #[cfg_attr(feature = "serde", serde(rename = "why"))]
        reason: Option<String>,
    },
    /// The supervisor was shut down.
    Shutdown,
    /// The run reached a limit that it was given.
    #[non_exhaustive]
    TimedOut {
        /// Which limit it reached.
        limit: Limit,
    },
    /// Another run has the session, or its row was deleted.
    Superseded,
    /// A renewal came too late: by the database's clock, the lease had expired or was inside its safety margin.
    Expired,
    /// Trust ran out while the database did not confirm a renewal.
    Unconfirmed,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Ended {
    /// The first reason.
    pub reason: EndReason,
    /// Whether the database confirmed that this run no longer holds the session. If not, the row expires
    /// within one ttl.
    pub released: bool,
    /// Whether the session was given up although the work had not ended and may still act: see
    /// [`stuck_limit`](crate::LeaseSupervisorBuilder::stuck_limit).
    pub gave_up: bool,
}

/// A limit on a run. Renewals do not extend it, because they prove only that a process lives, not that its work
/// advances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Limit {
    /// The whole run may take this long. Time in suspend counts.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "max_duration_ms",
            serialize_with = "crate::session::millis",
            deserialize_with = "crate::session::from_millis"
        )
    )]
    MaxDuration(Duration),
    /// The work may go this long without a [`beat`](crate::RunContext::beat). Time in suspend counts.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "max_silence_ms",
            serialize_with = "crate::session::millis",
            deserialize_with = "crate::session::from_millis"
        )
    )]
    MaxSilence(Duration),
}

impl EndReason {
    /// Whether the run lost the session, rather than releasing it.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Superseded | Self::Expired | Self::Unconfirmed)
    }

    /// Whether another run may already hold the session, so that work which still acts has no grace. `false` for
    /// [`Unconfirmed`](Self::Unconfirmed): trust ends before the lease does.
    pub fn is_certain_loss(&self) -> bool {
        matches!(self, Self::Superseded | Self::Expired)
    }

    /// [`Failed`](Self::Failed) with the beginning of the error's text.
    pub fn failed(error: impl fmt::Display) -> Self {
        Self::Failed { reason: printable_start(error.to_string().trim(), LONGEST_FAILURE) }
    }

    /// [`Stopped`](Self::Stopped), by somebody with this name, for this reason.
    pub fn stopped(by: Option<String>, reason: Option<String>) -> Self {
        Self::Stopped { by, reason }
    }

    /// [`TimedOut`](Self::TimedOut) by this limit.
    pub fn timed_out(limit: Limit) -> Self {
        Self::TimedOut { limit }
    }

    pub(crate) fn asked(request: &StopRequest) -> Self {
        Self::stopped(request.by.clone(), request.reason.clone())
    }
}

/// Bytes of a failure's reason, as many as of a reason to stop.
const LONGEST_FAILURE: usize = 1_000;

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MaxDuration(limit) => write!(f, "took longer than {limit:?}"),
            Self::MaxSilence(limit) => write!(f, "showed no sign of advancing for {limit:?}"),
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completed => f.write_str("completed"),
            Self::Failed { reason } if reason.is_empty() => f.write_str("failed"),
            Self::Failed { reason } => write!(f, "failed: {}", printable(reason)),
            Self::Dropped => f.write_str("dropped"),
            Self::Panicked => f.write_str("panicked"),
            Self::Stopped { by, reason } => {
                f.write_str("stopped")?;
                if let Some(by) = by {
                    write!(f, " by {}", printable(by))?;
                }
                if let Some(reason) = reason {
                    write!(f, " ({})", printable(reason))?;
                }
                Ok(())
            }
            Self::Shutdown => f.write_str("supervisor shut down"),
            Self::TimedOut { limit } => limit.fmt(f),
            Self::Superseded => {
                f.write_str("superseded: another run has the session, or its row was deleted")
            }
            Self::Expired => f.write_str("expired before a renewal arrived"),
            Self::Unconfirmed => f.write_str("no renewal was confirmed in time"),
        }
    }
}

/// Lets work use `?` to return the reason why one of its [`Task`](crate::Task)s was cut short.
impl std::error::Error for EndReason {}
