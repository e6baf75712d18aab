//! Leases in memory, with faults. It is for tests of code that uses this library, and of the library itself.
//!
//! It keeps the contract of the [module above](super) as the real stores do, by a clock that the test moves. On request
//! it fails in the ways in which databases and networks fail.

use std::{
    cmp::Reverse,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::{
    FutureExt,
    channel::{mpsc, oneshot},
    future::BoxFuture,
};

use super::{
    Acquire, AcquireOutcome, Bounds, BreakLease, BreakOutcome, HistoryPage, LeaseConnection, LeaseStore,
    Listener, Listening, Migrated, Page, Release, ReleaseOutcome, Renew, RenewOutcome, SWEEP_AFTER,
    StopOutcome, StopRun, StoreError,
};
use crate::{
    clock::{SharedClock, instant, micros},
    history::{Ending, PastRun},
    session::{Holder, Label, NodeId, Reason, Requester, RunId, RunPhase, SessionKey},
};

mod hints;
mod state;

use hints::MemoryListener;
use state::{Row, State};

/// A database in memory. All clones of a store share it.
#[derive(Clone)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    clock: SharedClock,
}

/// How the database fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Fault {
    /// It does not fail.
    #[default]
    None,
    /// Every call fails at once, and nothing happens.
    Unreachable,
    /// Calls happen, but their replies are lost. The caller gets an error.
    RepliesLost,
    /// Calls hang for ever and never happen, as if their packets were dropped on the way.
    Swallowed,
    /// Calls hang, and *happen later*, when the fault is lifted. They happen even if nobody waits for them any more.
    /// This is a server that was stopped and then continued.
    Frozen,
}

/// How many statements of each kind have been executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Statements {
    /// Batches of acquires.
    pub acquires: u64,
    /// Batches of renewals.
    pub renewals: u64,
    /// Batches of releases.
    pub releases: u64,
    /// Batches of inspections.
    pub inspections: u64,
    /// Items of rejected statements, including those that were not the reason.
    pub rejected_items: u64,
}

impl MemoryStore {
    /// An empty database. Its clock follows the wall time of `clock`.
    pub fn new(clock: SharedClock) -> Self {
        Self { state: Arc::default(), clock }
    }

    /// Makes the database fail like this from now on. When this lifts [`Fault::Frozen`], the calls that have gathered
    /// happen first.
    pub fn set_fault(&self, fault: Fault) {
        let now = self.now();
        let mut state = self.lock_state();
        state.fault = fault;
        if fault != Fault::Frozen {
            for statement in std::mem::take(&mut state.frozen) {
                statement(&mut state, now);
            }
        }
    }

    /// From now on, every call takes this long before it happens.
    pub fn set_delay(&self, delay: Duration) {
        self.lock_state().delay = delay;
    }

    /// From now on, every reply takes this long after the call has happened. Hints are not delayed.
    pub fn set_reply_delay(&self, delay: Duration) {
        self.lock_state().reply_delay = delay;
    }

    /// Makes the next `count` statements that renew fail. They do not happen.
    pub fn fail_renewals(&self, count: u32) {
        self.lock_state().failing_renewals = count;
    }

    /// With `true`, hints are lost from now on. With `false`, they arrive again. Listeners do not notice that hints are
    /// lost.
    pub fn set_hints_lost(&self, lost: bool) {
        self.lock_state().hints_lost = lost;
    }

    /// Breaks every connection that listens.
    pub fn break_listeners(&self) {
        self.lock_state().listeners.clear();
    }

    /// How many connections listen.
    pub fn listeners(&self) -> usize {
        self.lock_state().listeners.iter().filter(|(_, listener)| !listener.is_closed()).count()
    }

    /// Locks or unlocks the session's row, as another transaction would.
    pub fn set_locked(&self, key: &SessionKey, locked: bool) {
        let mut state = self.lock_state();
        if locked {
            state.locked.insert(key.clone());
        } else {
            state.locked.remove(key);
        }
    }

    /// From now on, the database rejects every statement that would write this session's row, or accepts them again. It
    /// rejects the whole statement, with all its other items, as a trigger does that raises an error.
    pub fn set_rejected(&self, key: &SessionKey, rejected: bool) {
        let mut state = self.lock_state();
        if rejected {
            state.rejected.insert(key.clone());
        } else {
            state.rejected.remove(key);
        }
    }

    /// From now on, the database rejects every sweep, or accepts them again.
    pub fn set_sweeps_rejected(&self, rejected: bool) {
        self.lock_state().sweeps_rejected = rejected;
    }

    /// Steps the database's clock forward.
    pub fn step_clock_forward(&self, by: Duration) {
        self.lock_state().step_micros += micros(by);
    }

    /// Steps the database's clock back.
    pub fn step_clock_back(&self, by: Duration) {
        self.lock_state().step_micros -= micros(by);
    }

    /// Gives the session to another run, even if it is held. Returns the id of that run.
    pub fn take_away(&self, key: &SessionKey, ttl: Duration) -> RunId {
        let now = self.now();
        let run_id = RunId::random();
        let item = Acquire {
            key: key.clone(),
            run_id,
            node: NodeId::random(),
            label: Label::new("somebody else").expect("within 255 bytes"),
            phase: RunPhase::default(),
            ttl,
            limit_per_account: None,
        };
        let mut state = self.lock_state();
        if let Some(row) = state.rows.get_mut(key) {
            row.expires_at = now;
        }
        state.acquire(&item, now);
        run_id
    }

    /// Moves the expiry of the session's lease to this many milliseconds from now. A negative number makes a lease that
    /// expired that long ago.
    pub fn set_remaining_millis(&self, key: &SessionKey, millis: i64) {
        let now = self.now();
        self.lock_state().cut_short(key, now + millis * 1_000, Ending::Changed { by: None }, now);
    }

    /// Deletes the session's row, as an operator might.
    pub fn delete(&self, key: &SessionKey) {
        let now = self.now();
        self.lock_state().remove(key, Ending::Deleted { by: None }, now);
    }

    /// Asks the run that holds the session to stop. The first request is kept. No fault prevents this except a locked
    /// row.
    ///
    /// # Panics
    /// When a text is empty or too long.
    pub fn request_stop(&self, key: &SessionKey, by: &str, reason: &str) {
        let now = self.now();
        let by = Some(Requester::new(by).expect("1 to 255 bytes"));
        let reason = Some(Reason::new(reason).expect("1 to 1000 bytes"));
        let item = StopRun { key: key.clone(), run_id: None, by, reason };
        self.lock_state().request_stop(&item, now);
    }

    /// The session's row. No fault prevents reading it.
    pub fn row(&self, key: &SessionKey) -> Option<Holder> {
        let now = self.now();
        self.lock_state().rows.get(key).map(|row| row.holder(now))
    }

    /// How many rows there are, expired ones included.
    pub fn len(&self) -> usize {
        self.lock_state().rows.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many statements have been executed.
    pub fn statements(&self) -> Statements {
        self.lock_state().statements
    }

    fn now(&self) -> i64 {
        micros(self.clock.reading().wall) + self.lock_state().step_micros
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        // The state is sound even after a panic under the lock: every change to a row is one assignment.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Executes a statement, or fails, as the present fault says.
    async fn execute<T: Send + 'static>(
        &self,
        statement: impl FnOnce(&mut State, i64) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let delay = self.lock_state().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let fault = self.lock_state().fault;
        match fault {
            Fault::None => {
                let now = self.now();
                let reply = statement(&mut self.lock_state(), now);
                let delay = self.lock_state().reply_delay;
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                Ok(reply)
            }
            Fault::Unreachable => Err(unavailable("connection refused")),
            Fault::RepliesLost => {
                let now = self.now();
                statement(&mut self.lock_state(), now);
                Err(unavailable("connection reset"))
            }
            Fault::Swallowed => futures::future::pending().await,
            Fault::Frozen => {
                let (reply, answer) = oneshot::channel();
                let later = Box::new(move |state: &mut State, now: i64| {
                    // The caller may no longer wait. The statement happens in any case.
                    let _ = reply.send(statement(state, now));
                });
                self.lock_state().frozen.push(later);
                answer.await.map_err(|oneshot::Canceled| unavailable("connection reset"))
            }
        }
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("rows", &self.len()).finish_non_exhaustive()
    }
}

impl LeaseStore for MemoryStore {
    fn connect(&self, _: Bounds) -> BoxFuture<'static, Result<Box<dyn LeaseConnection>, StoreError>> {
        let store = self.clone();
        async move {
            store.execute(|_, _| ()).await?;
            Ok(Box::new(store) as Box<dyn LeaseConnection>)
        }
        .boxed()
    }

    fn migrate(&self) -> BoxFuture<'static, Result<Migrated, StoreError>> {
        async { Ok(Migrated::new(2, 2)) }.boxed()
    }

    fn listen(&self, node: NodeId, _: Bounds) -> Option<Listening> {
        let store = self.clone();
        let listening = async move {
            let (sender, hints) = mpsc::unbounded();
            store.execute(move |state, _| state.listeners.push((node, sender))).await?;
            Ok(Box::new(MemoryListener::new(store, hints)) as Box<dyn Listener>)
        };
        Some(listening.boxed())
    }

    fn schema(&self) -> String {
        String::new()
    }

    fn location(&self) -> &str {
        "memory"
    }
}

impl LeaseConnection for MemoryStore {
    fn acquire<'a>(
        &'a mut self,
        items: &'a [Acquire],
    ) -> BoxFuture<'a, Result<Vec<AcquireOutcome>, StoreError>> {
        let items = items.to_vec();
        self.execute(move |state, now| {
            state.check(items.iter().map(|item| &item.key))?;
            state.statements.acquires += 1;
            // Whoever allows more comes first. So an item that is refused keeps nobody else out.
            let mut order: Vec<_> = (0..items.len()).collect();
            order.sort_by_key(|&place| Reverse(items[place].limit_per_account.unwrap_or(u32::MAX)));
            let mut outcomes = vec![AcquireOutcome::Locked; items.len()];
            for place in order {
                outcomes[place] = state.acquire(&items[place], now);
            }
            Ok(outcomes)
        })
        .map(Result::flatten)
        .boxed()
    }

    fn renew<'a>(&'a mut self, items: &'a [Renew]) -> BoxFuture<'a, Result<Vec<RenewOutcome>, StoreError>> {
        let failing = {
            let mut state = self.lock_state();
            let failing = state.failing_renewals > 0;
            state.failing_renewals = state.failing_renewals.saturating_sub(1);
            failing
        };
        if failing {
            return async { Err(unavailable("renewals fail")) }.boxed();
        }
        let items = items.to_vec();
        self.execute(move |state, now| {
            state.check(items.iter().map(|item| &item.key))?;
            state.statements.renewals += 1;
            Ok(items.iter().map(|item| state.renew(item, now)).collect())
        })
        .map(Result::flatten)
        .boxed()
    }

    fn release<'a>(
        &'a mut self,
        items: &'a [Release],
    ) -> BoxFuture<'a, Result<Vec<ReleaseOutcome>, StoreError>> {
        let items = items.to_vec();
        self.execute(move |state, now| {
            state.check(items.iter().map(|item| &item.key))?;
            state.statements.releases += 1;
            Ok(items.iter().map(|item| state.release(item, now)).collect())
        })
        .map(Result::flatten)
        .boxed()
    }

    fn request_stop<'a>(&'a mut self, item: &'a StopRun) -> BoxFuture<'a, Result<StopOutcome, StoreError>> {
        let item = item.clone();
        self.execute(move |state, now| state.request_stop(&item, now)).boxed()
    }

    fn break_lease<'a>(
        &'a mut self,
        item: &'a BreakLease,
    ) -> BoxFuture<'a, Result<BreakOutcome, StoreError>> {
        let item = item.clone();
        self.execute(move |state, now| state.break_lease(&item, now)).boxed()
    }

    fn history<'a>(
        &'a mut self,
        page: &'a HistoryPage,
    ) -> BoxFuture<'a, Result<Option<Vec<PastRun>>, StoreError>> {
        let HistoryPage { key, before, limit } = page.clone();
        self.execute(move |state, _| {
            let past = state.past.get(&key).map_or(&[][..], Vec::as_slice);
            let wanted = past.iter().rev().filter(|run| before.is_none_or(|before| run.fence < before));
            Some(wanted.take(limit as usize).cloned().collect())
        })
        .boxed()
    }

    fn sweep_history(&mut self, keep: Duration, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.execute(move |state, now| {
            let (old, mut left) = (instant(now.saturating_sub(micros(keep))), limit);
            for past in state.past.values_mut() {
                past.retain(|run| {
                    let is_swept = left > 0 && run.until <= old;
                    left -= u32::from(is_swept);
                    !is_swept
                });
            }
            u64::from(limit - left)
        })
        .boxed()
    }

    fn inspect<'a>(
        &'a mut self,
        keys: &'a [SessionKey],
    ) -> BoxFuture<'a, Result<Vec<Option<Holder>>, StoreError>> {
        let keys = keys.to_vec();
        self.execute(move |state, now| {
            state.statements.inspections += 1;
            keys.iter().map(|key| state.rows.get(key).map(|row| row.holder(now))).collect()
        })
        .boxed()
    }

    fn list<'a>(
        &'a mut self,
        page: &'a Page,
    ) -> BoxFuture<'a, Result<Vec<(SessionKey, Holder)>, StoreError>> {
        let page = page.clone();
        self.execute(move |state, now| {
            let wanted = |key: &SessionKey, row: &Row| {
                page.account.as_deref().is_none_or(|account| account == key.account())
                    && page.after.as_ref().is_none_or(|after| after < key)
                    && (page.expired || row.expires_at > now)
            };
            let rows = state.rows.iter().filter(|(key, row)| wanted(key, row));
            rows.map(|(key, row)| (key.clone(), row.holder(now))).take(page.limit as usize).collect()
        })
        .boxed()
    }

    fn sweep(&mut self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.execute(move |state, now| {
            if state.sweeps_rejected {
                let (location, detail) = ("memory".to_owned(), "sweeps are rejected".to_owned());
                return Err(StoreError::Rejected { location, detail });
            }
            let old = |row: &Row| row.expires_at <= now - micros(SWEEP_AFTER);
            let rows = state.rows.iter().filter(|(key, row)| old(row) && !state.locked.contains(key));
            let swept: Vec<_> = rows.map(|(key, _)| key.clone()).take(limit as usize).collect();
            swept.iter().for_each(|key| state.remove(key, Ending::Swept, now));
            Ok(swept.len() as u64)
        })
        .map(Result::flatten)
        .boxed()
    }

    fn probe(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.execute(|_, _| ()).boxed()
    }

    fn ping(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.execute(|_, _| ()).boxed()
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        async {}.boxed()
    }
}

fn unavailable(detail: &str) -> StoreError {
    StoreError::Unavailable { location: "memory".to_owned(), detail: detail.to_owned() }
}
