//! A handler of an actix-web application under a lease: 200 while it runs, 409 with the holder for whoever else asks.

#![cfg(feature = "testing")]

#[path = "support/panics.rs"]
mod panics;

use std::{rc::Rc, sync::Arc};

use actix_web::{
    App, HttpResponse,
    http::{StatusCode, header},
    test, web,
};
use tenure::{AcquireError, LeaseSupervisor, SessionKey, clock::SystemClock, store::MemoryStore};
use tokio::sync::Notify;

/// What the handler waits for, so that the test decides how long a request takes.
#[derive(Clone, Default)]
struct Gate {
    entered: Arc<Notify>,
    finish: Arc<Notify>,
}

async fn turn(
    supervisor: web::Data<LeaseSupervisor>,
    gate: web::Data<Gate>,
    session: web::Path<String>,
) -> HttpResponse {
    let Ok(key) = SessionKey::new("acct-1", session.as_str()) else {
        return HttpResponse::BadRequest().finish();
    };
    let run = match supervisor.acquire(&key).await {
        Ok(run) => run,
        Err(AcquireError::Busy(busy)) => {
            let retry_after = busy.retry_after().as_secs().to_string();
            return HttpResponse::Conflict()
                .insert_header((header::RETRY_AFTER, retry_after))
                .body(busy.holder().label.to_string());
        }
        Err(error) => return HttpResponse::ServiceUnavailable().body(error.to_string()),
    };
    // Not `Send`, as much in a handler of this framework is not.
    let reply = Rc::new("done".to_owned());
    let worked = run
        .scope(async |_| {
            gate.entered.notify_one();
            gate.finish.notified().await;
            reply.as_str()
        })
        .await;
    match worked {
        Ok(reply) => HttpResponse::Ok().body(reply.to_owned()),
        Err(error) => HttpResponse::ServiceUnavailable().body(error.to_string()),
    }
}

#[actix_web::test]
async fn a_handler_answers_200_then_409_with_the_holder_and_503_when_shut_down() {
    let store = MemoryStore::new(Arc::new(SystemClock));
    let supervisor = LeaseSupervisor::builder_on(Arc::new(store.clone()))
        .holder_label("api-3")
        .start()
        .await
        .expect("it starts");
    let gate = Gate::default();
    let app = App::new()
        .app_data(web::Data::new(supervisor.clone()))
        .app_data(web::Data::new(gate.clone()))
        .route("/{session}", web::post().to(turn));
    let app = test::init_service(app).await;
    let post = |path: &str| test::TestRequest::post().uri(path).to_request();

    let (first, ()) = tokio::join!(test::call_service(&app, post("/chat-9")), async {
        gate.entered.notified().await;
        let second = test::call_service(&app, post("/chat-9")).await;
        assert_eq!(second.status(), StatusCode::CONFLICT);
        assert!(second.headers().contains_key(header::RETRY_AFTER));
        assert_eq!(test::read_body(second).await, "api-3");
        gate.finish.notify_one();
    });
    assert_eq!(first.status(), StatusCode::OK);
    assert_eq!(test::read_body(first).await, "done");
    assert!(store.is_empty(), "released when the answer was given");

    supervisor.shutdown(supervisor.timing().stop_grace()).await;
    let late = test::call_service(&app, post("/chat-9")).await;
    assert_eq!(late.status(), StatusCode::SERVICE_UNAVAILABLE);
}
