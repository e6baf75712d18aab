//! Which run owns this session now, and until when?
//!
//! One chat session may be open on a desktop, in a browser and in several server processes at once. `tenure` lets
//! at most one *run* work on it at a time. A run takes a time-bounded **lease** on `(account_id, session_id)` in
//! PostgreSQL or SQLite, renews it while it works, and releases it at the end. A run that loses its lease is cancelled
//! **before** another run can start.
//!
//! ```no_run
//! use std::time::Duration;
//! use tenure::{AcquireError, RunContext, SessionKey, LeaseSupervisor};
//!
//! async fn agent(ctx: RunContext) -> String {
//!     tokio::select! {
//!         _ = ctx.cancelled() => "interrupted".into(),
//!         reply = async { /* call the model, run tools … */ "done".to_string() } => reply,
//!     }
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let supervisor = LeaseSupervisor::builder("postgres://app@db.internal/chat")
//!     .holder_label("api-3")
//!     .ttl(Duration::from_secs(30))
//!     .start()
//!     .await?;
//! let key = SessionKey::new("acct-1", "chat-9")?;
//!
//! let run = match supervisor.acquire(&key).await {
//!     Ok(run) => run,
//!     // Certain: nothing was acquired. The holder is named.
//!     Err(AcquireError::Busy(busy)) => {
//!         println!("409: {busy}; try again in {:?}", busy.retry_after());
//!         return Ok(());
//!     }
//!     // Not acquired. If this is not certain (`error.is_certain()`), what may have been acquired is being released.
//!     Err(error) => return Err(error.into()),
//! };
//! let reply = run.scope(agent).await?;
//! # Ok(()) }
//! ```
//!
//! # Guarantee
//!
//! Under the assumptions below, no two runs hold the lease of one session at the same time. The token of each run is
//! cancelled early enough for its work to stop before the database lets another run in.
//!
//! The time budget of one lease, with the defaults for a ttl of 30 s:
//!
//! ```text
//! sent_at                                   trusted_until        work gone by         expires_at (at the earliest)
//!    0 ── renew every ttl/4 (7.5 s ±10 %) ──── 24 s ──────────── 27 s ─────────────── 30 s
//!                                               └ token cancelled └ dropped by here   └ another run may enter
//!                                               └────────── safety_margin = ttl/5 ────┘
//! ```
//!
//! # Assumptions
//!
//! - **A1** *There is one writable primary, and a commit that it acknowledged survives a failover.* With asynchronous
//!   replication, a failover may lose a lease that was granted moments before. Two runs may then overlap until the
//!   older run's next renewal, which finds its row gone. The newer run has the greater fencing token, as long as A2
//!   holds.
//! - **A2** *The database's clock does not jump ahead by more than `safety_margin/4` within one ttl.* When a standby is
//!   promoted, the difference between its clock and the old primary's counts as a jump. A larger jump makes leases
//!   expire early. The holder learns this at its next renewal, and its work is then ended at once. A jump back never
//!   gives a session to two runs. It only keeps the session of a dead run closed for longer.
//! - **A3** *The local boot clock's rate is within 1 % of the database's.* A slower local clock trusts the lease for
//!   too long. With the default timing, a difference of up to 10 % does no harm: the work is gone before another run
//!   gets the session. Up to 20 %, trust still ends before that, but the work may not have.
//! - **A4** *Work stops within `safety_margin/2` after its token is cancelled, or it presents its fencing token to
//!   every resource that it writes.* Async work in a [scope](Run::scope) is dropped by then. Work that blocks its
//!   thread cannot be dropped.
//!
//! Fencing bounds the damage where an assumption breaks. A resource keeps the greatest [`FencingToken`] that it has
//! seen per session, and refuses smaller ones. It then accepts no write of the older run after the first write of the
//! newer. [`fence_gate`] has such gates. In the database that holds the leases, a transaction can do better: it can
//! [pin](RunContext::pin) its lease.
//!
//! # Not guaranteed
//!
//! - That a side effect stops once it was sent, such as an HTTP call or a command on another host. The lease decides
//!   only which run may start next. Check [`is_held`](RunContext::is_held) right before each side effect, and fence the
//!   resources that must refuse a late writer.
//! - Permission. Decide whether a caller may use a session before you call [`acquire`](LeaseSupervisor::acquire). A
//!   lease is not authentication.
//! - Fairness. When a session becomes free, the first request to reach the database gets it.
//!
//! # Invariants
//!
//! The code that keeps an invariant, and the tests that would fail without it, cite its number.
//!
//! - **I1** *Only the database grants.* A run exists only after its grant has committed and while
//!   `now < trusted_until`. Local memory may refuse, never grant.
//! - **I2** *Local clocks only shorten trust.* Every grant and renewal returns `remaining = expires_at − clock`, both
//!   read in the statement. From it follows `trusted_until = sent_at + min(remaining, ttl) − safety_margin`, where
//!   `sent_at` is the local boot-clock instant just before the statement was sent. An instant of the database is never
//!   compared with a local one.
//! - **I3** *The end is final.* The token is cancelled exactly once, the first reason wins, and no later reply revives
//!   the run. Every input first checks `now >= trusted_until`.
//! - **I4** *Every write names its run.* Renew and release match the key **and** the run id. A request to stop changes
//!   only the row of the run that holds the session, or of the run that it names. Acquire takes only a free or expired
//!   row. An answer of zero rows is an outcome with a name.
//! - **I5** *A renewal never revives an expired lease.* It never extends a lease that is inside its safety margin, and
//!   it never waits behind another session's row.
//! - **I6** *Release comes last.* The order is: cancel the token, keep renewing until the work and everything that it
//!   started has ended, then release. Work that outlives its grace keeps the lease, and everybody sees it as stuck,
//!   until the work ends or trust ends. Only a [`stuck_limit`](LeaseSupervisorBuilder::stuck_limit), which is off by
//!   default, gives the session up earlier. The result of the run then says so.
//! - **I7** *A grant always has an owner.* Any future may be dropped or cancelled at any await, and any task may panic.
//!   In each case a live run actor renews the row, or the row is released, or nobody renews the row and it expires. If
//!   the outcome of an acquire is unknown, or its caller has gone, the supervisor releases what the acquire may have
//!   taken.
//! - **I8** *Fencing tokens strictly increase per session*, across renewal, release, expiry, takeover and clean-up,
//!   across jumps of the database's clock, and across failover given A2.
//! - **I9** *Unknown is not no.* A certain refusal is a value, and a certain loss ends the run. A time-out or an I/O
//!   error is uncertain: the run goes on at risk, retries, and ends at `trusted_until` at the latest.
//! - **I10** *Nothing starves renewals*: not acquires, not the application's pool, runtime or CPU-bound work, not a
//!   slow listener, not thousands of watchers, not one locked row. SQLite allows one writer at a time, so there a
//!   renewal may wait for another writer. A busy time-out shorter than `renew_timeout` bounds that wait.
//! - **I11** *Connections come before the grant.* A session is granted only while the connections that will renew and
//!   release it are open. Connecting has its own time-out, takes no time from a statement, and begins before a
//!   connection is needed. If a connection cannot be had, the caller learns it before its work starts.
//! - **I12** *Nothing incidental costs a lease*: labels, phases, reasons, hints, events, watchers, the history. If one
//!   of them fails, it fails alone.
//! - **I13** *A certain loss leaves no grace.* Once it is known that the row belongs to another run, is gone, or is too
//!   near its expiry to be renewed again, another run may be at work. This run's work is then dropped or killed at
//!   once.
//!
//! # Reading the code
//!
//! `ARCHITECTURE.md`, at the root of the sources, shows which part talks to which. It follows an acquire, a lost
//! renewal and a stop through the files.
//!
//! # Other devices
//!
//! [`LeaseSupervisor::watch`] shows a session as it changes. [`LeaseSupervisor::stop`] asks the session's run to stop.
//! Both work from any process on any machine that reaches the database. The request to stop is recorded in the run's
//! row and reaches the run with its next renewal at the latest. A hint brings it within milliseconds. Hints can be
//! lost, and can be switched [off](LeaseSupervisorBuilder::hints). On PostgreSQL the commit of the request sends the
//! hint, and only if the holder listens, because NOTIFY takes a lock on the whole database. Changes are never sent to
//! watchers: they poll.
//!
//! # Tracing
//!
//! The library logs with [`tracing`](https://docs.rs/tracing). These names stay: the targets, the span and its fields,
//! and in the second table the events with their levels and fields. A later release may add to them. The texts of
//! messages may change, and so may events that are not in the table.
//!
//! | target | what it is about |
//! |---|---|
//! | `tenure::run` | a run, from its grant to its end |
//! | `tenure::acquire` | requests for sessions that were not granted |
//! | `tenure::store` | connections, statements, and what the database says |
//! | `tenure::supervisor` | the supervisor, and clocks of its machine that jump |
//! | `tenure::web` | answers to HTTP requests that keep back what went wrong |
//!
//! Each run has a span `run` with the fields `account`, `session`, `run_id` and `fence`. Its target is `tenure::run`, and
//! its level is `ERROR`, so that a filter which lets through any event of a run also lets through which run it is. It is
//! a root, because a run may outlive the request that it was acquired for. It follows from the span in which the acquire
//! was awaited. Work in a [scope](Run::scope) is in the run's span, and so is what it starts through its context. Other
//! code can enter it: [`RunContext::span`].
//!
//! | event | target | level | fields |
//! |---|---|---|---|
//! | `acquired` | `tenure::run` | `INFO` | `holder`, `ttl_ms` |
//! | `renewed` | `tenure::run` | `DEBUG` | `trusted_for_ms` |
//! | `at_risk` | `tenure::run` | `WARN` | `trusted_for_ms`, and `cause` where there was an answer |
//! | `recovered` | `tenure::run` | `INFO` | |
//! | `stopping` | `tenure::run` | `INFO` | `reason` |
//! | `stuck` | `tenure::run` | `WARN` | |
//! | `gave_up` | `tenure::run` | `WARN` | |
//! | `ended` | `tenure::run` | `INFO`; after a loss `WARN`, with `cause` where there is one | `reason`, `released` |
//! | `refused` | `tenure::acquire` | `DEBUG` | `account`, `session`, `holder`, `holder_run_id`, `expires_in_ms` |
//! | `not_acquired` | `tenure::acquire` | `DEBUG` | `account`, `session`, `cause` |
//!
//! The event's name is the name in its metadata. Events of `tenure::run` are in the run's span, and the last two are in
//! the span of the code that asked. No field has a password in it. In texts that people choose, characters that cannot
//! be seen are [escaped](text::printable).
//!
//! # Crates in signatures
//!
//! Types of these crates are in signatures of `tenure`, which re-exports them. A program that takes them from `tenure`
//! need not match versions: `tenure::tokio_util::sync::CancellationToken` is the type of [`RunContext::token`].
//!
//! | crate | what of it |
//! |---|---|
//! | [`actix`] | `Recipient`, to which [events](LeaseSupervisorBuilder::events) go |
//! | [`futures`] | `Stream`; `StreamExt` has the methods to read one |
//! | [`sqlx`] | connections on which a lease is [pinned](RunContext::pin), and their errors |
//! | [`tokio_util`] | `CancellationToken` |
//! | [`tracing`] | `Span`, of a [run](RunContext::span) |
//! | [`uuid`] | `Uuid`, what a [`RunId`] is |
//!
//! A new incompatible version of one of them comes only with a new incompatible version of `tenure`.
//!
//! # Features
//!
//! - `postgres`, `sqlite` (both on by default): the backends.
//! - `tls-ring`, `tls-aws-lc-rs`, `tls-native`: TLS for PostgreSQL, by rustls with one of its two providers, or by the
//!   system's library. None is on by default, because a program should have only one provider: choose the one that the
//!   rest of your program uses. If several providers are linked, rustls panics when it has to choose. The program then
//!   has to choose first, with `rustls::crypto::…::default_provider().install_default()` in its `main`. Without any of
//!   these features, `sslmode=require` and stronger modes are refused, and `prefer` connects without TLS. `cli` turns
//!   on `tls-ring`.
//! - `process`: child processes of a run ([`RunContext::child`]) and process trees of your own ([`process`]). Unix
//!   only.
//! - `diagnosis`: checks for operators and their tools whether a database is fit to hold leases ([`diagnosis`]).
//! - `testing`: the in-memory store, its faults, and virtual time, for tests of your own code. The module's page has
//!   complete tests to start from.
//! - `tower`: a layer that refuses late writers in front of an HTTP service ([`fence_gate::FenceLayer`]).
//! - `axum`, `actix-web`: errors that answer HTTP requests by themselves, as `application/problem+json`, and an
//!   extractor for the session of a request ([`web`]). Both turn on `serde`.
//! - `cli`: the command `tenure`.
//! - `serde`: `Serialize` for every value that a server may show to its clients, and `Deserialize` for those that a
//!   client may read: keys, ids, labels and phases with the checks of their constructors, refusals ([`Busy`]), holders,
//!   states, requests to stop, and ends. Later releases may add fields, which this one ignores, and words for stages,
//!   states and reasons, which it refuses. Where clients may be older than the server, let them read such words as
//!   plain text.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod actor;
mod apart;
mod backoff;
mod caller;
pub mod clock;
mod config;
#[cfg(feature = "diagnosis")]
#[cfg_attr(
    not(any(feature = "postgres", feature = "sqlite")),
    allow(dead_code, unused_imports, reason = "without a backend nothing can be examined")
)]
pub mod diagnosis;
mod end;
mod error;
mod event;
pub mod fence_gate;
mod history;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod host;
mod lease;
pub mod limits;
mod origin;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod pin;
#[cfg(all(unix, feature = "process"))]
pub mod process;
mod pulse;
mod run;
mod session;
pub mod store;
mod supervisor;
#[cfg(feature = "testing")]
pub mod testing;
pub mod text;
mod trace;
mod watch;
#[cfg(any(feature = "axum", feature = "actix-web"))]
pub mod web;

pub use actor::registry::{EndedRun, ShutdownReport};
pub use config::{ConfigError, Timing};
pub use end::{EndReason, Ended, Limit};
pub use error::{AcquireError, BreakError, Busy, Closed, QueryError, ScopeError, StartError, StopError};
pub use event::{RunEvent, RunRef};
pub use history::{Ending, History, PastRun};
pub use run::{Run, RunContext, ScopeHandle, Task};
pub use session::{
    FencingToken, Holder, InvalidFence, InvalidText, Label, NodeId, RunId, RunPhase, RunStage, SessionKey,
    SessionState, SessionStatus, StopRequest,
};
pub use store::StoreError;
pub use supervisor::{
    Asked, BreakAnswer, BrokenLease, Connections, LeaseSupervisor, LeaseSupervisorBuilder, StopAnswer,
};
pub use watch::{Observed, Standby};
// Their types are in the signatures of this crate.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
#[doc(no_inline)]
pub use sqlx;
#[doc(no_inline)]
pub use {actix, futures, tokio_util, tracing, uuid};

/// Requests with options. [`LeaseSupervisor`] makes them, and awaiting one sends it.
pub mod request {
    pub use crate::supervisor::{AcquireBuilder, BreakBuilder, HistoryBuilder, ListBuilder, StopBuilder};
}

/// Creates the schema in the database of this URL, or brings it up to date. Several processes may call this at the same
/// time: the schema is applied once.
///
/// PostgreSQL needs this once before the first [`LeaseSupervisor`] starts. A SQLite file gets its schema when it is
/// created. Repeated calls change nothing. The work is done on a thread of its own, so this works in any async runtime.
///
/// # Errors
/// [`StoreError`]. Its text names the remedy.
///
/// # Cancel safety
/// The schema is applied as a whole or not at all.
pub async fn migrate(url: &str) -> Result<store::Migrated, StoreError> {
    migrate_with(url, store::KeepHistory::AsItIs).await
}

/// Like [`migrate`], with or without the [history](LeaseSupervisor::history) of runs. This also adds the history to a
/// database that was without it, or removes it with all that it has recorded.
///
/// # Errors
/// As [`migrate`].
///
/// # Cancel safety
/// As [`migrate`].
pub async fn migrate_with(url: &str, history: store::KeepHistory) -> Result<store::Migrated, StoreError> {
    let store = store::open(url)?;
    apart::run(store.location(), store.migrate_with(history)).await?
}

/// The code in the README and the pages, compiled as doctests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;

    #[doc = include_str!("../docs/library.md")]
    struct Library;

    #[doc = include_str!("../docs/fencing.md")]
    struct Fencing;
}
