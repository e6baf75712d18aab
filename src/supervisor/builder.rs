//! What a supervisor is started with, checked before anything is started.

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
use crate::{actor::registry::TICK, pulse::Pulse};
use crate::{
    clock::{SharedClock, SystemClock},
    config::Settings,
    error::StartError,
    event::RunEvent,
    limits,
    session::Label,
    store::{self, SharedStore, StoreError},
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
    pub(super) fn new(authority: Authority) -> Self {
        Self {
            authority,
            holder: None,
            settings: Settings::default(),
            connect_timeout: Duration::from_secs(5),
            connections: Connections::default(),
            hints: true,
            looking_only: false,
            checks_limits: true,
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

    /// See [`Timing::acquire_timeout`](crate::Timing::acquire_timeout). 20 ms to 24 h.
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.settings.acquire_timeout = Some(timeout);
        self
    }

    /// See [`Timing::stop_grace`](crate::Timing::stop_grace). It has nothing to do with the ttl; at most a year.
    pub fn stop_grace(mut self, grace: Duration) -> Self {
        self.settings.stop_grace = Some(grace);
        self
    }

    /// See [`Timing::stuck_limit`](crate::Timing::stuck_limit). Off by default; zero to a year, counted from when the run is stuck. What is given
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
    /// ([`Timing::renew_timeout`](crate::Timing::renew_timeout)): keep what is valid for some time, and renew it ahead. Open connections are not
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
    /// PgBouncer (`pgbouncer=true`). On SQLite it is a look, four times a second, at whether anybody has written to the
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

    /// Whether [`start`](Self::start) tries whether the limits of the process leave what a supervisor needs. Default
    /// `true`. For a program that has just tried it together with its own needs, by
    /// [`Need::check`](crate::limits::Need::check).
    pub fn check_limits(mut self, check: bool) -> Self {
        self.checks_limits = check;
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
        let Started { inner, watcher, over, .. } = plan.start(Pulse::of_runtime(TICK)).await?;
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
