//! Requests with options. A request is sent when it is awaited.

use std::{fmt, future::IntoFuture, mem::discriminant, time::Duration};

use actix::Recipient;
use futures::{
    FutureExt, TryStreamExt,
    channel::oneshot,
    future::BoxFuture,
    stream::{self, Stream},
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::LeaseSupervisor;
use crate::{
    actor::{query::Query, registry::AcquireSession},
    end::Limit,
    error::{AcquireError, Closed, QueryError},
    event::RunEvent,
    run::Run,
    session::{Holder, Label, RunPhase, SessionKey, SessionStatus},
    store::Page,
    text::printable,
    trace,
};

/// A request for a session. Await it to send it.
#[must_use = "a request does nothing until it is awaited"]
#[derive(Clone)]
pub struct AcquireBuilder {
    pub(super) supervisor: LeaseSupervisor,
    pub(super) key: SessionKey,
    pub(super) holder: Option<String>,
    pub(super) phase: Option<String>,
    pub(super) ttl: Option<Duration>,
    pub(super) stop_grace: Option<Duration>,
    pub(super) limits: Vec<Limit>,
    pub(super) limit_per_account: Option<u32>,
    pub(super) events: Option<Recipient<RunEvent>>,
}

impl AcquireBuilder {
    /// The holder's name for people, instead of the supervisor's: 1 to 255 bytes without NUL.
    pub fn holder_label(mut self, label: impl Into<String>) -> Self {
        self.holder = Some(label.into());
        self
    }

    /// The phase that the run begins in, for people: at most 64 bytes without NUL. Empty by default.
    pub fn phase(mut self, phase: impl Into<String>) -> Self {
        self.phase = Some(phase.into());
        self
    }

    /// How long the lease of this run lasts without a renewal: the supervisor's [`ttl`](crate::LeaseSupervisorBuilder::ttl),
    /// which is the default, to 24 h. For a run that is to survive longer outages than others.
    ///
    /// The run's [`safety_margin`](crate::Timing::safety_margin) is longer in proportion, and so is its
    /// [`renew_interval`](crate::Timing::renew_interval), up to 20 s. All other durations are the supervisor's. If the
    /// process dies, the session stays closed for this long.
    ///
    /// A shorter ttl than the supervisor's is refused ([`ConfigError::ShorterTtl`](crate::ConfigError::ShorterTtl)), and
    /// nothing is asked. Give the supervisor the shortest ttl of its runs.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long the work of this run may go on after it was told to stop: zero to a year. Default: the supervisor's
    /// [`stop_grace`](crate::LeaseSupervisorBuilder::stop_grace). A shutdown has a grace of its own.
    pub fn stop_grace(mut self, grace: Duration) -> Self {
        self.stop_grace = Some(grace);
        self
    }

    /// Tells the run to stop (`TimedOut`) this long after its grant. Time in suspend counts. Default: the supervisor's
    /// [`max_duration`](crate::LeaseSupervisorBuilder::max_duration).
    pub fn max_duration(mut self, duration: Duration) -> Self {
        self.limits.push(Limit::MaxDuration(duration));
        self
    }

    /// Tells the run to stop (`TimedOut`) when its work has not called [`beat`](crate::RunContext::beat) for this long.
    /// The time counts from the grant, and time in suspend counts. Default: the supervisor's
    /// [`max_silence`](crate::LeaseSupervisorBuilder::max_silence).
    ///
    /// Renewals do not depend on `beat`: they go on while the work hangs.
    pub fn max_silence(mut self, duration: Duration) -> Self {
        self.limits.push(Limit::MaxSilence(duration));
        self
    }

    /// Refuses the request ([`AcquireError::AccountLimit`]) if the session's account already has this many runs, in
    /// whatever processes on whatever machines. Zero refuses every request. Default: the supervisor's
    /// [`limit_per_account`](crate::LeaseSupervisorBuilder::limit_per_account).
    ///
    /// A run counts from its grant until its session was given back or its lease has expired. So a run that stops or is
    /// stuck still counts, and so does a run whose own request had no limit. The runs are counted where the session is
    /// granted, in the same transaction, and limited requests for one account are granted one after the other. So
    /// together they never exceed their limit. On PostgreSQL a request that meets another one is repeated a moment
    /// later, without waiting in the database. A request without a limit is refused by no limit, and is not held up.
    ///
    /// The limit is judged once, at the grant. Lowering it ends no run.
    pub fn limit_per_account(mut self, limit: u32) -> Self {
        self.limit_per_account = Some(limit);
        self
    }

    /// Sends an actor of the host a message for each event of this run, from `Acquired` to `Ended`. Works like
    /// [`LeaseSupervisorBuilder::events`](crate::LeaseSupervisorBuilder::events), but keeps 64 events.
    pub fn events(mut self, recipient: Recipient<RunEvent>) -> Self {
        self.events = Some(recipient);
        self
    }

    async fn send(self) -> Result<Run, AcquireError> {
        let inner = self.supervisor.inner()?;
        let label = self.holder.map(Label::new).transpose()?.unwrap_or_else(|| inner.label.clone());
        let phase = self.phase.map(RunPhase::new).transpose()?.unwrap_or_default();
        let timing = self.ttl.map_or(Ok(inner.timing), |ttl| inner.timing.with_ttl(ttl))?;
        let timing = self.stop_grace.map_or(Ok(timing), |grace| timing.with_stop_grace(grace))?;
        let (reply, answer) = oneshot::channel();
        let abandoned = CancellationToken::new();
        let waiting = abandoned.clone().drop_guard();
        let (key, events) = (self.key.clone(), self.events);
        let limits = overridden(&inner.limits, self.limits);
        inner.registry.do_send(AcquireSession {
            key,
            label,
            phase,
            timing,
            limits,
            limit_per_account: self.limit_per_account.or(inner.limit_per_account),
            events,
            until: inner.clock.now() + timing.acquire_timeout(),
            abandoned,
            origin: trace::Origin::here(),
            reply,
        });
        let answer = answer.await.unwrap_or(Err(AcquireError::Closed(Closed)));
        waiting.disarm();
        // Here and not where it was refused, so that the event is in the span of the code that has asked.
        answer.inspect_err(|error| log_refusal(&self.key, error))
    }
}

fn log_refusal(key: &SessionKey, error: &AcquireError) {
    let (account, session) = (&*printable(key.account()), &*printable(key.session()));
    match error.busy() {
        Some(busy) => {
            let Holder { label, run_id, expires_in, .. } = busy.holder();
            debug!(
                name: "refused",
                target: trace::ACQUIRE,
                account,
                session,
                holder = %label,
                holder_run_id = %run_id,
                expires_in_ms = trace::millis(*expires_in),
                "refused: another run holds the session"
            );
        }
        None => {
            debug!(
                name: "not_acquired",
                target: trace::ACQUIRE,
                account,
                session,
                cause = %error,
                "not acquired"
            )
        }
    }
}

/// The limits of the supervisor, and those of the request in place of the same kind.
fn overridden(of_all: &[Limit], own: Vec<Limit>) -> Vec<Limit> {
    let is_overridden = |limit: &&Limit| own.iter().any(|own| discriminant(own) == discriminant(*limit));
    let kept: Vec<_> = of_all.iter().filter(|limit| !is_overridden(limit)).copied().collect();
    kept.into_iter().chain(own).collect()
}

impl fmt::Debug for AcquireBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireBuilder").field("key", &self.key).finish_non_exhaustive()
    }
}

impl IntoFuture for AcquireBuilder {
    type Output = Result<Run, AcquireError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// A request to read many sessions. Await it to send it.
#[must_use = "a request does nothing until it is awaited"]
#[derive(Debug, Clone)]
pub struct ListBuilder {
    pub(super) supervisor: LeaseSupervisor,
    pub(super) page: Page,
}

impl ListBuilder {
    /// Only the sessions of this account.
    pub fn account(mut self, account: impl Into<String>) -> Self {
        self.page.account = Some(account.into());
        self
    }

    /// Also sessions whose lease has expired.
    pub fn include_expired(mut self) -> Self {
        self.page.expired = true;
        self
    }

    /// Only sessions after this one, in byte order of account, then session.
    pub fn after(mut self, key: &SessionKey) -> Self {
        self.page.after = Some(key.clone());
        self
    }

    /// At most this many sessions. All by default.
    pub fn limit(mut self, limit: u32) -> Self {
        self.page.limit = limit;
        self
    }

    /// Reads the sessions one after the other, for lists of any length. Nothing is sent before the stream is polled.
    ///
    /// The order is that of the keys, in byte order of account, then session. The database is asked for a page of 1,000
    /// sessions at a time, and for the next page only when the one before it has been read to its end. Each page is
    /// true for the moment when it was read. So a session that comes or goes meanwhile is in the stream or not, but no
    /// session comes twice. No connection is held between two pages.
    ///
    /// # Errors
    /// [`QueryError`] as an item, when the database does not answer. It is the last item. To go on, begin another list
    /// [after](Self::after) the last session that came. After its last item the stream can be polled again, and gives
    /// `None`.
    ///
    /// # Cancel safety
    /// Dropping the future of the next item loses nothing. Dropping the stream changes nothing.
    ///
    /// ```no_run
    /// # use futures::TryStreamExt;
    /// # async fn example(supervisor: tenure::LeaseSupervisor) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut sessions = supervisor.list().account("acct-1").stream();
    /// while let Some(status) = sessions.try_next().await? {
    ///     println!("{}", status.key);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn stream(
        self,
    ) -> impl Stream<Item = Result<SessionStatus, QueryError>> + Send + Unpin + 'static + use<> {
        let pages = stream::try_unfold(self, |request| request.read_page().boxed());
        pages.map_ok(|page| stream::iter(page.into_iter().map(Ok))).try_flatten()
    }

    /// Reads the next page. Returns it with what is left of the request. `None` if nothing is left.
    async fn read_page(mut self) -> Result<Option<(Vec<SessionStatus>, Self)>, QueryError> {
        if self.page.limit == 0 {
            return Ok(None);
        }
        let asked = self.page.limit.min(LONGEST_PAGE);
        let page = Page { limit: asked, ..self.page.clone() };
        let found = self.supervisor.inner()?.queries.ask(|reply| Query::List(page, reply)).await?;
        let got = u32::try_from(found.len()).unwrap_or(u32::MAX);
        self.page.after = found.last().map(|status| status.key.clone()).or(self.page.after);
        // After a page that is not full there is nothing.
        self.page.limit = if got < asked { 0 } else { self.page.limit - asked };
        Ok(Some((found, self)))
    }
}

/// How many sessions one statement reads, so that a long list does not keep a connection busy for long.
const LONGEST_PAGE: u32 = 1_000;

impl IntoFuture for ListBuilder {
    type Output = Result<Vec<SessionStatus>, QueryError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.stream().try_collect())
    }
}
