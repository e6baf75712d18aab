//! The watched sessions: which of them are polled next, and what the answers change.
//!
//! The loop waits only for the next input. An answer touches only the sessions that it is about. Sessions that change
//! by time alone are kept in the order of their deadlines.

use std::{
    collections::{BTreeSet, HashMap},
    future::{Future as _, pending, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use futures::{FutureExt as _, Stream, StreamExt as _};
use tokio::{task::yield_now, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    Command, Commands,
    known::Knowledge,
    line::{Line, LookOutcome, LookResult},
    watched::Watched,
};
use crate::{
    backoff::backoff,
    clock::{BootInstant, Reading, SharedClock},
    event::RunEvent,
    session::{SessionKey, SessionStatus},
    store::{MAX_BATCH, StoreError},
    trace,
};

pub(super) struct Looking {
    line: Line,
    clock: SharedClock,
    watched: HashMap<SessionKey, Watched>,
    /// When each session is next checked for changes by time alone. At most one entry per session.
    deadlines: BTreeSet<(BootInstant, SessionKey)>,
    /// Sessions that are polled before their turn: they are new, or may have changed.
    urgent: Vec<SessionKey>,
    /// The round that is under way: one poll of every session.
    round: Option<Round>,
    /// When the next round begins. `None` while a round is under way, or nobody watches.
    due: Option<BootInstant>,
    /// Polls in a row that were not answered.
    failures: u32,
    /// No poll is sent before this instant.
    not_before: BootInstant,
    /// When the last poll that was answered was sent.
    heard_at: BootInstant,
    /// The database has been silent for too long: nothing is known any more.
    is_lost: bool,
    /// When a session last changed.
    changed_at: BootInstant,
    /// Whether a session was held when the last round began.
    is_any_held: bool,
}

struct Round {
    began_at: BootInstant,
    left: Vec<SessionKey>,
}

enum Input {
    Command(Command),
    Event(RunEvent),
    Outcome(LookOutcome),
    Time,
}

/// The time between two rounds while a session is held, or has just changed.
const ACTIVE: Duration = Duration::from_millis(500);
/// The time between two rounds otherwise.
const IDLE: Duration = Duration::from_secs(1);
/// How long after a change the rounds stay that frequent.
const STAYS_ACTIVE: Duration = Duration::from_secs(5);
/// After this much silence of the database nothing is known any more. Less than the two seconds promised to watchers.
const STALE: Duration = Duration::from_millis(1_900);
/// On a slow line, the next round begins so early that this much of [`STALE`] is left when its answer comes.
const SLACK: Duration = Duration::from_millis(200);
/// The longest pause after a poll that was not answered.
const LONGEST_PAUSE: Duration = Duration::from_millis(300);
/// A change of a run is in its row within 100 ms. This is a little longer.
const SHOWN_WITHIN: Duration = Duration::from_millis(150);
/// How many commands are taken before anything else is done.
const COMMANDS_AT_ONCE: usize = 1_000;

impl Looking {
    pub(super) fn new(line: Line, clock: SharedClock) -> Self {
        let now = clock.now();
        Self {
            line,
            clock,
            watched: HashMap::new(),
            deadlines: BTreeSet::new(),
            urgent: Vec::new(),
            round: None,
            due: None,
            failures: 0,
            not_before: now,
            heard_at: now,
            is_lost: false,
            changed_at: now,
            is_any_held: false,
        }
    }

    pub(super) async fn serve(
        mut self,
        mut commands: Commands,
        events: impl Stream<Item = RunEvent> + Unpin,
        over: CancellationToken,
    ) {
        let mut events = events.fuse();
        while let Some(input) = over.run_until_cancelled(self.input(&mut commands, &mut events)).await {
            match input {
                Input::Command(command) => {
                    self.heed(command);
                    let more = std::iter::from_fn(|| commands.next().now_or_never().flatten());
                    more.take(COMMANDS_AT_ONCE).for_each(|command| self.heed(command));
                }
                Input::Event(event) => self.heed_event(event),
                Input::Outcome(outcome) => self.take(outcome),
                Input::Time => {}
            }
            self.on_time();
            self.send();
            // The loop may share its thread with the actors.
            yield_now().await;
        }
        self.line.close().await;
    }

    async fn input(
        &mut self,
        commands: &mut Commands,
        events: &mut (impl Stream<Item = RunEvent> + Unpin),
    ) -> Input {
        let pause = self.wakes_at().map(|at| at.saturating_since(self.clock.now()));
        let time = async {
            match pause {
                Some(pause) => sleep(pause).await,
                None => pending().await,
            }
        };
        let mut time = pin!(time);
        poll_fn(|cx| {
            if let Poll::Ready(outcome) = self.line.poll(cx) {
                return Poll::Ready(Input::Outcome(outcome));
            }
            if let Poll::Ready(Some(command)) = commands.poll_next_unpin(cx) {
                return Poll::Ready(Input::Command(command));
            }
            // When the events end, watching goes on without them until the supervisor ends.
            if let Poll::Ready(Some(event)) = events.poll_next_unpin(cx) {
                return Poll::Ready(Input::Event(event));
            }
            time.as_mut().poll(cx).map(|()| Input::Time)
        })
        .await
    }

    /// When there is something to do although no input comes.
    fn wakes_at(&self) -> Option<BootInstant> {
        let is_waiting = self.round.is_some() || !self.urgent.is_empty();
        let look = if self.line.is_busy() {
            None
        } else if is_waiting {
            Some(self.not_before)
        } else {
            self.due
        };
        let lost = (!self.is_lost && !self.watched.is_empty()).then(|| self.heard_at + STALE);
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        [look, lost, deadline].into_iter().flatten().min()
    }

    fn heed(&mut self, command: Command) {
        match command {
            Command::Watch(key, reply) => {
                // Do not keep a receiver here: it would count as a watcher.
                let _ = reply.send(self.begin(key).shown.subscribe());
            }
            Command::AwaitEnd(key, waiting) => self.begin(key).waiting.push(waiting),
            Command::Nudge(key) => self.nudge(key),
        }
    }

    fn heed_event(&mut self, event: RunEvent) {
        match event {
            RunEvent::Acquired { run, .. }
            | RunEvent::Stopping { run, .. }
            | RunEvent::Stuck { run }
            | RunEvent::Ended { run, .. } => self.nudge(run.key),
            // Missed events show with the next round. Other events change nothing that is shown.
            _ => {}
        }
    }

    /// Begins to watch a session, unless it is watched already, and queues it for a poll out of turn.
    fn begin(&mut self, key: SessionKey) -> &mut Watched {
        let reading = self.clock.reading();
        if self.watched.is_empty() {
            // Nothing was asked until now, so the database has not been silent.
            (self.heard_at, self.is_lost) = (reading.boot, false);
        }
        if self.round.is_none() {
            self.due.get_or_insert(reading.boot + ACTIVE);
        }
        let is_lost = self.is_lost;
        let watched = self.watched.entry(key.clone()).or_insert_with(|| {
            let mut watched = Watched::new(Knowledge::none(reading.boot));
            if is_lost {
                watched.knowledge.outdate();
                watched.show(&reading);
            }
            watched
        });
        hasten(&mut self.urgent, key, watched);
        watched
    }

    /// Polls a session now, and again when a change of its run must have reached the row.
    fn nudge(&mut self, key: SessionKey) {
        let Some(watched) = self.watched.get_mut(&key) else { return };
        let now = self.clock.now();
        watched.again_at = Some(now + SHOWN_WITHIN);
        set_deadline(&mut self.deadlines, &key, watched, now);
        hasten(&mut self.urgent, key, watched);
    }

    fn take(&mut self, outcome: LookOutcome) {
        match outcome {
            LookOutcome::Connected => {}
            LookOutcome::Seen(seen) => self.learn(seen),
            LookOutcome::Failed(error) => self.fail(&error),
        }
    }

    fn learn(&mut self, LookResult { keys, sent_at, holders, standby }: LookResult) {
        let reading = self.clock.reading();
        let received_at = reading.boot;
        let is_old = received_at >= sent_at + STALE;
        self.failures = 0;
        self.heard_at = self.heard_at.max(sent_at);
        self.is_lost &= is_old;
        for (key, holder) in keys.into_iter().zip(holders) {
            let Some(watched) = self.watched.get_mut(&key) else { continue };
            watched.tell_waiting(holder.as_ref(), sent_at);
            let status = SessionStatus::of(key.clone(), holder, standby.clone());
            watched.knowledge.learn(status, sent_at, received_at);
            if is_old {
                watched.knowledge.outdate();
            }
            if watched.show(&reading) {
                self.changed_at = received_at;
            }
            set_deadline(&mut self.deadlines, &key, watched, received_at);
        }
        if let Some(round) = self.round.take_if(|round| round.left.is_empty()) {
            let next = round.began_at + self.interval(received_at.saturating_since(sent_at));
            self.due = Some(next.max(received_at));
        }
    }

    /// After a pause, a new round polls everything that was to be polled.
    fn fail(&mut self, error: &StoreError) {
        tracing::debug!(target: trace::STORE, %error, "watched sessions were not read");
        self.failures = self.failures.saturating_add(1);
        self.not_before = self.clock.now() + backoff(self.failures, LONGEST_PAUSE);
        for key in self.urgent.drain(..) {
            self.watched.get_mut(&key).into_iter().for_each(|watched| watched.is_urgent = false);
        }
        self.round = None;
        self.due = Some(self.not_before);
    }

    /// The time from the beginning of one round to the beginning of the next. `took` is how long the last poll took.
    fn interval(&self, took: Duration) -> Duration {
        let is_active = self.clock.now().saturating_since(self.changed_at) < STAYS_ACTIVE;
        let usual = if is_active || self.is_any_held { ACTIVE } else { IDLE };
        usual.min(STALE.saturating_sub(took + SLACK))
    }

    /// Time has passed: something may be due, or may no longer be known.
    fn on_time(&mut self) {
        let reading = self.clock.reading();
        let now = reading.boot;
        if !self.is_lost && !self.watched.is_empty() && now >= self.heard_at + STALE {
            self.lose(&reading);
        }
        while self.deadlines.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.deadlines.pop_first() else { return };
            let Some(watched) = self.watched.get_mut(&key) else { continue };
            watched.deadline = None;
            if watched.show(&reading) {
                self.changed_at = now;
            }
            let is_nudged = watched.again_at.take_if(|at| *at <= now).is_some();
            set_deadline(&mut self.deadlines, &key, watched, now);
            if is_nudged || watched.knowledge.is_near_expiry(now) {
                hasten(&mut self.urgent, key, watched);
            }
        }
        if !self.line.is_busy() && self.due.is_some_and(|due| now >= due) {
            self.begin_round(now);
        }
    }

    fn lose(&mut self, reading: &Reading) {
        self.is_lost = true;
        for watched in self.watched.values_mut() {
            watched.knowledge.outdate();
            if watched.show(reading) {
                self.changed_at = reading.boot;
            }
        }
    }

    fn begin_round(&mut self, now: BootInstant) {
        let deadlines = &mut self.deadlines;
        self.watched.retain(|key, watched| {
            let is_wanted = watched.is_wanted();
            if let Some(at) = watched.deadline.filter(|_| !is_wanted) {
                deadlines.remove(&(at, key.clone()));
            }
            is_wanted
        });
        self.due = None;
        self.is_any_held = self.watched.values().any(|watched| watched.knowledge.is_held());
        // Urgent sessions are polled anyway.
        let left = self.watched.iter().filter(|(_, watched)| !watched.is_urgent);
        let left = left.map(|(key, _)| key.clone()).collect();
        self.round = (!self.watched.is_empty()).then_some(Round { began_at: now, left });
    }

    /// Sends one poll for as many sessions as one statement takes, unless a poll is under way.
    fn send(&mut self) {
        let is_waiting = self.round.is_some() || !self.urgent.is_empty();
        if self.line.is_busy() || !is_waiting || self.clock.now() < self.not_before {
            return;
        }
        if self.line.is_up() {
            let keys = self.gather();
            self.line.look(keys);
        } else {
            self.line.connect();
        }
    }

    /// The sessions of the next poll. Up to half of them are kept for the round, so that urgent sessions cannot put the
    /// round off for ever.
    fn gather(&mut self) -> Vec<SessionKey> {
        let mut nobody = Vec::new();
        let left = self.round.as_mut().map_or(&mut nobody, |round| &mut round.left);
        let kept = left.len().min(MAX_BATCH / 2);
        let hasty = self.urgent.len().min(MAX_BATCH - kept);
        let mut keys: Vec<_> = self.urgent.drain(..hasty).collect();
        for key in &keys {
            self.watched.get_mut(key).into_iter().for_each(|watched| watched.is_urgent = false);
        }
        keys.extend(left.drain(left.len() - left.len().min(MAX_BATCH - hasty)..));
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

fn hasten(urgent: &mut Vec<SessionKey>, key: SessionKey, watched: &mut Watched) {
    if !std::mem::replace(&mut watched.is_urgent, true) {
        urgent.push(key);
    }
}

/// Sets the session's next deadline, if that is earlier than the present one. A deadline that has moved to a later
/// instant, as with every renewal, is left in place. When it comes, the next one is set.
fn set_deadline(
    deadlines: &mut BTreeSet<(BootInstant, SessionKey)>,
    key: &SessionKey,
    watched: &mut Watched,
    now: BootInstant,
) {
    let Some(next) = watched.next_after(now) else { return };
    if watched.deadline.is_some_and(|at| at <= next) {
        return;
    }
    if let Some(at) = watched.deadline.replace(next) {
        deadlines.remove(&(at, key.clone()));
    }
    deadlines.insert((next, key.clone()));
}
