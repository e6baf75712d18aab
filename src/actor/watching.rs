//! Looking at sessions for those who watch them: all of a process share one statement per look.
//!
//! The looks go over a connection of their own. A session is looked at twice a second while somebody holds one, once
//! a second otherwise, and at once when a run of this process changes. What is shown never outlives what is known: a
//! lease not its expiry, and nothing the database's silence.

use std::{collections::HashMap, time::Duration};

use actix::{
    Actor, AsyncContext, Context, Handler, Message, SpawnHandle, StreamHandler, WrapFuture,
    fut::ActorFutureExt,
};
use futures::{
    channel::oneshot,
    stream::{self, Stream},
};
use tokio::sync::watch;

use crate::{
    actor::{
        lane::backoff,
        query::{Queries, Query},
    },
    clock::{BootInstant, Reading, SharedClock},
    error::{Closed, QueryError},
    event::RunEvent,
    session::{Holder, RunId, SessionKey, SessionStatus},
    store::MAX_BATCH,
    watch::Observed,
};

mod known;

use known::Knowledge;

pub(crate) struct Watcher {
    watched: HashMap<SessionKey, Watched>,
    /// Over a connection that nothing else uses.
    queries: Queries,
    clock: SharedClock,
    /// Those who have just begun to be watched, to be looked at together.
    fresh: Vec<SessionKey>,
    /// When all are looked at next; `None` while nobody watches.
    due: Option<BootInstant>,
    /// Statements of the look at all that are under way.
    under_way: usize,
    /// Looks in a row that were not answered.
    failures: u32,
    changed_at: BootInstant,
    timer: Option<SpawnHandle>,
}

/// One session, and who watches it.
struct Watched {
    shown: watch::Sender<Option<Observed>>,
    knowledge: Knowledge,
    waiting: Vec<UntilGone>,
    /// It is going to be looked at again soon, because of what a run of this process has done.
    is_nudged: bool,
}

/// Somebody wants to watch a session.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Watch {
    key: SessionKey,
    reply: oneshot::Sender<watch::Receiver<Option<Observed>>>,
}

/// Somebody waits until a run does not hold its session any more, as the database says later than `since`.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct UntilGone {
    pub(crate) key: SessionKey,
    pub(crate) run_id: RunId,
    pub(crate) since: BootInstant,
    pub(crate) reply: oneshot::Sender<()>,
}

/// A session may have changed.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Nudge(pub(crate) SessionKey);

/// While somebody holds one of the sessions, or has just let go.
const ACTIVE: Duration = Duration::from_millis(500);
const IDLE: Duration = Duration::from_secs(1);
/// How long after a change the sessions are looked at as often as that.
const STAYS_ACTIVE: Duration = Duration::from_secs(5);
/// How long a look may take, connecting included. With the pause that follows, a database that is back is noticed
/// within two seconds even if a look is lost on the way.
pub(crate) const LOOK_TIMEOUT: Duration = Duration::from_millis(1_200);
const LONGEST_PAUSE: Duration = Duration::from_millis(300);
/// What a run does shows in its row within 100 ms.
const SHOWN_WITHIN: Duration = Duration::from_millis(150);

impl Watcher {
    pub(crate) fn new(queries: Queries, clock: SharedClock) -> Self {
        let changed_at = clock.now();
        Self {
            watched: HashMap::new(),
            queries,
            clock,
            fresh: Vec::new(),
            due: None,
            under_way: 0,
            failures: 0,
            changed_at,
            timer: None,
        }
    }

    fn watched(&mut self, key: SessionKey) -> &mut Watched {
        let began = self.clock.now();
        self.watched.entry(key).or_insert_with(|| Watched {
            shown: watch::Sender::new(None),
            knowledge: Knowledge::none(began),
            waiting: Vec::new(),
            is_nudged: false,
        })
    }

    /// Looks at one session, with the others that have just come, and at all when it is time.
    fn begin(&mut self, key: SessionKey, ctx: &mut Context<Self>) {
        if self.fresh.is_empty() {
            // After all messages that are here already.
            ctx.run_later(Duration::ZERO, |watcher, ctx| {
                let mut fresh = std::mem::take(&mut watcher.fresh);
                fresh.sort_unstable();
                fresh.dedup();
                watcher.look(fresh, false, ctx);
            });
        }
        self.fresh.push(key);
        let next = self.clock.now() + ACTIVE;
        self.due.get_or_insert(next);
        self.arm(ctx);
    }

    /// One statement for as many as one takes.
    fn look(&mut self, keys: Vec<SessionKey>, at_all: bool, ctx: &mut Context<Self>) {
        for some in keys.chunks(MAX_BATCH) {
            self.under_way += usize::from(at_all);
            let (asked, queries, sent_at) = (some.to_vec(), self.queries.clone(), self.clock.now());
            let keys = asked.clone();
            let answer = async move { queries.ask(|reply| Query::Look(asked, reply)).await };
            ctx.spawn(answer.into_actor(self).map(move |answer, watcher, ctx| {
                watcher.seen(keys, sent_at, answer, at_all, ctx);
            }));
        }
    }

    fn seen(
        &mut self,
        keys: Vec<SessionKey>,
        sent_at: BootInstant,
        answer: Result<Vec<Option<Holder>>, QueryError>,
        at_all: bool,
        ctx: &mut Context<Self>,
    ) {
        let reading = self.clock.reading();
        let received_at = reading.boot;
        self.under_way -= usize::from(at_all);
        match answer {
            Ok(holders) => {
                self.failures = 0;
                for (key, holder) in keys.into_iter().zip(holders) {
                    let Some(watched) = self.watched.get_mut(&key) else { continue };
                    watched.tell_waiting(holder.as_ref(), sent_at);
                    let status = match holder {
                        Some(holder) => SessionStatus::held(key, holder),
                        None => SessionStatus::idle(key),
                    };
                    watched.knowledge.learn(status, sent_at, received_at);
                    if watched.show(&reading) {
                        self.changed_at = received_at;
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%error, "watched sessions were not read");
                self.failures = self.failures.saturating_add(1);
            }
        }
        if at_all && self.under_way == 0 {
            self.due = Some(received_at + self.pause(received_at));
        }
        self.arm(ctx);
    }

    fn pause(&self, now: BootInstant) -> Duration {
        if self.failures > 0 {
            return backoff(self.failures, LONGEST_PAUSE);
        }
        let is_active = now.saturating_since(self.changed_at) < STAYS_ACTIVE;
        if is_active || self.watched.values().any(|watched| watched.knowledge.is_held()) {
            ACTIVE
        } else {
            IDLE
        }
    }

    /// Time has passed: things may be due, or not known any more.
    fn on_time(&mut self, ctx: &mut Context<Self>) {
        let reading = self.clock.reading();
        let now = reading.boot;
        for watched in self.watched.values_mut() {
            if watched.show(&reading) {
                self.changed_at = now;
            }
        }
        if self.under_way == 0 && self.due.is_some_and(|due| now >= due) {
            self.watched.retain(|_, watched| watched.is_wanted());
            self.due = None;
            self.look(self.watched.keys().cloned().collect(), true, ctx);
        }
        let near_expiry =
            self.watched.iter_mut().filter(|(_, watched)| watched.knowledge.is_near_expiry(now));
        let keys: Vec<_> = near_expiry.map(|(key, _)| key.clone()).collect();
        self.look(keys, false, ctx);
        self.arm(ctx);
    }

    /// Sets the timer for what comes first: a look, an expiry, or the end of what is known.
    fn arm(&mut self, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        let now = self.clock.now();
        let due = self.due.filter(|_| self.under_way == 0);
        let instants = self
            .watched
            .values()
            .flat_map(|watched| watched.knowledge.instants())
            .filter(|at| *at > now)
            .chain(due);
        if let Some(at) = instants.min() {
            let pause = at.saturating_since(now);
            self.timer = Some(ctx.run_later(pause, |watcher, ctx| {
                watcher.timer = None;
                watcher.on_time(ctx);
            }));
        }
    }

    fn nudge(&mut self, key: SessionKey, ctx: &mut Context<Self>) {
        let Some(watched) = self.watched.get_mut(&key) else { return };
        if std::mem::replace(&mut watched.is_nudged, true) {
            return;
        }
        self.look(vec![key.clone()], false, ctx);
        ctx.run_later(SHOWN_WITHIN, move |watcher, ctx| {
            if let Some(watched) = watcher.watched.get_mut(&key) {
                watched.is_nudged = false;
                watcher.look(vec![key], false, ctx);
            }
        });
    }
}

impl Watched {
    /// Shows what is known now; answers whether that is a change.
    fn show(&mut self, reading: &Reading) -> bool {
        let Some(observed) = self.knowledge.observed(reading.boot, reading.wall) else { return false };
        self.shown.send_if_modified(|shown| {
            let is_new = !shown.as_ref().is_some_and(|shown| shown.shows_the_same_as(&observed));
            // What has not changed is kept up to date for whoever comes later.
            *shown = Some(observed);
            is_new
        })
    }

    fn is_wanted(&mut self) -> bool {
        self.waiting.retain(|waiting| !waiting.reply.is_canceled());
        self.shown.receiver_count() > 0 || !self.waiting.is_empty()
    }

    fn tell_waiting(&mut self, holder: Option<&Holder>, sent_at: BootInstant) {
        let holds =
            |run_id| holder.is_some_and(|holder| holder.run_id == run_id && !holder.expires_in.is_zero());
        let gone = self.waiting.extract_if(.., |waiting| waiting.since <= sent_at && !holds(waiting.run_id));
        for UntilGone { reply, .. } in gone {
            // Whoever does not wait any more has dropped the receiver.
            let _ = reply.send(());
        }
    }
}

impl Actor for Watcher {
    type Context = Context<Self>;
}

impl Handler<Watch> for Watcher {
    type Result = ();

    fn handle(&mut self, Watch { key, reply }: Watch, ctx: &mut Context<Self>) {
        // A reader that is kept here would be counted as one who watches.
        let _ = reply.send(self.watched(key.clone()).shown.subscribe());
        self.begin(key, ctx);
    }
}

impl Handler<UntilGone> for Watcher {
    type Result = ();

    fn handle(&mut self, waiting: UntilGone, ctx: &mut Context<Self>) {
        let key = waiting.key.clone();
        self.watched(key.clone()).waiting.push(waiting);
        self.begin(key, ctx);
    }
}

impl Handler<Nudge> for Watcher {
    type Result = ();

    fn handle(&mut self, Nudge(key): Nudge, ctx: &mut Context<Self>) {
        self.nudge(key, ctx);
    }
}

/// What runs of this process do shows at once.
impl StreamHandler<RunEvent> for Watcher {
    fn handle(&mut self, event: RunEvent, ctx: &mut Context<Self>) {
        let run = match event {
            RunEvent::Acquired { run, .. }
            | RunEvent::Stopping { run, .. }
            | RunEvent::Stuck { run }
            | RunEvent::Ended { run, .. } => run,
            // The next look at all shows what was missed.
            _ => return,
        };
        self.nudge(run.key, ctx);
    }

    /// Who watches goes on until the supervisor is over.
    fn finished(&mut self, _: &mut Context<Self>) {}
}

/// The way to watch, from any thread and any runtime.
#[derive(Clone)]
pub(crate) struct Watching(pub(crate) actix::Addr<Watcher>);

impl Watching {
    /// What is known of a session, now and after every change; ends with the supervisor.
    pub(crate) fn observe(&self, key: &SessionKey) -> impl Stream<Item = Observed> + Send + Unpin + use<> {
        let (reply, answer) = oneshot::channel();
        self.0.do_send(Watch { key: key.clone(), reply });
        Box::pin(stream::unfold(Observing::Asked(answer), async |observing| {
            let (mut shown, last) = match observing {
                Observing::Asked(answer) => (answer.await.ok()?, None),
                Observing::Since(last, shown) => (shown, Some(last)),
            };
            loop {
                let observed = shown.borrow_and_update().clone();
                let is_new =
                    |observed: &Observed| !last.as_ref().is_some_and(|last| last.shows_the_same_as(observed));
                if let Some(observed) = observed.filter(is_new) {
                    return Some((observed.clone(), Observing::Since(Box::new(observed), shown)));
                }
                shown.changed().await.ok()?;
            }
        }))
    }

    /// Waits until the run does not hold its session any more, as the database says from now on.
    pub(crate) fn until_gone(
        &self,
        key: &SessionKey,
        run_id: RunId,
        since: BootInstant,
    ) -> impl Future<Output = Result<(), Closed>> + Send + use<> {
        let (reply, gone) = oneshot::channel();
        self.0.do_send(UntilGone { key: key.clone(), run_id, since, reply });
        async move { gone.await.map_err(|oneshot::Canceled| Closed) }
    }
}

enum Observing {
    Asked(oneshot::Receiver<watch::Receiver<Option<Observed>>>),
    Since(Box<Observed>, watch::Receiver<Option<Observed>>),
}
