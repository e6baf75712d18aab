//! What a supervisor is started with, and how: checked settings, a thread, and the actors on it.

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use actix::{Actor, AsyncContext, Context, Recipient};
use futures::{FutureExt, channel::oneshot, future::BoxFuture};
use tokio::{runtime, sync::watch, task::LocalSet, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Host, Inner, LeaseSupervisor,
    connections::{Common, Connections, Pools, bounds},
};
use crate::{
    actor::{
        hints::Hints,
        lane::{Lane, LaneSettings},
        pool::Pool,
        query::QueryWorkers,
        registry::{Links, Registry},
        run::RunLinks,
        watching::Watcher,
    },
    clock::{SharedClock, SystemClock},
    config::{Settings, Timing},
    error::StartError,
    event::{EventSender, RunEvent, forward},
    limits,
    origin::Origin,
    session::{Label, NodeId},
    store::{self, Bounds, LeaseConnection, LeaseStore, Migrated, SharedStore, StoreError},
};

/// Describes a [`LeaseSupervisor`]. All durations derive from the [`ttl`](Self::ttl) unless set; relations that
/// cannot work are refused by [`start`](Self::start).
#[must_use = "a builder does nothing until it is started"]
#[derive(Debug, Clone)]
pub struct LeaseSupervisorBuilder {
    authority: Authority,
    holder: Option<String>,
    settings: Settings,
    connect_timeout: Duration,
    connections: Connections,
    hints: bool,
    looking_only: bool,
    clock: SharedClock,
    listeners: Vec<Recipient<RunEvent>>,
    #[cfg(feature = "postgres")]
    login: Option<store::LoginSource>,
}

#[derive(Clone)]
pub(super) enum Authority {
    Url(String),
    Store(SharedStore),
}

impl LeaseSupervisorBuilder {
    pub(super) fn new(authority: Authority) -> Self {
        Self {
            authority,
            holder: None,
            settings: Settings::default(),
            connect_timeout: Duration::from_secs(5),
            connections: Connections::default(),
            hints: true,
            looking_only: false,
            clock: Arc::new(SystemClock),
            listeners: Vec::new(),
            #[cfg(feature = "postgres")]
            login: None,
        }
    }

    /// The holder's name for people: 1 to 255 bytes without NUL. Default
    /// [`user@host`](Label::user_at_host).
    pub fn holder_label(mut self, label: impl Into<String>) -> Self {
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

    /// See [`Timing::stuck_limit`]. Off by default; zero to a year, counted from when the run is stuck. What is given
    /// up this way may still act while the next run works: only a fencing token keeps them apart then.
    pub fn stuck_limit(mut self, limit: Duration) -> Self {
        self.settings.stuck_limit = Some(limit);
        self
    }

    /// How long one attempt to connect may take, at [`start`](Self::start) and later. Default 5 s.
    ///
    /// It has nothing to do with the ttl: connections are opened ahead of need, and a statement's time begins when it
    /// is sent. On a slow line connecting takes about twelve round trips, with TLS and a password.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Asks a function who logs in to PostgreSQL, for each new connection: for passwords and tokens that last for minutes,
    /// and users that come and go. The password of the URL, of PGPASSWORD and of password files then counts for nothing.
    ///
    /// ```no_run
    /// # async fn token_for(host: &str, user: &str) -> std::io::Result<String> { unimplemented!() }
    /// use tenure::{LeaseSupervisor, store::{Login, LoginRequest}};
    ///
    /// let builder = LeaseSupervisor::builder("postgres://app@db1,db2/chat?sslmode=verify-full").login(
    ///     |request: LoginRequest| async move {
    ///         token_for(&request.host, &request.user).await.map(Login::with_password)
    ///     },
    /// );
    /// ```
    ///
    /// It is called on a thread of its own with a tokio runtime, so it may do what it likes there; several calls may be
    /// under way. A new connection waits for it no longer than it may take as a whole, 3 s by default
    /// ([`Timing::renew_timeout`]): keep what is valid for some time, and renew it ahead. Open connections are not
    /// affected when it expires.
    ///
    /// An error, a panic or no answer in time is as if the server were away: runs go on at risk until their trust ends.
    /// What the error says is shown to people, so it must not hold a secret. After an error, or when the server refuses
    /// what was given, the function is not called again before a pause of at most 5 s, which all connections share.
    ///
    /// # Cancel safety
    /// When nobody waits for the connection any more, the function's future is dropped.
    #[cfg(feature = "postgres")]
    pub fn login<F, A, E>(mut self, provider: F) -> Self
    where
        F: Fn(store::LoginRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Result<store::Login, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.login = Some(store::LoginSource::new(provider));
        self
    }

    /// How many connections there are, and what shares them. Default [`Connections::PerVerb`].
    ///
    /// They are opened by [`start`](Self::start), or by the first acquire after a quiet minute. A session is granted only
    /// while those that will renew and release it are open.
    pub fn connections(mut self, connections: Connections) -> Self {
        self.connections = connections;
        self
    }

    /// Tells an actor of the host what happens to all runs of this supervisor, as messages; may be repeated for others.
    ///
    /// One message is on its way at a time. What happens while the actor is busy is kept, up to 1,024 events; then the
    /// oldest are dropped and told as [`RunEvent::Missed`]. A slow or dead actor delays nothing and nobody.
    pub fn events(mut self, recipient: Recipient<RunEvent>) -> Self {
        self.listeners.push(recipient);
        self
    }

    /// Whether requests to stop are listened for; otherwise one reaches its run with the next renewal. Default `true`.
    ///
    /// On PostgreSQL this takes one more connection while there is any session, and none is listened on behind
    /// PgBouncer (`pgbouncer=true`). On SQLite it is a look, five times a second, at whether anybody has written to the
    /// file.
    pub fn hints(mut self, hints: bool) -> Self {
        self.hints = hints;
        self
    }

    /// For a supervisor that only looks: [`inspect`](LeaseSupervisor::inspect), [`list`](LeaseSupervisor::list) and
    /// [`watch`](LeaseSupervisor::watch) work wherever the leases can be read, with a role that may only read, on a hot
    /// standby, and on a SQLite file that this user may not write. It creates nothing. Default `false`.
    ///
    /// The server that takes writes is asked wherever it can be reached. Where only another one answers, each answer
    /// names it ([`SessionStatus::standby`](crate::SessionStatus::standby)), and how old the last commit is that it
    /// knows. What writes, [`acquire`](LeaseSupervisor::acquire) above all, needs what it always needs.
    pub fn looking_only(mut self) -> Self {
        self.looking_only = true;
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
    pub async fn start(self) -> Result<LeaseSupervisor, StartError> {
        let plan = self.plan()?;
        limits::SUPERVISOR.check()?;
        let (ready, started) = oneshot::channel();
        let (last_word, over) = oneshot::channel();
        let no_thread = |error: std::io::Error| StartError::Thread(limits::no_thread(&error));
        let thread = std::thread::Builder::new()
            .name("tenure".to_owned())
            .spawn(move || {
                live(plan, ready);
                let _ = last_word.send(());
            })
            .map_err(no_thread)?;
        let ended = || StartError::Thread("it ended before it was ready".to_owned());
        let inner = started.await.map_err(|oneshot::Canceled| ended())??;
        *inner.host.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Host { over: over.shared(), thread });
        Ok(LeaseSupervisor { inner })
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
    pub async fn start_here(self) -> Result<LeaseSupervisor, StartError> {
        let plan = self.plan()?;
        let Started { inner, watcher, over, .. } = plan.start().await?;
        actix_rt::spawn(watcher.serve(over));
        Ok(LeaseSupervisor { inner: Arc::new(inner) })
    }

    fn store(&self) -> Result<SharedStore, StoreError> {
        let store = match &self.authority {
            Authority::Url(url) => store::open(url)?,
            Authority::Store(store) => store.clone(),
        };
        #[cfg(feature = "postgres")]
        if let Some(login) = self.login.clone() {
            return match &self.authority {
                Authority::Url(url) if url.trim_start().to_ascii_lowercase().starts_with("postgres") => {
                    Ok(Arc::new(store::PostgresStore::with_source(url, Some(login))?))
                }
                _ => Err(StoreError::Url {
                    detail:
                        "only a URL of PostgreSQL takes a log-in; give a store of your own its log-in with \
                             PostgresStore::with_login"
                            .to_owned(),
                }),
            };
        }
        Ok(store)
    }

    fn plan(self) -> Result<Plan, StartError> {
        let timing = self.settings.check()?;
        let store = self.store()?;
        let label = self.holder.map(Label::new).transpose()?;
        Ok(Plan {
            timing,
            label,
            store,
            clock: self.clock,
            connect_timeout: self.connect_timeout,
            connections: self.connections,
            listeners: self.listeners,
            hints: self.hints,
            looking_only: self.looking_only,
        })
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
    /// `user@host` unless given.
    label: Option<Label>,
    store: SharedStore,
    clock: SharedClock,
    connect_timeout: Duration,
    connections: Connections,
    listeners: Vec<Recipient<RunEvent>>,
    hints: bool,
    looking_only: bool,
}

/// A supervisor as it has started. The watcher is still to be served; the actors have their tasks.
struct Started {
    inner: Inner,
    watcher: Watcher,
    over: CancellationToken,
    goodbyes: TaskTracker,
}

/// All that happens on the supervisor's thread.
fn live(plan: Plan, ready: oneshot::Sender<Result<Arc<Inner>, StartError>>) {
    let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = ready.send(Err(StartError::Thread(limits::with_remedy(&error))));
            return;
        }
    };
    let actors = LocalSet::new();
    actors.block_on(&runtime, host(plan, ready));
    {
        let _entered = runtime.enter();
        drop(actors);
    }
    // A name that is being looked up blocks a thread for as long as the resolver likes.
    runtime.shutdown_background();
}

/// What the supervisor's thread does: start, say so, and drive the actors until the registry has ended.
async fn host(plan: Plan, ready: oneshot::Sender<Result<Arc<Inner>, StartError>>) {
    match plan.start().await {
        Ok(Started { inner, watcher, over, goodbyes }) => {
            let watcher = actix_rt::spawn(watcher.serve_apart(over.clone()));
            // A caller that has gone drops the only handle, which shuts the registry down.
            let _ = ready.send(Ok(Arc::new(inner)));
            over.cancelled().await;
            goodbyes.close();
            let _ = timeout(GOODBYE, goodbyes.wait()).await;
            // Its thread bounds its own goodbye.
            let _ = watcher.await;
        }
        Err(error) => {
            let _ = ready.send(Err(error));
        }
    }
}

/// How long connections may take to say goodbye at the end.
const GOODBYE: Duration = Duration::from_millis(500);

impl Plan {
    async fn start(self) -> Result<Started, StartError> {
        let Self {
            timing,
            label,
            store,
            clock,
            connect_timeout,
            connections,
            listeners,
            hints,
            looking_only,
        } = self;
        // On the supervisor's own thread: a directory of users on the network may be slow.
        let label = label.unwrap_or_else(Label::user_at_host);
        let looked_at: SharedStore =
            if looking_only { Arc::new(OnlyLooking(store.clone())) } else { store.clone() };
        let (over, goodbyes) = (CancellationToken::new(), TaskTracker::new());
        // Who fails to start, or is not awaited any more, leaves nothing behind.
        let unless_started = over.clone().drop_guard();
        let common = Common { store: store.clone(), timing, connect_timeout, goodbyes: goodbyes.clone() };
        let pools = match looking_only {
            true => common.pools_to_look(looked_at.clone()),
            false => connections.pools(&common),
        };
        pools.open(&timing, connect_timeout).await?;
        let (events, node, location) = (EventSender::new(), NodeId::random(), store.location().to_owned());
        for listener in listeners {
            actix_rt::spawn(goodbyes.track_future(forward(
                events.source().subscribe(),
                listener,
                over.clone(),
            )));
        }
        let lane = |attempt_timeout, main: &Pool, side: &Pool| LaneSettings {
            clock: clock.clone(),
            attempt_timeout,
            longest_backoff: timing.longest_backoff(),
            step_tolerance: timing.safety_margin() / 4,
            goodbyes: goodbyes.clone(),
            main: main.clone(),
            side: side.clone(),
        };
        let acquiring = lane(timing.acquire_attempt_timeout(), &pools.acquires, &pools.acquires_alone);
        let renewing = lane(timing.renew_timeout(), &pools.renewals, &pools.renewals_alone);
        let releasing = lane(timing.renew_timeout(), &pools.releases, &pools.releases_alone);
        let (queries, query_workers) = QueryWorkers::new(pools.queries.clone(), timing.query_timeout());
        actix_rt::spawn(goodbyes.track_future(query_workers.serve(over.clone())));
        let longest = timing.query_timeout().max(connect_timeout).clamp(SHORTEST_LOOK, LONGEST_LOOK);
        let looking = bounds(&timing, longest);
        let (watching, watcher) = Watcher::new(looked_at, clock.clone(), looking, events.source());
        let (is_busy, busy) = watch::channel(false);
        let means = pools.means();
        if connections == Connections::PerVerb {
            actix_rt::spawn(Pools::rest_when_idle(means.clone(), busy.clone(), over.clone()));
        }
        let report = Arc::<OnceLock<_>>::default();
        let (run_clock, schema) = (clock.clone(), store.schema_name().into());
        let registry = Registry::create(|ctx: &mut Context<Registry>| {
            let run = RunLinks {
                timing,
                clock: run_clock,
                renewals: Lane::start_with(renewing),
                releases: Lane::start_with(releasing),
                events: events.clone(),
                registry: ctx.address().recipient(),
                schema,
            };
            let acquires = Lane::start_with(acquiring);
            let links = Links {
                node,
                location: location.clone(),
                acquires,
                means,
                run,
                over: over.clone(),
                goodbyes: goodbyes.clone(),
                queries: queries.clone(),
                is_busy,
                report: report.clone(),
            };
            Registry::new(links, CancellationToken::new(), unless_started)
        });
        if hints {
            let hints = Hints {
                store,
                node,
                bounds: bounds(&timing, timing.query_timeout()),
                connect_timeout,
                patience: timing.query_timeout(),
                silence: timing.renew_interval().clamp(SHORTEST_SILENCE, LONGEST_SILENCE),
                registry: registry.clone(),
                is_busy: busy,
            };
            actix_rt::spawn(goodbyes.track_future(hints.serve(over.clone())));
        }
        let host = Mutex::new(None);
        let events = events.source();
        let is_closing = AtomicBool::new(false);
        let inner = Inner {
            registry,
            queries,
            watching,
            clock,
            events,
            timing,
            label,
            node,
            location,
            host,
            is_closing,
            report,
            origin: Origin::here(),
        };
        Ok(Started { inner, watcher, over, goodbyes })
    }
}

/// How long a server that listens may say nothing until it is asked for a sign of life.
const SHORTEST_SILENCE: Duration = Duration::from_secs(1);
const LONGEST_SILENCE: Duration = Duration::from_secs(10);

/// How long the slowest look of those who watch may take.
const SHORTEST_LOOK: Duration = Duration::from_secs(2);
const LONGEST_LOOK: Duration = Duration::from_secs(30);

/// A store whose connections are for looking.
struct OnlyLooking(SharedStore);

impl crate::store::sealed::Sealed for OnlyLooking {}

impl LeaseStore for OnlyLooking {
    fn connect(&self, bounds: Bounds) -> BoxFuture<'static, Result<Box<dyn LeaseConnection>, StoreError>> {
        self.0.connect_to_look(bounds)
    }

    fn migrate(&self) -> BoxFuture<'static, Result<Migrated, StoreError>> {
        self.0.migrate()
    }

    fn schema(&self) -> String {
        self.0.schema()
    }

    fn location(&self) -> &str {
        self.0.location()
    }

    fn remark(&self) -> Option<String> {
        self.0.remark()
    }
}
