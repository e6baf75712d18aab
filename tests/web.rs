//! A handler gets the session that its request names, on axum and on actix-web, with the same answers.

#[path = "support/panics.rs"]
mod panics;

use std::{future::pending, sync::Arc, time::Duration};

use actix_web::{App, HttpMessage as _, dev::ServiceResponse, test, web};
use axum::{
    Router,
    body::{Body, to_bytes},
    http::Request,
    routing::any,
};
use tenure::{
    Busy, LeaseSupervisor, SessionKey,
    clock::SystemClock,
    store::MemoryStore,
    web::{AccountId, KeyPart, Problem, RequestedSession, Sessions},
};
use tokio::time::{sleep, timeout};
use tower_service::Service as _;

/// Which session the request names. One handler for both frameworks.
async fn named(session: RequestedSession) -> String {
    format!("{} + {}", session.key().account(), session.key().session())
}

async fn turn(session: RequestedSession, prompt: String) -> Result<String, Problem> {
    let run = session.acquire().await?;
    Ok(run.scope(async |_| if prompt == "hang" { pending().await } else { prompt.to_uppercase() }).await?)
}

#[derive(Debug, Clone, Copy, Default)]
struct Asked<'a> {
    path: &'a str,
    headers: &'a [(&'a str, &'a str)],
    /// What an authentication has found.
    account: Option<&'a str>,
}

#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    retry_after: Option<String>,
    content_type: Option<String>,
    body: String,
}

impl Answer {
    fn is_ok(&self, body: &str) -> bool {
        (self.status, self.body.as_str()) == (200, body)
    }

    fn is_problem(&self, status: u16, name: &str) -> bool {
        let is_problem = self.content_type.as_deref() == Some("application/problem+json");
        is_problem && self.status == status && self.body.contains(&format!(r#""type":"urn:tenure:{name}""#))
    }
}

/// The answer of a service with this route, which must be the same on both frameworks.
async fn answer(sessions: &Sessions, route: &str, asked: Asked<'_>) -> Answer {
    let on_axum = Router::new().route(route, any(named)).with_state(sessions.clone());
    let by_axum = ask_axum(on_axum, asked).await;
    let on_actix_web = |app: &mut web::ServiceConfig| {
        app.app_data(sessions.clone()).route(route, web::to(named));
    };
    let by_actix_web = ask_actix_web(on_actix_web, asked).await;
    assert_eq!(by_axum, by_actix_web, "{asked:?}");
    by_axum
}

async fn ask_axum(mut app: Router, asked: Asked<'_>) -> Answer {
    let mut request = Request::builder().uri(asked.path);
    for (name, value) in asked.headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(Body::empty()).unwrap();
    if let Some(account) = asked.account {
        request.extensions_mut().insert(AccountId(account.to_owned()));
    }
    call(&mut app, request).await
}

async fn call(app: &mut Router, request: Request<Body>) -> Answer {
    let response = app.call(request).await.unwrap();
    let header = |name| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let (status, retry_after) = (response.status().as_u16(), header("retry-after"));
    let content_type = header("content-type");
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    Answer { status, retry_after, content_type, body: String::from_utf8(body.to_vec()).unwrap() }
}

async fn ask_actix_web(configure: impl FnOnce(&mut web::ServiceConfig), asked: Asked<'_>) -> Answer {
    let app = test::init_service(App::new().configure(configure)).await;
    let mut request = test::TestRequest::with_uri(asked.path);
    for header in asked.headers {
        request = request.append_header(*header);
    }
    let request = request.to_request();
    if let Some(account) = asked.account {
        request.extensions_mut().insert(AccountId(account.to_owned()));
    }
    answered(test::call_service(&app, request).await).await
}

async fn answered(response: ServiceResponse) -> Answer {
    let header = |name| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let (status, retry_after) = (response.status().as_u16(), header("retry-after"));
    let content_type = header("content-type");
    let body = test::read_body(response).await;
    Answer { status, retry_after, content_type, body: String::from_utf8(body.to_vec()).unwrap() }
}

async fn sessions() -> (Sessions, MemoryStore) {
    let store = MemoryStore::new(Arc::new(SystemClock));
    let supervisor = LeaseSupervisor::builder_on(Arc::new(store.clone())).holder_label("api-3").start().await;
    (Sessions::new(supervisor.expect("it starts")), store)
}

#[actix_web::test]
async fn a_path_names_a_session_byte_for_byte() {
    const ROUTE: &str = "/sessions/{account}/{session}";
    let (sessions, _store) = sessions().await;
    for (path, named) in [
        ("acct-1/chat-9", "acct-1 + chat-9"),
        ("a%2Fb/c%20d%25", "a/b + c d%"),
        ("%2541/+%2B", "%41 + ++"),
        ("%C3%A9/é", "é + é"),
        (".../~", "... + ~"),
    ] {
        let path = format!("/sessions/{path}").replace('é', "%C3%A9");
        let answer = answer(&sessions, ROUTE, Asked { path: &path, ..Asked::default() }).await;
        assert!(answer.is_ok(named), "{path}: {answer:?}");
    }
    for path in ["acct-1/%00", &format!("acct-1/{}", "x".repeat(256)), "acct-1/%ff", "%C3/chat-9"] {
        let path = format!("/sessions/{path}");
        let answer = answer(&sessions, ROUTE, Asked { path: &path, ..Asked::default() }).await;
        assert!(answer.is_problem(400, "invalid"), "{path}: {answer:?}");
    }
}

#[actix_web::test]
async fn a_prefix_that_is_not_utf_8_is_the_clients_mistake_too() {
    let (sessions, _store) = sessions().await;
    let inner = Router::new().route("/{session}", any(named)).with_state(sessions.clone());
    for path in ["/%FF/chat-9", "/acct-1/%FF"] {
        let asked = Asked { path, ..Asked::default() };
        let by_axum = ask_axum(Router::new().nest("/{account}", inner.clone()), asked).await;
        assert!(by_axum.is_problem(400, "invalid"), "{path}: {by_axum:?}");
        let on_actix_web = |app: &mut web::ServiceConfig| {
            let scope = web::scope("/{account}").route("/{session}", web::to(named));
            app.app_data(sessions.clone()).service(scope);
        };
        let by_actix_web = ask_actix_web(on_actix_web, asked).await;
        assert!(by_actix_web.is_problem(400, "invalid"), "{path}: {by_actix_web:?}");
    }
}

#[actix_web::test]
async fn a_header_names_a_session_if_it_is_there_once() {
    let (sessions, _store) = sessions().await;
    let sessions = sessions.account(KeyPart::fixed("acct-1")).session(KeyPart::header("X-Chat"));
    let asked = |headers| Asked { path: "/", headers, account: None };
    let one = answer(&sessions, "/", asked(&[("x-chat", "chat-9")])).await;
    assert!(one.is_ok("acct-1 + chat-9"), "{one:?}");
    for headers in [&[][..], &[("x-chat", "")], &[("x-chat", "a"), ("x-chat", "b")]] {
        let refused = answer(&sessions, "/", asked(headers)).await;
        assert!(refused.is_problem(400, "invalid"), "{headers:?}: {refused:?}");
    }
}

#[actix_web::test]
async fn an_account_is_the_one_that_the_service_has_authenticated() {
    const ROUTE: &str = "/{account}/{chat}";
    let (sessions, _store) = sessions().await;
    let sessions = sessions.account(KeyPart::authenticated()).session(KeyPart::path("chat"));
    let asked = |account| Asked { path: "/mallory/chat-9", headers: &[], account };
    let known = answer(&sessions, ROUTE, asked(Some("ann"))).await;
    assert!(known.is_ok("ann + chat-9"), "{known:?}");
    let unknown = answer(&sessions, ROUTE, asked(None)).await;
    assert!(unknown.is_problem(403, "no-account"), "{unknown:?}");
}

#[actix_web::test]
async fn a_mistake_of_the_service_is_500() {
    let (sessions, _store) = sessions().await;
    let asked = Asked { path: "/chat-9", ..Asked::default() };
    let without_account = answer(&sessions, "/{session}", asked).await;
    assert!(without_account.is_problem(500, "misconfigured"), "{without_account:?}");
    for name in ["", "x chat", "x-chat:", "é"] {
        let sessions = sessions.clone().account(KeyPart::header(name));
        let no_header = answer(&sessions, "/{session}", asked).await;
        assert!(no_header.is_problem(500, "misconfigured"), "{name}: {no_header:?}");
    }
    let app = |app: &mut web::ServiceConfig| {
        app.route("/{account}", web::to(named));
    };
    let without_sessions = ask_actix_web(app, asked).await;
    assert!(without_sessions.is_problem(500, "misconfigured"), "{without_sessions:?}");
}

#[actix_web::test]
async fn a_handler_answers_200_then_409_then_503_and_frees_the_session_when_its_client_goes() {
    const PATH: &str = "/sessions/acct-1/chat-9";
    let (sessions, store) = sessions().await;
    let supervisor = sessions.supervisor().clone();
    let route = "/sessions/{account}/{session}";
    let mut on_axum = Router::new().route(route, any(turn)).with_state(sessions.clone());
    // Both ways of actix-web to hand data to handlers.
    let app = App::new().app_data(web::Data::new(sessions)).route(route, web::to(turn));
    let on_actix_web = test::init_service(app).await;
    let ask_actix_web = async |prompt: &'static str| {
        let request = test::TestRequest::with_uri(PATH).set_payload(prompt).to_request();
        answered(test::call_service(&on_actix_web, request).await).await
    };
    let mut ask_axum = async |prompt: &'static str| {
        call(&mut on_axum, Request::builder().uri(PATH).body(Body::from(prompt)).unwrap()).await
    };

    assert!(ask_actix_web("hello").await.is_ok("HELLO"));
    assert!(ask_axum("hello").await.is_ok("HELLO"));

    let key = SessionKey::new("acct-1", "chat-9").unwrap();
    let run = supervisor.acquire(&key).await.expect("nobody holds it");
    for refused in [ask_actix_web("hello").await, ask_axum("hello").await] {
        assert!(refused.is_problem(409, "busy") && refused.retry_after.is_some(), "{refused:?}");
        let busy: Busy = serde_json::from_str(&refused.body).unwrap();
        assert_eq!(busy.holder().run_id, run.run_id());
    }
    assert!(run.release().await.released);

    tokio::select! {
        answer = ask_actix_web("hang") => panic!("{answer:?}"),
        () = until(|| !store.is_empty()) => {}
    }
    until(|| store.is_empty()).await;
    tokio::select! {
        answer = ask_axum("hang") => panic!("{answer:?}"),
        () = until(|| !store.is_empty()) => {}
    }
    until(|| store.is_empty()).await;

    supervisor.drain().await;
    for refused in [ask_actix_web("hello").await, ask_axum("hello").await] {
        assert!(refused.is_problem(503, "draining") && refused.retry_after.is_some(), "{refused:?}");
    }
}

async fn until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(30), waiting).await.expect("it comes about");
}
