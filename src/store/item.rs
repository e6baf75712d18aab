//! What is asked of a connection, item by item, and the outcomes that answer it.

use std::time::Duration;

use crate::session::{
    FencingToken, Holder, Label, NodeId, Reason, Requester, RunId, RunPhase, RunStage, SessionKey,
    StopRequest,
};

/// A request for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acquire {
    /// Which session.
    pub key: SessionKey,
    /// For which run.
    pub run_id: RunId,
    /// Under which supervisor.
    pub node: NodeId,
    /// The holder's name for people.
    pub label: Label,
    /// What the run does first.
    pub phase: RunPhase,
    /// The granted length; whole milliseconds, the rest is cut off.
    pub ttl: Duration,
}

/// The answer to one [`Acquire`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// The session is this run's.
    Granted(Grant),
    /// A live lease of another run holds it, or a transaction of that run still [pins](crate::pin) one that has expired:
    /// certainly nothing was acquired.
    Busy(Box<Holder>),
    /// The row is locked by somebody, or a race went on: certainly nothing was acquired, ask again.
    Locked,
}

/// A granted lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The run's fencing token.
    pub fence: FencingToken,
    /// `expires_at − clock`, both read in the statement that granted or later.
    pub remaining: Duration,
    /// When the run first acquired the session: microseconds since 1970 by the database's clock.
    pub acquired_at_micros: i64,
    /// When the lease expires: microseconds since 1970 by the database's clock.
    pub expires_at_micros: i64,
    /// A stop that was requested before this (repeated) acquire.
    pub stop: Option<StopRequest>,
}

/// A request to extend a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renew {
    /// Which session.
    pub key: SessionKey,
    /// Of which run.
    pub run_id: RunId,
    /// The length from now; whole milliseconds.
    pub ttl: Duration,
    /// How long before expiry a renewal is refused; whole milliseconds.
    pub safety_margin: Duration,
    /// How the run stands.
    pub stage: RunStage,
    /// A new phase, or `None` to leave it.
    pub phase: Option<RunPhase>,
}

/// The answer to one [`Renew`]. A loss comes with the database's clock, in microseconds since 1970: a clock that was
/// stepped may be its cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenewOutcome {
    /// The lease was extended.
    Renewed(Renewed),
    /// The row is of another run.
    Superseded {
        /// The database's clock.
        clock_micros: i64,
    },
    /// The lease has expired or is inside its safety margin. It will never be renewed again.
    Expired {
        /// The database's clock.
        clock_micros: i64,
    },
    /// There is no row: somebody deleted it.
    Gone {
        /// The database's clock.
        clock_micros: i64,
    },
    /// The row is locked by somebody: nothing is known yet, ask again.
    Locked,
}

impl RenewOutcome {
    /// The database's clock when it decided: microseconds since 1970.
    pub fn clock_micros(&self) -> Option<i64> {
        match self {
            Self::Renewed(Renewed { clock_micros, .. })
            | Self::Superseded { clock_micros }
            | Self::Expired { clock_micros }
            | Self::Gone { clock_micros } => Some(*clock_micros),
            Self::Locked => None,
        }
    }
}

/// An extended lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewed {
    /// `expires_at − clock`, both read in the statement.
    pub remaining: Duration,
    /// The database's clock: microseconds since 1970.
    pub clock_micros: i64,
    /// A request to stop this run.
    pub stop: Option<StopRequest>,
}

/// A request to give a lease back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// Which session.
    pub key: SessionKey,
    /// Of which run.
    pub run_id: RunId,
}

/// The answer to one [`Release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The row was deleted.
    Released,
    /// No row of this run: it was released, taken over or swept before, or its acquire has not arrived yet.
    NotFound,
    /// The row is pinned or locked by somebody: ask again.
    Locked,
}

/// A request that a run stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopRun {
    /// Which session.
    pub key: SessionKey,
    /// Only this run; whoever holds the session when `None`.
    pub run_id: Option<RunId>,
    /// Who asks, for people.
    pub by: Option<Requester>,
    /// Why, for people.
    pub reason: Option<Reason>,
}

/// The answer to one [`StopRun`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopOutcome {
    /// The row of this run carries a request to stop.
    Asked {
        /// Who was asked. Its `stop` is the request that stands.
        holder: Box<Holder>,
        /// Whether that is this one; if not, somebody had asked before, and nothing was changed.
        first: bool,
    },
    /// No live lease, or none of the run that was named: certainly nobody was asked.
    Idle,
    /// The row of this run, which held the session, is locked by somebody: certainly nothing was changed. Name the
    /// run when asking again, so that no other is hit.
    Locked(RunId),
}

/// Which rows [`LeaseConnection::list`](super::LeaseConnection::list) reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Only this account's.
    pub account: Option<String>,
    /// Expired rows too.
    pub expired: bool,
    /// Only keys after this one.
    pub after: Option<SessionKey>,
    /// At most this many.
    pub limit: u32,
}

/// The same renewals without what they tell people; `None` if they tell nothing.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(super) fn untold(items: &[Renew]) -> Option<Vec<Renew>> {
    let untold = |item: &Renew| Renew { phase: None, ..item.clone() };
    items.iter().any(|item| item.phase.is_some()).then(|| items.iter().map(untold).collect())
}
