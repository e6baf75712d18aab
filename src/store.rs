//! The lease store: the protocol between a run and the database, verb by verb.
//!
//! This page is the contract. One conformance suite (`tests/conformance.rs`) checks it on every backend:
#![cfg_attr(feature = "postgres", doc = "[`PostgresStore`],")]
#![cfg_attr(feature = "sqlite", doc = "[`SqliteStore`],")]
#![cfg_attr(feature = "testing", doc = "[`MemoryStore`].")]
//! Most users never name this module: [`LeaseSupervisor::builder`](crate::LeaseSupervisor::builder) picks the store
//! from a URL.
//!
//! The protocol itself, its connections, items and outcomes, is not part of the public API and not shown here: any
//! release may add to it. Only the stores of this crate speak it.
//!
//! # The row
//!
//! A session that is held has one row. The row has the session's key; the run's id, fence, node, label, stage and
//! phase; the times at which the lease was acquired and will expire; and a request to stop, if somebody made one. A
//! session without a row is idle. A row whose `expires_at` is not after the database's clock is *expired*: it grants
//! nothing, and the next acquire takes it over.
//!
//! # What every verb promises
//!
//! - **The database's clock judges.** The statement reads it for each row, after it has locked that row. No local
//!   instant is ever sent to the database.
//! - **One outcome per item, in the order of the items.** An item's outcome never depends on its neighbours. The caller
//!   makes sure that no key is in one call twice.
//! - **A certain answer is an outcome, uncertainty is an error.** When a call fails with
//!   [`StoreError::Unavailable`], some or all of it may have happened, or may still happen.
//! - **No waiting for a stranger's lock.** If another transaction has locked the row, the outcome is `Locked`: nothing
//!   was changed, and the caller may try again.
//! - **Every write names its run** (invariant I4). An acquire replaces another run only in an expired row, and a sweep
//!   deletes only expired rows. Every other write changes only the row of the run that it names.
//! - **Each statement is its own transaction.** If the future of a call is dropped half-way, the connection is unusable
//!   and the effect of the call is unknown. Drop the connection, too.
//!
//! # The verbs
//!
//! **acquire** grants a session that is idle or expired, or already held by the same run. A *refusal*
//! (`AcquireOutcome::Busy`) locks nothing, writes nothing and names the holder. An expired lease that its run still
//! [pins](crate::pin) is refused, too. An item may limit the live leases of its account. The account's leases are
//! counted where the session is granted, so that limited acquires together never exceed the limit, in whatever
//! processes they are. Acquires without a limit are counted, but not refused.
//!
//! The fence of a grant is strictly greater than the fence of any earlier grant of
//! the session, whatever happened to the row in between (invariant I8). An acquire that is repeated under the same run
//! id gets the same fence, keeps `acquired_at`, phase, stage and stop request, and sets
//! `expires_at = greatest(expires_at, clock + ttl)`.
//!
//! **renew** requires that the row belongs to this run and that `expires_at − safety_margin > clock`. It then sets
//! `expires_at = greatest(expires_at, clock + ttl)`. It can neither revive an expired lease nor extend a lease inside
//! its margin (invariant I5). It returns the request to stop, if any, from the row version that it wrote. A renewal may
//! carry a new phase. If the database rejects the statement, the store sends the renewal again without the phase,
//! because the phase may be the reason. What is only for people must not cost a run its lease (invariant I12).
//!
//! **request_stop** chooses the run that holds the session. If the caller names a run, it chooses that run, and only if
//! it holds the session. It records the request in the row under that run's id, and checks under the row's lock that
//! the lease has not expired. So the request never hits a run that holds the session later. The first request is kept.
//! If the holder listens, it gets a hint with the same commit. Its next renewal returns the
//! request in any case.
//!
//! **release** deletes the row of this run. If there is no such row, that is an outcome, not an error.
//!
//! **break_lease** ends the lease of a run that is known to be dead: it sets `expires_at` to the database's clock. It does
//! so only while the row is that run's, and still shows the expiry that the caller has watched. It checks that under the
//! row's lock. So a run that has renewed keeps its lease. A run that lives after all finds its lease expired at its next
//! renewal, and ends at once (invariants I5 and I13). This is the only way in which `expires_at` moves back.
//!
//! **history** reads runs that are over. A run is recorded by the statement that ends its row, whoever sends it: a
//! release, a takeover, a break, a sweep, or a person. Renewals record nothing. If the record cannot be written, the
//! statement succeeds without it (invariant I12). **sweep_history** removes old records.
//!
//! **sweep** deletes rows that expired at least [`SWEEP_AFTER`] ago, a bounded number per call. It checks the expiry
//! again under each row's lock.
//!
//! **inspect** and **list** only read. **probe** tells whether the database could answer the other verbs now. A
//! connection for all verbs does not accept the answers of a server that takes no
//! writes: that server may be a demoted primary whose data is old. A connection that
//! only looks may read from such a server, and names it beside the answer.

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
mod record;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod schema;
#[cfg(feature = "sqlite")]
mod sqlite;
mod url;

pub use crate::session::UnknownStage;
#[doc(hidden)]
pub use crate::session::{Reason, Requester};
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use contract::sealed;
#[cfg(not(feature = "testing"))]
pub(crate) use contract::sealed;
#[doc(hidden)]
pub use contract::{Bounds, LeaseConnection, Listening, VerbKind};
pub use contract::{KeepHistory, LeaseStore, Migrated, SharedStore};
pub use error::StoreError;
#[doc(hidden)]
pub use hints::{Hint, Listener};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use item::untold;
#[doc(hidden)]
pub use item::{
    Acquire, AcquireOutcome, BreakLease, BreakOutcome, Grant, HistoryPage, Page, Release, ReleaseOutcome,
    Renew, RenewOutcome, Renewed, StopOutcome, StopRun,
};
#[cfg(feature = "testing")]
pub use memory::MemoryStore;
#[cfg(feature = "postgres")]
pub(crate) use postgres::LoginSource;
#[cfg(feature = "postgres")]
pub use postgres::{Login, LoginRequest, PostgresStore};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;

/// How long after its expiry a row may be swept: one hour. Until then people can still see what happened, and an
/// ordinary correction of the clock, backwards, does not bring the lease back to life.
pub const SWEEP_AFTER: Duration = Duration::from_secs(3600);

/// The most items that a caller should hand over in one call. With more, PostgreSQL may choose a plan that takes
/// seconds.
#[doc(hidden)]
pub const MAX_BATCH: usize = 500;

#[cfg(feature = "testing")]
impl sealed::Sealed for MemoryStore {}
#[cfg(feature = "postgres")]
impl sealed::Sealed for PostgresStore {}
#[cfg(feature = "sqlite")]
impl sealed::Sealed for SqliteStore {}

/// The store for a database URL. The URL's scheme chooses the backend.
///
/// White space around the URL is ignored. This connects to nothing.
///
/// # Errors
/// [`StoreError::Url`] when no enabled backend knows the URL, or when it is empty or contains a control character.
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
