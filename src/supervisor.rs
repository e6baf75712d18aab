//! The handle with which a program asks for sessions.

use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use actix::Addr;
use futures::{
    StreamExt,
    channel::oneshot,
    future,
    stream::{self, Stream},
};

use crate::{
    actor::{
        means::{Preparation, is_prepared},
        query::{Queries, Query},
        registry::{Drain, Farewell, Registry, Shutdown, ShutdownReport},
        sweeping::in_batches,
        watching::Watching,
    },
    clock::SharedClock,
    config::Timing,
    end::Limit,
    error::{Closed, QueryError},
    event::{EventSource, RunEvent},
    origin::{Deserted, Origin, farewell},
    session::{Label, NodeId, RunId, SessionKey, SessionStatus},
    store::{HistoryPage, Page, SharedStore, StoreError},
    trace,
    watch::{Observed, Standby},
};

mod breaking;
mod builder;
mod connections;
mod history;
mod local;
mod looking;
mod request;
mod start;
mod stop;

pub use breaking::{BreakAnswer, BreakBuilder, BrokenLease};
use builder::Authority;
pub use builder::LeaseSupervisorBuilder;
pub use connections::Connections;
pub use history::HistoryBuilder;
pub use request::{AcquireBuilder, ListBuilder};
pub use stop::{Asked, StopAnswer, StopBuilder};

/// Asks the database for sessions and looks after the runs that hold them.
///
/// This is a handle. It is cheap to clone, and works from any thread and any async runtime. The supervisor itself lives
/// on its own operating-system thread, with its own connections. [Watching](Self::watch) uses a second thread.
///
/// Dropping the last handle cancels every run and releases each session as its work ends. The drop waits for releases
/// that are under way, for half a second at most. So does the drop of a [`Run`](crate::Run) after that. So a `main` that
/// returns right after a run has ended leaves no lease behind. Neither waits for work that goes on. In a spawned task
/// they wait for nothing, because they would hold up other tasks. If the process exits before a release, the lease
/// expires. [`shutdown`](Self::shutdown) is the clean way.
///
/// After a `fork`, the supervisor and its runs belong to the parent. In the child every call returns at once, with
/// [`Closed`] or with a run that is not held. Start another supervisor in the child.
///
/// ```no_run
/// use std::time::Duration;
/// use tenure::{AcquireError, SessionKey, LeaseSupervisor};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let supervisor = LeaseSupervisor::builder("sqlite://leases.db").holder_label("api-3").start().await?;
/// let key = SessionKey::new("acct-1", "chat-9")?;
/// match supervisor.acquire(&key).await {
///     Ok(run) => run.scope(async |ctx| println!("working under fence {}", ctx.fence())).await?,
///     Err(AcquireError::Busy(busy)) => println!("{busy}"),
///     Err(error) => return Err(error.into()),
/// }
/// supervisor.shutdown(Duration::from_secs(5)).await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LeaseSupervisor {
    inner: Arc<Inner>,
}

struct Inner {
    registry: Addr<Registry>,
    queries: Queries,
    preparation: Preparation,
    watching: Watching,
    clock: SharedClock,
    events: EventSource,
    timing: Timing,
    limits: Vec<Limit>,
    limit_per_account: Option<u32>,
    label: Label,
    node: NodeId,
    location: String,
    host: Mutex<Option<Host>>,
    /// New runs are refused.
    is_closing: AtomicBool,
    report: Arc<OnceLock<ShutdownReport>>,
    history_kept: Duration,
    is_deserted: Deserted,
    origin: Origin,
}

/// The thread that the supervisor lives on.
struct Host {
    over: future::Shared<oneshot::Receiver<()>>,
    thread: JoinHandle<()>,
}

impl LeaseSupervisor {
    /// A builder for a supervisor on the database of this URL: `postgres://user:password@host/database` or
    /// `sqlite://path/to/file.db`.
    pub fn builder(url: impl Into<String>) -> LeaseSupervisorBuilder {
        LeaseSupervisorBuilder::new(Authority::Url(url.into()))
    }

    /// A builder for a supervisor on this store.
    pub fn builder_on(store: SharedStore) -> LeaseSupervisorBuilder {
        LeaseSupervisorBuilder::new(Authority::Store(store))
    }

    /// Asks for a session. The request is sent when it is awaited.
    ///
    /// Keep a handle of the supervisor for as long as the run works. A run does not do that: dropping the last handle
    /// ends it as [`Shutdown`](crate::EndReason::Shutdown).
    ///
    /// # Errors
    /// See [`AcquireError`](crate::AcquireError): `Busy` is certain, `Unavailable` is not.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. A grant that can no longer be delivered is released. If the release
    /// fails too, the lease expires within one ttl.
    pub fn acquire(&self, key: &SessionKey) -> AcquireBuilder {
        AcquireBuilder {
            supervisor: self.clone(),
            key: key.clone(),
            holder: None,
            phase: None,
            ttl: None,
            stop_grace: None,
            limits: Vec::new(),
            limit_per_account: None,
            events: None,
        }
    }

    /// Reads who holds a session. Acquires nothing and changes nothing.
    ///
    /// # Errors
    /// [`QueryError`] when the database does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn inspect(&self, key: &SessionKey) -> Result<SessionStatus, QueryError> {
        self.inner()?.queries.ask(|reply| Query::Inspect(key.clone(), reply)).await
    }

    /// The standby that answered this supervisor's last [`inspect`](Self::inspect) or [`list`](Self::list). Before the
    /// first query, the standby that would answer. `None` if the server that takes writes answers, and always `None`
    /// unless the supervisor [only looks](LeaseSupervisorBuilder::looking_only).
    ///
    /// Each [`SessionStatus`] names its standby too. This method is for an answer that is empty.
    ///
    /// # Errors
    /// [`QueryError`] when the database does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn standby(&self) -> Result<Option<Standby>, QueryError> {
        self.inner()?.queries.ask(Query::Standby).await
    }

    /// Asks the run that holds a session to stop, in whatever process on whatever machine it is. The request is sent
    /// when it is awaited.
    ///
    /// The request is recorded in the run's row. A run of this supervisor is told at once. A run of another supervisor
    /// is told within milliseconds if a hint arrives (see [`LeaseSupervisorBuilder::hints`]), and with its next renewal
    /// otherwise. A run that is asked to stop before its work has begun does not begin it.
    ///
    /// # Errors
    /// See [`StopError`](crate::StopError).
    ///
    /// # Cancel safety
    /// A request that was sent takes effect even if the future is dropped.
    ///
    /// ```no_run
    /// # use tenure::{SessionKey, StopAnswer, LeaseSupervisor};
    /// # async fn example(supervisor: LeaseSupervisor, key: SessionKey) -> Result<(), Box<dyn std::error::Error>> {
    /// match supervisor.stop(&key).by("ann").reason("wrong branch").await? {
    ///     StopAnswer::Asked(asked) => {
    ///         println!("asked {}", asked.holder().label);
    ///         asked.stopped().await?;
    ///     }
    ///     StopAnswer::Idle => println!("nobody holds it"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn stop(&self, key: &SessionKey) -> StopBuilder {
        StopBuilder { supervisor: self.clone(), key: key.clone(), run_id: None, by: None, reason: None }
    }

    /// Ends the lease of a run that is **known to be dead**: its machine has burnt, its process was killed. Otherwise the
    /// session stays closed until the lease expires, which with a long ttl may take hours. The request is sent when it
    /// is awaited.
    ///
    /// It names one run, and waits until that run's renewals have stopped for longer than it may take from one to the
    /// next: for some seconds with a short ttl, and 27 s with a long one. A run that renews meanwhile is alive, and
    /// keeps its lease ([`BreakAnswer::Renewing`]). After that the lease ends at once, and the next acquire gets the
    /// session under a greater fence. It is recorded in the [history](Self::history), with who broke it and why.
    ///
    /// # What is risked
    ///
    /// A run that lives, but cannot reach the database, does not renew either. It keeps working until its own trust runs
    /// out, and by then the next run may be at work. [`BrokenLease::may_act_until`] says until when. So be sure that
    /// the run is dead. A resource that checks fencing tokens refuses a run that is not. A run that reaches the database
    /// again finds its lease expired at its next renewal, and ends at once.
    ///
    /// # Errors
    /// See [`BreakError`](crate::BreakError).
    ///
    /// # Cancel safety
    /// Dropping the future gives up, unless the lease was just being broken.
    ///
    /// ```no_run
    /// # use tenure::{BreakAnswer, LeaseSupervisor, RunId, SessionKey};
    /// # async fn example(supervisor: LeaseSupervisor, key: SessionKey, dead: RunId) -> Result<(), Box<dyn std::error::Error>> {
    /// match supervisor.break_lease(&key, dead).by("ann").reason("the machine has burnt").await? {
    ///     BreakAnswer::Broken(broken) => println!("{} can be acquired again", broken.key),
    ///     BreakAnswer::Renewing(holder) => println!("{} is alive: it has just renewed", holder.label),
    ///     _ => println!("it does not hold the session"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn break_lease(&self, key: &SessionKey, run_id: RunId) -> BreakBuilder {
        BreakBuilder {
            supervisor: self.clone(),
            key: key.clone(),
            run_id,
            by: None,
            reason: None,
            renew_interval: None,
        }
    }

    /// Reads the runs of a session that are over, newest first: who, under which fence, from when to when, and how each
    /// ended. Reads need no more than the right to read. If the database keeps no history, the answer says so. The
    /// request is sent when it is awaited.
    ///
    /// # Errors
    /// [`QueryError`] when the database does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn history(&self, key: &SessionKey) -> HistoryBuilder {
        let page = HistoryPage { key: key.clone(), before: None, limit: HistoryBuilder::DEFAULT_LIMIT };
        HistoryBuilder { supervisor: self.clone(), page }
    }

    /// Watches a session. The stream first says how the session is now, then each change of its run, its stage, its
    /// phase or its request to stop, and its expiry. A renewal alone is no change. The stream ends with the supervisor.
    ///
    /// Watching polls, so what comes and goes between two polls is not seen. A run that ends before the next poll is
    /// never shown as stopping, and a short run may not be shown at all. A slow reader misses what came in between, and
    /// gets the latest state. A program that must see everything listens to the [events](Self::events) of the
    /// supervisor that executes the run.
    ///
    /// A change shows within half a second if any of the watched sessions is held, within a second otherwise, and
    /// sooner if the run belongs to this supervisor. On a slow line it takes a round trip or two longer, and longer
    /// still for thousands of sessions on a slow database. A holder is never shown beyond the last known expiry of its
    /// lease. The stream says [`Unknown`](Observed::Unknown) within two seconds after the database is lost, and is
    /// right again within two seconds after it is back. If every answer takes about a second or more, the state is
    /// `Unknown` in between. If every answer takes two seconds, it is always `Unknown`.
    ///
    /// All watched sessions share one connection, one thread, and one statement per 500 sessions. No run waits for a
    /// watcher. Dropping the stream ends the watching.
    pub fn watch(&self, key: &SessionKey) -> impl Stream<Item = Observed> + Send + Unpin + use<> {
        stream::iter(self.inner().ok().map(|inner| inner.watching.observe(key))).flatten()
    }

    /// Reads the state of many sessions, in key order. The request is sent when it is awaited, and returns all sessions
    /// together. [`stream`](ListBuilder::stream) returns one after the other.
    ///
    /// # Errors
    /// [`QueryError`] when the database does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn list(&self) -> ListBuilder {
        let page = Page { account: None, expired: false, after: None, limit: u32::MAX };
        ListBuilder { supervisor: self.clone(), page }
    }

    /// Removes the rows that expired at least an hour ago ([`SWEEP_AFTER`](crate::store::SWEEP_AFTER)), and returns how
    /// many it removed. Rows that are left only take room: an expired row grants nothing.
    ///
    /// Also removes from the [history](Self::history) the runs that have been over for
    /// [`history_kept`](LeaseSupervisorBuilder::history_kept). They are not counted. If this supervisor may not, they
    /// stay.
    ///
    /// The supervisor does all this by itself about once an hour, unless
    /// [`sweeping`](LeaseSupervisorBuilder::sweeping) is off.
    ///
    /// # Errors
    /// [`QueryError`] when the database does not answer. Some rows may have been removed.
    ///
    /// # Cancel safety
    /// Dropping the future stops the sweep. A statement that was sent still takes effect.
    pub async fn sweep(&self) -> Result<u64, QueryError> {
        let Inner { queries, history_kept, .. } = self.inner()?;
        // Somebody waits for it, so it does not pause.
        let pause = || future::ready(());
        let removed = in_batches(|limit| queries.ask(move |reply| Query::Sweep(limit, reply)), pause).await?;
        let of_history = |limit| queries.ask(move |reply| Query::SweepHistory(*history_kept, limit, reply));
        match in_batches(of_history, pause).await {
            Err(QueryError::Store(error @ StoreError::PermissionDenied { .. })) => {
                tracing::warn!(target: trace::STORE, %error, "the history was not swept");
            }
            swept => drop(swept?),
        }
        Ok(removed)
    }

    /// What happens to the runs of this supervisor from now on. The stream ends with the supervisor.
    ///
    /// A slow listener delays nothing. It misses events, and is told how many.
    pub fn events(&self) -> impl Stream<Item = RunEvent> + Send + Unpin + 'static + use<> {
        stream::iter(self.inner().ok().map(|inner| inner.events.subscribe())).flatten()
    }

    /// The durations in force.
    pub fn timing(&self) -> Timing {
        self.inner.timing
    }

    /// This supervisor's id, fresh at every start.
    pub fn node(&self) -> NodeId {
        self.inner.node
    }

    /// Where the database is, for people. The text has no credentials in it.
    pub fn location(&self) -> &str {
        &self.inner.location
    }

    /// Whether a new run could start now: this supervisor is not draining or shutting down, and the database answers
    /// and takes writes. For a readiness probe. If it [started lazily](LeaseSupervisorBuilder::lazy), it has also found
    /// that the database can be used.
    ///
    /// It asks the database, and waits for `ttl/5` at most (0.5 s to 5 s), connecting included. Behind another query
    /// that is under way it may wait as long again.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn is_ready(&self) -> bool {
        let Ok(inner) = self.inner() else { return false };
        let answers = !self.is_draining() && inner.queries.ask(Query::Probe).await.is_ok();
        answers && is_prepared(&inner.preparation) && !self.is_draining()
    }

    /// Whether new runs are refused because [`drain`](Self::drain) or [`shutdown`](Self::shutdown) was called.
    pub fn is_draining(&self) -> bool {
        self.inner.is_closing.load(Ordering::Relaxed)
    }

    /// Refuses new runs from now on ([`AcquireError::Draining`](crate::AcquireError::Draining)) and lets the present
    /// runs finish. Returns when the last of them has ended. Bound the wait with a time-out, and call
    /// [`shutdown`](Self::shutdown) afterwards. A failed acquire may have taken a session that is still to be released.
    /// The drain does not wait for that release. The shutdown does.
    ///
    /// A drain cannot be undone: start another supervisor.
    ///
    /// # Cancel safety
    /// The drain begins when this is first polled and goes on if the future is dropped.
    pub async fn drain(&self) {
        let (drained, is_drained) = oneshot::channel();
        let Ok(inner) = self.inner() else { return };
        inner.is_closing.store(true, Ordering::Relaxed);
        inner.registry.do_send(Drain { drained });
        // A supervisor that has ended has no runs either.
        let _ = is_drained.await;
    }

    /// Ends the supervisor. New acquires are refused at once, every run is told `Shutdown`, and each session is
    /// released as its work ends. Work that has not ended after `grace` is dropped.
    ///
    /// Returns when all is done. That takes no longer than the sum of `grace`, half of the longest `safety_margin` of
    /// any run, twice `renew_timeout`, and 1.5 s. The 1.5 s are for a pause between two releases, and for a database
    /// that does not answer when a connection is closed. A second call can only shorten the grace. After the supervisor
    /// has ended, each call returns the same report.
    ///
    /// # Cancel safety
    /// The shutdown begins when this is first polled and goes on if the future is dropped.
    pub async fn shutdown(&self, grace: Duration) -> ShutdownReport {
        let failed = || ShutdownReport { failed: true, ..ShutdownReport::default() };
        let Ok(inner) = self.inner() else { return failed() };
        let (reply, reported) = oneshot::channel();
        inner.is_closing.store(true, Ordering::Relaxed);
        inner.registry.do_send(Shutdown { grace, reply: Some(reply) });
        // An error means that the supervisor has already ended, by a shutdown or by a failure.
        let _ = reported.await;
        let host = || inner.host.lock().unwrap_or_else(PoisonError::into_inner);
        let over = host().as_ref().map(|host| host.over.clone());
        if let Some(over) = over {
            // Sending `over` is the last thing that the thread does, so joining the thread takes no time.
            let _ = over.await;
            let thread = host().take().map(|host| host.thread);
            let _ = thread.map(JoinHandle::join);
        }
        inner.report.get().cloned().unwrap_or_else(failed)
    }
}

impl LeaseSupervisor {
    /// The supervisor, or `Closed` in a fork of the process that started it.
    fn inner(&self) -> Result<&Inner, Closed> {
        self.inner.origin.is_this_process().then_some(&*self.inner).ok_or(Closed)
    }
}

impl fmt::Debug for LeaseSupervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseSupervisor")
            .field("node", &self.inner.node)
            .field("location", &self.inner.location)
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.origin.is_this_process() {
            return;
        }
        self.registry.do_send(Shutdown { grace: self.timing.stop_grace(), reply: None });
        if self.host.get_mut().unwrap_or_else(PoisonError::into_inner).is_some() {
            self.is_deserted.set();
            farewell(|released| self.registry.do_send(Farewell { released }));
        }
    }
}
