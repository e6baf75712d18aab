//! One track of a lane: the requests that wait for the next statement, when it may be sent, and the statement itself.
//!
//! The lane takes a connection from the track's pool. The track calls the store with it.

use std::{
    collections::{HashSet, VecDeque},
    pin::pin,
    sync::atomic::Ordering,
    time::Duration,
};

use futures::future::{BoxFuture, Either, select};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{Request, Sent};
use crate::{
    actor::{
        call::answer,
        pool::{Lent, Pool, Urgency},
    },
    backoff::backoff,
    clock::SharedClock,
    session::SessionKey,
    store::{
        Acquire, AcquireOutcome, LeaseConnection, Release, ReleaseOutcome, Renew, RenewOutcome, StoreError,
    },
};

pub(super) struct Track<V: Verb> {
    pub(super) queue: VecDeque<Request<V>>,
    /// The parts of rejected batches. Each part is one statement, and goes before the queue.
    pub(super) parts: VecDeque<Vec<Request<V>>>,
    /// The most requests in one statement at present.
    width: usize,
    /// The most requests that one statement may ever have.
    widest: usize,
    pub(super) pool: Pool,
    /// A statement, or the wait before one, is under way.
    pub(super) in_flight: bool,
    /// Statements in a row that got no answer.
    failures: u32,
    pub(super) not_before: Option<Instant>,
}

impl<V: Verb> Track<V> {
    pub(super) fn new(width: usize, pool: Pool) -> Self {
        Self {
            queue: VecDeque::new(),
            parts: VecDeque::new(),
            width,
            widest: width,
            pool,
            in_flight: false,
            failures: 0,
            not_before: None,
        }
    }

    /// Sends one statement with the gathered requests, in a task of its own. `None` when nobody waits any more.
    pub(super) fn send(
        &mut self,
        lent: Lent,
        clock: SharedClock,
        within: Duration,
    ) -> Option<JoinHandle<Returned<V>>> {
        let batch = self.gather();
        self.in_flight = !batch.is_empty();
        if batch.is_empty() {
            lent.give_back();
            return None;
        }
        Some(actix_rt::spawn(attempt(batch, lent, self.pool.clone(), clock, within)))
    }

    /// Takes the requests for one statement: those whose caller still waits, each key once, in the order of asking.
    fn gather(&mut self) -> Vec<Request<V>> {
        while let Some(mut part) = self.parts.pop_front() {
            part.retain(|request| !request.reply.is_canceled());
            if !part.is_empty() {
                return part;
            }
        }
        let mut batch = Vec::new();
        let mut keys = HashSet::new();
        let mut left = VecDeque::new();
        while let Some(request) = self.queue.pop_front() {
            if request.reply.is_canceled() {
                continue;
            }
            let is_full = batch.len() == self.width || (request.alone && !batch.is_empty());
            if is_full {
                left.push_back(request);
                break;
            }
            if request.alone {
                batch.push(request);
                break;
            }
            // A second request for the same key waits for the next statement.
            match keys.insert(V::key(&request.item).clone()) {
                true => batch.push(request),
                false => left.push_back(request),
            }
        }
        left.append(&mut self.queue);
        self.queue = left;
        batch
    }

    /// Notes whether a statement was answered. After a failure the next one waits, and is half the size, because a
    /// smaller batch may still be answered in time.
    pub(super) fn note(&mut self, failed: bool, sent: usize, longest: Duration) {
        self.width = match failed {
            true => (sent / 2).clamp(1, self.widest),
            false => (self.width * 2).min(self.widest),
        };
        self.failures = if failed { self.failures.saturating_add(1) } else { 0 };
        self.not_before = failed.then(|| Instant::now() + backoff(self.failures, longest));
    }
}

/// What the task of a statement returns.
pub(super) struct Returned<V: Verb> {
    pub(super) batch: Vec<Request<V>>,
    pub(super) sent: Sent,
    pub(super) result: Result<Vec<V::Outcome>, StoreError>,
}

/// Sends one statement and waits for its answer, within its time-out. If a lease depends on it and no answer comes
/// soon, a spare connection is opened.
async fn attempt<V: Verb>(
    batch: Vec<Request<V>>,
    mut lent: Lent,
    pool: Pool,
    clock: SharedClock,
    within: Duration,
) -> Returned<V> {
    let (items, askers): (Vec<_>, Vec<_>) =
        batch.into_iter().map(|r| (r.item, (r.alone, r.sent, r.reply))).unzip();
    askers.iter().for_each(|(_, sent, _)| sent.store(true, Ordering::Relaxed));
    // Read before the statement is sent, because trust counts from here (invariant I2).
    let sent_at = clock.now();
    let call = answer(pool.location(), within, V::call(lent.connection(), &items));
    let answered = match V::URGENCY {
        Urgency::Urgent => with_spare(call, &pool).await,
        Urgency::Patient => call.await,
    };
    let result = answered.and_then(|outcomes| match outcomes.len() == items.len() {
        true => Ok(outcomes),
        false => Err(StoreError::Unavailable {
            location: pool.location().to_owned(),
            detail: format!("{} answers for {}", outcomes.len(), items.len()),
        }),
    });
    // After an uncertain end the connection may still be busy with the statement, so it is never used again.
    lent.give_back_after(&result);
    let request = |(item, (alone, sent, reply))| Request { item, alone, sent, reply };
    let batch = items.into_iter().zip(askers).map(request).collect();
    let sent = Sent { was_sent: true, sent_at, received_at: clock.now() };
    Returned { batch, sent, result }
}

async fn with_spare<T>(call: impl Future<Output = T>, pool: &Pool) -> T {
    let mut call = pin!(call);
    match select(&mut call, pin!(sleep(pool.time_to_spare()))).await {
        Either::Left((answered, _)) => answered,
        Either::Right(_) => {
            pool.spare();
            call.await
        }
    }
}

/// A kind of statement.
pub(crate) trait Verb: 'static {
    /// For logs.
    const NAME: &'static str;
    /// How urgently a statement of this kind needs a connection.
    const URGENCY: Urgency;
    type Item: Unpin + Send + 'static;
    type Outcome: Send + 'static;

    /// The session of an item. No two items of a batch have the same key.
    fn key(item: &Self::Item) -> &SessionKey;

    /// The database's clock, in microseconds since 1970, where the outcome carries it.
    fn clock_micros(outcome: &Self::Outcome) -> Option<i64>;

    fn call<'a>(connection: &'a mut dyn LeaseConnection, items: &'a [Self::Item]) -> Call<'a, Self::Outcome>;
}

type Call<'a, O> = BoxFuture<'a, Result<Vec<O>, StoreError>>;

pub(crate) enum Acquiring {}
pub(crate) enum Renewing {}
pub(crate) enum Releasing {}

impl Verb for Acquiring {
    const NAME: &'static str = "acquire";
    const URGENCY: Urgency = Urgency::Patient;
    type Item = Acquire;
    type Outcome = AcquireOutcome;

    fn key(item: &Acquire) -> &SessionKey {
        &item.key
    }

    fn clock_micros(_: &AcquireOutcome) -> Option<i64> {
        None
    }

    fn call<'a>(connection: &'a mut dyn LeaseConnection, items: &'a [Acquire]) -> Call<'a, AcquireOutcome> {
        connection.acquire(items)
    }
}

impl Verb for Renewing {
    const NAME: &'static str = "renew";
    const URGENCY: Urgency = Urgency::Urgent;
    type Item = Renew;
    type Outcome = RenewOutcome;

    fn key(item: &Renew) -> &SessionKey {
        &item.key
    }

    fn clock_micros(outcome: &RenewOutcome) -> Option<i64> {
        outcome.clock_micros()
    }

    fn call<'a>(connection: &'a mut dyn LeaseConnection, items: &'a [Renew]) -> Call<'a, RenewOutcome> {
        connection.renew(items)
    }
}

impl Verb for Releasing {
    const NAME: &'static str = "release";
    const URGENCY: Urgency = Urgency::Urgent;
    type Item = Release;
    type Outcome = ReleaseOutcome;

    fn key(item: &Release) -> &SessionKey {
        &item.key
    }

    fn clock_micros(_: &ReleaseOutcome) -> Option<i64> {
        None
    }

    fn call<'a>(connection: &'a mut dyn LeaseConnection, items: &'a [Release]) -> Call<'a, ReleaseOutcome> {
        connection.release(items)
    }
}
