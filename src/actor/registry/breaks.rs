//! Ends leases of runs that are known to be dead, in whatever process they were.
//!
//! Whether a run is dead cannot be seen in its row. But a run that lives renews its lease. So this watches the row for
//! longer than the time between two renewals, and breaks the lease only if its expiry has not moved.
//!
//! The row has neither the ttl nor the interval. The ttl is no longer than `expires_at − acquired_at`, and no less than
//! what was left of the lease at any time. By default the interval is a quarter of the ttl, and at most 20 s. A caller
//! who knows of a longer one says so.

use std::{
    pin::pin,
    time::{Duration, SystemTime},
};

use actix::{Context, Handler, Message};
use futures::{
    channel::oneshot,
    future::{Either, select},
};
use tokio::time::{Instant, sleep};

use super::Registry;
use crate::{
    actor::query::{Queries, Query},
    backoff::backoff,
    config::{LONGEST_DEFAULT_RENEW_INTERVAL, Timing},
    error::QueryError,
    session::{Holder, Reason, Requester, RunId, SessionKey, SessionStatus},
    store::{BreakLease, BreakOutcome, StoreError},
};

/// A caller knows that a run is dead, and wants its lease to end.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct BreakSession {
    pub(crate) breaking: Breaking,
    pub(crate) reply: oneshot::Sender<Result<Broke, QueryError>>,
}

pub(crate) struct Breaking {
    pub(crate) key: SessionKey,
    pub(crate) run_id: RunId,
    pub(crate) by: Option<Requester>,
    pub(crate) reason: Option<Reason>,
    /// How often the run would renew.
    pub(crate) renew_interval: Option<Duration>,
}

/// What has come of it.
pub(crate) enum Broke {
    Broken {
        holder: Holder,
        /// Until when the run may act if it lives and is cut off from the database.
        may_act_until: Option<SystemTime>,
    },
    Renewed(Holder),
    NotHeld(SessionStatus),
}

/// The longest pause between two attempts to write into a locked row.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

impl Handler<BreakSession> for Registry {
    type Result = ();

    fn handle(&mut self, BreakSession { breaking, mut reply }: BreakSession, _: &mut Context<Self>) {
        let queries = self.links.queries.clone();
        let (patience, location) = (self.links.run.timing.query_timeout(), self.links.location.clone());
        actix_rt::spawn(async move {
            let work = async {
                let Some(holder) = breaking.watch(&queries).await? else {
                    return breaking.as_it_is(&queries).await;
                };
                breaking.end(holder, &queries, patience, location).await
            };
            // If the caller no longer waits, nothing is broken that was not broken yet.
            let answer = match select(pin!(work), reply.cancellation()).await {
                Either::Left((answer, _)) => answer,
                Either::Right(_) => return,
            };
            let _ = reply.send(answer);
        });
    }
}

impl Breaking {
    /// Watches the row. Returns its holder, as it was all the time, if it might be dead.
    async fn watch(&self, queries: &Queries) -> Result<Option<Holder>, QueryError> {
        let Some(first) = self.holder(queries).await? else { return Ok(None) };
        let lasting = watch_for(&first, self.renew_interval);
        let (until, step) = (Instant::now() + lasting, (lasting / 20).min(Duration::from_secs(1)));
        while Instant::now() < until {
            sleep(step).await;
            match self.holder(queries).await? {
                Some(holder) if holder.expires_at == first.expires_at => {}
                _ => return Ok(None),
            }
        }
        Ok(Some(first))
    }

    /// Why the lease is not broken.
    async fn as_it_is(&self, queries: &Queries) -> Result<Broke, QueryError> {
        let status = queries.ask(|reply| Query::Inspect(self.key.clone(), reply)).await?;
        Ok(match status.holder {
            Some(holder) if holder.run_id == self.run_id && !holder.expires_in.is_zero() => {
                Broke::Renewed(holder)
            }
            holder => Broke::NotHeld(SessionStatus { holder, ..status }),
        })
    }

    /// The run, if it has a live lease.
    async fn holder(&self, queries: &Queries) -> Result<Option<Holder>, QueryError> {
        let status = queries.ask(|reply| Query::Inspect(self.key.clone(), reply)).await?;
        let is_live = |holder: &Holder| holder.run_id == self.run_id && !holder.expires_in.is_zero();
        Ok(status.holder.filter(is_live))
    }

    /// Ends the lease if its expiry has not moved since. While the row is locked, tries again.
    async fn end(
        &self,
        holder: Holder,
        queries: &Queries,
        patience: Duration,
        location: String,
    ) -> Result<Broke, QueryError> {
        let item = BreakLease {
            key: self.key.clone(),
            run_id: self.run_id,
            expires_at: holder.expires_at,
            by: self.by.clone(),
            reason: self.reason.clone(),
        };
        let (until, mut attempts) = (Instant::now() + patience, 0);
        loop {
            let refusal = match queries.ask(|reply| Query::Break(item.clone(), reply)).await {
                Ok(BreakOutcome::Broken { remaining }) => {
                    let may_act_until = (!is_over(&holder, remaining)).then_some(holder.expires_at);
                    return Ok(Broke::Broken { holder, may_act_until });
                }
                Ok(BreakOutcome::Renewed | BreakOutcome::NotHeld) => return self.as_it_is(queries).await,
                Ok(BreakOutcome::Locked) => {
                    let detail = "the row is locked by another transaction".to_owned();
                    StoreError::RolledBack { location: location.clone(), detail }
                }
                Err(QueryError::Store(error @ StoreError::RolledBack { .. })) => error,
                Err(error) => return Err(error),
            };
            attempts += 1;
            let pause = backoff(attempts, LONGEST_PAUSE);
            if Instant::now() + pause >= until {
                return Err(refusal.into());
            }
            sleep(pause).await;
        }
    }
}

/// How long to watch the row: the longest time between two renewals of a run that lives, and the time that the second one
/// may take.
fn watch_for(holder: &Holder, renew_interval: Option<Duration>) -> Duration {
    let longest_ttl = holder.expires_at.duration_since(holder.since).unwrap_or(holder.expires_in);
    let interval = renew_interval.unwrap_or((longest_ttl / 4).min(LONGEST_DEFAULT_RENEW_INTERVAL));
    let timeout = (longest_ttl / Timing::RENEW_TIMEOUTS_IN_A_TTL).min(Timing::LONGEST_DEFAULT_RENEW_TIMEOUT);
    interval.mul_f64(1.1) + timeout
}

/// Whether the run's own trust is certainly over, and its work gone, if this is left of its lease. `seen` is its row as it
/// was before: the ttl was at least what was left then.
fn is_over(seen: &Holder, remaining: Duration) -> bool {
    remaining <= Timing::least_safety_margin(seen.expires_in) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{FencingToken, Label, NodeId, RunPhase, RunStage};

    fn holder(age: Duration, left: Duration) -> Holder {
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        Holder {
            run_id: RunId::random(),
            node: NodeId::random(),
            label: Label::new("a").unwrap(),
            fence: FencingToken::new(1).unwrap(),
            stage: RunStage::Running,
            phase: RunPhase::default(),
            since,
            expires_at: since + age + left,
            expires_in: left,
            stop: None,
        }
    }

    #[test]
    fn every_run_with_default_durations_renews_while_it_is_watched() {
        let second = Duration::from_secs(1);
        for ttl in [1, 2, 30, 80, 3_600, 86_400].map(|seconds| seconds * second) {
            let timing = Timing::for_ttl(ttl).unwrap();
            for age in [Duration::ZERO, second, ttl, 100 * ttl] {
                let watched = watch_for(&holder(age, ttl), None);
                let needed = timing.renew_interval().mul_f64(1.1) + timing.renew_timeout();
                assert!(watched >= needed && watched < 28 * second, "{ttl:?} {age:?}: {watched:?}");
            }
        }
    }

    #[test]
    fn trust_is_over_only_inside_the_least_margin() {
        let seen = holder(Duration::ZERO, Duration::from_secs(40));
        assert!(is_over(&seen, Duration::from_secs(1)));
        assert!(!is_over(&seen, Duration::from_millis(1_001)));
    }
}
