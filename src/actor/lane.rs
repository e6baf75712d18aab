//! A lane: the one way from the actors to the database for one kind of statement.
//!
//! A lane owns its connections. While a statement is in flight, requests gather; when it returns, all that
//! gathered go out in the next. A lane at rest adds no delay: one request is one statement. Because renewals
//! have a lane of their own, nothing else can be in their way (invariant I10).
//!
//! Each lane has two tracks. The *main* track carries batches. The *side* track, on a connection of its own, carries
//! what must hold nobody up: items that met a locked row, each alone, and batches that the database rejected, taken
//! apart until the bad items are found. A session that was found to be bad does not ride with the others again before
//! the database has accepted it ([`suspects`]).
//!
//! A statement runs in a task of its own and is never dropped half-way, but at its time-out: then its
//! connection is dropped with it and the next statement opens a new one. Every request is answered, whatever
//! happens: a request that is dropped unanswered reads as "unavailable" (invariant I9).

use std::{
    collections::{HashSet, VecDeque},
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, WrapFuture, fut::ActorFutureExt};
use futures::{FutureExt, channel::oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use crate::{
    clock::{BootInstant, SharedClock, StepDetector},
    store::{Bounds, LeaseConnection, MAX_BATCH, SharedStore, StoreError},
};

mod suspects;
mod verb;

use suspects::Suspects;

pub(crate) use verb::{Acquiring, Releasing, Renewing, Verb};

/// The answer to one request.
pub(crate) struct Answer<O> {
    /// The local boot clock just before the statement was sent (invariant I2).
    pub(crate) sent_at: BootInstant,
    /// Whether it was sent at all. If not, nothing can have happened, whatever the outcome says.
    pub(crate) sent: bool,
    pub(crate) outcome: Result<O, StoreError>,
}

/// The way to a lane, for whoever has something to ask.
pub(crate) struct LaneAddr<V: Verb> {
    addr: Addr<Lane<V>>,
    location: String,
}

impl<V: Verb> Clone for LaneAddr<V> {
    fn clone(&self) -> Self {
        Self { addr: self.addr.clone(), location: self.location.clone() }
    }
}

impl<V: Verb> LaneAddr<V> {
    /// Asks, and waits for the answer. The request is queued by the call itself.
    ///
    /// Dropping the future withdraws a request that has not been sent; one that has been takes effect.
    pub(crate) fn ask(
        &self,
        item: V::Item,
        alone: bool,
    ) -> impl Future<Output = Answer<V::Outcome>> + 'static {
        self.ask_noting(item, alone, Arc::default())
    }

    /// The same, and `sent` turns true when the statement goes out: for whoever may not wait for the answer.
    pub(crate) fn ask_noting(
        &self,
        item: V::Item,
        alone: bool,
        sent: Arc<AtomicBool>,
    ) -> impl Future<Output = Answer<V::Outcome>> + 'static {
        let (reply, answer) = oneshot::channel();
        self.addr.do_send(Submit(Request { item, alone, sent, reply }));
        let location = self.location.clone();
        answer.map(move |answer| {
            answer.unwrap_or_else(|oneshot::Canceled| Answer {
                sent_at: BootInstant::from_nanos(0),
                sent: true,
                outcome: Err(StoreError::Unavailable {
                    location,
                    detail: "the connection task ended".into(),
                }),
            })
        })
    }
}

/// What a lane works with.
#[derive(Clone)]
pub(crate) struct LaneSettings {
    pub(crate) store: SharedStore,
    pub(crate) clock: SharedClock,
    /// For one attempt, connecting included.
    pub(crate) attempt_timeout: Duration,
    pub(crate) bounds: Bounds,
    pub(crate) longest_backoff: Duration,
    /// A step of the database's clock by less is not reported.
    pub(crate) step_tolerance: Duration,
    /// Keeps the thread until this lane's connections have said goodbye.
    pub(crate) connections: TaskTracker,
}

pub(crate) struct Lane<V: Verb> {
    settings: LaneSettings,
    main: Track<V>,
    side: Track<V>,
    suspects: Suspects,
    steps: StepDetector,
    _open: TaskTrackerToken,
}

struct Track<V: Verb> {
    queue: VecDeque<Request<V>>,
    /// Of rejected batches: each goes before the queue, as one statement.
    parts: VecDeque<Vec<Request<V>>>,
    /// The most requests in one statement, now and ever.
    width: usize,
    widest: usize,
    connection: Option<Box<dyn LeaseConnection>>,
    in_flight: bool,
    /// Attempts in a row that got no answer.
    failures: u32,
    not_before: Option<Instant>,
}

struct Request<V: Verb> {
    item: V::Item,
    /// In a statement of its own.
    alone: bool,
    sent: Arc<AtomicBool>,
    reply: oneshot::Sender<Answer<V::Outcome>>,
}

#[derive(Message)]
#[rtype(result = "()")]
struct Submit<V: Verb>(Request<V>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Main,
    Side,
}

/// What a statement's task brings back.
struct Returned<V: Verb> {
    connection: Option<Box<dyn LeaseConnection>>,
    batch: Vec<Request<V>>,
    sent: Sent,
    result: Result<Vec<V::Outcome>, StoreError>,
}

/// When a statement was sent, if it was, and answered.
#[derive(Clone, Copy)]
struct Sent {
    was_sent: bool,
    at: BootInstant,
    received_at: BootInstant,
}

impl<V: Verb> Lane<V> {
    pub(crate) fn start_with(settings: LaneSettings) -> LaneAddr<V> {
        let location = settings.store.location().to_owned();
        let (main, side) = (Track::of_width(MAX_BATCH), Track::of_width(MAX_BATCH));
        let open = settings.connections.token();
        let (suspects, steps) = (Suspects::default(), StepDetector::default());
        let addr = Self { settings, main, side, suspects, steps, _open: open }.start();
        LaneAddr { addr, location }
    }

    fn track(&mut self, which: Which) -> &mut Track<V> {
        match which {
            Which::Main => &mut self.main,
            Which::Side => &mut self.side,
        }
    }

    /// Sends what has gathered, unless a statement is in flight or the track pauses after a failure.
    fn pump(&mut self, which: Which, ctx: &mut Context<Self>) {
        let settings = self.settings.clone();
        let track = self.track(which);
        if track.in_flight {
            return;
        }
        if let Some(at) = track.not_before.filter(|_| track.connection.is_none()) {
            let pause = at.saturating_duration_since(Instant::now());
            if !pause.is_zero() {
                track.in_flight = true;
                ctx.run_later(pause, move |lane, ctx| {
                    lane.track(which).in_flight = false;
                    lane.pump(which, ctx);
                });
                return;
            }
        }
        let batch = track.gather();
        if batch.is_empty() {
            return;
        }
        track.in_flight = true;
        let connection = track.connection.take();
        let task = actix_rt::spawn(attempt::<V>(settings, connection, batch));
        ctx.spawn(task.into_actor(self).map(move |joined, lane, ctx| {
            // A task that panicked has dropped its requests, which answers them, and its connection.
            lane.take_back(which, joined.ok(), ctx);
        }));
    }

    fn take_back(&mut self, which: Which, returned: Option<Returned<V>>, ctx: &mut Context<Self>) {
        let longest = self.settings.longest_backoff;
        let track = self.track(which);
        track.in_flight = false;
        match returned {
            Some(returned) => {
                let Returned { connection, batch, sent, result } = returned;
                track.connection = connection;
                track.note(result.as_ref().is_err_and(StoreError::is_uncertain), batch.len(), longest);
                self.answer(batch, sent, result);
            }
            None => track.note(true, 1, longest),
        }
        self.pump(Which::Main, ctx);
        self.pump(Which::Side, ctx);
    }

    fn answer(&mut self, batch: Vec<Request<V>>, sent: Sent, result: Result<Vec<V::Outcome>, StoreError>) {
        match result {
            Ok(outcomes) => {
                self.watch_clock(&outcomes, sent);
                for (request, outcome) in batch.into_iter().zip(outcomes) {
                    self.suspects.accepted(V::key(&request.item));
                    request.answer(sent, Ok(outcome));
                }
            }
            // Something in the batch is to blame, and only that is to suffer.
            Err(error) if is_items_fault(&error, sent) && batch.len() > 1 => {
                tracing::debug!(verb = V::NAME, items = batch.len(), %error, "batch rejected; taken apart");
                let are_all_suspects =
                    batch.iter().all(|request| self.suspects.contains(V::key(&request.item)));
                let parts = suspects::apart(batch);
                match are_all_suspects {
                    true => self.side.parts.extend(parts),
                    // Most of them are in order, and go first.
                    false => parts.rev().for_each(|part| self.side.parts.push_front(part)),
                }
            }
            Err(error) => {
                tracing::debug!(verb = V::NAME, items = batch.len(), %error, "statement failed");
                for request in batch {
                    if is_items_fault(&error, sent) {
                        self.suspects.rejected(V::key(&request.item));
                    }
                    request.answer(sent, Err(error.clone()));
                }
            }
        }
    }

    fn watch_clock(&mut self, outcomes: &[V::Outcome], sent: Sent) {
        let Some(clock_micros) = outcomes.iter().find_map(V::clock_micros) else { return };
        let tolerance = self.settings.step_tolerance;
        if let Some(by_micros) = self.steps.observe(clock_micros, sent.at, sent.received_at, tolerance) {
            let database = self.settings.store.location();
            tracing::warn!(database, by_ms = by_micros / 1_000, "the database's clock was stepped");
        }
    }
}

impl<V: Verb> Actor for Lane<V> {
    type Context = Context<Self>;

    fn stopped(&mut self, _: &mut Context<Self>) {
        for connection in [self.main.connection.take(), self.side.connection.take()].into_iter().flatten() {
            actix_rt::spawn(self.settings.connections.track_future(connection.close()));
        }
    }
}

impl<V: Verb> Handler<Submit<V>> for Lane<V> {
    type Result = ();

    fn handle(&mut self, Submit(request): Submit<V>, ctx: &mut Context<Self>) {
        let is_apart = request.alone || self.suspects.contains(V::key(&request.item));
        let which = if is_apart { Which::Side } else { Which::Main };
        self.track(which).queue.push_back(request);
        self.pump(which, ctx);
    }
}

impl<V: Verb> Unpin for Lane<V> {}

impl<V: Verb> Track<V> {
    fn of_width(width: usize) -> Self {
        Self {
            queue: VecDeque::new(),
            parts: VecDeque::new(),
            width,
            widest: width,
            connection: None,
            in_flight: false,
            failures: 0,
            not_before: None,
        }
    }

    /// Takes what fits into one statement: whoever still waits, each key once, in the order of asking.
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
            match keys.insert(V::key(&request.item).clone()) {
                true => batch.push(request),
                false => left.push_back(request),
            }
        }
        left.append(&mut self.queue);
        self.queue = left;
        batch
    }

    /// Counts attempts without an answer, spaces the next one out, and makes it smaller: what was too much at once
    /// may be done in parts.
    fn note(&mut self, failed: bool, sent: usize, longest: Duration) {
        self.width = match failed {
            true => (sent / 2).clamp(1, self.widest),
            false => (self.width * 2).min(self.widest),
        };
        self.failures = if failed { self.failures.saturating_add(1) } else { 0 };
        self.not_before = failed.then(|| Instant::now() + backoff(self.failures, longest));
    }
}

impl<V: Verb> Request<V> {
    fn answer(self, sent: Sent, outcome: Result<V::Outcome, StoreError>) {
        // Whoever does not wait any more has dropped the receiver.
        let _ = self.reply.send(Answer { sent_at: sent.at, sent: sent.was_sent, outcome });
    }
}

/// Whether something in a statement is to blame for its failure: the database has read it, and says for certain that
/// it has done nothing.
fn is_items_fault(error: &StoreError, sent: Sent) -> bool {
    sent.was_sent && !error.is_uncertain()
}

/// One statement, connecting first where need be, within its time-out.
async fn attempt<V: Verb>(
    settings: LaneSettings,
    mut connection: Option<Box<dyn LeaseConnection>>,
    mut batch: Vec<Request<V>>,
) -> Returned<V> {
    let until = Instant::now() + settings.attempt_timeout;
    let (mut was_sent, mut at) = (false, settings.clock.now());
    let location = settings.store.location();
    let unavailable = |detail| StoreError::Unavailable { location: location.to_owned(), detail };
    let late = || StoreError::silent(location, settings.attempt_timeout);
    let panicked = || StoreError::panicked(location);
    let connected = match connection.take() {
        Some(connection) => Ok(connection),
        None => {
            let connecting = AssertUnwindSafe(settings.store.connect(settings.bounds)).catch_unwind();
            match timeout_at(until, connecting).await {
                Ok(Ok(connected)) => connected,
                Ok(Err(_panic)) => Err(panicked()),
                Err(_elapsed) => Err(late()),
            }
        }
    };
    // Connecting takes time: what nobody waits for any more must not be sent after all.
    batch.retain(|request| !request.reply.is_canceled());
    let (items, askers): (Vec<_>, Vec<_>) =
        batch.into_iter().map(|r| (r.item, (r.alone, r.sent, r.reply))).unzip();
    let result = match connected {
        Ok(mut open) if !items.is_empty() => {
            askers.iter().for_each(|(_, sent, _)| sent.store(true, Ordering::Relaxed));
            (was_sent, at) = (true, settings.clock.now());
            let call = AssertUnwindSafe(V::call(open.as_mut(), &items)).catch_unwind();
            let result = match timeout_at(until, call).await {
                Ok(Ok(result)) => result.and_then(|outcomes| match outcomes.len() == items.len() {
                    true => Ok(outcomes),
                    false => Err(unavailable(format!("{} answers for {}", outcomes.len(), items.len()))),
                }),
                Ok(Err(_panic)) => Err(panicked()),
                Err(_elapsed) => Err(late()),
            };
            // After an uncertain end the connection may still be busy with the statement: never use it again.
            connection = result.as_ref().map_or_else(|error| !error.is_uncertain(), |_| true).then_some(open);
            result
        }
        Ok(open) => {
            connection = Some(open);
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    };
    let request = |(item, (alone, sent, reply))| Request { item, alone, sent, reply };
    let batch = items.into_iter().zip(askers).map(request).collect();
    let sent = Sent { was_sent, at, received_at: settings.clock.now() };
    Returned { connection, batch, sent, result }
}

/// The pause after this many failures: it doubles up to the longest, and is jittered.
pub(crate) fn backoff(failures: u32, longest: Duration) -> Duration {
    let full = (longest / 32).saturating_mul(1 << failures.min(10)).min(longest);
    full.mul_f64(0.5 + 0.5 * fastrand::f64())
}
