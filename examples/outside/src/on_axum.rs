//! The host as an axum service.

use axum::{
    Router,
    extract::FromRef,
    routing::{get, post},
};
use tenure::{
    InvalidText, LeaseSupervisor, QueryError, SessionKey,
    web::{KeyPart, Problem, RequestedSession, Sessions},
};

/// What handlers share.
#[derive(Clone)]
pub struct Host {
    pub sessions: Sessions,
    pub greeting: &'static str,
}

impl FromRef<Host> for Sessions {
    fn from_ref(host: &Host) -> Self {
        host.sessions.clone()
    }
}

pub fn app(supervisor: LeaseSupervisor) -> Router {
    let sessions = Sessions::new(supervisor).account(KeyPart::authenticated()).session(KeyPart::path("chat"));
    Router::new()
        .route("/chats/{chat}/turn", post(turn))
        .route("/chats/{chat}/holder", get(holder))
        .route("/check", post(check))
        .with_state(Host { sessions, greeting: "hello" })
}

async fn turn(session: RequestedSession, prompt: String) -> Result<String, Problem> {
    let run = session.acquire().holder_label("web").await?;
    Ok(run.scope(async |ctx| crate::reply(&ctx, &prompt).await).await?)
}

/// An error can answer as it is.
async fn holder(session: RequestedSession) -> Result<String, QueryError> {
    let holder = session.inspect().await?.holder;
    Ok(holder.map_or_else(|| "nobody".to_owned(), |holder| holder.label.to_string()))
}

async fn check(name: String) -> Result<String, InvalidText> {
    SessionKey::new("acct-1", name).map(|key| key.to_string())
}
