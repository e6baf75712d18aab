//! Connections that are open before they are needed (invariant I11).
//!
//! A pool opens its connection in a task of its own and with its own time-out, so that no statement spends its time on
//! connecting. An idle connection is pinged now and then. When it is lost, the pool opens the next one at once, and
//! does not wait for the next statement. If the connection in use is busy or silent while something urgent waits, the
//! pool opens a spare connection and keeps it for a while.
//!
//! All of this runs on the supervisor's thread.

use std::{cell::RefCell, collections::VecDeque, pin::pin, rc::Rc, sync::Arc, task::Waker, time::Duration};

use futures::future::{Either, select};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use crate::{
    backoff::backoff,
    store::{Bounds, LeaseConnection, SharedStore, StoreError, VerbKind},
    trace,
};

mod lent;
mod opening;
mod rest;

pub(crate) use lent::Lent;
pub(crate) use opening::{Opened, connect};
use rest::{Idle, Minded};

/// The connections for one kind of statement, or for all kinds. Clones share the connections. When the last clone is
/// dropped, the connections are closed.
#[derive(Clone)]
pub(crate) struct Pool {
    inner: Rc<Inner>,
    /// `None` in the pool's own tasks, so that they do not keep the pool open.
    _users: Option<Rc<DropGuard>>,
}

struct Inner {
    plan: PoolPlan,
    state: RefCell<State>,
    /// Wakes those who wait for a connection.
    changed: Notify,
    /// Cancelled when nobody uses the pool any more.
    over: CancellationToken,
}

/// How a pool opens and keeps its connections.
#[derive(Clone)]
pub(crate) struct PoolPlan {
    pub(crate) store: SharedStore,
    /// How long the server may take for one statement.
    pub(crate) bounds: Bounds,
    /// The statements that each connection prepares.
    pub(crate) verbs: &'static [VerbKind],
    /// The statements that the very first connection prepares before anybody gets it. It prepares the others at the
    /// first check.
    pub(crate) first_verbs: &'static [VerbKind],
    /// The least number of connections that are kept open, unless the pool rests.
    pub(crate) kept: usize,
    /// The greatest number of connections, spare ones included.
    pub(crate) most: usize,
    /// The bound on one attempt to connect.
    pub(crate) connect_timeout: Duration,
    /// How long an attempt to connect may be silent before another is made beside it. Also the bound on one ping.
    pub(crate) patience: Duration,
    pub(crate) longest_backoff: Duration,
    /// How long the connection in use may be busy or silent, while something urgent waits, before a spare one is
    /// opened.
    pub(crate) time_to_spare: Duration,
    /// How long a spare connection is kept after its last use.
    pub(crate) linger: Duration,
    /// Notified now and then: idle connections are pinged, and those that nobody needs are closed.
    pub(crate) check: Arc<Notify>,
    /// Keeps the supervisor's thread alive until the connections are closed.
    pub(crate) goodbyes: TaskTracker,
}

#[derive(Default)]
struct State {
    /// In the order of their last use. The most recent comes last.
    idle: VecDeque<Idle>,
    lent: usize,
    is_opening: bool,
    has_opened: bool,
    is_resting: bool,
    /// Connecting takes so long that a lost connection could not be replaced in time. A spare one is then kept open.
    is_slow: bool,
    waiting: usize,
    /// Attempts to connect that have failed in a row.
    failures: u32,
    /// Attempts to connect that have ever failed.
    failed: u64,
    last_error: Option<StoreError>,
    not_before: Option<Instant>,
    minder: Option<Waker>,
}

impl State {
    fn attempts_begun(&self) -> u64 {
        self.failed + u64::from(self.is_opening)
    }
}

/// How urgently a statement needs a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// It waits for its turn.
    Patient,
    /// It cannot wait long: another connection is opened if none becomes free soon.
    Urgent,
}

/// After this long without an answer, another attempt to connect is made beside the first, so that a database that is
/// back is noticed soon.
const LONGEST_SILENCE: Duration = Duration::from_millis(1_200);
/// The shortest pause after a certain refusal, for example of a login.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_millis(500);

impl Pool {
    /// Makes a pool. It opens no connection yet.
    pub(crate) fn new(plan: PoolPlan) -> Self {
        let (goodbyes, over) = (plan.goodbyes.clone(), CancellationToken::new());
        let users = Some(Rc::new(over.clone().drop_guard()));
        let inner = Inner { plan, state: RefCell::default(), changed: Notify::new(), over };
        let pool = Self { inner: Rc::new(inner), _users: users };
        actix_rt::spawn(goodbyes.track_future(pool.own().mind()));
        pool
    }

    /// A clone for a task of the pool itself.
    fn own(&self) -> Self {
        Self { inner: self.inner.clone(), _users: None }
    }

    /// Ends the pool's rest, and opens the connections that it keeps.
    pub(crate) fn wake(&self) {
        self.inner.state.borrow_mut().is_resting = false;
        self.keep();
    }

    /// Closes the idle connections, and keeps none open until one is needed again.
    pub(crate) fn rest(&self) {
        self.inner.state.borrow_mut().is_resting = true;
        self.trim(Duration::ZERO);
    }

    /// Waits until a connection is open. It may be in use.
    ///
    /// # Errors
    /// Why the last attempt to connect has failed. The pool goes on trying.
    pub(crate) async fn ready(&self) -> Result<(), StoreError> {
        self.follow();
        self.wake();
        self.wait(Urgency::Patient, |pool| (pool.open() > 0).then_some(())).await
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// As [`ready`](Self::ready).
    ///
    /// # Cancel safety
    /// Dropping the future takes nothing.
    pub(crate) async fn take(&self, urgency: Urgency) -> Result<Lent, StoreError> {
        self.wait(urgency, Self::try_take).await
    }

    /// Takes an idle connection, if there is one.
    pub(crate) fn try_take(&self) -> Option<Lent> {
        self.follow();
        let mut state = self.inner.state.borrow_mut();
        let mut taken = None;
        for at in (0..state.idle.len()).rev() {
            let Some(minded) = state.idle[at].end() else { continue };
            let rested = state.idle.remove(at).map_or(Duration::ZERO, |idle| idle.since.elapsed());
            if let Minded::Wanted(connection) = minded {
                state.lent += 1;
                taken = Some(Lent { connection: Some(connection), rested, pool: self.clone() });
                break;
            }
        }
        // A connection that waits for its ping was polled with a no-op waker. The minder has to poll it again.
        let minder = state.minder.take();
        drop(state);
        minder.into_iter().for_each(Waker::wake);
        self.keep();
        taken
    }

    /// Drops idle connections to a server that is no longer in use. Its leases are not those of the server in use now.
    fn follow(&self) {
        let Some(server) = self.inner.plan.store.server_in_use() else { return };
        let is_old = |idle: &Idle| idle.server != server;
        let mut state = self.inner.state.borrow_mut();
        if state.idle.iter().any(is_old) {
            state.idle.retain(|idle| !is_old(idle));
            drop(state);
            self.keep();
        }
    }

    /// Drops the idle connections. Used when another connection turned out to be dead: they may have died with it.
    pub(crate) fn forget_idle(&self) {
        let forgotten = std::mem::take(&mut self.inner.state.borrow_mut().idle);
        drop(forgotten);
        self.keep();
    }

    /// Opens a spare connection, unless one is idle or the pool is full: the connection in use may be lost.
    pub(crate) fn spare(&self) {
        let is_none_free = self.inner.state.borrow().idle.iter().all(|idle| idle.wanted.is_none());
        if is_none_free && self.open() < self.inner.plan.most {
            self.begin_to_open();
        }
    }

    /// How long the connection in use may be busy or silent before a spare one is opened.
    pub(crate) fn time_to_spare(&self) -> Duration {
        self.inner.plan.time_to_spare
    }

    pub(crate) fn location(&self) -> &str {
        self.inner.plan.store.location()
    }

    /// Waits until all connections that are kept are open, a spare one included.
    pub(crate) async fn ready_with_spare(&self) -> Result<(), StoreError> {
        self.wait(Urgency::Patient, |pool| (pool.open() >= pool.kept()).then_some(())).await
    }

    /// Whether the pool keeps a connection open while nobody asks for one.
    pub(crate) fn is_kept(&self) -> bool {
        self.inner.plan.kept > 0
    }

    /// How many connections are to be kept open now.
    fn kept(&self) -> usize {
        let (state, plan) = (self.inner.state.borrow(), &self.inner.plan);
        match plan.kept {
            _ if state.is_resting => 0,
            kept @ 1.. if state.is_slow => (kept + 1).min(plan.most),
            kept => kept,
        }
    }

    fn open(&self) -> usize {
        let state = self.inner.state.borrow();
        state.idle.len() + state.lent
    }

    async fn wait<T>(
        &self,
        urgency: Urgency,
        mut take: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T, StoreError> {
        // Ignore the failure of an attempt that is already under way: it may have begun in an outage that is over.
        let failed = self.inner.state.borrow().attempts_begun();
        let _waiting = WaitingGuard::begin(self);
        let mut soon = pin!(sleep(self.time_to_spare()));
        let mut is_spare_due = urgency == Urgency::Urgent;
        loop {
            let changed = pin!(self.inner.changed.notified());
            if let Some(taken) = take(self) {
                return Ok(taken);
            }
            if self.inner.over.is_cancelled() {
                return Err(self.unavailable("the supervisor has ended"));
            }
            if self.open() == 0
                && let Some(error) = self.failed_since(failed)
            {
                return Err(error);
            }
            match is_spare_due {
                false => changed.await,
                true => match select(changed, &mut soon).await {
                    Either::Left(_) => {}
                    Either::Right(_) => {
                        is_spare_due = false;
                        self.spare();
                    }
                },
            }
        }
    }

    fn failed_since(&self, failed: u64) -> Option<StoreError> {
        let state = self.inner.state.borrow();
        state.last_error.clone().filter(|_| state.failed > failed)
    }

    /// The reason why there is no connection, for a caller that stops waiting.
    pub(crate) fn late(&self, within: Duration) -> StoreError {
        match &self.inner.state.borrow().last_error {
            Some(error) => error.clone(),
            None => StoreError::silent(self.location(), within),
        }
    }

    fn unavailable(&self, detail: &str) -> StoreError {
        StoreError::Unavailable { location: self.location().to_owned(), detail: detail.to_owned() }
    }

    /// Opens a connection if fewer are open than are to be kept, or if none is open and somebody waits.
    fn keep(&self) {
        let waiting = self.inner.state.borrow().waiting;
        if self.open() < self.kept().max(waiting.min(1)) {
            self.begin_to_open();
        }
    }

    /// Begins to open a connection, unless an attempt is already under way.
    fn begin_to_open(&self) {
        if self.inner.over.is_cancelled()
            || std::mem::replace(&mut self.inner.state.borrow_mut().is_opening, true)
        {
            return;
        }
        let pool = self.own();
        actix_rt::spawn(async move {
            let over = pool.inner.over.clone();
            let opened = over.run_until_cancelled(pool.open_one()).await;
            pool.inner.state.borrow_mut().is_opening = false;
            match opened {
                Some(Ok(Opened { connection, took })) => {
                    let mut state = pool.inner.state.borrow_mut();
                    (state.has_opened, state.is_slow) = (true, took > 2 * pool.inner.plan.patience);
                    drop(state);
                    pool.put(connection);
                }
                Some(Err(error)) => pool.note_failure(error),
                None => {}
            }
            pool.keep();
        });
    }

    async fn open_one(&self) -> Result<Opened, StoreError> {
        let plan = &self.inner.plan;
        let not_before = self.inner.state.borrow_mut().not_before.take();
        if let Some(at) = not_before {
            sleep_until(at).await;
        }
        let patience = plan.patience.min(LONGEST_SILENCE);
        let has_opened = self.inner.state.borrow().has_opened;
        let verbs = if has_opened { plan.verbs } else { plan.first_verbs };
        let connected = connect(plan.store.clone(), plan.bounds, patience, verbs);
        match timeout(plan.connect_timeout, connected).await {
            Ok(connected) => connected,
            Err(_elapsed) => Err(StoreError::silent(self.location(), plan.connect_timeout)),
        }
    }

    fn note_failure(&self, error: StoreError) {
        tracing::debug!(target: trace::STORE, %error, "no connection");
        let mut state = self.inner.state.borrow_mut();
        state.failures = state.failures.saturating_add(1);
        state.failed += 1;
        let pause = backoff(state.failures, self.inner.plan.longest_backoff);
        let pause = if error.is_transient() { pause } else { pause.max(PAUSE_AFTER_REFUSAL) };
        state.not_before = Some(Instant::now() + pause);
        state.last_error = Some(error);
        drop(state);
        self.inner.changed.notify_waiters();
    }

    fn put(&self, connection: Box<dyn LeaseConnection>) {
        let idle = Idle::begin(connection, &self.inner.plan);
        let mut state = self.inner.state.borrow_mut();
        (state.failures, state.last_error) = (0, None);
        state.idle.push_back(idle);
        let minder = state.minder.take();
        drop(state);
        if let Some(minder) = minder {
            minder.wake();
        }
        self.inner.changed.notify_waiters();
    }
}

/// Counts a caller that waits, for as long as this lives.
struct WaitingGuard<'a>(&'a Pool);

impl<'a> WaitingGuard<'a> {
    fn begin(pool: &'a Pool) -> Self {
        pool.inner.state.borrow_mut().waiting += 1;
        pool.keep();
        Self(pool)
    }
}

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.inner.state.borrow_mut().waiting -= 1;
    }
}
