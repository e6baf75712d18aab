//! Reading, sweeping, and asking runs to stop: everything that no run depends on, over one connection of its own.
//!
//! Requests for single sessions that gather while a statement is in flight go out together in the next.

use std::{panic::AssertUnwindSafe, pin::Pin, time::Duration};

use futures::{
    FutureExt, StreamExt,
    channel::{mpsc, oneshot},
    stream::Peekable,
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    error::{Closed, QueryError},
    session::{Holder, SessionKey, SessionStatus},
    store::{Bounds, LeaseConnection, MAX_BATCH, Page, SharedStore, StopOutcome, StopRun, StoreError},
    watch::Standby,
};

/// A question and where its answer goes.
pub(crate) enum Query {
    Inspect(SessionKey, Reply<SessionStatus>),
    /// At most [`MAX_BATCH`] sessions, each once.
    Look(Vec<SessionKey>, Reply<Vec<Option<Holder>>>),
    Stop(StopRun, Reply<StopOutcome>),
    List(Page, Reply<Vec<SessionStatus>>),
    /// Who has answered last, if it was not the server that takes writes.
    Standby(Reply<Option<Standby>>),
    Sweep(u32, Reply<u64>),
    Probe(Reply<()>),
}

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// The way to ask, from any thread and any runtime.
#[derive(Clone)]
pub(crate) struct Queries(mpsc::UnboundedSender<Query>);

impl Queries {
    /// # Cancel safety
    /// Dropping the future changes nothing but that a sweep which was sent still takes effect.
    pub(crate) async fn ask<T>(&self, query: impl FnOnce(Reply<T>) -> Query) -> Result<T, QueryError> {
        let (reply, answer) = oneshot::channel();
        self.0.unbounded_send(query(reply)).map_err(|_| Closed)?;
        Ok(answer.await.map_err(|oneshot::Canceled| Closed)??)
    }
}

/// Answers queries until the supervisor is over, or nobody can ask any more.
pub(crate) struct QueryLane {
    store: SharedStore,
    bounds: Bounds,
    attempt_timeout: Duration,
    connection: Option<Box<dyn LeaseConnection>>,
    queries: Peekable<mpsc::UnboundedReceiver<Query>>,
}

impl QueryLane {
    pub(crate) fn new(
        store: SharedStore,
        bounds: Bounds,
        attempt_timeout: Duration,
        connection: Box<dyn LeaseConnection>,
    ) -> (Queries, Self) {
        let (sender, queries) = mpsc::unbounded();
        let queries = queries.peekable();
        (Queries(sender), Self { store, bounds, attempt_timeout, connection: Some(connection), queries })
    }

    pub(crate) async fn serve(mut self, over: CancellationToken) {
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
                    let answer = self.attempt(async |connection| connection.inspect(&keys).await).await;
                    let _ = reply.send(answer);
                }
                Query::Stop(item, reply) => {
                    let answer = self.attempt(async |connection| connection.request_stop(&item).await).await;
                    let _ = reply.send(answer);
                }
                Query::List(page, reply) => {
                    let answer = self.attempt(async |connection| list(connection, &page).await).await;
                    let _ = reply.send(answer);
                }
                Query::Standby(reply) => {
                    let answer = self.attempt(async |connection| Ok(connection.standby())).await;
                    let _ = reply.send(answer);
                }
                Query::Sweep(limit, reply) => {
                    let answer = self.attempt(async |connection| connection.sweep(limit).await).await;
                    let _ = reply.send(answer);
                }
                Query::Probe(reply) => {
                    let answer = self.attempt(async |connection| connection.probe().await).await;
                    let _ = reply.send(answer);
                }
            }
        }
        if let Some(connection) = self.connection {
            connection.close().await;
        }
    }

    /// What else has gathered, up to the first query of another kind.
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
        let answer = self.attempt(look).await;
        for (key, reply) in asked {
            let found = answer.as_ref().map_err(Clone::clone).map(|(holders, standby)| {
                let holder = keys.binary_search(&key).ok().and_then(|at| holders.get(at).cloned().flatten());
                SessionStatus::of(key, holder, standby.clone())
            });
            let _ = reply.send(found);
        }
    }

    async fn attempt<T>(
        &mut self,
        call: impl AsyncFnOnce(&mut dyn LeaseConnection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let exchange = async {
            let connection = match &mut self.connection {
                Some(connection) => connection,
                none => none.insert(self.store.connect(self.bounds).await?),
            };
            call(connection.as_mut()).await
        };
        let exchange = AssertUnwindSafe(exchange).catch_unwind();
        let location = self.store.location();
        let error = match timeout(self.attempt_timeout, exchange).await {
            Ok(Ok(result)) => {
                if result.as_ref().is_err_and(StoreError::is_uncertain) {
                    self.connection = None;
                }
                return result;
            }
            Ok(Err(_panic)) => StoreError::panicked(location),
            Err(_elapsed) => StoreError::silent(location, self.attempt_timeout),
        };
        self.connection = None;
        self.fail_waiting(&error);
        Err(error)
    }

    /// What has gathered behind a statement that got no answer shares its fate, instead of waiting as long again.
    fn fail_waiting(&mut self, error: &StoreError) {
        while let Some(Some(query)) = self.queries.next().now_or_never() {
            query.fail(error);
        }
    }
}

async fn list(connection: &mut dyn LeaseConnection, page: &Page) -> Result<Vec<SessionStatus>, StoreError> {
    let found = connection.list(page).await?;
    let standby = connection.standby();
    Ok(found.into_iter().map(|(key, holder)| SessionStatus::of(key, Some(holder), standby.clone())).collect())
}

impl Query {
    fn is_unwanted(&self) -> bool {
        match self {
            Self::Inspect(_, reply) => reply.is_canceled(),
            Self::Look(_, reply) => reply.is_canceled(),
            Self::Stop(_, reply) => reply.is_canceled(),
            Self::List(_, reply) => reply.is_canceled(),
            Self::Standby(reply) => reply.is_canceled(),
            Self::Sweep(_, reply) => reply.is_canceled(),
            Self::Probe(reply) => reply.is_canceled(),
        }
    }

    /// Whoever does not wait any more has dropped the receiver.
    fn fail(self, error: &StoreError) {
        let error = error.clone();
        match self {
            Self::Inspect(_, reply) => drop(reply.send(Err(error))),
            Self::Look(_, reply) => drop(reply.send(Err(error))),
            Self::Stop(_, reply) => drop(reply.send(Err(error))),
            Self::List(_, reply) => drop(reply.send(Err(error))),
            Self::Standby(reply) => drop(reply.send(Err(error))),
            Self::Sweep(_, reply) => drop(reply.send(Err(error))),
            Self::Probe(reply) => drop(reply.send(Err(error))),
        }
    }
}
