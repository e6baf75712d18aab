//! What a session's earlier runs have come to.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

#[cfg(feature = "serde")]
use crate::session::{optional_millis, rfc3339};
use crate::{
    end::EndReason,
    session::{FencingToken, Label, NodeId, RunId, RunPhase, Standby, StopRequest},
    text::printable,
};

/// The runs of a session that are over, newest first.
///
/// It is for people, and nothing depends on it. A run that is over is missing if its end could not be recorded. Old runs
/// are removed by a [sweep](crate::LeaseSupervisor::sweep).
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct History {
    /// Whether the database keeps a history. It may have been left out when the schema was applied.
    pub is_kept: bool,
    /// The runs.
    pub runs: Vec<PastRun>,
    /// The standby that answered. Its answer may be out of date. `None` if the server that takes writes answered.
    pub standby: Option<Standby>,
}

impl History {
    /// What a database answers that keeps these runs, or that keeps none.
    pub(crate) fn of(runs: Option<Vec<PastRun>>, standby: Option<Standby>) -> Self {
        Self { is_kept: runs.is_some(), runs: runs.unwrap_or_default(), standby }
    }
}

/// A run that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PastRun {
    /// The run.
    pub run_id: RunId,
    /// Its supervisor.
    pub node: NodeId,
    /// The holder's own name for itself.
    pub label: Label,
    /// The run's fencing token.
    pub fence: FencingToken,
    /// What the run said last that it was doing.
    pub phase: RunPhase,
    /// When it acquired the session, by the database's clock.
    #[cfg_attr(feature = "serde", serde(serialize_with = "rfc3339"))]
    pub since: SystemTime,
    /// When its lease ended, by the database's clock. If the lease expired, this is when. The work may have ended
    /// before.
    #[cfg_attr(feature = "serde", serde(serialize_with = "rfc3339"))]
    pub until: SystemTime,
    /// How long it waited in line for the session. `None` if it did not, or if that is not known.
    #[cfg_attr(feature = "serde", serde(rename = "waited_ms", serialize_with = "optional_millis"))]
    pub waited: Option<Duration>,
    /// A request to stop, if one was made.
    pub stop: Option<StopRequest>,
    /// How its lease ended.
    pub ending: Ending,
}

/// How the lease of a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(tag = "how", rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Ending {
    /// The run gave it back.
    #[non_exhaustive]
    Released {
        /// Why the run ended. `None` if an earlier release of this library gave it back.
        why: Option<EndReason>,
    },
    /// It expired, and the next run has taken the session over.
    TakenOver,
    /// Somebody knew that the run was dead, and [broke](crate::LeaseSupervisor::break_lease) its lease.
    #[non_exhaustive]
    Broken {
        /// Who, for people.
        by: Option<String>,
        /// Why, for people.
        reason: Option<String>,
    },
    /// It expired, and its row was removed long after that.
    Swept,
    /// Its row was deleted by hand. On SQLite this is also what a release by an earlier release of this library is
    /// taken for.
    #[non_exhaustive]
    Deleted {
        /// The database role that did it, where the database has roles.
        by: Option<String>,
    },
    /// Its row was given to another run, or its lease was ended, by hand.
    #[non_exhaustive]
    Changed {
        /// The database role that did it, where the database has roles.
        by: Option<String>,
    },
    /// In a way that this release does not know. The text is for people.
    #[non_exhaustive]
    Other {
        /// The way.
        word: String,
    },
}

impl Ending {
    /// [`Released`](Self::Released), after an end for this reason.
    pub fn released(why: Option<EndReason>) -> Self {
        Self::Released { why }
    }

    /// [`Broken`](Self::Broken), by somebody with this name, for this reason.
    pub fn broken(by: Option<String>, reason: Option<String>) -> Self {
        Self::Broken { by, reason }
    }

    /// [`Deleted`](Self::Deleted), by this role.
    pub fn deleted(by: Option<String>) -> Self {
        Self::Deleted { by }
    }

    /// [`Changed`](Self::Changed), by this role.
    pub fn changed(by: Option<String>) -> Self {
        Self::Changed { by }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = |f: &mut fmt::Formatter<'_>, by: &Option<String>| match by {
            Some(by) => write!(f, " by {}", printable(by)),
            None => Ok(()),
        };
        match self {
            Self::Released { why: Some(why) } => write!(f, "released: {why}"),
            Self::Released { why: None } => f.write_str("released"),
            Self::TakenOver => f.write_str("expired, and was taken over"),
            Self::Broken { by: who, reason } => {
                f.write_str("broken")?;
                by(f, who)?;
                match reason {
                    Some(reason) => write!(f, " ({})", printable(reason)),
                    None => Ok(()),
                }
            }
            Self::Swept => f.write_str("expired, and was swept"),
            Self::Deleted { by: who } => {
                f.write_str("its row was deleted by hand")?;
                by(f, who)
            }
            Self::Changed { by: who } => {
                f.write_str("its row was changed by hand")?;
                by(f, who)
            }
            Self::Other { word } => f.write_str(&printable(word)),
        }
    }
}
