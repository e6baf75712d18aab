//! The session that a request names.

use std::{borrow::Cow, fmt, str};

use futures::stream::Stream;
use percent_encoding::percent_decode_str;

use super::Problem;
use crate::{
    error::QueryError,
    run::RunContext,
    session::{SessionKey, SessionStatus},
    supervisor::{AcquireBuilder, LeaseSupervisor, StopBuilder},
    watch::Observed,
};

/// The sessions of a service: the supervisor that acquires them, and where a request names one.
///
/// By default the path names both: `/sessions/{account}/{session}`. A service that knows its caller takes only the
/// session from the request:
///
/// ```no_run
/// # use tenure::{LeaseSupervisor, web::{KeyPart, Sessions}};
/// # fn example(supervisor: LeaseSupervisor) {
/// let sessions = Sessions::new(supervisor)
///     .account(KeyPart::authenticated())
///     .session(KeyPart::path("chat"));
/// # }
/// ```
///
/// With axum, this is the state of the router, or a part of it for which the state implements `FromRef`. With
/// actix-web, it goes into `app_data`. Clones share the supervisor.
#[derive(Debug, Clone)]
pub struct Sessions {
    supervisor: LeaseSupervisor,
    account: KeyPart,
    session: KeyPart,
}

impl Sessions {
    /// Sessions of this supervisor, named by the path parameters `account` and `session`.
    pub fn new(supervisor: LeaseSupervisor) -> Self {
        Self { supervisor, account: KeyPart::path("account"), session: KeyPart::path("session") }
    }

    /// Where a request names the account.
    #[must_use]
    pub fn account(mut self, part: KeyPart) -> Self {
        self.account = part;
        self
    }

    /// Where a request names the session within the account.
    #[must_use]
    pub fn session(mut self, part: KeyPart) -> Self {
        self.session = part;
        self
    }

    /// The supervisor that acquires the sessions.
    pub fn supervisor(&self) -> &LeaseSupervisor {
        &self.supervisor
    }

    /// The session that this request names.
    pub(super) fn find(&self, request: &impl Head) -> Result<RequestedSession, Problem> {
        let key = SessionKey::new(self.account.find(request)?, self.session.find(request)?)?;
        Ok(RequestedSession { key, supervisor: self.supervisor.clone() })
    }
}

/// Where a request names one part of a session's key.
#[derive(Debug, Clone)]
pub struct KeyPart(Source);

#[derive(Debug, Clone)]
enum Source {
    Path(Cow<'static, str>),
    Header(Cow<'static, str>),
    Fixed(String),
    Authenticated,
}

impl KeyPart {
    /// In the path parameter of this name, percent-encoded. A route without it is a mistake of the service: 500.
    pub fn path(name: impl Into<Cow<'static, str>>) -> Self {
        Self(Source::Path(name.into()))
    }

    /// In the header of this name, as it is. If the header is not there exactly once, the answer is 400. A name
    /// that no header can have is a mistake of the service: 500.
    ///
    /// A client can write what it likes into a header.
    pub fn header(name: impl Into<Cow<'static, str>>) -> Self {
        Self(Source::Header(name.into()))
    }

    /// Nowhere: it is the same for every request.
    pub fn fixed(value: impl Into<String>) -> Self {
        Self(Source::Fixed(value.into()))
    }

    /// In the [`AccountId`] among the request's extensions. If there is none, the answer is 403.
    pub fn authenticated() -> Self {
        Self(Source::Authenticated)
    }

    fn find(&self, request: &impl Head) -> Result<String, Problem> {
        match &self.0 {
            Source::Path(name) => {
                // Frameworks may replace what is not UTF-8. Then different names would name one session.
                if percent_decode_str(request.path()).decode_utf8().is_err() {
                    return Err(Problem::not_utf8());
                }
                let missing = || format!("the route has no parameter {name:?}, which names a session");
                request.param(name)?.ok_or_else(|| Problem::misconfigured(missing()))
            }
            Source::Header(name) if !is_token(name) => {
                Err(Problem::misconfigured(format_args!("{name:?} cannot be the name of a header")))
            }
            Source::Header(name) => match request.header(name)[..] {
                [value] => match str::from_utf8(value) {
                    Ok(value) => Ok(value.to_owned()),
                    Err(_) => Err(Problem::invalid(format_args!("the header {name} is not UTF-8"))),
                },
                _ => Err(Problem::invalid(format_args!("the header {name} is needed once"))),
            },
            Source::Fixed(value) => Ok(value.clone()),
            Source::Authenticated => {
                request.account().map(|account| account.0).ok_or_else(Problem::no_account)
            }
        }
    }
}

/// Whether HTTP allows this as the name of a header (RFC 9110, section 5.6.2).
fn is_token(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_allowed)
}

/// The account that the service's own authentication has found. It puts this into the request's extensions, before the
/// handler is called; see [`KeyPart::authenticated`].
///
/// ```no_run
/// # #[cfg(feature = "axum")]
/// # mod example {
/// use axum::{extract::Request, middleware::Next, response::Response};
/// use tenure::web::AccountId;
///
/// /// For `axum::middleware::from_fn`. A middleware of actix-web has the same line.
/// async fn authenticate(mut request: Request, next: Next) -> Response {
///     let account = "acct-1".to_owned(); // of the request's token, once that was checked
///     request.extensions_mut().insert(AccountId(account));
///     next.run(request).await
/// }
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountId(pub String);

/// What is read of a request.
pub(super) trait Head {
    /// A parameter of the path, percent-decoded.
    ///
    /// # Errors
    /// The answer to a path that the framework cannot read.
    fn param(&self, name: &str) -> Result<Option<String>, Problem>;
    /// The path as it was sent.
    fn path(&self) -> &str;
    fn header(&self, name: &str) -> Vec<&[u8]>;
    fn account(&self) -> Option<AccountId>;
}

/// The session that a request names, at the supervisor of the service. An argument of a handler, on axum and on
/// actix-web; see [`Sessions`].
///
/// It is not acquired: that is for the handler to do, when it has decided that the caller may, and has read the
/// request's body. A session that cannot exist is answered by a [`Problem`] with 400, before the handler is called.
///
/// # Cancel safety
/// Extracting a session waits for nothing and asks nobody.
#[derive(Clone)]
pub struct RequestedSession {
    key: SessionKey,
    supervisor: LeaseSupervisor,
}

impl RequestedSession {
    /// The session's key.
    pub fn key(&self) -> &SessionKey {
        &self.key
    }

    /// The supervisor of the service.
    pub fn supervisor(&self) -> &LeaseSupervisor {
        &self.supervisor
    }

    /// See [`LeaseSupervisor::acquire`].
    ///
    /// # Errors
    /// [`AcquireError`](crate::AcquireError), which becomes a [`Problem`] by `?`.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point, and so may the run. The session is then released.
    pub fn acquire(&self) -> AcquireBuilder {
        self.supervisor.acquire(&self.key)
    }

    /// See [`LeaseSupervisor::local`].
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn local(&self) -> Option<RunContext> {
        self.supervisor.local(&self.key).await
    }

    /// See [`LeaseSupervisor::inspect`].
    ///
    /// # Errors
    /// [`QueryError`] when the database does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<SessionStatus, QueryError> {
        self.supervisor.inspect(&self.key).await
    }

    /// See [`LeaseSupervisor::stop`].
    ///
    /// # Errors
    /// [`StopError`](crate::StopError).
    ///
    /// # Cancel safety
    /// A request that was sent takes effect even if the future is dropped.
    pub fn stop(&self) -> StopBuilder {
        self.supervisor.stop(&self.key)
    }

    /// See [`LeaseSupervisor::watch`].
    pub fn watch(&self) -> impl Stream<Item = Observed> + Send + Unpin + use<> {
        self.supervisor.watch(&self.key)
    }
}

impl fmt::Debug for RequestedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestedSession").field(&self.key).finish()
    }
}
