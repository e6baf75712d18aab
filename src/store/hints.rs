//! Hints: how a request to stop reaches its run sooner than with the next renewal. Nothing depends on them.

use futures::future::BoxFuture;

use super::StoreError;
use crate::session::RunId;

/// What a [`Listener`] has heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// Somebody has asked this run to stop, or asked again.
    Stop(RunId),
    /// Something was written, perhaps a request to stop.
    Changed,
    /// The database may be another one now: every run is to be renewed at once.
    Replaced,
}

/// Hears of requests to stop the runs of one node. See [`LeaseStore::listen`](super::LeaseStore::listen).
///
/// Whoever listens reads the rows of its runs once when the listener is open, and then as the hints have it.
pub trait Listener: Send {
    /// Waits for a hint; `None`: none for now, ask again.
    ///
    /// # Errors
    /// The connection is lost, and hints with it: open another one, and read the rows.
    ///
    /// # Cancel safety
    /// Dropping the future loses no hint.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Hint>, StoreError>>;

    /// Asks the server for a sign of life, and whether it is still the one that takes the requests: a connection may die
    /// in silence, and a server be demoted.
    ///
    /// # Errors
    /// As [`next`](Self::next). No answer is none either: the caller bounds its wait, and drops the listener.
    fn check(&mut self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Says goodbye to the server.
    fn close(self: Box<Self>) -> BoxFuture<'static, ()>;
}
