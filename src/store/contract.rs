//! The traits that a backend implements.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;

use super::{
    error::StoreError,
    hints::Listener,
    item::{
        Acquire, AcquireOutcome, BreakLease, BreakOutcome, HistoryPage, Page, Release, ReleaseOutcome, Renew,
        RenewOutcome, StopOutcome, StopRun,
    },
};
use crate::{
    history::PastRun,
    session::{Holder, NodeId, SessionKey, Standby},
};

/// Opens connections to one database.
///
/// This trait is sealed, because it will get more methods. Only the stores of this crate implement it.
pub trait LeaseStore: sealed::Sealed + Send + Sync + 'static {
    /// Opens a connection and checks that its server accepts writes, that its schema fits this release, and that no
    /// lease is hidden from this user.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when there is no answer, or no server that takes writes. The other variants say what
    /// was refused.
    ///
    /// # Cancel safety
    /// If the future is dropped, the connection is given up. No lease was changed.
    #[doc(hidden)]
    fn connect(&self, bounds: Bounds) -> BoxFuture<'static, Result<Box<dyn LeaseConnection>, StoreError>>;

    /// Opens a connection that can only inspect and list. If the server that takes writes can be reached, the
    /// connection goes there, as with [`connect`](Self::connect). Otherwise it goes to a standby, and
    /// [`LeaseConnection::standby`] names that server. Opening it creates nothing and needs only the right to read.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    #[doc(hidden)]
    fn connect_to_look(
        &self,
        bounds: Bounds,
    ) -> BoxFuture<'static, Result<Box<dyn LeaseConnection>, StoreError>> {
        self.connect(bounds)
    }

    /// Brings the schema up to this release, once, however many processes try at the same time.
    ///
    /// # Errors
    /// [`StoreError::SchemaTooNew`] when a later release has changed the schema in a way that this one cannot work
    /// with. [`StoreError::Unavailable`] when there is no answer, or no server that takes writes. The other variants say
    /// what was refused.
    ///
    /// # Cancel safety
    /// If the future is dropped, the schema is either unchanged or completely migrated.
    fn migrate(&self) -> BoxFuture<'static, Result<Migrated, StoreError>>;

    /// Like [`migrate`](Self::migrate), with or without the history of runs. This also adds the history to a schema that
    /// was without it, or removes it, with all that it has recorded.
    ///
    /// # Errors
    /// As [`migrate`](Self::migrate).
    ///
    /// # Cancel safety
    /// As [`migrate`](Self::migrate).
    fn migrate_with(&self, history: KeepHistory) -> BoxFuture<'static, Result<Migrated, StoreError>> {
        let _ = history;
        self.migrate()
    }

    /// Whether listening takes a connection. If not, it costs next to nothing.
    #[doc(hidden)]
    fn listens_by_connection(&self) -> bool {
        false
    }

    /// Begins to listen for requests to stop runs of this node, over a connection of its own. `None` when this database
    /// gives no hints; then a request reaches its run with the next renewal.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    #[doc(hidden)]
    fn listen(&self, node: NodeId, bounds: Bounds) -> Option<Listening> {
        let _ = (node, bounds);
        None
    }

    /// Which of several servers was last found to work, numbered as in [`LeaseConnection::server`]. Connections to any
    /// other server are no longer used. `None` for a store that has no servers to choose from.
    #[doc(hidden)]
    fn server_in_use(&self) -> Option<usize> {
        None
    }

    /// The statements by which [`migrate`](Self::migrate) sets up an empty database, as a script that people can apply
    /// by hand.
    fn schema(&self) -> String;

    /// Like [`schema`](Self::schema), with or without the history of runs.
    fn schema_with(&self, history: KeepHistory) -> String {
        let _ = history;
        self.schema()
    }

    /// The name of the schema that contains the leases, for code that [pins](crate::pin) them. A database without
    /// schemas ignores it.
    fn schema_name(&self) -> &str {
        "tenure"
    }

    /// Where the database is, for people. It never contains a password.
    fn location(&self) -> &str;

    /// Which parts of the URL have no effect, for people. They are such that it is safe to go on without them. `None`
    /// when every part has an effect.
    fn remark(&self) -> Option<String> {
        None
    }
}

impl fmt::Debug for dyn LeaseStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseStore({})", self.location())
    }
}

/// The future that [`LeaseStore::listen`] returns. It resolves to a [`Listener`].
pub type Listening = BoxFuture<'static, Result<Box<dyn Listener>, StoreError>>;

/// A shared [`LeaseStore`].
pub type SharedStore = Arc<dyn LeaseStore>;

/// One connection. The [module](super) says what each verb promises, and what it means to drop the future of a call.
pub trait LeaseConnection: Send {
    /// Grants or refuses sessions, or finds their rows locked.
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

    /// Ends the lease of a run that is known to be dead.
    fn break_lease<'a>(&'a mut self, item: &'a BreakLease)
    -> BoxFuture<'a, Result<BreakOutcome, StoreError>>;

    /// Reads runs of a session that are over, newest first. `None` if the database keeps no history.
    fn history<'a>(
        &'a mut self,
        page: &'a HistoryPage,
    ) -> BoxFuture<'a, Result<Option<Vec<PastRun>>, StoreError>>;

    /// Deletes at most `limit` runs that have been over for at least `keep` from the history, and returns how many.
    fn sweep_history(&mut self, keep: Duration, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// Reads the rows of these sessions, including expired ones. `None` for a session without a row.
    fn inspect<'a>(
        &'a mut self,
        keys: &'a [SessionKey],
    ) -> BoxFuture<'a, Result<Vec<Option<Holder>>, StoreError>>;

    /// Reads rows in key order (byte order of account, then of session).
    fn list<'a>(&'a mut self, page: &'a Page)
    -> BoxFuture<'a, Result<Vec<(SessionKey, Holder)>, StoreError>>;

    /// The standby that gave the last answer to inspect or list. `None` if the server that takes writes gave it, which
    /// is always so on a connection that [`LeaseStore::connect`] opened.
    fn standby(&self) -> Option<Standby> {
        None
    }

    /// Deletes at most `limit` rows that expired at least [`SWEEP_AFTER`](super::SWEEP_AFTER) ago, and returns how
    /// many.
    fn sweep(&mut self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// Like [`sweep`](Self::sweep), but deletes nothing while another connection does the same, where that is cheap to
    /// find out.
    fn sweep_in_turn(&mut self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.sweep(limit)
    }

    /// Repeats the checks of [`LeaseStore::connect`]: that the server accepts writes and that the schema fits.
    fn probe(&mut self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Prepares these kinds of statements, so that the first one takes no longer than those after it.
    fn prepare<'a>(&'a mut self, verbs: &'a [VerbKind]) -> BoxFuture<'a, Result<(), StoreError>> {
        let _ = verbs;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Asks the server for a sign of life, in one round trip. Does nothing for a database without a server.
    fn ping(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The number of its server among those of the store.
    fn server(&self) -> usize {
        0
    }

    /// Closes the connection, and tells the server so.
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

/// How long the *server* may work on one statement of a connection. The client has a time-out of its own as well,
/// because a server that is gone enforces nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The longest time for a whole statement. SQLite has no such limit.
    pub statement: Duration,
    /// The longest wait for one lock within a statement. On SQLite, the longest wait for the database's one write lock.
    pub lock: Duration,
}

/// Whether a database keeps the history of runs that are over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KeepHistory {
    /// As it is now. A database that gets its schema keeps the history.
    #[default]
    AsItIs,
    /// It does.
    Yes,
    /// It does not.
    No,
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

/// Keeps other crates from implementing [`LeaseStore`]. Under feature `testing`, the fakes of this crate's tests may
/// implement it.
#[cfg_attr(not(feature = "testing"), allow(unreachable_pub, reason = "named outside by tests alone"))]
pub mod sealed {
    /// Not part of the public API.
    pub trait Sealed {}
}
