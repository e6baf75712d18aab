//! Queries: reading, sweeping, and asking runs to stop. No run depends on them.
//!
//! There are two workers, so that a long list or sweep delays neither a stop nor a readiness probe. They share one
//! connection. A second one is opened when both work at the same time.
//!
//! Every query may be sent twice. An idle connection may have died unnoticed, so a failure on it says nothing about the
//! database. The query is then sent once more on a fresh connection, within the same time.
//!
//! Requests to inspect single sessions that gather while a statement is in flight go out together in the next one.

use std::{cell::Cell, pin::Pin, time::Duration};

use futures::{
    FutureExt, StreamExt,
    channel::{mpsc, oneshot},
    stream::Peekable,
};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{
    call::caught,
    pool::{Lent, Pool, Urgency},
};
use crate::{
    error::{Closed, QueryError},
    history::History,
    session::{Holder, Reason, Requester, SessionKey, SessionStatus},
    store::{
        BreakLease, BreakOutcome, HistoryPage, LeaseConnection, MAX_BATCH, Page, StopOutcome, StopRun,
        StoreError,
    },
    trace,
    watch::Standby,
};

/// A query, and where its answer goes.
pub(crate) enum Query {
    Inspect(SessionKey, Reply<SessionStatus>),
    /// At most [`MAX_BATCH`] sessions, each once.
    Look(Vec<SessionKey>, Reply<Vec<Option<Holder>>>),
    Stop(StopRun, Reply<StopOutcome>),
    List(Page, Reply<Vec<SessionStatus>>),
    /// The standby that the queries' connection goes to. `None` if that connection goes to the server that takes
    /// writes.
    Standby(Reply<Option<Standby>>),
    History(HistoryPage, Reply<History>),
    Break(BreakLease, Reply<BreakOutcome>),
    Sweep(u32, Reply<u64>),
    /// Like `Sweep`, but nobody needs it: it is not repeated, and removes nothing while another process sweeps.
    SweepInTurn(u32, Reply<u64>),
    /// Removes runs that have been over for this long, at most so many.
    SweepHistory(Duration, u32, Reply<u64>),
    Probe(Reply<()>),
}

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// Sends queries, from any thread and any runtime.
#[derive(Clone)]
pub(crate) struct Queries {
    short: mpsc::UnboundedSender<Query>,
    long: mpsc::UnboundedSender<Query>,
}

impl Queries {
    /// Sends a query, and waits for its answer.
    ///
    /// # Cancel safety
    /// Dropping the future only stops waiting. A sweep or a request to stop that was sent still takes effect.
    pub(crate) async fn ask<T>(&self, query: impl FnOnce(Reply<T>) -> Query) -> Result<T, QueryError> {
        let (reply, answer) = oneshot::channel();
        let query = query(reply);
        let worker = if query.may_be_long() { &self.long } else { &self.short };
        worker.unbounded_send(query).map_err(|_| Closed)?;
        Ok(answer.await.map_err(|oneshot::Canceled| Closed)??)
    }
}

/// Answers queries until the supervisor ends, or nobody can ask any more.
pub(crate) struct QueryWorkers {
    short: Worker,
    long: Worker,
}

impl QueryWorkers {
    /// `attempt_timeout` bounds one query. It covers the wait for a connection and a second attempt.
    pub(crate) fn new(pool: Pool, attempt_timeout: Duration) -> (Queries, Self) {
        let worker = |urgency| {
            let (sender, queries) = mpsc::unbounded();
            (sender, Worker { pool: pool.clone(), urgency, attempt_timeout, queries: queries.peekable() })
        };
        // A short query does not wait for the end of a long one.
        let ((short, short_worker), (long, long_worker)) =
            (worker(Urgency::Urgent), worker(Urgency::Patient));
        (Queries { short, long }, Self { short: short_worker, long: long_worker })
    }

    pub(crate) async fn serve(self, over: CancellationToken) {
        futures::join!(self.short.serve(&over), self.long.serve(&over));
    }
}

/// Answers one query after the other.
struct Worker {
    pool: Pool,
    urgency: Urgency,
    attempt_timeout: Duration,
    queries: Peekable<mpsc::UnboundedReceiver<Query>>,
}

impl Worker {
    async fn serve(mut self, over: &CancellationToken) {
        while let Some(Some(query)) = over.run_until_cancelled(self.queries.next()).await {
            match query {
                query if query.is_unwanted() => {}
                Query::Inspect(key, reply) => {
                    let mut asked = vec![(key, reply)];
                    while asked.len() < MAX_BATCH
                        && let Some(Query::Inspect(key, reply)) = self.next_inspect()
                    {
                        asked.push((key, reply));
                    }
                    self.inspect(asked).await;
                }
                Query::Look(keys, reply) => {
                    let answer = self.ask(async |connection| connection.inspect(&keys).await).await;
                    let _ = reply.send(answer);
                }
                Query::Stop(item, reply) => {
                    let answer = self.stop(item).await;
                    let _ = reply.send(answer);
                }
                Query::List(page, reply) => {
                    let answer = self.ask(async |connection| list(connection, &page).await).await;
                    let _ = reply.send(answer);
                }
                Query::Standby(reply) => {
                    let answer = self.ask(async |connection| Ok(connection.standby())).await;
                    let _ = reply.send(answer);
                }
                Query::History(page, reply) => {
                    let answer = self.ask(async |connection| history(connection, &page).await).await;
                    let _ = reply.send(answer);
                }
                Query::Break(item, reply) => {
                    let answer = self.ask(async |connection| connection.break_lease(&item).await).await;
                    let _ = reply.send(answer);
                }
                Query::SweepHistory(keep, limit, reply) => {
                    let sweep = async |connection: &mut dyn LeaseConnection| {
                        connection.sweep_history(keep, limit).await
                    };
                    let answer = self.ask(sweep).await;
                    let _ = reply.send(answer);
                }
                Query::Sweep(limit, reply) => {
                    let answer = self.ask(async |connection| connection.sweep(limit).await).await;
                    let _ = reply.send(answer);
                }
                Query::SweepInTurn(limit, reply) => {
                    let answer =
                        self.ask_once(async |connection| connection.sweep_in_turn(limit).await).await;
                    let _ = reply.send(answer);
                }
                Query::Probe(reply) => {
                    let answer = self.ask(async |connection| connection.probe().await).await;
                    let _ = reply.send(answer);
                }
            }
        }
    }

    /// The next query, if it has already come and is another `Inspect`.
    fn next_inspect(&mut self) -> Option<Query> {
        let next = Pin::new(&mut self.queries).next_if(|query| matches!(query, Query::Inspect(..)));
        next.now_or_never().flatten()
    }

    async fn inspect(&mut self, asked: Vec<(SessionKey, Reply<SessionStatus>)>) {
        let mut keys: Vec<_> = asked.iter().map(|(key, _)| key.clone()).collect();
        keys.sort();
        keys.dedup();
        let look = async |connection: &mut dyn LeaseConnection| {
            let holders = connection.inspect(&keys).await?;
            Ok((holders, connection.standby()))
        };
        let answer = self.ask(look).await;
        for (key, reply) in asked {
            let found = answer.as_ref().map_err(Clone::clone).map(|(holders, standby)| {
                let holder = keys.binary_search(&key).ok().and_then(|at| holders.get(at).cloned().flatten());
                SessionStatus::of(key, holder, standby.clone())
            });
            let _ = reply.send(found);
        }
    }

    async fn stop(&mut self, item: StopRun) -> Result<StopOutcome, StoreError> {
        let attempts = Cell::new(0);
        let answer = self.ask(async |connection| {
            attempts.set(attempts.get() + 1);
            connection.request_stop(&item).await
        });
        let outcome = answer.await?;
        // The first attempt may have written the request although its answer was lost.
        Ok(if attempts.get() > 1 { own_request_is_first(outcome, &item) } else { outcome })
    }

    async fn ask<T>(
        &mut self,
        call: impl AsyncFn(&mut dyn LeaseConnection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let until = Instant::now() + self.attempt_timeout;
        let lent = self.take(until).await?;
        // A connection that may have died does not get all the time: a fresh one must get some.
        let spared = if lent.rested() > MAY_HAVE_DIED { self.attempt_timeout / 3 } else { Duration::ZERO };
        match self.exchange(lent, &call, until - spared).await {
            Err(error) if error.is_uncertain() && Instant::now() < until => {
                tracing::debug!(target: trace::STORE, %error, "asking once more, on a fresh connection");
                self.pool.forget_idle();
                let lent = self.take(until).await?;
                self.exchange(lent, &call, until).await
            }
            answered => answered,
        }
        .inspect_err(|error| {
            if Instant::now() >= until {
                self.fail_waiting(error);
            }
        })
    }

    /// Asks once. Does not fail the queries behind it if no answer comes.
    async fn ask_once<T>(
        &self,
        call: impl AsyncFn(&mut dyn LeaseConnection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let until = Instant::now() + self.attempt_timeout;
        let lent = self.take(until).await?;
        self.exchange(lent, &call, until).await
    }

    async fn take(&self, until: Instant) -> Result<Lent, StoreError> {
        let taken = timeout_at(until, self.pool.take(self.urgency)).await;
        taken.unwrap_or_else(|_elapsed| Err(self.pool.late(self.attempt_timeout)))
    }

    async fn exchange<T>(
        &self,
        mut lent: Lent,
        call: &impl AsyncFn(&mut dyn LeaseConnection) -> Result<T, StoreError>,
        until: Instant,
    ) -> Result<T, StoreError> {
        let location = self.pool.location();
        let answered = timeout_at(until, caught(location, call(lent.connection()))).await;
        let result =
            answered.unwrap_or_else(|_elapsed| Err(StoreError::silent(location, self.attempt_timeout)));
        lent.give_back_after(&result);
        result
    }

    /// Fails the queries that have gathered behind a statement that got no answer. Otherwise each would wait as long
    /// again.
    fn fail_waiting(&mut self, error: &StoreError) {
        while let Some(Some(query)) = self.queries.next().now_or_never() {
            query.fail(error);
        }
    }
}

/// A connection that was idle for longer than this may have died unnoticed, for example behind a router that has
/// forgotten it.
const MAY_HAVE_DIED: Duration = Duration::from_secs(5);

async fn list(connection: &mut dyn LeaseConnection, page: &Page) -> Result<Vec<SessionStatus>, StoreError> {
    let found = connection.list(page).await?;
    let standby = connection.standby();
    Ok(found.into_iter().map(|(key, holder)| SessionStatus::of(key, Some(holder), standby.clone())).collect())
}

async fn history(connection: &mut dyn LeaseConnection, page: &HistoryPage) -> Result<History, StoreError> {
    let runs = connection.history(page).await?;
    Ok(History::of(runs, connection.standby()))
}

/// After a second attempt, recognises this request in the row by its `by` and its reason. A request without either
/// could be anybody's.
fn own_request_is_first(outcome: StopOutcome, item: &StopRun) -> StopOutcome {
    let (by, reason) = (item.by.as_ref().map(Requester::as_str), item.reason.as_ref().map(Reason::as_str));
    match outcome {
        StopOutcome::Asked { holder, first } => {
            let stands = holder.stop.as_ref().map(|stop| (stop.by.as_deref(), stop.reason.as_deref()));
            let is_own = stands == Some((by, reason)) && (by, reason) != (None, None);
            StopOutcome::Asked { holder, first: first || is_own }
        }
        other => other,
    }
}

impl Query {
    /// Whether the query may read or write many rows.
    fn may_be_long(&self) -> bool {
        matches!(
            self,
            Self::List(..)
                | Self::History(..)
                | Self::Sweep(..)
                | Self::SweepInTurn(..)
                | Self::SweepHistory(..)
        )
    }

    fn is_unwanted(&self) -> bool {
        match self {
            Self::Inspect(_, reply) => reply.is_canceled(),
            Self::Look(_, reply) => reply.is_canceled(),
            Self::Stop(_, reply) => reply.is_canceled(),
            Self::List(_, reply) => reply.is_canceled(),
            Self::Standby(reply) => reply.is_canceled(),
            Self::History(_, reply) => reply.is_canceled(),
            Self::Break(_, reply) => reply.is_canceled(),
            Self::Sweep(_, reply) | Self::SweepInTurn(_, reply) | Self::SweepHistory(.., reply) => {
                reply.is_canceled()
            }
            Self::Probe(reply) => reply.is_canceled(),
        }
    }

    /// Answers with an error. Sending fails if nobody waits any more.
    fn fail(self, error: &StoreError) {
        let error = error.clone();
        match self {
            Self::Inspect(_, reply) => drop(reply.send(Err(error))),
            Self::Look(_, reply) => drop(reply.send(Err(error))),
            Self::Stop(_, reply) => drop(reply.send(Err(error))),
            Self::List(_, reply) => drop(reply.send(Err(error))),
            Self::Standby(reply) => drop(reply.send(Err(error))),
            Self::History(_, reply) => drop(reply.send(Err(error))),
            Self::Break(_, reply) => drop(reply.send(Err(error))),
            Self::Sweep(_, reply) | Self::SweepInTurn(_, reply) | Self::SweepHistory(.., reply) => {
                drop(reply.send(Err(error)));
            }
            Self::Probe(reply) => drop(reply.send(Err(error))),
        }
    }
}
