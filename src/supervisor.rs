//! The handle by which a program asks for sessions, and its builder.

use std::{
    fmt,
    future::IntoFuture,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use actix::{Actor, Addr, AsyncContext, Context};
use futures::{channel::oneshot, future::BoxFuture, stream::Stream};
use tokio::time::timeout;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    actor::{
        lane::{Lane, LaneSettings},
        query::{Queries, Query, QueryLane},
        registry::{AcquireSession, Links, Registry, Shutdown, ShutdownReport},
        run::RunLinks,
    },
    clock::{SharedClock, SystemClock},
    config::{Settings, Timing},
    error::{AcquireError, Closed, QueryError, StartError},
    event::{EventSender, EventSource, RunEvent},
    run::Run,
    session::{Label, NodeId, Phase, SessionKey, SessionStatus},
    store::{self, Bounds, LeaseConnection, Page, SharedStore, StoreError},
};

/// Asks the database for sessions and looks after the runs that hold them.
///
/// A cheap clone of a handle, usable from any thread and any async runtime. The supervisor itself lives on an
/// operating-system thread of its own, with connections of its own.
///
/// Dropping the last handle cancels every run, releases what can be released, and does not wait for it: if the
/// process exits at once, the leases expire. [`shutdown`](Self::shutdown) is the clean way.
///
/// ```no_run
/// use std::time::Duration;
/// use tenure::{AcquireError, SessionKey, Supervisor};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let supervisor = Supervisor::builder("sqlite://leases.db").holder("api-3").start().await?;
/// let key = SessionKey::new("acct-1", "chat-9")?;
/// match supervisor.acquire(&key).await {
///     Ok(run) => run.scope(async |ctx| println!("working under fence {}", ctx.fence())).await?,
///     Err(AcquireError::Busy(busy)) => println!("{busy}"),
///     Err(error) => return Err(error.into()),
/// }
/// supervisor.shutdown().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Supervisor {
    inner: Arc<Inner>,
}

struct Inner {
    registry: Addr<Registry>,
    queries: Queries,
    events: EventSource,
    timing: Timing,
    label: Label,
    node: NodeId,
    location: String,
    host: Mutex<Option<Host>>,
    report: OnceLock<ShutdownReport>,
}

/// The thread that the supervisor lives on.
struct Host {
    over: oneshot::Receiver<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Supervisor {
    /// Starts to describe a supervisor on the database of this URL:
    /// `postgres://user:password@host/database` or `sqlite://path/to/file.db`.
    pub fn builder(url: impl Into<String>) -> Builder {
        Builder::new(Authority::Url(url.into()))
    }

    /// Starts to describe a supervisor on this store.
    pub fn builder_on(store: SharedStore) -> Builder {
        Builder::new(Authority::Store(store))
    }

    /// Asks for a session. The request goes out when it is awaited.
    ///
    /// # Errors
    /// See [`AcquireError`]: `Busy` is certain, `Unavailable` is not.
    ///
    /// # Cancel safety
    /// Dropping the future at any point leaves the session free: a grant that can no longer be delivered is
    /// given back, and expires within one ttl if even that fails.
    pub fn acquire(&self, key: &SessionKey) -> AcquireRequest {
        AcquireRequest {
            supervisor: self.clone(),
            key: key.clone(),
            holder: None,
            phase: None,
            max_duration: None,
        }
    }

    /// Reads who holds a session. Acquires nothing and changes nothing.
    ///
    /// # Errors
    /// [`QueryError`] when the database does not answer.
    pub async fn inspect(&self, key: &SessionKey) -> Result<SessionStatus, QueryError> {
        let holder = self.inner.queries.ask(|reply| Query::Inspect(key.clone(), reply)).await?;
        Ok(match holder {
            Some(holder) => SessionStatus::held(key.clone(), holder),
            None => SessionStatus::idle(key.clone()),
        })
    }

    /// Starts to ask for many sessions, in key order.
    pub fn list(&self) -> ListRequest {
        let page = Page { account: None, expired: false, after: None, limit: u32::MAX };
        ListRequest { supervisor: self.clone(), page }
    }

    /// Removes rows that expired at least an hour ago ([`store::SWEEP_AFTER`]); answers how many it removed.
    /// Leaving them does no harm but take room: an expired row grants nothing.
    ///
    /// # Errors
    /// [`QueryError`] when the database does not answer; some rows may have been removed.
    pub async fn sweep(&self) -> Result<u64, QueryError> {
        let mut removed = 0;
        loop {
            let some = self.inner.queries.ask(|reply| Query::Sweep(SWEEP_BATCH, reply)).await?;
            removed += some;
            if some < u64::from(SWEEP_BATCH) {
                return Ok(removed);
            }
        }
    }

    /// What happens to the runs of this supervisor from now on. Ends when the supervisor does.
    ///
    /// A slow listener delays nothing; it misses events, and is told how many.
    pub fn events(&self) -> impl Stream<Item = RunEvent> + Send + Unpin + 'static {
        self.inner.events.subscribe()
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

    /// Ends the supervisor: new acquires are refused at once, every run is told `Shutdown`, and each session is
    /// released as its work ends. Returns when all is done, or after `stop_grace` and the time of two releases.
    /// Once it has ended, the answer is the same again.
    ///
    /// # Cancel safety
    /// The shutdown begins when this is first polled and goes on if the future is dropped.
    pub async fn shutdown(&self) -> ShutdownReport {
        let (reply, report) = oneshot::channel();
        self.inner.registry.do_send(Shutdown { reply: Some(reply) });
        // No report from a supervisor that has ended before: by a shutdown, or by a failure of its own.
        let report = report.await.ok();
        let report = report.map(|report| self.inner.report.get_or_init(|| report));
        let report = report.or_else(|| self.inner.report.get()).cloned();
        let host = self.inner.host.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Host { over, thread }) = host {
            // The thread says so as its last word: joining it takes no time.
            let _ = over.await;
            let _ = thread.join();
        }
        report.unwrap_or(ShutdownReport { left: Vec::new(), failed: true })
    }
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor")
            .field("node", &self.inner.node)
            .field("location", &self.inner.location)
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.registry.do_send(Shutdown { reply: None });
    }
}

/// Rows removed by one statement of a sweep.
const SWEEP_BATCH: u32 = 1_000;

/// A request for a session; await it.
#[must_use = "a request does nothing until it is awaited"]
#[derive(Debug, Clone)]
pub struct AcquireRequest {
    supervisor: Supervisor,
    key: SessionKey,
    holder: Option<String>,
    phase: Option<String>,
    max_duration: Option<Duration>,
}

impl AcquireRequest {
    /// The holder's name for people, instead of the supervisor's: 1 to 255 bytes without NUL.
    pub fn holder(mut self, label: impl Into<String>) -> Self {
        self.holder = Some(label.into());
        self
    }

    /// What the run does first, for people: at most 64 bytes without NUL. Empty by default.
    pub fn phase(mut self, phase: impl Into<String>) -> Self {
        self.phase = Some(phase.into());
        self
    }

    /// The run is told to stop (`TimedOut`) this long after its grant, time in suspend included. Without a limit by
    /// default.
    pub fn max_duration(mut self, duration: Duration) -> Self {
        self.max_duration = Some(duration);
        self
    }

    async fn send(self) -> Result<Run, AcquireError> {
        let inner = &self.supervisor.inner;
        let label = self.holder.map(Label::new).transpose()?.unwrap_or_else(|| inner.label.clone());
        let phase = self.phase.map(Phase::new).transpose()?.unwrap_or_default();
        let (reply, answer) = oneshot::channel();
        let abandoned = CancellationToken::new();
        let waiting = abandoned.clone().drop_guard();
        let (key, max_duration) = (self.key, self.max_duration);
        inner.registry.do_send(AcquireSession {
            key,
            label,
            phase,
            max_duration,
            deadline: None,
            abandoned,
            reply,
        });
        let answer = answer.await.unwrap_or(Err(AcquireError::Closed(Closed)));
        waiting.disarm();
        answer
    }
}

impl IntoFuture for AcquireRequest {
    type Output = Result<Run, AcquireError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// A request for many sessions; await it.
#[must_use = "a request does nothing until it is awaited"]
#[derive(Debug, Clone)]
pub struct ListRequest {
    supervisor: Supervisor,
    page: Page,
}

impl ListRequest {
    /// Only the sessions of this account.
    pub fn account(mut self, account: impl Into<String>) -> Self {
        self.page.account = Some(account.into());
        self
    }

    /// Sessions whose lease has expired too.
    pub fn include_expired(mut self) -> Self {
        self.page.expired = true;
        self
    }

    /// Only sessions after this one, in byte order of account, then session.
    pub fn after(mut self, key: &SessionKey) -> Self {
        self.page.after = Some(key.clone());
        self
    }

    /// At most this many; all by default.
    pub fn limit(mut self, limit: u32) -> Self {
        self.page.limit = limit;
        self
    }

    /// One statement never reads more than a page, so that a long list holds no connection for long.
    async fn read(self) -> Result<Vec<SessionStatus>, QueryError> {
        const PAGE: u32 = 1_000;
        let (mut found, mut left, mut after) = (Vec::new(), self.page.limit, self.page.after.clone());
        while left > 0 {
            let page = Page { limit: left.min(PAGE), after, ..self.page.clone() };
            let asked = page.limit;
            let rows = self.supervisor.inner.queries.ask(|reply| Query::List(page, reply)).await?;
            let got = u32::try_from(rows.len()).unwrap_or(u32::MAX);
            found.extend(rows.into_iter().map(|(key, holder)| SessionStatus::held(key, holder)));
            after = found.last().map(|status| status.key.clone());
            left -= got.min(left);
            if got < asked {
                break;
            }
        }
        Ok(found)
    }
}

impl IntoFuture for ListRequest {
    type Output = Result<Vec<SessionStatus>, QueryError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.read())
    }
}

/// Describes a [`Supervisor`]. All durations derive from the [`ttl`](Self::ttl) unless set; relations that
/// cannot work are refused by [`start`](Self::start).
#[must_use = "a builder does nothing until it is started"]
#[derive(Debug, Clone)]
pub struct Builder {
    authority: Authority,
    holder: Option<String>,
    settings: Settings,
    connect_timeout: Duration,
    clock: SharedClock,
}

#[derive(Clone)]
enum Authority {
    Url(String),
    Store(SharedStore),
}

impl Builder {
    fn new(authority: Authority) -> Self {
        Self {
            authority,
            holder: None,
            settings: Settings::default(),
            connect_timeout: Duration::from_secs(5),
            clock: Arc::new(SystemClock),
        }
    }

    /// The holder's name for people: 1 to 255 bytes without NUL. Default `pid <process id>`.
    pub fn holder(mut self, label: impl Into<String>) -> Self {
        self.holder = Some(label.into());
        self
    }

    /// The granted length of a lease: 1 s to 24 h. Default 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = Some(ttl);
        self
    }

    /// See [`Timing::safety_margin`]. Bounds: ttl/20 to ttl/2.
    pub fn safety_margin(mut self, margin: Duration) -> Self {
        self.settings.safety_margin = Some(margin);
        self
    }

    /// See [`Timing::renew_interval`]. Bounds: 20 ms to ttl/2.
    pub fn renew_interval(mut self, interval: Duration) -> Self {
        self.settings.renew_interval = Some(interval);
        self
    }

    /// See [`Timing::renew_timeout`]. Bounds: 20 ms to ttl/4.
    pub fn renew_timeout(mut self, timeout: Duration) -> Self {
        self.settings.renew_timeout = Some(timeout);
        self
    }

    /// See [`Timing::acquire_timeout`]. 20 ms to 24 h.
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.settings.acquire_timeout = Some(timeout);
        self
    }

    /// See [`Timing::stop_grace`]. It has nothing to do with the ttl; at most a year.
    pub fn stop_grace(mut self, grace: Duration) -> Self {
        self.settings.stop_grace = Some(grace);
        self
    }

    /// How long [`start`](Self::start) waits for the database. Default 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Another source of local time, for tests.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    /// Checks the settings, connects, and starts the supervisor on a thread of its own.
    ///
    /// A SQLite file that does not exist is created, with its schema; a PostgreSQL database needs
    /// [`migrate`](crate::migrate) once.
    ///
    /// # Errors
    /// [`StartError`]; nothing was started.
    ///
    /// # Cancel safety
    /// Dropping the future ends what was started.
    pub async fn start(self) -> Result<Supervisor, StartError> {
        let plan = self.plan()?;
        let (ready, started) = oneshot::channel();
        let (last_word, over) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("tenure".to_owned())
            .spawn(move || {
                actix_rt::System::new().block_on(host(plan, ready));
                let _ = last_word.send(());
            })
            .map_err(|error| StartError::Thread(error.to_string()))?;
        let ended = || StartError::Thread("it ended before it was ready".to_owned());
        let inner = started.await.map_err(|oneshot::Canceled| ended())??;
        *inner.host.lock().unwrap_or_else(PoisonError::into_inner) = Some(Host { over, thread });
        Ok(Supervisor { inner })
    }

    /// Like [`start`](Self::start), but on the current actix system, whose clock may be paused: for tests in
    /// virtual time on the in-memory store.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Panics
    /// Outside an actix system or a `LocalSet`.
    #[cfg(feature = "testing")]
    pub async fn start_here(self) -> Result<Supervisor, StartError> {
        let plan = self.plan()?;
        let (inner, _over, _connections) = plan.start().await?;
        Ok(Supervisor { inner: Arc::new(inner) })
    }

    fn plan(self) -> Result<Plan, StartError> {
        let timing = self.settings.check()?;
        let label = self.holder.unwrap_or_else(|| format!("pid {}", std::process::id()));
        let store = match self.authority {
            Authority::Url(url) => store::open(&url)?,
            Authority::Store(store) => store,
        };
        let (label, connect_timeout) = (Label::new(label)?, self.connect_timeout);
        Ok(Plan { timing, label, store, clock: self.clock, connect_timeout })
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The URL may carry a password.
            Self::Url(_) => f.write_str("Url(..)"),
            Self::Store(store) => store.fmt(f),
        }
    }
}

/// A checked description of a supervisor, on its way to the thread it will live on.
struct Plan {
    timing: Timing,
    label: Label,
    store: SharedStore,
    clock: SharedClock,
    connect_timeout: Duration,
}

/// What the supervisor's thread does: start, say so, and drive the actors until the registry has ended.
async fn host(plan: Plan, ready: oneshot::Sender<Result<Arc<Inner>, StartError>>) {
    match plan.start().await {
        Ok((inner, over, connections)) => {
            // A caller that has gone drops the only handle, which shuts the registry down.
            let _ = ready.send(Ok(Arc::new(inner)));
            over.cancelled().await;
            connections.close();
            let _ = timeout(GOODBYE, connections.wait()).await;
        }
        Err(error) => {
            let _ = ready.send(Err(error));
        }
    }
}

/// How long connections may take to say goodbye at the end.
const GOODBYE: Duration = Duration::from_millis(500);

impl Plan {
    async fn start(self) -> Result<(Inner, CancellationToken, TaskTracker), StartError> {
        let Self { timing, label, store, clock, connect_timeout } = self;
        let querying = bounds(&timing, timing.query_timeout());
        let connection = first_connection(&store, querying, connect_timeout).await?;
        let (events, node, location) = (EventSender::new(), NodeId::random(), store.location().to_owned());
        let (over, connections) = (CancellationToken::new(), TaskTracker::new());
        let lane = LaneSettings {
            store: store.clone(),
            clock: clock.clone(),
            attempt_timeout: timing.renew_timeout(),
            bounds: bounds(&timing, timing.renew_timeout()),
            longest_backoff: timing.longest_backoff(),
            step_tolerance: timing.safety_margin() / 4,
            connections: connections.clone(),
        };
        let attempt_timeout = timing.acquire_attempt_timeout();
        let acquiring =
            LaneSettings { attempt_timeout, bounds: bounds(&timing, attempt_timeout), ..lane.clone() };
        let (queries, query_lane) = QueryLane::new(store, querying, timing.query_timeout(), connection);
        actix_rt::spawn(connections.track_future(query_lane.serve(over.clone())));
        let registry = Registry::create(|ctx: &mut Context<Registry>| {
            let run = RunLinks {
                timing,
                clock,
                renewals: Lane::start_with(lane.clone()),
                releases: Lane::start_with(lane.clone()),
                events: events.clone(),
                registry: ctx.address().recipient(),
            };
            let acquires = Lane::start_with(acquiring);
            let links = Links { node, location: location.clone(), acquires, run };
            Registry::new(links, CancellationToken::new(), over.clone().drop_guard())
        });
        let host = Mutex::new(None);
        let events = events.source();
        let report = OnceLock::new();
        let inner = Inner { registry, queries, events, timing, label, node, location, host, report };
        Ok((inner, over, connections))
    }
}

/// What the server may take for one statement; the client's own time-outs come besides.
fn bounds(timing: &Timing, statement: Duration) -> Bounds {
    Bounds { statement, lock: timing.lock_timeout().min(statement / 2) }
}

async fn first_connection(
    store: &SharedStore,
    bounds: Bounds,
    within: Duration,
) -> Result<Box<dyn LeaseConnection>, StoreError> {
    timeout(within, store.connect(bounds)).await.unwrap_or_else(|_elapsed| {
        let detail = format!("no answer within {within:?}");
        Err(StoreError::Unavailable { location: store.location().to_owned(), detail })
    })
}
