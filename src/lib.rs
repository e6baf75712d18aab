//! Which run owns this session now, and until when?
//!
//! One chat session may be open on a desktop, in a browser and in several server processes at once. `tenure` lets
//! at most one *run* work on it at a time: a run takes a time-bounded **lease** on `(account_id, session_id)` in
//! PostgreSQL or SQLite, renews it while it works, and gives it back. A run that loses its lease is cancelled
//! **before** another can start.
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
//!     // No grant. `error.is_certain()` tells whether anything may have been acquired; if so it is being undone.
//!     Err(error) => return Err(error.into()),
//! };
//! let reply = run.scope(agent).await?;
//! # Ok(()) }
//! ```
//!
//! # Guarantee
//!
//! Under the assumptions below, for one session no two runs hold a lease at the same time, and the token of each
//! run is cancelled early enough for its work to have stopped before the database would let another run in.
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
//! - **A1** *One writable primary, and a commit that it acknowledged survives a failover.* With asynchronous
//!   replication a failover may forget a lease that was granted moments before: two runs may then overlap until
//!   the older one's next renewal, which finds its row gone. The newer run has the greater fence, as long as A2
//!   holds.
//! - **A2** *The database's clock does not step forward by more than `safety_margin/4` within one ttl*, the
//!   difference to a promoted standby's clock included. A greater step expires leases early; the holder learns of
//!   it at its next renewal, and its work is ended at once. Steps back are harmless to ownership: they only keep a dead run's session closed for
//!   longer.
//! - **A3** *The local boot clock's rate is within 1 % of the database's.* A slower local clock would trust too
//!   long; the safety margin absorbs up to 20 %.
//! - **A4** *Work stops within `safety_margin/2` of its token's cancellation*, or presents its fencing token to the
//!   resource that it writes. Async work in a [scope](Run::scope) is dropped by then. Work that blocks its thread
//!   cannot be.
//!
//! Where an assumption breaks, a resource that keeps the greatest [`FencingToken`] it has seen per session, and
//! refuses smaller ones, bounds the damage: no write of the older run is accepted after the first of the newer.
//! [`fence_gate`] has such gates. In the database of the leases itself a transaction can do better, and
//! [pin](RunContext::pin) its lease.
//!
//! # Not guaranteed
//!
//! - That a side effect already sent stops: an HTTP call, a command on another host. The lease rules who may start
//!   next; check [`is_held`](RunContext::is_held) right before each side effect, and fence the resources that must refuse a late
//!   writer.
//! - Permission. Whether a caller may use a session is decided before [`acquire`](LeaseSupervisor::acquire); a lease is
//!   not authentication.
//! - Fairness. When a session becomes free, whoever asks first gets it.
//!
//! # Invariants
//!
//! Their numbers are cited in the code that keeps them and in the tests that would catch their loss.
//!
//! - **I1** *Only the database grants.* A run exists only after its grant has committed and while
//!   `now < trusted_until`. Local memory may refuse, never grant.
//! - **I2** *Local clocks only shorten trust.* Every grant and renewal returns `remaining = expires_at − clock`, both
//!   read in the statement; `trusted_until = sent_at + min(remaining, ttl) − safety_margin`, where `sent_at` is the
//!   local boot-clock instant just before the statement was sent. Instants of the database are never compared with
//!   local ones.
//! - **I3** *The end is final.* The token is cancelled exactly once, the first reason wins, and no later reply
//!   revives the run. Every input first checks `now >= trusted_until`.
//! - **I4** *Every write names its run.* Renew, release and a request to stop match the key **and** the run id; acquire
//!   takes only a free or expired row. Zero rows is an outcome with a name.
//! - **I5** *A renewal never revives an expired lease*, never extends one inside its safety margin, and never waits
//!   behind another session's row.
//! - **I6** *Release comes last*: cancel, keep renewing, the work and all that it started has ended, release. Work that
//!   outlives its grace keeps the lease, visibly stuck, until it ends or trust does. Only a
//!   [`stuck_limit`](LeaseSupervisorBuilder::stuck_limit), which is off by default, gives it up before, and says so.
//! - **I7** *A grant always has an owner.* Whatever is dropped, cancelled or panics, at any await: a live run actor
//!   renews the row, or the row is released, or nobody renews it and it expires.
//! - **I8** *Fencing tokens strictly increase per session*, across renewal, release, expiry, takeover and clean-up,
//!   across steps of the database's clock, and across failover given A2.
//! - **I9** *Unknown is not no.* A certain refusal is a value, a certain loss ends the run; a time-out or I/O error is
//!   uncertainty: the run goes on at risk, retries, and ends at `trusted_until` at the latest.
//! - **I10** *Nothing starves renewals*: not acquires, not the application's pool, runtime or CPU-bound work, not a
//!   slow listener, not thousands who watch, not one locked row. On SQLite one writer at a time is the database's
//!   nature; its wait is bounded by a busy time-out shorter than `renew_timeout`.
//! - **I13** *Certain that somebody else may be at work means no grace*: where the row is another run's, is gone, or has
//!   expired, the work is dropped or killed as soon as that is known.
//!
//! # Reading the code
//!
//! `session`, `config` and `end` hold the values, [`store`] the contract with the database and its backends, `lease` the
//! pure state machine of one run, `actor` the actors that carry out what it decides, `run` the guard that callers
//! hold, `supervisor` the handle and its builder, `watch` what those see who watch. [`pin`] and [`fence_gate`] stand beside
//! them: the former asks the row, in a transaction of the host's (`host`), the latter needs nothing of it. Every arrow goes from the handle down;
//! the only ways back are a renewal's outcome to its run, a run's end to the registry, and hints, on which nothing
//! depends.
//!
//! # Other devices
//!
//! [`LeaseSupervisor::watch`] shows a session as it changes, and [`LeaseSupervisor::stop`] asks its run to stop, through whatever
//! process of whatever machine. The request is recorded in the run's row and reaches the run with its next renewal at the
//! latest. Hints make that milliseconds; they can be lost, and be switched [off](LeaseSupervisorBuilder::hints). On PostgreSQL they are
//! sent in the commit of the request, and only where the holder listens: NOTIFY takes a lock of the whole database. What
//! changes for watchers is never sent; they look.
//!
//! # Features
//!
//! - `postgres`, `sqlite` (both on by default): the backends.
//! - `tls-ring`, `tls-aws-lc-rs`, `tls-native`: TLS for PostgreSQL, by rustls with one of its two providers, or by the
//!   system's library. None is on by default, since a program should have one provider: take the one that the rest of it
//!   has. Where several are linked, rustls panics in whoever has it pick one, so the program picks first, by
//!   `rustls::crypto::…::default_provider().install_default()` in its `main`. Without any of them, `sslmode=require` and
//!   stronger are refused, and `prefer` connects without TLS. `cli` has `tls-ring`.
//! - `process`: child processes of a run, [`RunContext::child`], and process trees of your own, [`process`]. Unix only.
//! - `diagnosis`: for operators and their tools, how fit a database is to judge leases, [`diagnosis`].
//! - `testing`: the in-memory store, its faults, and virtual time, for tests of your own code; its module's page has
//!   whole tests to start from.
//! - `tower`: the layer that refuses late writers in front of an HTTP service, [`fence_gate::FenceLayer`].
//! - `cli`: the command `tenure`.
//! - `serde`: `Serialize` for what is told to others, and `Deserialize` for what a client reads of it: keys, ids, labels
//!   and phases with the checks of their constructors, refusals ([`Busy`]), holders, states, requests to stop, and ends.

mod actor;
mod apart;
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
mod text;
mod watch;

pub use actor::registry::{EndedRun, ShutdownReport};
pub use config::{ConfigError, Timing};
pub use end::{EndReason, Ended, Limit};
pub use error::{AcquireError, Busy, Closed, QueryError, ScopeError, StartError, StopError};
pub use event::{RunEvent, RunRef};
#[cfg(all(unix, feature = "process"))]
pub use process::{ChildEnd, ChildError, ChildTree};
pub use run::{Run, RunContext, ScopeHandle, Task};
pub use session::{
    FencingToken, Holder, InvalidText, Label, NodeId, RunId, RunPhase, RunStage, SessionKey, SessionState,
    SessionStatus, StopRequest,
};
pub use store::StoreError;
pub use supervisor::{
    AcquireBuilder, Asked, Connections, LeaseSupervisor, LeaseSupervisorBuilder, ListBuilder, StopAnswer,
    StopBuilder,
};
pub use text::{printable, printable_name, printable_path};
pub use watch::{Observed, Standby};

/// Applies the schema to the database of this URL, once, however many processes do so at the same time.
///
/// Needed once for PostgreSQL, before the first [`LeaseSupervisor`]; a SQLite file gets its schema when it is created.
/// Repeating it changes nothing. Works in any async runtime: it has a thread of its own.
///
/// # Errors
/// [`StoreError`]; its text names the remedy.
///
/// # Cancel safety
/// The schema is applied as a whole or not at all.
pub async fn migrate(url: &str) -> Result<store::Migrated, StoreError> {
    let store = store::open(url)?;
    apart::run(store.location(), store.migrate()).await?
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
