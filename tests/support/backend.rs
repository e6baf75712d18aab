//! What the conformance suite needs of a backend besides its store.

use std::future::Future;

use tenure::{SessionKey, store::SharedStore};

/// A fresh, migrated, empty database.
pub trait Backend {
    /// Its store.
    fn store(&self) -> SharedStore;

    /// All that is stored of a session, versions and lock marks included where there are any: equal exactly if
    /// nothing was written.
    fn image(&self, key: &SessionKey) -> impl Future<Output = Option<String>>;

    /// Moves `expires_at` to this many milliseconds from now, by the database's clock.
    fn set_remaining(&self, key: &SessionKey, millis: i64) -> impl Future<Output = ()>;

    /// Writes a request to stop into the row of whoever holds the session.
    fn request_stop(&self, key: &SessionKey, by: &str, reason: &str) -> impl Future<Output = ()>;

    /// Steps the database's clock back, or shifts all that is stored, fences and their floor included, forward.
    /// Answers by how much a fence that was issued before is greater now.
    fn step_clock_back(&self, seconds: u32) -> impl Future<Output = i64>;
}

/// One that other processes can reach.
pub trait Reachable: Backend {
    /// How they connect.
    fn url(&self) -> String;
}
