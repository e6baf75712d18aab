//! Requests with options. A request is sent when it is awaited.

use std::{fmt, future::IntoFuture, time::Duration};

use actix::Recipient;
use futures::{channel::oneshot, future::BoxFuture};
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
    pub(super) stop_grace: Option<Duration>,
    pub(super) limits: Vec<Limit>,
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

    /// How long the work of this run may go on after it was told to stop: zero to a year. Default: the supervisor's
    /// [`stop_grace`](crate::LeaseSupervisorBuilder::stop_grace). A shutdown has a grace of its own.
    pub fn stop_grace(mut self, grace: Duration) -> Self {
        self.stop_grace = Some(grace);
        self
    }

    /// Tells the run to stop (`TimedOut`) this long after its grant. Time in suspend counts. No limit by default.
    pub fn max_duration(mut self, duration: Duration) -> Self {
        self.limits.push(Limit::MaxDuration(duration));
        self
    }

    /// Tells the run to stop (`TimedOut`) when its work has not called [`beat`](crate::RunContext::beat) for this long.
    /// The time counts from the grant, and time in suspend counts. No limit by default.
    ///
    /// Renewals do not depend on `beat`: they go on while the work hangs.
    pub fn max_silence(mut self, duration: Duration) -> Self {
        self.limits.push(Limit::MaxSilence(duration));
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
        let timing = match self.stop_grace {
            Some(grace) => inner.timing.with_stop_grace(grace)?,
            None => inner.timing,
        };
        let (reply, answer) = oneshot::channel();
        let abandoned = CancellationToken::new();
        let waiting = abandoned.clone().drop_guard();
        let (limits, events) = (self.limits, self.events);
        let key = self.key.clone();
        inner.registry.do_send(AcquireSession {
            key,
            label,
            phase,
            timing,
            limits,
            events,
            until: inner.clock.now() + inner.timing.acquire_timeout(),
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

    /// Reads a page per statement, so that a long list does not keep a connection busy for long.
    async fn read(self) -> Result<Vec<SessionStatus>, QueryError> {
        const PAGE: u32 = 1_000;
        let (mut found, mut left, mut after) = (Vec::new(), self.page.limit, self.page.after.clone());
        while left > 0 {
            let page = Page { limit: left.min(PAGE), after, ..self.page.clone() };
            let asked = page.limit;
            let rows = self.supervisor.inner()?.queries.ask(|reply| Query::List(page, reply)).await?;
            let got = u32::try_from(rows.len()).unwrap_or(u32::MAX);
            found.extend(rows);
            after = found.last().map(|status| status.key.clone());
            left -= got.min(left);
            if got < asked {
                break;
            }
        }
        Ok(found)
    }
}

impl IntoFuture for ListBuilder {
    type Output = Result<Vec<SessionStatus>, QueryError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.read())
    }
}
