//! The actors: who tells whom, and who owns what.
//!
//! ```text
//! caller ─► LeaseSupervisor ─► Registry ─► acquisition ─► Lane (acquire) ─► LeaseStore
//!                            │ granted: starts
//!                            ▼
//! caller ◄─ Run (guard) ── RunActor ───────────────► Lane (renew)   ─► LeaseStore
//!                            │   └─────────────────► Lane (release) ─► LeaseStore
//!                            └ Ended ─► Registry
//! ```
//!
//! All of them live on one thread of the supervisor's own, so that nothing the application does can delay a
//! renewal (invariant I10). What is done for those who watch has another, once somebody does. No handler awaits the
//! database: a request goes to a lane, and its answer comes back as a message of its own.
//!
//! - [`registry`] knows the sessions of this process, refuses from memory what this process still works on,
//!   and starts a run actor per grant. It never grants (invariant I1).
//! - [`acquisition`] is one request on its way to the database, with its retries, and the compensation for one
//!   whose outcome is unknown (invariant I7).
//! - [`run`] owns one run: its [`Lease`](crate::lease::Lease), its timer, its token.
//! - [`lane`] carries statements of one kind, over connections of a [`pool`], which are open before they are needed.
//! - [`hints`] listens for requests to stop, and has the registry read them; [`watching`] looks at sessions for those
//!   who watch, from a thread of its own. No run depends on either.
//!
//! A panic kills one actor. A run actor's end, however it comes, cancels its token and tells the registry; it
//! is never restarted. The registry's end cancels the root of all tokens, and with it every run.

pub(crate) mod acquisition;
mod call;
pub(crate) mod hints;
pub(crate) mod lane;
pub(crate) mod pool;
pub(crate) mod query;
pub(crate) mod registry;
pub(crate) mod run;
mod starting;
pub(crate) mod watching;
