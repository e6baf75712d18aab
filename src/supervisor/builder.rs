//! The settings of a supervisor. They are checked before anything is started.

use std::{
    fmt,
    sync::{Arc, PoisonError},
    time::Duration,
};

use actix::Recipient;
use futures::{FutureExt, channel::oneshot};

#[cfg(feature = "testing")]
use super::start::Started;
use super::{
    Host, LeaseSupervisor,
    connections::Connections,
    start::{Plan, live},
};
#[cfg(feature = "testing")]
use crate::pulse::Pulse;
use crate::{
    clock::{SharedClock, SystemClock},
    config::{Settings, check_connect_timeout},
    end::Limit,
    error::StartError,
    event::RunEvent,
    limits,
    session::Label,
    store::{self, SharedStore, StoreError},
};
/// Configures and starts a [`LeaseSupervisor`]. Most durations derive from the [`ttl`](Self::ttl) unless they are set.
/// [`start`](Self::start) refuses durations that cannot work together.
#[must_use = "a builder does nothing until it is started"]
#[derive(Debug, Clone)]
pub struct LeaseSupervisorBuilder {
    authority: Authority,
    holder: Option<String>,
    settings: Settings,
    limits: Vec<Limit>,
    limit_per_account: Option<u32>,
    connect_timeout: Duration,
    connections: Connections,
    hints: bool,
    looking_only: bool,
    lazy: bool,
    sweeping: bool,
    history_kept: Duration,
    checks_limits: bool,
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
    const DEFAULT_HISTORY_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

    pub(super) fn new(authority: Authority) -> Self {
        Self {
            authority,
            holder: None,
            settings: Settings::default(),
            limits: Vec::new(),
            limit_per_account: None,
            connect_timeout: Duration::from_secs(5),
            connections: Connections::default(),
            hints: true,
            looking_only: false,
            lazy: false,
            sweeping: true,
            history_kept: Self::DEFAULT_HISTORY_KEPT,
            checks_limits: true,
            clock: Arc::new(SystemClock),
            listeners: Vec::new(),
            #[cfg(feature = "postgres")]
            login: None,
        }
    }

    /// The holder's name for people: 1 to 255 bytes without NUL. Default: [`user@host`](Label::user_at_host).
    pub fn holder_label(mut self, label: impl Into<String>) -> Self {
        self.holder = Some(label.into());
        self
    }

    /// How long a lease is granted for: 1 s to 24 h. Default: 30 s. A request can ask for
    /// [more](crate::request::AcquireBuilder::ttl).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = Some(ttl);
        self
    }

    /// See [`Timing::safety_margin`](crate::Timing::safety_margin). Bounds: ttl/20 to ttl/2.
    pub fn safety_margin(mut self, margin: Duration) -> Self {
        self.settings.safety_margin = Some(margin);
        self
    }

    /// See [`Timing::renew_interval`](crate::Timing::renew_interval). Bounds: 20 ms to ttl/2.
    pub fn renew_interval(mut self, interval: Duration) -> Self {
        self.settings.renew_interval = Some(interval);
        self
    }

    /// See [`Timing::renew_timeout`](crate::Timing::renew_timeout). Bounds: 20 ms to ttl/4.
    pub fn renew_timeout(mut self, timeout: Duration) -> Self {
        self.settings.renew_timeout = Some(timeout);
        self
    }

    /// See [`Timing::acquire_timeout`](crate::Timing::acquire_timeout). Bounds: 20 ms to 24 h.
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.settings.acquire_timeout = Some(timeout);
        self
    }

    /// See [`Timing::stop_grace`](crate::Timing::stop_grace). It does not depend on the ttl. At most a year.
    pub fn stop_grace(mut self, grace: Duration) -> Self {
        self.settings.stop_grace = Some(grace);
        self
    }

    /// See [`Timing::stuck_limit`](crate::Timing::stuck_limit). Off by default. Zero to a year, counted from the moment
    /// when the run becomes stuck. Work that is given up this way may still act while the next run works. Only a
    /// fencing token keeps the two apart then.
    pub fn stuck_limit(mut self, limit: Duration) -> Self {
        self.settings.stuck_limit = Some(limit);
        self
    }

    /// Tells each run to stop this long after its grant, unless its request gives a
    /// [`max_duration`](crate::request::AcquireBuilder::max_duration) of its own. No limit by default.
    pub fn max_duration(mut self, duration: Duration) -> Self {
        self.limits.push(Limit::MaxDuration(duration));
        self
    }

    /// Tells each run to stop when its work has been silent for this long, unless its request gives a
    /// [`max_silence`](crate::request::AcquireBuilder::max_silence) of its own. No limit by default.
    pub fn max_silence(mut self, duration: Duration) -> Self {
        self.limits.push(Limit::MaxSilence(duration));
        self
    }

    /// The most runs of one account, for requests that give no
    /// [`limit_per_account`](crate::request::AcquireBuilder::limit_per_account) of their own. No limit by default.
    ///
    /// It is judged where the session is granted, so it holds across all processes that set it. A refusal is
    /// [`AcquireError::AccountLimit`](crate::AcquireError::AccountLimit).
    pub fn limit_per_account(mut self, limit: u32) -> Self {
        self.limit_per_account = Some(limit);
        self
    }

    /// How long one attempt to connect may take, at [`start`](Self::start) and later. Default: 5 s. From 20 ms to 24 h.
    ///
    /// It does not depend on the ttl: connections are opened before they are needed, and a statement's time begins when
    /// the statement is sent. Connecting with TLS and a password takes about twelve round trips.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets a function that returns the user and password for each new connection to PostgreSQL. Use it for passwords
    /// and tokens that are valid for minutes, and for users that come and go. The passwords in the URL, in PGPASSWORD
    /// and in password files are then ignored.
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
    /// The function is called on a thread of its own with a tokio runtime, so it delays no renewal. Several calls may
    /// be under way at once. A new connection waits for the function no longer than connecting may take as a whole, 5 s
    /// by default ([`connect_timeout`](Self::connect_timeout)). So keep a token for as long as it is valid, and fetch
    /// the next one before it expires. Open connections do not notice when a token expires.
    ///
    /// An error, a panic or no answer in time counts as an unreachable server: runs go on at risk until their trust
    /// ends. The text of the error is shown to people, so it must not contain a secret. After an error, or after the
    /// server has refused a login, the function is not called again before a pause of at most 5 s. All connections
    /// share that pause.
    ///
    /// # Cancel safety
    /// The function's future is dropped when nobody waits for the connection any more.
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

    /// How many connections there are, and which statements share them. Default: [`Connections::PerVerb`].
    ///
    /// [`start`](Self::start) opens them, unless it is [lazy](Self::lazy). So does the first acquire after a minute
    /// without a session. A session is granted only while the connections that will renew and release it are open.
    pub fn connections(mut self, connections: Connections) -> Self {
        self.connections = connections;
        self
    }

    /// Sends a message to this actor of the host application for each event of any run of this supervisor. Call this
    /// again for each further actor.
    ///
    /// One message is on its way at a time. While the actor is busy, up to 1,024 events are kept. Beyond that the
    /// oldest are dropped, and [`RunEvent::Missed`] says how many. A slow or dead actor delays nothing else.
    pub fn events(mut self, recipient: Recipient<RunEvent>) -> Self {
        self.listeners.push(recipient);
        self
    }

    /// Whether the supervisor listens for requests to stop. Without hints, a request reaches its run with the next
    /// renewal. Default: `true`.
    ///
    /// On PostgreSQL this takes one more connection while the supervisor has a session. The supervisor does not listen
    /// behind PgBouncer (`pgbouncer=true`). On SQLite the supervisor checks four times a second whether anybody has
    /// written to the file.
    pub fn hints(mut self, hints: bool) -> Self {
        self.hints = hints;
        self
    }

    /// Makes a supervisor that only looks. [`inspect`](LeaseSupervisor::inspect), [`list`](LeaseSupervisor::list) and
    /// [`watch`](LeaseSupervisor::watch) then work wherever the leases can be read: with a role that may only read, on
    /// a hot standby, and on a SQLite file that this user may not write. Nothing is created. Off by default.
    ///
    /// The supervisor asks the server that takes writes whenever it can reach it. If only a standby answers, each
    /// answer names the standby ([`SessionStatus::standby`](crate::SessionStatus::standby)) and gives the age of the
    /// last commit that the standby knows. Calls that write, like [`acquire`](LeaseSupervisor::acquire), still need the
    /// server that takes writes, and the right to write.
    pub fn looking_only(mut self) -> Self {
        self.looking_only = true;
        self
    }

    /// Whether the supervisor removes the rows of long expired leases by itself, like
    /// [`sweep`](LeaseSupervisor::sweep). Default: `true`. A supervisor that only looks never does it.
    ///
    /// Each supervisor sweeps about once an hour, at random times, the first time within its first hour. A statement
    /// reads the table and removes 1,000 rows at most, and a second passes before the next one. On PostgreSQL no two
    /// supervisors sweep in the same moment. A sweep goes through the connection for queries, so no renewal waits for
    /// it. If it fails, that is logged once, and it is tried again an hour later.
    ///
    /// Turn it off where something else calls [`sweep`](LeaseSupervisor::sweep) or `tenure sweep`, or where hundreds of
    /// supervisors share one table with very many rows.
    pub fn sweeping(mut self, sweeping: bool) -> Self {
        self.sweeping = sweeping;
        self
    }

    /// Whether [`start`](Self::start) returns without the database, for a host that may boot during an outage. Default:
    /// `false`.
    ///
    /// A lazy start returns at once. Only what needs no database can make it fail: settings, the URL, the limits of the
    /// process. The supervisor then connects in the background for as long as it takes, with pauses of at most a second.
    /// Until it has connected and all is checked that [`start`](Self::start) checks, nothing is granted:
    ///
    /// - If the database cannot be reached, or the line is too slow, an acquire waits for it as in an outage, and then
    ///   fails with [`AcquireError::NotAcquired`](crate::AcquireError::NotAcquired) and the reason.
    /// - What waiting does not mend, like [`StoreError::SchemaMissing`], is the answer at once, as
    ///   [`AcquireError::Refused`](crate::AcquireError::Refused). Once it is mended, acquires are granted.
    ///
    /// [`is_ready`](LeaseSupervisor::is_ready) tells when runs can start. Everything else works as soon as the database
    /// does.
    pub fn lazy(mut self, lazy: bool) -> Self {
        self.lazy = lazy;
        self
    }

    /// How long a run stays in the [history](LeaseSupervisor::history) after its end. A
    /// [sweep](LeaseSupervisor::sweep) then removes it. Default: 7 days.
    pub fn history_kept(mut self, kept: Duration) -> Self {
        self.history_kept = kept;
        self
    }

    /// Whether [`start`](Self::start) checks that the limits of the process leave what a supervisor needs. Default:
    /// `true`.
    ///
    /// Turn this off in a program that has just checked the supervisor's needs together with its own, by
    /// [`Need::check`](crate::limits::Need::check).
    pub fn check_limits(mut self, check: bool) -> Self {
        self.checks_limits = check;
        self
    }

    /// Sets another source of local time, for tests.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    /// Checks the settings, connects, and starts the supervisor on a thread of its own.
    ///
    /// A SQLite file that does not exist is created with its schema. A PostgreSQL database needs
    /// [`migrate`](crate::migrate) once.
    ///
    /// # Errors
    /// [`StartError`]. Nothing is left running.
    ///
    /// # Cancel safety
    /// Dropping the future ends what was started.
    pub async fn start(self) -> Result<LeaseSupervisor, StartError> {
        let checks_limits = self.checks_limits;
        let plan = self.plan()?;
        if checks_limits {
            limits::SUPERVISOR.check()?;
        }
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

    /// Like [`start`](Self::start), but on the current actix system, whose clock may be paused. For tests in virtual
    /// time on the in-memory store.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Panics
    /// Outside an actix system or a `LocalSet`.
    #[cfg(feature = "testing")]
    pub async fn start_here(self) -> Result<LeaseSupervisor, StartError> {
        let plan = self.plan()?;
        let Started { inner, watcher, over, .. } = plan.start(Pulse::of_runtime).await?;
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
        check_connect_timeout(self.connect_timeout)?;
        let store = self.store()?;
        let label = self.holder.map(Label::new).transpose()?;
        Ok(Plan {
            timing,
            limits: self.limits,
            limit_per_account: self.limit_per_account,
            label,
            store,
            clock: self.clock,
            connect_timeout: self.connect_timeout,
            connections: self.connections,
            listeners: self.listeners,
            hints: self.hints,
            looking_only: self.looking_only,
            lazy: self.lazy,
            sweeping: self.sweeping && !self.looking_only,
            history_kept: self.history_kept,
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
