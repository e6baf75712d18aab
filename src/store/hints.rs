//! Hints tell a process of a request to stop before its next renewal does. Nothing depends on them.

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
    /// The database may have been replaced by another one. Every run is renewed at once, to find out.
    Replaced,
}

/// Receives hints about requests to stop the runs of one node. See [`LeaseStore::listen`](super::LeaseStore::listen).
///
/// The caller reads the rows of its runs once when the listener is open, and after that whenever a hint tells it to.
pub trait Listener: Send {
    /// Waits for a hint. `None` means that there is none yet; call it again.
    ///
    /// # Errors
    /// The connection is lost, and hints may be lost with it. Open another listener, and read the rows.
    ///
    /// # Cancel safety
    /// Dropping the future loses no hint.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Hint>, StoreError>>;

    /// Checks that the server still answers and still takes the requests to stop. A connection may break without
    /// notice, and a server may be demoted.
    ///
    /// # Errors
    /// As [`next`](Self::next). The server may also never answer. So the caller limits its wait, and then drops the
    /// listener.
    fn check(&mut self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Closes the connection, and tells the server so.
    fn close(self: Box<Self>) -> BoxFuture<'static, ()>;
}
