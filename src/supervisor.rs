//! The handle by which a program asks for sessions.

use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
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
        query::{Queries, Query},
        registry::{Drain, Farewell, Registry, Shutdown, ShutdownReport},
        watching::Watching,
    },
    clock::SharedClock,
    config::Timing,
    error::{Closed, QueryError},
    event::{EventSource, RunEvent},
    origin::Origin,
    session::{Label, NodeId, SessionKey, SessionStatus},
    store::{Page, SharedStore},
    watch::{Observed, Standby},
};

mod builder;
mod connections;
mod local;
mod looking;
mod request;
mod start;
mod stop;

use builder::Authority;
pub use builder::LeaseSupervisorBuilder;
pub use connections::Connections;
pub use request::{AcquireBuilder, ListBuilder};
pub use stop::{Asked, StopAnswer, StopBuilder};

/// Asks the database for sessions and looks after the runs that hold them.
///
/// A cheap clone of a handle, usable from any thread and any async runtime. The supervisor itself lives on an
/// operating-system thread of its own, with connections of its own; those who [watch](Self::watch) have another.
///
/// Dropping the last handle cancels every run and releases each session as its work ends. It waits for releases that are
/// under way, for half a second at most, so that a `main` that returns right after a run has ended leaves no lease behind.
/// It does not wait for work, nor in a spawned task, where it would hold up others: if the process exits before the
/// releases, the leases expire. [`shutdown`](Self::shutdown) is the clean way.
///
/// After a `fork` the supervisor and its runs are the parent's. In the child every call is answered at once, with
/// [`Closed`] or a run that is not held; start another supervisor there.
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
    watching: Watching,
    clock: SharedClock,
    events: EventSource,
    timing: Timing,
    label: Label,
    node: NodeId,
    location: String,
    host: Mutex<Option<Host>>,
    /// No new runs are taken any more.
    is_closing: AtomicBool,
    report: Arc<OnceLock<ShutdownReport>>,
    origin: Origin,
}

/// The thread that the supervisor lives on.
struct Host {
    over: future::Shared<oneshot::Receiver<()>>,
    thread: JoinHandle<()>,
}

impl LeaseSupervisor {
    /// Starts to describe a supervisor on the database of this URL:
    /// `postgres://user:password@host/database` or `sqlite://path/to/file.db`.
    pub fn builder(url: impl Into<String>) -> LeaseSupervisorBuilder {
        LeaseSupervisorBuilder::new(Authority::Url(url.into()))
    }

    /// Starts to describe a supervisor on this store.
    pub fn builder_on(store: SharedStore) -> LeaseSupervisorBuilder {
        LeaseSupervisorBuilder::new(Authority::Store(store))
    }

    /// Asks for a session. The request goes out when it is awaited.
    ///
    /// # Errors
    /// See [`AcquireError`](crate::AcquireError): `Busy` is certain, `Unavailable` is not.
    ///
    /// # Cancel safety
    /// Dropping the future at any point leaves the session free: a grant that can no longer be delivered is
    /// given back, and expires within one ttl if even that fails.
    pub fn acquire(&self, key: &SessionKey) -> AcquireBuilder {
        AcquireBuilder {
            supervisor: self.clone(),
            key: key.clone(),
            holder: None,
            phase: None,
            stop_grace: None,
            limits: Vec::new(),
            events: None,
        }
    }

    /// Reads who holds a session. Acquires nothing and changes nothing.
    ///
    /// # Errors
    /// [`QueryError`] when the database does not answer.
    pub async fn inspect(&self, key: &SessionKey) -> Result<SessionStatus, QueryError> {
        self.inner()?.queries.ask(|reply| Query::Inspect(key.clone(), reply)).await
    }

    /// Who has answered the last question of this supervisor, [`inspect`](Self::inspect) or [`list`](Self::list), if it
    /// was not the server that takes writes; before the first question, who would. Always `None` unless it
    /// [only looks](LeaseSupervisorBuilder::looking_only). Each answer says it, too; this is for one that is empty.
    ///
    /// # Errors
    /// [`QueryError`] when the database does not answer.
    pub async fn standby(&self) -> Result<Option<Standby>, QueryError> {
        self.inner()?.queries.ask(Query::Standby).await
    }

    /// Asks the run that holds a session to stop, whichever process on whichever machine it is in. The request goes out
    /// when it is awaited.
    ///
    /// It is recorded in the run's row. A run of this supervisor hears of it at once; one of another within
    /// milliseconds where hints arrive (see [`LeaseSupervisorBuilder::hints`]), and with its next renewal otherwise. A run that was
    /// asked before its work began does not begin it.
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

    /// Watches a session: how it is now, and then what changes of its run, stage, phase and request to stop, and its
    /// expiry. A lease that was merely renewed is no change. Ends with the supervisor.
    ///
    /// It looks, and what comes and goes between two looks is not seen: a run that was asked to stop and has ended
    /// before the next look is never shown as stopping, and a short one not at all. Whoever reads slowly misses what
    /// was in between, too, and gets the latest. What must not miss anything listens to the [events](Self::events) of
    /// the supervisor that runs it.
    ///
    /// A change shows within half a second where somebody holds one of the watched sessions, within a second
    /// otherwise, and sooner when the run is one of this supervisor's; on a slow line a round trip or two later, and
    /// later still for thousands of sessions on a slow database. It never shows a holder beyond the last known expiry
    /// of its lease, and says [`Unknown`](Observed::Unknown) within two seconds of losing the database; two seconds
    /// after the database is back it is right again. Where every answer takes about a second or more, it is
    /// `Unknown` in between; where it takes two, always.
    ///
    /// All that are watched share the statements, one for 500 at a time, over a connection and from a thread of their
    /// own: no run waits for those who watch. Dropping the stream ends the watching.
    pub fn watch(&self, key: &SessionKey) -> impl Stream<Item = Observed> + Send + Unpin + use<> {
        stream::iter(self.inner().ok().map(|inner| inner.watching.observe(key))).flatten()
    }

    /// Starts to ask for many sessions, in key order.
    pub fn list(&self) -> ListBuilder {
        let page = Page { account: None, expired: false, after: None, limit: u32::MAX };
        ListBuilder { supervisor: self.clone(), page }
    }

    /// Removes rows that expired at least an hour ago ([`SWEEP_AFTER`](crate::store::SWEEP_AFTER)); answers how many it
    /// removed. Leaving them does no harm but take room: an expired row grants nothing.
    ///
    /// # Errors
    /// [`QueryError`] when the database does not answer; some rows may have been removed.
    pub async fn sweep(&self) -> Result<u64, QueryError> {
        let mut removed = 0;
        loop {
            let some = self.inner()?.queries.ask(|reply| Query::Sweep(SWEEP_BATCH, reply)).await?;
            removed += some;
            if some < u64::from(SWEEP_BATCH) {
                return Ok(removed);
            }
        }
    }

    /// What happens to the runs of this supervisor from now on. Ends when the supervisor does.
    ///
    /// A slow listener delays nothing; it misses events, and is told how many.
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

    /// Where the database is, for people: without credentials.
    pub fn location(&self) -> &str {
        &self.inner.location
    }

    /// Whether a new run could be started now: nobody drains or shuts down this supervisor, and the database answers
    /// and takes writes. For a readiness probe; it asks the database, within `ttl/5` (0.5 s to 5 s), and where it first has
    /// to be connected to, within as long again.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn is_ready(&self) -> bool {
        let Ok(inner) = self.inner() else { return false };
        !self.is_draining() && inner.queries.ask(Query::Probe).await.is_ok() && !self.is_draining()
    }

    /// Whether new runs are refused, since [`drain`](Self::drain) or [`shutdown`](Self::shutdown) was called.
    pub fn is_draining(&self) -> bool {
        self.inner.is_closing.load(Ordering::Relaxed)
    }

    /// Takes no new runs from now on ([`AcquireError::Draining`](crate::AcquireError::Draining)) and lets the old ones
    /// finish. Returns when the last of them has ended; bound the wait and [shut down](Self::shutdown) afterwards. What a
    /// failed acquire may have taken may still be on its way back then; the shutdown sees to it.
    /// There is no way back: start another supervisor.
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

    /// Ends the supervisor: new acquires are refused at once, every run is told `Shutdown`, and each session is
    /// released as its work ends. Work that has not ended after `grace` is dropped.
    ///
    /// Returns when all is done, at the latest after `grace`, `safety_margin/2`, twice `renew_timeout`, and 1.5 s for a
    /// pause between two releases and a database that does not answer a goodbye. A second call can only shorten the
    /// grace; once the supervisor has ended, the answer is the same again.
    ///
    /// # Cancel safety
    /// The shutdown begins when this is first polled and goes on if the future is dropped.
    pub async fn shutdown(&self, grace: Duration) -> ShutdownReport {
        let failed = || ShutdownReport { failed: true, ..ShutdownReport::default() };
        let Ok(inner) = self.inner() else { return failed() };
        let (reply, reported) = oneshot::channel();
        inner.is_closing.store(true, Ordering::Relaxed);
        inner.registry.do_send(Shutdown { grace, reply: Some(reply) });
        // An error says that the supervisor has ended before: by a shutdown, or by a failure of its own.
        let _ = reported.await;
        let host = || inner.host.lock().unwrap_or_else(PoisonError::into_inner);
        let over = host().as_ref().map(|host| host.over.clone());
        if let Some(over) = over {
            // The thread says so as its last word: joining it takes no time.
            let _ = over.await;
            let thread = host().take().map(|host| host.thread);
            let _ = thread.map(JoinHandle::join);
        }
        inner.report.get().cloned().unwrap_or_else(failed)
    }
}

impl LeaseSupervisor {
    /// What there is to ask, unless this is a fork of the process that it lives in.
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
        let has_thread = self.host.get_mut().unwrap_or_else(PoisonError::into_inner).is_some();
        // A task that blocks its thread may keep the very work from ending that is waited for.
        if has_thread && tokio::task::try_id().is_none() {
            let (released, are_released) = mpsc::channel();
            self.registry.do_send(Farewell { released });
            let _ = are_released.recv_timeout(LONGEST_FAREWELL);
        }
    }
}

/// How long the last handle waits for releases under way.
const LONGEST_FAREWELL: Duration = Duration::from_millis(500);

/// Rows removed by one statement of a sweep.
const SWEEP_BATCH: u32 = 1_000;
