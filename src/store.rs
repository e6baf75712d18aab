//! The lease store: the protocol between a run and the database, verb by verb.
//!
//! This page is the contract. One conformance suite (`tests/conformance.rs`) checks it on every backend:
#![cfg_attr(feature = "postgres", doc = "[`PostgresStore`],")]
#![cfg_attr(feature = "sqlite", doc = "[`SqliteStore`],")]
#![cfg_attr(feature = "testing", doc = "[`MemoryStore`].")]
//! Most users never name this module: [`LeaseSupervisor::builder`](crate::LeaseSupervisor::builder) picks the store
//! from a URL.
//!
//! # The row
//!
//! A session that is held has one row: its key, the run, its fence, node, label, stage, phase, when it was
//! acquired, when it expires, and a request to stop if one was made. A session without a row is idle. A row
//! whose `expires_at` is not after the database's clock is *expired*: it grants nothing, and the next acquire
//! takes it over.
//!
//! # What every verb promises
//!
//! - **The database's clock judges.** It is read in the statement, per row and after that row's lock. No local
//!   time is ever sent as an instant.
//! - **One outcome per item, in the order of the items.** An item's outcome never depends on its neighbours.
//!   Keys are unique within one call; the caller sees to that.
//! - **A certain answer is an outcome, uncertainty is an error.** When a call fails with
//!   [`StoreError::Unavailable`], some or all of it may have happened, or may still happen.
//! - **No waiting behind a stranger.** A row that somebody else has locked is the outcome `Locked`: nothing
//!   was changed, try again.
//! - **Every write names its run** (invariant I4). Nothing changes a row of another run, but an acquire of an expired one.
//! - Each statement is its own transaction. Dropping the future of a call half-way leaves the connection
//!   unusable, and the call's effect unknown: drop the connection with it.
//!
//! # The verbs
//!
//! **acquire** grants a session that is idle or expired, or already held by the same run. A *refusal*
//! ([`AcquireOutcome::Busy`]) locks nothing, writes nothing and names the holder. The fence of a grant is
//! strictly greater than that of any earlier grant of the session, whatever happened to the row in between
//! (invariant I8). A lease that has expired and is [pinned](crate::pin) by its run is refused, too. Repeated under the
//! same run id, an acquire gives the same fence, keeps `acquired_at`,
//! phase, stage and stop request, and sets `expires_at = greatest(expires_at, clock + ttl)`.
//!
//! **renew** requires that the row is of this run and that `expires_at − safety_margin > clock`, and then sets
//! `expires_at = greatest(expires_at, clock + ttl)`. It can neither revive an expired lease nor extend one
//! inside its margin (invariant I5). It reports a request to stop from the row version that it wrote.
//!
//! **request_stop** chooses the run that holds the session (or the one that is named, if it does) and records the
//! request in its row by its run id, with the expiry checked again under the row's lock: a run that holds the session
//! later is never hit. The first request is kept. Where the holder [listens](LeaseStore::listen), it is sent a hint
//! in the same commit; its next renewal carries the request all the same.
//!
//! It may also carry a new phase. A database that rejects the statement, which may be for the phase, is asked to renew
//! without it: what is for people costs no lease (invariant I12).
//!
//! **release** deletes the row of this run. No such row is an outcome, not an error.
//!
//! **sweep** deletes rows that expired at least [`SWEEP_AFTER`] ago, a bounded number per call, and checks
//! again under each row's lock.
//!
//! **inspect** and **list** read, and change nothing; **probe** tells whether the others could be answered now. A server
//! that takes no writes is not believed in what it shows: it may be a primary that was demoted, and told nothing since.
//! Who only looks may ask it all the same, by [`connect_to_look`](LeaseStore::connect_to_look), and is told whom he has asked.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;

use crate::{
    session::{
        FencingToken, Holder, Label, NodeId, Phase, Reason, Requester, RunId, SessionKey, Stage, StopRequest,
    },
    watch::Standby,
};

mod hints;
#[cfg(feature = "testing")]
pub mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use hints::{Hint, Listener};
#[cfg(feature = "testing")]
pub use memory::MemoryStore;
#[cfg(feature = "postgres")]
pub(crate) use postgres::LoginSource;
#[cfg(feature = "postgres")]
pub use postgres::{Login, LoginRequest, PostgresStore};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;

/// A row is swept no earlier than this long after it expired: late enough for people to still see what
/// happened, and for any step back of the clock that an operator would make.
pub const SWEEP_AFTER: Duration = Duration::from_secs(3600);

/// The most items a caller should hand over in one call: with more, PostgreSQL once chose a plan that took
/// seconds.
pub const MAX_BATCH: usize = 500;

/// The store that a URL names, by its scheme.
///
/// White space around it does not count.
///
/// # Errors
/// [`StoreError::Url`] when no enabled backend knows the URL, when it is empty, or has a control character in it.
pub fn open(url: &str) -> Result<SharedStore, StoreError> {
    let url = checked(url)?;
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match scheme.to_ascii_lowercase().as_str() {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Arc::new(PostgresStore::new(url)?)),
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Arc::new(SqliteStore::new(url)?)),
        #[cfg(feature = "sqlite")]
        _ if is_path(url) => Err(StoreError::Url {
            detail: format!("it does not begin with a scheme; for a file, write sqlite://{url}"),
        }),
        _ => Err(StoreError::Url { detail: unknown_scheme(scheme) }),
    }
}

/// What every backend asks of a URL, before it reads it: a line break that came with a secret must neither name
/// another database nor be sent to one.
pub(crate) fn checked(url: &str) -> Result<&str, StoreError> {
    let url = url.trim_matches(|char: char| char.is_ascii_whitespace() || char == '\u{b}');
    let refused = |detail: &str| Err(StoreError::Url { detail: detail.to_owned() });
    match url {
        "" => refused("it is empty; name a database, or leave the setting or the variable out"),
        _ if url.contains(char::is_control) => {
            refused("it has a line break or another control character in it; remove that")
        }
        _ => Ok(url),
    }
}

/// Whether it is the bare path of a file, and nothing with a password in it.
#[cfg(feature = "sqlite")]
fn is_path(url: &str) -> bool {
    url.contains(['/', '.']) && !url.contains([':', '@', '=', '?', '%', ' '])
}

fn unknown_scheme(scheme: &str) -> String {
    let enabled: &[&str] = &[
        #[cfg(feature = "postgres")]
        "postgres://user@host/database",
        #[cfg(feature = "sqlite")]
        "sqlite://path/to/file.db",
    ];
    let enabled = enabled.join(" or ");
    // What is no scheme may be a part of a password.
    match scheme.chars().all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char)) {
        true => format!("{scheme:?} is not a scheme of an enabled backend; use {enabled}"),
        false => format!("it does not begin with a scheme; use {enabled}"),
    }
}

/// Opens connections to one database.
pub trait LeaseStore: Send + Sync + 'static {
    /// Opens a connection and checks that its server accepts writes, that its schema fits this release, and that no
    /// lease is hidden from this user.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when there is no answer, a typed error when the answer is no.
    ///
    /// # Cancel safety
    /// Dropping the future gives the connection up; nothing was changed.
    fn connect(&self, bounds: Bounds) -> BoxFuture<'static, Result<Box<dyn LeaseConnection>, StoreError>>;

    /// Opens a connection that is only to inspect and to list: to the server that takes writes, as
    /// [`connect`](Self::connect) does, where it can be had; else to one that does not, whose answers then say so by
    /// [`LeaseConnection::standby`]. It creates nothing, and needs no right but to read.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    fn connect_to_look(
        &self,
        bounds: Bounds,
    ) -> BoxFuture<'static, Result<Box<dyn LeaseConnection>, StoreError>> {
        self.connect(bounds)
    }

    /// Brings the schema up to this release, once, however many processes try at the same time.
    ///
    /// # Errors
    /// [`StoreError::SchemaTooNew`] when a later release has changed the schema in a way this one cannot
    /// work with; otherwise as [`connect`](Self::connect).
    fn migrate(&self) -> BoxFuture<'static, Result<Migrated, StoreError>>;

    /// Begins to listen for requests to stop runs of this node, over a connection of its own. `None`: this database
    /// has no hints to give, and a request reaches its run with the next renewal.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    fn listen(&self, node: NodeId, bounds: Bounds) -> Option<Listening> {
        let _ = (node, bounds);
        None
    }

    /// Which of several servers was found to work last, as [`LeaseConnection::server`] numbers them. A connection to
    /// another one is not used any more. `None` where it does not matter.
    fn server_in_use(&self) -> Option<usize> {
        None
    }

    /// The statements by which [`migrate`](Self::migrate) sets up an empty database, as a script for people who
    /// apply such things by hand.
    fn schema(&self) -> String;

    /// The schema in which the leases are, for those who [pin](crate::pin) them; a database that has none ignores it.
    fn schema_name(&self) -> &str {
        "tenure"
    }

    /// Where the database is, for people: never with a password.
    fn location(&self) -> &str;

    /// What of the URL is not acted on, though it is safe to go on without: for people, `None` where there is nothing.
    fn remark(&self) -> Option<String> {
        None
    }
}

impl fmt::Debug for dyn LeaseStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseStore({})", self.location())
    }
}

/// A [`Listener`] on its way: what [`LeaseStore::listen`] gives.
pub type Listening = BoxFuture<'static, Result<Box<dyn Listener>, StoreError>>;

/// A shared [`LeaseStore`].
pub type SharedStore = Arc<dyn LeaseStore>;

/// One connection. See the [module](self) for what each verb promises.
pub trait LeaseConnection: Send {
    /// Grants, refuses, or meets a locked row.
    fn acquire<'a>(
        &'a mut self,
        items: &'a [Acquire],
    ) -> BoxFuture<'a, Result<Vec<AcquireOutcome>, StoreError>>;

    /// Extends leases.
    fn renew<'a>(&'a mut self, items: &'a [Renew]) -> BoxFuture<'a, Result<Vec<RenewOutcome>, StoreError>>;

    /// Gives leases back.
    fn release<'a>(
        &'a mut self,
        items: &'a [Release],
    ) -> BoxFuture<'a, Result<Vec<ReleaseOutcome>, StoreError>>;

    /// Asks the run that holds a session to stop.
    fn request_stop<'a>(&'a mut self, item: &'a StopRun) -> BoxFuture<'a, Result<StopOutcome, StoreError>>;

    /// Reads the rows of these sessions, expired ones included; `None` where there is none.
    fn inspect<'a>(
        &'a mut self,
        keys: &'a [SessionKey],
    ) -> BoxFuture<'a, Result<Vec<Option<Holder>>, StoreError>>;

    /// Reads rows in key order (byte order of account, then of session).
    fn list<'a>(&'a mut self, page: &'a Page)
    -> BoxFuture<'a, Result<Vec<(SessionKey, Holder)>, StoreError>>;

    /// Who gave the last answer to inspect or list, if it was not the server that takes writes. Always `None` on a
    /// connection that was opened by [`LeaseStore::connect`].
    fn standby(&self) -> Option<Standby> {
        None
    }

    /// Deletes at most `limit` rows that expired at least [`SWEEP_AFTER`] ago; answers how many it deleted.
    fn sweep(&mut self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// Checks again what [`LeaseStore::connect`] has: that the server accepts writes and the schema fits.
    fn probe(&mut self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Makes ready for these kinds of statements, so that the first one takes no longer than those after it.
    fn prepare<'a>(&'a mut self, verbs: &'a [VerbKind]) -> BoxFuture<'a, Result<(), StoreError>> {
        let _ = verbs;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Asks the server for a sign of life, in one round trip. A database without a server has none to give.
    fn ping(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The number of its server among those of the store.
    fn server(&self) -> usize {
        0
    }

    /// Says goodbye to the server.
    fn close(self: Box<Self>) -> BoxFuture<'static, ()>;
}

/// A kind of statement that a lease needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerbKind {
    /// See [`LeaseConnection::acquire`].
    Acquire,
    /// See [`LeaseConnection::renew`].
    Renew,
    /// See [`LeaseConnection::release`].
    Release,
}

/// How long the *server* may work on one statement of a connection. The client's own time-out comes besides,
/// because a server that is gone enforces nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// For a whole statement. On SQLite there is no such thing, only the wait for the one writer.
    pub statement: Duration,
    /// For one lock within a statement; on SQLite, for the database's single write lock.
    pub lock: Duration,
}

/// What [`LeaseStore::migrate`] found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migrated {
    /// The schema's version before; zero when there was none.
    pub from: u32,
    /// The schema's version now.
    pub to: u32,
}

impl Migrated {
    /// From one version to another.
    pub fn new(from: u32, to: u32) -> Self {
        Self { from, to }
    }
}

/// A request for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acquire {
    /// Which session.
    pub key: SessionKey,
    /// For which run.
    pub run_id: RunId,
    /// Under which supervisor.
    pub node: NodeId,
    /// The holder's name for people.
    pub label: Label,
    /// What the run does first.
    pub phase: Phase,
    /// The granted length; whole milliseconds, the rest is cut off.
    pub ttl: Duration,
}

/// The answer to one [`Acquire`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// The session is this run's.
    Granted(Grant),
    /// A live lease of another run holds it, or a transaction of that run still [pins](crate::pin) one that has expired:
    /// certainly nothing was acquired.
    Busy(Box<Holder>),
    /// The row is locked by somebody, or a race went on: certainly nothing was acquired, ask again.
    Locked,
}

/// A granted lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The run's fencing token.
    pub fence: FencingToken,
    /// `expires_at − clock`, both read in the statement that granted or later.
    pub remaining: Duration,
    /// When the run first acquired the session: microseconds since 1970 by the database's clock.
    pub acquired_at_micros: i64,
    /// When the lease expires: microseconds since 1970 by the database's clock.
    pub expires_at_micros: i64,
    /// A stop that was requested before this (repeated) acquire.
    pub stop: Option<StopRequest>,
}

/// A request to extend a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renew {
    /// Which session.
    pub key: SessionKey,
    /// Of which run.
    pub run_id: RunId,
    /// The length from now; whole milliseconds.
    pub ttl: Duration,
    /// How long before expiry a renewal is refused; whole milliseconds.
    pub safety_margin: Duration,
    /// How the run stands.
    pub stage: Stage,
    /// A new phase, or `None` to leave it.
    pub phase: Option<Phase>,
}

/// The answer to one [`Renew`]. A loss comes with the database's clock, in microseconds since 1970: a clock that was
/// stepped may be its cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenewOutcome {
    /// The lease was extended.
    Renewed(Renewed),
    /// The row is of another run.
    Superseded {
        /// The database's clock.
        clock_micros: i64,
    },
    /// The lease has expired or is inside its safety margin. It will never be renewed again.
    Expired {
        /// The database's clock.
        clock_micros: i64,
    },
    /// There is no row: somebody deleted it.
    Gone {
        /// The database's clock.
        clock_micros: i64,
    },
    /// The row is locked by somebody: nothing is known yet, ask again.
    Locked,
}

impl RenewOutcome {
    /// The database's clock when it decided: microseconds since 1970.
    pub fn clock_micros(&self) -> Option<i64> {
        match self {
            Self::Renewed(Renewed { clock_micros, .. })
            | Self::Superseded { clock_micros }
            | Self::Expired { clock_micros }
            | Self::Gone { clock_micros } => Some(*clock_micros),
            Self::Locked => None,
        }
    }
}

/// An extended lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewed {
    /// `expires_at − clock`, both read in the statement.
    pub remaining: Duration,
    /// The database's clock: microseconds since 1970.
    pub clock_micros: i64,
    /// A request to stop this run.
    pub stop: Option<StopRequest>,
}

/// A request to give a lease back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// Which session.
    pub key: SessionKey,
    /// Of which run.
    pub run_id: RunId,
}

/// The answer to one [`Release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The row was deleted.
    Released,
    /// No row of this run: it was released, taken over or swept before, or its acquire has not arrived yet.
    NotFound,
    /// The row is pinned or locked by somebody: ask again.
    Locked,
}

/// A request that a run stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopRun {
    /// Which session.
    pub key: SessionKey,
    /// Only this run; whoever holds the session when `None`.
    pub run_id: Option<RunId>,
    /// Who asks, for people.
    pub by: Option<Requester>,
    /// Why, for people.
    pub reason: Option<Reason>,
}

/// The answer to one [`StopRun`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopOutcome {
    /// The row of this run carries a request to stop.
    Asked {
        /// Who was asked. Its `stop` is the request that stands.
        holder: Box<Holder>,
        /// Whether that is this one; if not, somebody had asked before, and nothing was changed.
        first: bool,
    },
    /// No live lease, or none of the run that was named: certainly nobody was asked.
    Idle,
    /// The row of this run, which held the session, is locked by somebody: certainly nothing was changed. Name the
    /// run when asking again, so that no other is hit.
    Locked(RunId),
}

/// Which rows [`LeaseConnection::list`] reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Only this account's.
    pub account: Option<String>,
    /// Expired rows too.
    pub expired: bool,
    /// Only keys after this one.
    pub after: Option<SessionKey>,
    /// At most this many.
    pub limit: u32,
}

/// Why a database did not do what it was asked.
///
/// No message contains a password or a whole URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer, or not a usable one: time-out, broken connection, restarting or read-only server, full disk.
    /// What was asked may have happened all the same. Trying again may help.
    #[error("the database {location} is unavailable: {detail}")]
    Unavailable {
        /// Which database.
        location: String,
        /// What went wrong.
        detail: String,
    },
    /// The server rolled the statement back for the sake of other transactions (a deadlock, a lock it waited
    /// for too long, a serialization failure). Certainly nothing happened; trying again helps.
    #[error("the database {location} rolled the statement back: {detail}")]
    RolledBack {
        /// Which database.
        location: String,
        /// What the server said.
        detail: String,
    },
    /// The server refused this statement for what was in it. Certainly nothing happened; trying the same
    /// again does not help.
    #[error("the database {location} rejected the statement: {detail}")]
    Rejected {
        /// Which database.
        location: String,
        /// What the server said.
        detail: String,
    },
    /// The database's encoding lacks a character of a session's key (or of an account to list). Certainly nothing
    /// happened, and no such session can be held there. Texts for people never lead to this: they are stored with what
    /// is lacking escaped, as `\u{65e5}`.
    #[error("the database {location} cannot store this name: {detail}")]
    Unstorable {
        /// Which database.
        location: String,
        /// What the server said, and the remedy.
        detail: String,
    },
    /// The database that granted leases is not the one that rules now, or has lost what it had committed. Certainly
    /// nothing happened, and whoever asks elsewhere may be granted a session that was held here.
    #[error("the database {location} is not what it was: {detail}")]
    Lost {
        /// Which database.
        location: String,
        /// What became of it, and the remedy.
        detail: String,
    },
    /// The schema is not there, or is older than this release needs.
    #[error(
        "the database {location} has no usable tenure schema ({detail}); apply it with `tenure migrate` or \
         `tenure::migrate(url)`"
    )]
    SchemaMissing {
        /// Which database.
        location: String,
        /// What is missing.
        detail: String,
    },
    /// A later release has changed the schema in a way that this release cannot work with.
    #[error(
        "the database {location} has tenure schema version {found}, which needs at least schema support \
         {compatible_from}; this release knows version {known}: upgrade tenure"
    )]
    SchemaTooNew {
        /// Which database.
        location: String,
        /// The schema's version.
        found: u32,
        /// The oldest schema version whose releases still work with it.
        compatible_from: u32,
        /// The newest schema version this release knows.
        known: u32,
    },
    /// The database's user may not do this, or the file may not be written.
    #[error("the database {location} refused permission: {detail}")]
    PermissionDenied {
        /// Which database.
        location: String,
        /// What was refused, and the remedy where it is known.
        detail: String,
    },
    /// The URL, or what it names, is not a database that this release can use.
    #[error("unusable database URL: {detail}")]
    Url {
        /// What is wrong with it, and the remedy.
        detail: String,
    },
}

/// The same renewals without what they tell people; `None` if they tell nothing.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn untold(items: &[Renew]) -> Option<Vec<Renew>> {
    let untold = |item: &Renew| Renew { phase: None, ..item.clone() };
    items.iter().any(|item| item.phase.is_some()).then(|| items.iter().map(untold).collect())
}

impl StoreError {
    /// No answer came in the time there was.
    pub(crate) fn silent(location: &str, within: Duration) -> Self {
        Self::Unavailable { location: location.to_owned(), detail: format!("no answer within {within:?}") }
    }

    pub(crate) fn panicked(location: &str) -> Self {
        Self::Unavailable { location: location.to_owned(), detail: "the driver panicked".to_owned() }
    }

    /// Whether what was asked may have happened, or may happen still (invariant I9).
    pub fn is_uncertain(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Whether the same request may succeed if it is repeated as it is.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::RolledBack { .. })
    }
}
