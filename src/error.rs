//! One small error type per operation. Each error says what the caller may conclude.

use std::{fmt, time::Duration};

use crate::{
    config::{ConfigError, Timing},
    end::EndReason,
    end::Ended,
    limits::Shortage,
    session::{Holder, InvalidText},
    store::StoreError,
    text::printable_name,
};

/// Why a session was not acquired.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Another run holds the session. Certain: nothing was acquired.
    ///
    /// A session that this process has lost is refused too, until the work of the lost run has ended. The holder is
    /// then the lost run, with no time left.
    #[error("{0}")]
    Busy(Box<Busy>),
    /// The account has as many runs as the request allows
    /// ([`limit_per_account`](crate::request::AcquireBuilder::limit_per_account)). Certain: nothing was acquired.
    /// Nobody held the session itself.
    #[error("the account {} has {running} runs, and may have {limit}", printable_name(account))]
    #[non_exhaustive]
    AccountLimit {
        /// The account of the session.
        account: String,
        /// The limit of the request.
        limit: u32,
        /// How many runs of the account held a session when the request was refused.
        running: u32,
    },
    /// The database gave no usable answer in time. Uncertain: the session may have been acquired for this request. If
    /// so, it is being released in the background, and expires within one ttl at the latest.
    #[error("it is not known whether the session was acquired: {0}")]
    Unavailable(StoreError),
    /// The database could not be reached, or the row was locked, for the whole time of the request. Certain: nothing
    /// was acquired. Asking again later may help.
    #[error("the session was not acquired: {0}")]
    NotAcquired(StoreError),
    /// The request cannot succeed as things are. Certain: nothing was acquired.
    #[error(transparent)]
    Refused(StoreError),
    /// The supervisor is draining or shutting down. Certain: nothing was acquired. This supervisor will never acquire
    /// anything again: ask another one.
    #[error("the supervisor is draining and takes no new runs")]
    Draining,
    /// The supervisor's thread has ended. If the request was sent, a lease that it acquired expires within one ttl.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The holder's label or the phase cannot be stored. Certain: nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidText),
    /// The durations of the request cannot work. Certain: nothing was asked.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl AcquireError {
    /// Whether it is certain that nothing was acquired.
    pub fn is_certain(&self) -> bool {
        !matches!(self, Self::Unavailable(_) | Self::Closed(_))
    }

    /// Whether the same request to this supervisor may succeed later. If the supervisor is draining or has ended, it
    /// cannot, but another server's may: then ask there.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Busy(_) | Self::AccountLimit { .. } | Self::Unavailable(_) | Self::NotAcquired(_) => true,
            Self::Refused(_) | Self::Draining | Self::Closed(_) | Self::Invalid(_) | Self::Config(_) => false,
        }
    }

    /// A fair time to wait before asking again: [`Busy::retry_after`] if the session is held, and a second if the
    /// account has too many runs or the database did not grant in time. `None` if waiting does not help.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy(busy) => Some(busy.retry_after()),
            error => error.is_transient().then_some(Duration::from_secs(1)),
        }
    }

    /// The refusal, if another run holds the session.
    pub fn busy(&self) -> Option<&Busy> {
        match self {
            Self::Busy(busy) => Some(busy),
            _ => None,
        }
    }
}

/// Another run holds the session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Busy {
    holder: Holder,
}

impl Busy {
    pub(crate) fn new(holder: Holder) -> Self {
        Self { holder }
    }

    /// Who held the session when the request was refused.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// A fair time to wait before asking again: what is left of the lease, rounded up to whole seconds, at least 1 s
    /// and at most 5 s. The holder may release earlier, or may renew for ever.
    pub fn retry_after(&self) -> Duration {
        let left = self.holder.expires_in.as_millis().div_ceil(1_000);
        Duration::from_secs(left.clamp(1, 5).try_into().unwrap_or(5))
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Holder { label, run_id, expires_in, .. } = &self.holder;
        write!(f, "the session is held by {label} (run {run_id}), ")?;
        match expires_in.is_zero() {
            true => {
                f.write_str("whose lease has expired, but whose work or pinned transaction has not ended")
            }
            false => write!(f, "expires in {:.1} s", expires_in.as_secs_f64()),
        }
    }
}

/// Why a supervisor did not start.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Durations that cannot work together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The holder's label cannot be stored.
    #[error(transparent)]
    Invalid(#[from] InvalidText),
    /// The database cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A round trip to the database takes so long that every run would be granted and then lost.
    #[error(
        "a round trip to the database {location} takes {round_trip:?}, but a renewal has only {renew_timeout:?}, and \
         needs {needed:?}; {}",
        longer(*needed)
    )]
    #[non_exhaustive]
    SlowLine {
        /// Which database.
        location: String,
        /// The quickest of several round trips.
        round_trip: Duration,
        /// The setting.
        renew_timeout: Duration,
        /// The least value of the setting that would work.
        needed: Duration,
    },
    /// The limits of this process, its user or the machine are too low for a supervisor. Nothing was sent to the
    /// database.
    #[error(transparent)]
    Shortage(#[from] Shortage),
    /// The supervisor's thread could not be started.
    #[error("the supervisor's thread could not be started: {0}")]
    Thread(String),
}

/// The remedy: which settings give a renewal this much time.
fn longer(needed: Duration) -> String {
    let (parts, longest) = (Timing::RENEW_TIMEOUTS_IN_A_TTL, Timing::LONGEST_DEFAULT_RENEW_TIMEOUT);
    match needed <= longest {
        true => format!("lengthen the ttl to {} s or more", (needed * parts).as_secs_f64().ceil()),
        false => format!(
            "set renew_timeout to that, and the ttl to {} s or more",
            (needed * 10).as_secs_f64().ceil()
        ),
    }
}

/// Why sessions could not be read, or rows could not be swept.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The database did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The supervisor's thread has ended.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// Why a request to stop is not known to have reached a run.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// The database gave no usable answer, or the row stayed locked. If the error is
    /// [uncertain](StoreError::is_uncertain), the run may have been asked all the same. Asking again does no harm if
    /// the request names the run.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The supervisor's thread has ended.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The name of who asks, or the reason, cannot be stored. Certain: nobody was asked.
    #[error(transparent)]
    Invalid(#[from] InvalidText),
}

impl From<QueryError> for StopError {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Store(error) => Self::Store(error),
            QueryError::Closed(closed) => Self::Closed(closed),
        }
    }
}

/// Why a lease is not known to have been broken.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum BreakError {
    /// The database gave no usable answer, or the row stayed locked. If the error is
    /// [uncertain](StoreError::is_uncertain), the lease may have been broken all the same. Asking again does no harm:
    /// the request names the run.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The supervisor's thread has ended.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The name of who breaks it, or the reason, cannot be stored. Certain: nothing was changed.
    #[error(transparent)]
    Invalid(#[from] InvalidText),
}

impl From<QueryError> for BreakError {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Store(error) => Self::Store(error),
            QueryError::Closed(closed) => Self::Closed(closed),
        }
    }
}

/// The supervisor has ended, because it was shut down or has failed. All its runs were cancelled.
///
/// This is also the answer in a fork of the process that the supervisor lives in. Then nothing was sent, and nothing
/// has changed in that process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the supervisor has ended, or lives in the process that this one was forked from; start another one")]
#[non_exhaustive]
pub struct Closed;

/// Work in a scope did not complete under a held lease.
///
/// If the work returned a value after the run had ended, the error keeps the value. Another run may have held the
/// session by then.
#[must_use]
#[derive(Clone)]
pub struct ScopeError<T> {
    ended: Ended,
    value: Option<T>,
}

impl<T> ScopeError<T> {
    pub(crate) fn new(ended: Ended, value: Option<T>) -> Self {
        Self { ended, value }
    }

    /// Why the run ended.
    pub fn reason(&self) -> &EndReason {
        &self.ended.reason
    }

    /// How the run ended, as far as it was known when the scope returned. A release may still go on in the background.
    pub fn ended(&self) -> &Ended {
        &self.ended
    }

    /// What the work returned after the run had ended. `None` if it was dropped before it returned.
    pub fn into_value(self) -> Option<T> {
        self.value
    }

    /// What the work returned after the run had ended, as in [`into_value`](Self::into_value).
    pub fn value(&self) -> Option<&T> {
        self.value.as_ref()
    }

    /// How the run ended, and what the work returned after that.
    pub fn into_parts(self) -> (Ended, Option<T>) {
        (self.ended, self.value)
    }

    /// The error without the value. For use with `?` when the value is not `Send`, not `'static`, or not wanted.
    ///
    /// ```
    /// # async fn example(run: tenure::Run) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let name = String::from("chat");
    /// let borrowed: &str = run.scope(async |_| name.as_str()).await.map_err(tenure::ScopeError::erase)?;
    /// # Ok(()) }
    /// ```
    pub fn erase(self) -> ScopeError<()> {
        ScopeError { ended: self.ended, value: None }
    }
}

impl<T> fmt::Debug for ScopeError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopeError")
            .field("ended", &self.ended)
            .field("has_value", &self.value.is_some())
            .finish()
    }
}

impl<T> fmt::Display for ScopeError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only of a value that was taken: otherwise this is no error.
        if self.ended.reason == EndReason::Completed {
            return f.write_str("the work has completed, and another handle has taken its value");
        }
        write!(f, "the run ended before its work did: {}", self.ended.reason)?;
        match self.ended.gave_up {
            true => f.write_str("; the work has not ended and was given up"),
            false => Ok(()),
        }
    }
}

impl<T> std::error::Error for ScopeError<T> {}
