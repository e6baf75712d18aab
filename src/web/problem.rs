//! What a request without a run is answered, in any framework.

use std::{fmt, time::Duration};

use serde::Serialize;

use crate::{
    end::EndReason,
    error::{AcquireError, Busy, Closed, QueryError, ScopeError, StopError},
    session::InvalidText,
    store::StoreError,
};

/// The answer to a request that got no run, or whose run ended early: a problem of
/// [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457), `application/problem+json`.
///
/// | what happened | status | `type` | `Retry-After` |
/// |---|---|---|---|
/// | another run holds the session | 409 | `urn:tenure:busy` | [`Busy::retry_after`] |
/// | the account has as many runs as it may have | 429 | `urn:tenure:account-limit` | 1 s |
/// | the database gave no answer in time | 503 | `urn:tenure:unavailable` | 1 s |
/// | the service is draining | 503 | `urn:tenure:draining` | 1 s |
/// | the supervisor has ended | 503 | `urn:tenure:closed` | 1 s |
/// | waiting does not help: no schema, no right, a setting that cannot work | 500 | `urn:tenure:misconfigured` | |
/// | a key, a label, a phase or a name cannot be stored; it is assumed to come from the client | 400 | `urn:tenure:invalid` | |
/// | the request has no [account](super::AccountId) | 403 | `urn:tenure:no-account` | |
/// | somebody stopped the run | 410 | `urn:tenure:stopped` | |
/// | the run reached a limit | 504 | `urn:tenure:timed-out` | |
/// | the work failed or panicked | 500 | `urn:tenure:failed` | |
/// | the run was lost, or its supervisor was shut down | 503 | `urn:tenure:ended` | 1 s |
/// | another handle has taken the value of the work | 410 | `urn:tenure:taken` | |
///
/// A client that gets 409 can read the body as [`Busy`], which names the holder. If the run has ended, the body can be
/// read as [`EndReason`].
///
/// The client does not learn where the database is, what the database said, or with what error the work has failed. All
/// this is in [`Display`](fmt::Display), for your log. Answers with a status of 500 or more are logged as they are sent,
/// with the target `tenure::web`.
///
/// For another framework, build the response of [`status`](Self::status), [`headers`](Self::headers) and
/// [`to_json`](Self::to_json).
///
/// ```
/// use tenure::{SessionKey, web::Problem};
///
/// fn key_of(account: &str, session: &str) -> Result<SessionKey, Problem> {
///     Ok(SessionKey::new(account, session)?)
/// }
///
/// let problem = key_of("acct-1", "").unwrap_err();
/// assert_eq!(problem.status(), 400);
/// assert!(problem.to_json().contains("session id"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem(Box<Parts>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Parts {
    #[serde(rename = "type")]
    name: &'static str,
    title: &'static str,
    status: u16,
    /// For the client.
    detail: String,
    #[serde(flatten)]
    more: More,
    #[serde(skip)]
    retry_after: Option<Duration>,
    /// For the log, if there is more to say than the detail.
    #[serde(skip)]
    cause: Option<String>,
}

/// The members that a client can read as a value of this crate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum More {
    Nothing {},
    Busy(Busy),
    Ended(EndReason),
}

impl Problem {
    /// The status code.
    pub fn status(&self) -> u16 {
        self.0.status
    }

    /// The `type`: what happened, for programs.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// What happened, for the people who use the client.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// How long the client should wait before it asks again. `None` if waiting does not help.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The names, in lower case, and values of the response's headers: `content-type`, `cache-control: no-store`, and
    /// `retry-after` in whole seconds if waiting helps.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        // A cache may keep a 410 for a while if nothing forbids it.
        let fixed = [("content-type", "application/problem+json"), ("cache-control", "no-store")];
        let retry_after = self.0.retry_after.map(|after| ("retry-after", after.as_secs().to_string()));
        fixed.map(|(name, value)| (name, value.to_owned())).into_iter().chain(retry_after)
    }

    /// The response's body.
    ///
    /// # Panics
    /// Never, unless a date is before 1970 or after the year 9999.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&self.0).expect("texts, numbers and dates")
    }

    /// Logs what the client is not told. Call it once per answer.
    pub(super) fn log(&self) {
        match self.status() {
            500 => tracing::error!(target: crate::trace::WEB, status = 500, "{self}"),
            status @ 501.. => tracing::warn!(target: crate::trace::WEB, status, "{self}"),
            _ => {}
        }
    }

    pub(super) fn invalid(detail: impl fmt::Display) -> Self {
        Self::new(400, "urn:tenure:invalid", "The request has a part that cannot be used", detail)
    }

    pub(super) fn not_utf8() -> Self {
        Self::invalid("the path is not UTF-8")
    }

    pub(super) fn no_account() -> Self {
        let detail = "this service needs to know whose session it is";
        Self::new(403, "urn:tenure:no-account", "The request has no account", detail)
    }

    pub(super) fn misconfigured(cause: impl fmt::Display) -> Self {
        let detail = "waiting does not help: those who run the service have to mend it";
        Self::new(500, "urn:tenure:misconfigured", "The service cannot hold sessions", detail).because(cause)
    }

    fn unavailable(detail: &str, cause: &StoreError) -> Self {
        let title = "The service cannot reach its database";
        Self::new(503, "urn:tenure:unavailable", title, detail).retry().because(cause)
    }

    fn new(status: u16, name: &'static str, title: &'static str, detail: impl fmt::Display) -> Self {
        let (detail, more) = (detail.to_string(), More::Nothing {});
        Self(Box::new(Parts { name, title, status, detail, more, retry_after: None, cause: None }))
    }

    fn retry(mut self) -> Self {
        self.0.retry_after = Some(Duration::from_secs(1));
        self
    }

    fn because(mut self, cause: impl fmt::Display) -> Self {
        self.0.cause = Some(cause.to_string());
        self
    }

    fn with(mut self, more: More) -> Self {
        self.0.more = more;
        self
    }
}

/// For the log: also what the client is not told.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { title, detail, cause, .. } = &*self.0;
        write!(f, "{title}: {}", cause.as_ref().unwrap_or(detail))
    }
}

impl std::error::Error for Problem {}

impl From<&AcquireError> for Problem {
    fn from(error: &AcquireError) -> Self {
        match error {
            AcquireError::Busy(busy) => (&**busy).into(),
            AcquireError::AccountLimit { .. } => {
                Self::new(429, "urn:tenure:account-limit", "The account has too many runs", error).retry()
            }
            AcquireError::Unavailable(cause) => {
                let detail = "it is not known whether the session was acquired; if so, it is being released";
                Self::unavailable(detail, cause)
            }
            AcquireError::NotAcquired(cause) => {
                Self::unavailable("the session was not acquired in time", cause)
            }
            AcquireError::Refused(cause) => Self::of_store(cause),
            AcquireError::Draining => {
                let (title, detail) = ("The service takes no new runs", "this server is draining; ask again");
                Self::new(503, "urn:tenure:draining", title, detail).retry()
            }
            AcquireError::Closed(closed) => closed.into(),
            AcquireError::Invalid(invalid) => invalid.into(),
            AcquireError::Config(cause) => Self::misconfigured(cause),
        }
    }
}

impl From<&Busy> for Problem {
    fn from(busy: &Busy) -> Self {
        let mut problem = Self::new(409, "urn:tenure:busy", "Another run holds the session", busy);
        problem.0.retry_after = Some(busy.retry_after());
        problem.with(More::Busy(busy.clone()))
    }
}

impl From<&Closed> for Problem {
    fn from(closed: &Closed) -> Self {
        let detail = "this server's supervisor has ended; ask again";
        Self::new(503, "urn:tenure:closed", "The service takes no new runs", detail).retry().because(closed)
    }
}

impl From<&InvalidText> for Problem {
    fn from(invalid: &InvalidText) -> Self {
        Self::invalid(invalid)
    }
}

impl From<&QueryError> for Problem {
    fn from(error: &QueryError) -> Self {
        match error {
            QueryError::Store(cause) => Self::of_store(cause),
            QueryError::Closed(closed) => closed.into(),
        }
    }
}

impl From<&StopError> for Problem {
    fn from(error: &StopError) -> Self {
        match error {
            StopError::Store(cause) => Self::of_store(cause),
            StopError::Closed(closed) => closed.into(),
            StopError::Invalid(invalid) => invalid.into(),
        }
    }
}

impl<T> From<&ScopeError<T>> for Problem {
    fn from(error: &ScopeError<T>) -> Self {
        Self::from(error.reason()).because(error)
    }
}

impl From<&EndReason> for Problem {
    fn from(reason: &EndReason) -> Self {
        let new = |status, name, title| Self::new(status, name, title, shown(reason));
        let problem = match reason {
            EndReason::Completed => new(410, "urn:tenure:taken", "The reply was given to another request"),
            EndReason::Stopped { .. } => new(410, "urn:tenure:stopped", "The run was stopped"),
            EndReason::TimedOut { .. } => new(504, "urn:tenure:timed-out", "The run took too long"),
            EndReason::Failed { .. } | EndReason::Panicked => {
                new(500, "urn:tenure:failed", "The work of the run has failed")
            }
            EndReason::Dropped
            | EndReason::Shutdown
            | EndReason::Superseded
            | EndReason::Expired
            | EndReason::Unconfirmed => {
                new(503, "urn:tenure:ended", "The run has ended before its work did").retry()
            }
        };
        problem.with(More::Ended(shown(reason))).because(reason)
    }
}

/// The reason without the text of an error of the host.
fn shown(reason: &EndReason) -> EndReason {
    match reason {
        EndReason::Failed { .. } => EndReason::Failed { reason: String::new() },
        reason => reason.clone(),
    }
}

impl Problem {
    fn of_store(error: &StoreError) -> Self {
        match error {
            StoreError::Unstorable { .. } => {
                Self::invalid("the name has a character that cannot be stored").because(error)
            }
            error if error.is_transient() => Self::unavailable("the database gave no answer in time", error),
            error => Self::misconfigured(error),
        }
    }
}

macro_rules! owned {
    ($error:ty $(, $of:ident)?) => {
        impl<$($of)?> From<$error> for Problem {
            fn from(error: $error) -> Self {
                Self::from(&error)
            }
        }
    };
}

owned!(AcquireError);
owned!(Busy);
owned!(Closed);
owned!(EndReason);
owned!(InvalidText);
owned!(QueryError);
owned!(StopError);
owned!(ScopeError<T>, T);

/// Implements a trait of a framework for each error that answers, by its [`Problem`].
macro_rules! for_each_error {
    ($implement:ident) => {
        $implement!($crate::error::AcquireError);
        $implement!($crate::error::Busy);
        $implement!($crate::error::Closed);
        $implement!($crate::end::EndReason);
        $implement!($crate::session::InvalidText);
        $implement!($crate::error::QueryError);
        $implement!($crate::error::StopError);
        $implement!($crate::error::ScopeError<T>, T);
    };
}

pub(super) use for_each_error;
