//! The items that a connection is asked for, and their outcomes.

use std::time::{Duration, SystemTime};

use crate::{
    end::EndReason,
    session::{
        FencingToken, Holder, Label, NodeId, Reason, Requester, RunId, RunPhase, RunStage, SessionKey,
        StopRequest,
    },
};

/// A request for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acquire {
    /// Which session.
    pub key: SessionKey,
    /// For which run.
    pub run_id: RunId,
    /// The supervisor of the run.
    pub node: NodeId,
    /// The holder's name for people.
    pub label: Label,
    /// What the run does first, for people.
    pub phase: RunPhase,
    /// The length of the lease. Fractions of a millisecond are cut off.
    pub ttl: Duration,
    /// The most live leases that the account may have with this one, or `None` for any number.
    pub limit_per_account: Option<u32>,
}

/// The answer to one [`Acquire`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// The session is this run's.
    Granted(Grant),
    /// Another run holds the session with a live lease, or its lease has expired but a transaction still
    /// [pins](crate::pin) it. Certainly nothing was acquired.
    Busy(Box<Holder>),
    /// Nobody holds the session, but the account has as many live leases as the item allows, or more. Certainly nothing
    /// was acquired.
    Full {
        /// How many live leases the account had, those included that the same call has granted.
        running: u32,
    },
    /// Another transaction has locked the row, or other runs keep winning the race for it, or another limited acquire
    /// of the account is under way. Ask again.
    Locked,
}

/// A granted lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The run's fencing token.
    pub fence: FencingToken,
    /// `expires_at − clock`, both read in the granting statement, or both in a later one.
    pub remaining: Duration,
    /// When the run first acquired the session: microseconds since 1970 by the database's clock.
    pub acquired_at_micros: i64,
    /// When the lease expires: microseconds since 1970 by the database's clock.
    pub expires_at_micros: i64,
    /// A request to stop this run. Only a repeated acquire can find one.
    pub stop: Option<StopRequest>,
}

/// A request to extend a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renew {
    /// Which session.
    pub key: SessionKey,
    /// Of which run.
    pub run_id: RunId,
    /// The length of the lease from now. Fractions of a millisecond are cut off.
    pub ttl: Duration,
    /// A lease that has this long or less until its expiry is not renewed. Fractions of a millisecond are cut off.
    pub safety_margin: Duration,
    /// The run's current stage.
    pub stage: RunStage,
    /// The run's new phase, or `None` to keep the present one.
    pub phase: Option<RunPhase>,
}

/// The answer to one [`Renew`]. Each loss has the database's clock with it, in microseconds since 1970, because a
/// stepped clock may be the cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenewOutcome {
    /// The lease was extended.
    Renewed(Renewed),
    /// The row belongs to another run.
    Superseded {
        /// The database's clock.
        clock_micros: i64,
    },
    /// The lease has expired, or it is inside its safety margin. It will never be renewed again.
    Expired {
        /// The database's clock.
        clock_micros: i64,
    },
    /// There is no row. Somebody deleted it.
    Gone {
        /// The database's clock.
        clock_micros: i64,
    },
    /// Another transaction has locked the row. Nothing is known yet; ask again.
    Locked,
}

impl RenewOutcome {
    /// The database's clock when it decided, in microseconds since 1970. `None` for [`Locked`](Self::Locked).
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
    /// Why the run ended, for the history.
    pub reason: Option<EndReason>,
}

/// The answer to one [`Release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The row was deleted.
    Released,
    /// There is no row of this run. It was already released, taken over or swept, or its acquire has not arrived yet.
    NotFound,
    /// Another transaction has pinned or locked the row. Ask again.
    Locked,
}

/// A request to stop a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopRun {
    /// Which session.
    pub key: SessionKey,
    /// Stop only this run. `None` stops the run that holds the session, whichever it is.
    pub run_id: Option<RunId>,
    /// Who asks, for people.
    pub by: Option<Requester>,
    /// Why, for people.
    pub reason: Option<Reason>,
}

/// The answer to one [`StopRun`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopOutcome {
    /// The run's row has a request to stop.
    Asked {
        /// The run that was asked. Its `stop` is the request that counts.
        holder: Box<Holder>,
        /// Whether that is this request. If not, there was an earlier one, and nothing was changed.
        first: bool,
    },
    /// There is no live lease, or it is not the named run's. Certainly no run was asked.
    Idle,
    /// This run holds the session, but another transaction has locked its row. Certainly nothing was changed. Name this
    /// run when asking again, so that the request hits no other.
    Locked(RunId),
}

/// A request to end the lease of a run that is known to be dead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakLease {
    /// Which session.
    pub key: SessionKey,
    /// The run that is dead.
    pub run_id: RunId,
    /// The expiry that its row showed for as long as the caller has watched. If the row shows another one now, the run
    /// has renewed its lease, and lives.
    pub expires_at: SystemTime,
    /// Who does it, for people.
    pub by: Option<Requester>,
    /// Why, for people.
    pub reason: Option<Reason>,
}

/// The answer to one [`BreakLease`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakOutcome {
    /// The lease has ended: the next acquire takes the session over.
    Broken {
        /// How long the lease would still have lasted.
        remaining: Duration,
    },
    /// The run has renewed its lease. Nothing was changed.
    Renewed,
    /// The run has no live lease of this session. Nothing was changed.
    NotHeld,
    /// Another transaction has locked the row. Nothing was changed; ask again.
    Locked,
}

/// Which runs [`LeaseConnection::history`](super::LeaseConnection::history) reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryPage {
    /// Of which session.
    pub key: SessionKey,
    /// Only runs with a lesser fence than this.
    pub before: Option<FencingToken>,
    /// At most this many.
    pub limit: u32,
}

/// Which rows [`LeaseConnection::list`](super::LeaseConnection::list) reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Read only the rows of this account.
    pub account: Option<String>,
    /// Read expired rows, too.
    pub expired: bool,
    /// Read only rows whose key is after this one.
    pub after: Option<SessionKey>,
    /// Read at most this many rows.
    pub limit: u32,
}

/// The same renewals without their new phases, which are only for people. `None` if no renewal has one.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(super) fn untold(items: &[Renew]) -> Option<Vec<Renew>> {
    let untold = |item: &Renew| Renew { phase: None, ..item.clone() };
    items.iter().any(|item| item.phase.is_some()).then(|| items.iter().map(untold).collect())
}
