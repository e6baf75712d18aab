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

use std::time::Duration;

mod contract;
mod error;
#[cfg(feature = "diagnosis")]
#[cfg_attr(
    not(any(feature = "postgres", feature = "sqlite")),
    allow(dead_code, unused_imports, reason = "without a backend nothing is found")
)]
pub(crate) mod finding;
mod hints;
mod item;
#[cfg(feature = "testing")]
pub mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod schema;
#[cfg(feature = "sqlite")]
mod sqlite;
mod url;

pub use crate::session::{Reason, Requester, UnknownStage};
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use contract::sealed;
#[cfg(not(feature = "testing"))]
pub(crate) use contract::sealed;
pub use contract::{Bounds, LeaseConnection, LeaseStore, Listening, Migrated, SharedStore, VerbKind};
pub use error::StoreError;
pub use hints::{Hint, Listener};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use item::untold;
pub use item::{
    Acquire, AcquireOutcome, Grant, Page, Release, ReleaseOutcome, Renew, RenewOutcome, Renewed, StopOutcome,
    StopRun,
};
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

#[cfg(feature = "testing")]
impl sealed::Sealed for MemoryStore {}
#[cfg(feature = "postgres")]
impl sealed::Sealed for PostgresStore {}
#[cfg(feature = "sqlite")]
impl sealed::Sealed for SqliteStore {}

/// The store that a URL names, by its scheme.
///
/// White space around it does not count.
///
/// # Errors
/// [`StoreError::Url`] when no enabled backend knows the URL, when it is empty, or has a control character in it.
pub fn open(url: &str) -> Result<SharedStore, StoreError> {
    let url = url::checked(url)?;
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match scheme.to_ascii_lowercase().as_str() {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(std::sync::Arc::new(PostgresStore::new(url)?)),
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(std::sync::Arc::new(SqliteStore::new(url)?)),
        #[cfg(feature = "postgres")]
        _ if postgres::is_conninfo(url) => Ok(std::sync::Arc::new(PostgresStore::new(url)?)),
        #[cfg(feature = "sqlite")]
        _ if url::is_path(url) => Err(StoreError::Url {
            detail: format!("it does not begin with a scheme; for a file, write sqlite://{url}"),
        }),
        _ => Err(StoreError::Url { detail: url::unknown_scheme(scheme) }),
    }
}
