//! The traits that a backend implements.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;

use super::{
    error::StoreError,
    hints::Listener,
    item::{
        Acquire, AcquireOutcome, Page, Release, ReleaseOutcome, Renew, RenewOutcome, StopOutcome, StopRun,
    },
};
use crate::session::{Holder, NodeId, SessionKey, Standby};

/// Opens connections to one database.
///
/// Sealed: it gains methods with time, so only the stores of this crate implement it.
pub trait LeaseStore: sealed::Sealed + Send + Sync + 'static {
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

/// One connection. See the [module](super) for what each verb promises.
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

    /// Deletes at most `limit` rows that expired at least [`SWEEP_AFTER`](super::SWEEP_AFTER) ago; answers how many it deleted.
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

/// What keeps others from implementing [`LeaseStore`]. Fakes of this crate's own tests may, under feature `testing`.
#[cfg_attr(not(feature = "testing"), allow(unreachable_pub, reason = "named outside by tests alone"))]
pub mod sealed {
    /// Not part of the public face.
    pub trait Sealed {}
}
