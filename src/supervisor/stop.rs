//! Asks the run of a session to stop, in whatever process it is.

use std::{fmt, future::IntoFuture};

use futures::{channel::oneshot, future::BoxFuture};

use super::LeaseSupervisor;
use crate::{
    actor::{registry::StopSession, watching::Watching},
    clock::BootInstant,
    error::{Closed, StopError},
    origin::Origin,
    session::{Holder, Reason, Requester, RunId, SessionKey},
    store::StopRun,
};

/// A request to stop the run of a session. Await it to send it.
#[must_use = "a request does nothing until it is awaited"]
#[derive(Debug, Clone)]
pub struct StopBuilder {
    pub(super) supervisor: LeaseSupervisor,
    pub(super) key: SessionKey,
    pub(super) run_id: Option<RunId>,
    pub(super) by: Option<String>,
    pub(super) reason: Option<String>,
}

impl StopBuilder {
    /// Stops only this run. A later run of the session is left alone. By default the request is for whatever run holds
    /// the session when the request arrives.
    pub fn run(mut self, run_id: RunId) -> Self {
        self.run_id = Some(run_id);
        self
    }

    /// Who asks, for people: 1 to 255 bytes without NUL.
    pub fn by(mut self, by: impl Into<String>) -> Self {
        self.by = Some(by.into());
        self
    }

    /// Why, for people: 1 to 1000 bytes without NUL.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    async fn send(self) -> Result<StopAnswer, StopError> {
        let inner = self.supervisor.inner()?;
        let by = self.by.map(Requester::new).transpose()?;
        let reason = self.reason.map(Reason::new).transpose()?;
        let item = StopRun { key: self.key.clone(), run_id: self.run_id, by, reason };
        let (reply, answer) = oneshot::channel();
        inner.registry.do_send(StopSession { item, reply });
        let Some(asked) = answer.await.map_err(|oneshot::Canceled| Closed)?? else {
            return Ok(StopAnswer::Idle);
        };
        inner.watching.nudge(self.key.clone());
        let (watching, asked_at) = (inner.watching.clone(), inner.clock.now());
        let asked = Asked {
            key: self.key,
            holder: asked.holder,
            first: asked.first,
            watching,
            asked_at,
            origin: inner.origin,
        };
        Ok(StopAnswer::Asked(Box::new(asked)))
    }
}

impl IntoFuture for StopBuilder {
    type Output = Result<StopAnswer, StopError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// The answer to a request to stop. Both answers are certain, and there will never be a third one.
#[must_use = "it tells whether anybody was asked"]
#[derive(Debug, Clone)]
pub enum StopAnswer {
    /// This run was asked.
    Asked(Box<Asked>),
    /// No run was asked: nobody holds the session, or the run that was named does not hold it.
    Idle,
}

/// A run that was asked to stop.
#[derive(Clone)]
pub struct Asked {
    key: SessionKey,
    holder: Holder,
    first: bool,
    watching: Watching,
    asked_at: BootInstant,
    origin: Origin,
}

impl Asked {
    /// The session.
    pub fn key(&self) -> &SessionKey {
        &self.key
    }

    /// The run that was asked. The holder's `stop` is the request that counts, as far as this process knows.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Whether this request is certainly the one that counts. The first request counts: if somebody had asked before,
    /// this one changed nothing.
    ///
    /// Also `false` if the run belongs to this supervisor and was told to stop, but the database did not say whether
    /// somebody had asked before.
    pub fn is_first(&self) -> bool {
        self.first
    }

    /// Waits until the run no longer holds the session: it has released the session, has lost it to another run, or its
    /// lease has expired by the database's clock. That may take as long as the holder's grace. If the holder's work
    /// does not end, it may take for ever. The future borrows nothing.
    ///
    /// # Errors
    /// [`Closed`] when the supervisor ends first.
    ///
    /// # Cancel safety
    /// Dropping the future only stops waiting.
    pub fn stopped(&self) -> impl Future<Output = Result<(), Closed>> + Send + use<> {
        let is_here = self.origin.is_this_process();
        let gone = is_here.then(|| self.watching.until_gone(&self.key, self.holder.run_id, self.asked_at));
        async move { gone.ok_or(Closed)?.await }
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked")
            .field("key", &self.key)
            .field("holder", &self.holder)
            .field("first", &self.first)
            .finish_non_exhaustive()
    }
}
