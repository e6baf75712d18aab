//! The host as an actix-web service.

use std::rc::Rc;

use actix_web::{
    get, post,
    web::{Data, Path, ServiceConfig},
};
use tenure::{
    LeaseSupervisor, QueryError, SessionKey,
    web::{KeyPart, Problem, RequestedSession, Sessions},
};

pub fn configure(app: &mut ServiceConfig, supervisor: LeaseSupervisor) {
    let sessions = Sessions::new(supervisor.clone())
        .account(KeyPart::header("X-Account"))
        .session(KeyPart::path("chat"));
    app.app_data(sessions).app_data(Data::new(supervisor)).service(turn).service(holder).service(count);
}

#[post("/chats/{chat}/turn")]
async fn turn(session: RequestedSession, prompt: String) -> Result<String, Problem> {
    let run = session.acquire().holder_label("web").await?;
    // Not `Send`.
    let prompt = Rc::new(prompt);
    Ok(run.scope(async |ctx| crate::reply(&ctx, &prompt).await).await?)
}

/// An error can answer as it is.
#[get("/chats/{chat}/holder")]
async fn holder(session: RequestedSession) -> Result<String, QueryError> {
    let holder = session.inspect().await?.holder;
    Ok(holder.map_or_else(|| "nobody".to_owned(), |holder| holder.label.to_string()))
}

/// Among the errors of others.
#[get("/accounts/{account}/count")]
async fn count(supervisor: Data<LeaseSupervisor>, account: Path<String>) -> actix_web::Result<String> {
    SessionKey::new(account.as_str(), "any")?;
    Ok(supervisor.list().account(account.as_str()).await?.len().to_string())
}
