//! Ends the lease of a run that is known to be dead.

use std::{
    future::IntoFuture,
    time::{Duration, SystemTime},
};

use futures::{channel::oneshot, future::BoxFuture};

use super::LeaseSupervisor;
use crate::{
    actor::registry::{BreakSession, Breaking, Broke},
    error::{BreakError, Closed},
    session::{Holder, Reason, Requester, RunId, SessionKey, SessionStatus},
};

/// A request to end the lease of a dead run. Await it to send it.
#[must_use = "a request does nothing until it is awaited"]
#[derive(Debug, Clone)]
pub struct BreakBuilder {
    pub(super) supervisor: LeaseSupervisor,
    pub(super) key: SessionKey,
    pub(super) run_id: RunId,
    pub(super) by: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) renew_interval: Option<Duration>,
}

impl BreakBuilder {
    /// Who does it, for people: 1 to 255 bytes without NUL.
    pub fn by(mut self, by: impl Into<String>) -> Self {
        self.by = Some(by.into());
        self
    }

    /// Why, for people: 1 to 1000 bytes without NUL.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// How often the run would renew its lease if it lived. Needed only for a run whose supervisor was given a
    /// [`renew_interval`](crate::LeaseSupervisorBuilder::renew_interval) of more than 20 s: the row does not tell, and
    /// by default no interval is longer.
    pub fn renew_interval(mut self, interval: Duration) -> Self {
        self.renew_interval = Some(interval);
        self
    }

    async fn send(self) -> Result<BreakAnswer, BreakError> {
        let inner = self.supervisor.inner()?;
        let by = self.by.map(Requester::new).transpose()?;
        let reason = self.reason.map(Reason::new).transpose()?;
        let (reply, answer) = oneshot::channel();
        let breaking = Breaking {
            key: self.key.clone(),
            run_id: self.run_id,
            by,
            reason,
            renew_interval: self.renew_interval,
        };
        inner.registry.do_send(BreakSession { breaking, reply });
        let answer = match answer.await.map_err(|oneshot::Canceled| Closed)?? {
            Broke::Broken { holder, may_act_until } => {
                inner.watching.nudge(self.key.clone());
                BreakAnswer::Broken(Box::new(BrokenLease { key: self.key, holder, may_act_until }))
            }
            Broke::Renewed(holder) => BreakAnswer::Renewing(Box::new(holder)),
            Broke::NotHeld(status) => BreakAnswer::NotHeld(Box::new(status)),
        };
        Ok(answer)
    }
}

impl IntoFuture for BreakBuilder {
    type Output = Result<BreakAnswer, BreakError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// The answer to a request to break a lease. Each answer is certain.
#[must_use = "it tells whether the lease was broken"]
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum BreakAnswer {
    /// The lease has ended. The next acquire gets the session, with a greater fence.
    Broken(Box<BrokenLease>),
    /// The run renews its lease, so it lives. Nothing was changed.
    Renewing(Box<Holder>),
    /// The run has no live lease of the session, so there is nothing to break. This is how the session is.
    NotHeld(Box<SessionStatus>),
}

/// A lease that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct BrokenLease {
    /// The session.
    pub key: SessionKey,
    /// The run, as its row was before.
    pub holder: Holder,
    /// Until when the run might still act if it lives but cannot reach the database, by the database's clock: it would
    /// not learn that its lease has ended. `None` if its own trust has certainly run out.
    #[cfg_attr(feature = "serde", serde(serialize_with = "optional_rfc3339"))]
    pub may_act_until: Option<SystemTime>,
}

#[cfg(feature = "serde")]
fn optional_rfc3339<S: serde::Serializer>(at: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => crate::session::rfc3339(at, serializer),
        None => serializer.serialize_none(),
    }
}
