//! The actors: which actor tells which, and what each of them owns.
//!
//! ```text
//! caller ─► LeaseSupervisor ─► Registry ─► acquisition ─► Lane (acquire) ─► LeaseStore
//!                            │ granted: starts
//!                            ▼
//! caller ◄─ Run (guard) ── RunActor ───────────────► Lane (renew)   ─► LeaseStore
//!                            │   └─────────────────► Lane (release) ─► LeaseStore
//!                            └ RunFinished ─► Registry
//! ```
//!
//! All actors live on one thread of the supervisor, so that nothing the application does can delay a renewal (invariant
//! I10). Watching gets a second thread once somebody watches. No handler awaits the database: a request goes to a lane,
//! and its answer comes back as a message.
//!
//! - [`registry`] knows the sessions of this process. It refuses a session that this process still works on, and starts
//!   a run actor for each grant. It never grants (invariant I1).
//! - [`acquisition`] sends one request to the database, with its retries. It also undoes a request whose outcome is
//!   unknown (invariant I7).
//! - [`run`] owns one run: its [`Lease`](crate::lease::Lease), its timer, its token.
//! - [`lane`] sends statements of one kind, over connections of a [`pool`] that are open before they are needed.
//! - [`means`] tells whether a run would have what it needs. Nothing is granted before (invariant I11).
//! - [`query`] reads, sweeps, and asks runs to stop. No run depends on it.
//! - [`hints`] listens for requests to stop, and has the registry read them. [`watching`] polls sessions for watchers.
//!   No run depends on either, nor on [`sweeping`], which removes old rows now and then.
//!
//! A panic kills one actor. When a run actor ends, in whatever way, its drop cancels the run's token and tells the
//! registry. It is never restarted. When the registry ends, it cancels the root of all tokens, and with it every run.

pub(crate) mod acquisition;
pub(crate) mod call;
pub(crate) mod hints;
pub(crate) mod lane;
pub(crate) mod means;
pub(crate) mod pool;
pub(crate) mod query;
pub(crate) mod registry;
pub(crate) mod run;
mod starting;
pub(crate) mod sweeping;
pub(crate) mod watching;
