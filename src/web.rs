//! For HTTP services on axum and actix-web: errors that answer by themselves, and the session of a request.
//!
//! [`Problem`] answers a request that got no run, or whose run has ended early. `?` turns each error of this crate that
//! a handler meets into a `Problem`, and a handler may also return the error itself. Both frameworks send the same
//! bytes.
//!
//! [`RequestedSession`] is an argument of a handler: the session that the request names. [`Sessions`] says where in the
//! request the two parts of its key are.
//!
//! ```no_run
//! # #[cfg(feature = "axum")]
//! # mod on_axum {
//! use axum::{Router, routing::post};
//! use tenure::{LeaseSupervisor, web::{Problem, RequestedSession, Sessions}};
//!
//! async fn turn(session: RequestedSession, prompt: String) -> Result<String, Problem> {
//!     let run = session.acquire().await?; // 409 with the holder, 503, 500 …
//!     Ok(run.scope(async |ctx| format!("{prompt}, answered under fence {}", ctx.fence())).await?)
//! }
//!
//! fn app(supervisor: LeaseSupervisor) -> Router {
//!     Router::new().route("/sessions/{account}/{session}/turn", post(turn)).with_state(Sessions::new(supervisor))
//! }
//! # }
//! ```
//!
//! The same on actix-web, with the same handler:
//!
//! ```no_run
//! # #[cfg(feature = "actix-web")]
//! # mod on_actix_web {
//! # use tenure::{LeaseSupervisor, web::{Problem, RequestedSession, Sessions}};
//! use actix_web::web::{ServiceConfig, post};
//!
//! # async fn turn(session: RequestedSession, prompt: String) -> Result<String, Problem> {
//! #     let run = session.acquire().await?;
//! #     Ok(run.scope(async |ctx| format!("{prompt}, answered under fence {}", ctx.fence())).await?)
//! # }
//! fn configure(app: &mut ServiceConfig, supervisor: LeaseSupervisor) {
//!     app.app_data(Sessions::new(supervisor)).route("/sessions/{account}/{session}/turn", post().to(turn));
//! }
//! # }
//! ```
//!
//! # Permission
//!
//! Whoever can name a session can acquire it here. Decide whether the caller may use it before the handler acquires it:
//! in a layer in front of the handler, or in the handler itself. With [`KeyPart::authenticated`], the account is the
//! one that your authentication has found, and not one that the client chose.
//!
//! # When the client disconnects
//!
//! axum then drops the handler, and actix-web does so with `h1_allow_half_closed(false)`. A run or a
//! [scope](crate::Run::scope) that the handler owns ends with it, and the session becomes free when the work has ended.
//! [`spawn_scope`](crate::Run::spawn_scope) is for work that should go on.

#[cfg(feature = "actix-web")]
mod actix_web;
#[cfg(feature = "axum")]
mod axum;
mod problem;
mod session;
#[cfg(all(test, feature = "axum", feature = "actix-web", feature = "testing"))]
mod tests;

pub use problem::Problem;
pub use session::{AccountId, KeyPart, RequestedSession, Sessions};
