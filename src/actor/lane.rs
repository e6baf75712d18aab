//! A lane: the one way from the actors to the database for one kind of statement.
//!
//! While a statement is in flight, requests gather. When it returns, the gathered requests go out in the next
//! statement. An idle lane adds no delay: it sends a single request at once. Renewals have a lane of their own, so
//! nothing else can be in their way (invariant I10).
//!
//! Each lane has two tracks. The *main* track carries batches. The *side* track has its own connections, and carries
//! what must not hold up the others: items that met a locked row, each alone, and batches that the database rejected. A
//! rejected batch is split until the bad items are found. A bad session does not go in a batch with others again before
//! the database has accepted it ([`suspects`]).
//!
//! Connections come from a [`Pool`], which opens them before they are needed. A statement's time begins when it is
//! sent. A request waits for a connection no longer than a statement may take, and then fails with the reason why there
//! is none.
//!
//! A statement runs in a task of its own. It is dropped half-way only at its time-out, and its connection is then
//! dropped with it. Every request is answered: a request that is dropped unanswered reads as "unavailable" (invariant
//! I9).

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, WrapFuture, fut::ActorFutureExt};
use futures::{FutureExt, channel::oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use super::pool::{Lent, Pool};
use crate::{
    clock::{BootInstant, SharedClock, StepDetector},
    store::{MAX_BATCH, StoreError},
    trace,
};

mod suspects;
mod track;

use suspects::Suspects;
use track::{Returned, Track};

pub(crate) use track::{Acquiring, Releasing, Renewing, Verb};

/// The answer to one request.
pub(crate) struct LaneAnswer<O> {
    /// The local boot clock just before the statement was sent (invariant I2).
    pub(crate) sent_at: BootInstant,
    /// Whether the statement was sent. If not, nothing can have happened in the database, whatever the outcome says.
    pub(crate) sent: bool,
    pub(crate) outcome: Result<O, StoreError>,
}

/// The address of a lane, for those who send requests.
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
    /// Sends a request and waits for its answer. The call itself queues the request, before the future is polled.
    ///
    /// Dropping the future withdraws a request that has not been sent yet. A request that was sent takes effect.
    pub(crate) fn ask(
        &self,
        item: V::Item,
        alone: bool,
    ) -> impl Future<Output = LaneAnswer<V::Outcome>> + 'static {
        self.ask_noting(item, alone, Arc::default())
    }

    /// Like [`ask`](Self::ask), for a caller that may stop waiting before the answer comes. `sent` becomes true when
    /// the statement is sent.
    pub(crate) fn ask_noting(
        &self,
        item: V::Item,
        alone: bool,
        sent: Arc<AtomicBool>,
    ) -> impl Future<Output = LaneAnswer<V::Outcome>> + 'static {
        let (reply, answer) = oneshot::channel();
        self.addr.do_send(Submit(Request { item, alone, sent, reply }));
        let location = self.location.clone();
        answer.map(move |answer| {
            answer.unwrap_or_else(|oneshot::Canceled| LaneAnswer {
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

/// The settings and connections of a lane.
#[derive(Clone)]
pub(crate) struct LaneSettings {
    pub(crate) clock: SharedClock,
    /// The bound on one statement. The wait for a connection before it has the same bound.
    pub(crate) attempt_timeout: Duration,
    pub(crate) longest_backoff: Duration,
    /// A smaller jump of the database's clock is not reported.
    pub(crate) step_tolerance: Duration,
    /// Keeps the supervisor's thread alive until this lane has ended.
    pub(crate) goodbyes: TaskTracker,
    pub(crate) main: Pool,
    pub(crate) side: Pool,
}

pub(crate) struct Lane<V: Verb> {
    settings: LaneSettings,
    main: Track<V>,
    side: Track<V>,
    suspects: Suspects,
    steps: StepDetector,
    _open: TaskTrackerToken,
}

#[derive(Message)]
#[rtype(result = "()")]
struct Submit<V: Verb>(Request<V>);

/// One item, and where its answer goes.
struct Request<V: Verb> {
    item: V::Item,
    /// Goes in a statement of its own.
    alone: bool,
    sent: Arc<AtomicBool>,
    reply: oneshot::Sender<LaneAnswer<V::Outcome>>,
}

impl<V: Verb> Request<V> {
    fn answer(self, sent: Sent, outcome: Result<V::Outcome, StoreError>) {
        // Fails if nobody waits for the answer any more.
        let _ = self.reply.send(LaneAnswer { sent_at: sent.sent_at, sent: sent.was_sent, outcome });
    }
}

/// Whether and when a statement was sent, and when it was answered.
#[derive(Clone, Copy)]
struct Sent {
    was_sent: bool,
    sent_at: BootInstant,
    received_at: BootInstant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Main,
    Side,
}

impl<V: Verb> Lane<V> {
    pub(crate) fn start_with(settings: LaneSettings) -> LaneAddr<V> {
        let location = settings.main.location().to_owned();
        let main = Track::new(MAX_BATCH, settings.main.clone());
        let side = Track::new(MAX_BATCH, settings.side.clone());
        let open = settings.goodbyes.token();
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

    /// Sends the gathered requests, unless a statement is in flight or the track pauses after a failure.
    fn pump(&mut self, which: Which, ctx: &mut Context<Self>) {
        let patience = self.settings.attempt_timeout;
        let track = self.track(which);
        if track.in_flight || (track.queue.is_empty() && track.parts.is_empty()) {
            return;
        }
        track.in_flight = true;
        if let Some(at) = track.not_before {
            let pause = at.saturating_duration_since(Instant::now());
            if !pause.is_zero() {
                ctx.run_later(pause, move |lane, ctx| {
                    lane.track(which).in_flight = false;
                    lane.pump(which, ctx);
                });
                return;
            }
        }
        if let Some(lent) = track.pool.try_take() {
            return self.send(which, lent, ctx);
        }
        let pool = track.pool.clone();
        let waiting = async move {
            let taken = timeout(patience, pool.take(V::URGENCY)).await;
            taken.unwrap_or_else(|_elapsed| Err(pool.late(patience)))
        };
        ctx.spawn(waiting.into_actor(self).map(move |taken, lane, ctx| match taken {
            Ok(lent) => lane.send(which, lent, ctx),
            Err(error) => lane.fail_unsent(which, &error),
        }));
    }

    fn send(&mut self, which: Which, lent: Lent, ctx: &mut Context<Self>) {
        let (clock, within) = (self.settings.clock.clone(), self.settings.attempt_timeout);
        let Some(returning) = self.track(which).send(lent, clock, within) else { return };
        ctx.spawn(returning.into_actor(self).map(move |joined, lane, ctx| {
            // If the task has panicked, the drop of its requests has answered them, and its connection is gone.
            lane.take_back(which, joined.ok(), ctx);
        }));
    }

    /// Tells all waiting requests why there is no connection. Nothing was sent.
    fn fail_unsent(&mut self, which: Which, error: &StoreError) {
        let now = self.settings.clock.now();
        let track = self.track(which);
        track.in_flight = false;
        let parts = std::mem::take(&mut track.parts).into_iter().flatten();
        for request in parts.chain(std::mem::take(&mut track.queue)) {
            request.answer(Sent { was_sent: false, sent_at: now, received_at: now }, Err(error.clone()));
        }
    }

    fn take_back(&mut self, which: Which, returned: Option<Returned<V>>, ctx: &mut Context<Self>) {
        let longest = self.settings.longest_backoff;
        let track = self.track(which);
        track.in_flight = false;
        match returned {
            Some(returned) => {
                let Returned { batch, sent, result } = returned;
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
            // One item or a few are bad. Split the batch, so that only these fail.
            Err(error) if !error.is_uncertain() && batch.len() > 1 => {
                tracing::debug!(
                    target: trace::STORE,
                    verb = V::NAME,
                    items = batch.len(),
                    %error,
                    "batch rejected; splitting it"
                );
                let are_all_suspects =
                    batch.iter().all(|request| self.suspects.contains(V::key(&request.item)));
                let parts = suspects::apart(batch);
                match are_all_suspects {
                    true => self.side.parts.extend(parts),
                    // Most of these items are good, so they go before the suspects.
                    false => parts.rev().for_each(|part| self.side.parts.push_front(part)),
                }
            }
            Err(error) => {
                tracing::debug!(
                    target: trace::STORE,
                    verb = V::NAME,
                    items = batch.len(),
                    %error,
                    "statement failed"
                );
                for request in batch {
                    if !error.is_uncertain() {
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
        if let Some(by_micros) = self.steps.observe(clock_micros, sent.sent_at, sent.received_at, tolerance) {
            let database = self.settings.main.location();
            tracing::warn!(
                target: trace::STORE,
                database,
                by_ms = by_micros / 1_000,
                "the database's clock was stepped"
            );
        }
    }
}

impl<V: Verb> Actor for Lane<V> {
    type Context = Context<Self>;
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
