//! A chat service on axum: handlers under a lease, and clients that may disconnect and come back.
//!
//! ```sh
//! cargo run --example axum --features axum                                   # on leases.db, in this directory
//! PORT=8081 cargo run --example axum --features axum -- postgres://user@localhost/db
//! ```
//!
//! Each word of the prompt is a turn of half a second:
//!
//! ```sh
//! url=http://127.0.0.1:8080/sessions/acct-1/chat-9/run
//! curl -i $url -d 'tell me a story'            # 200 and the reply, two seconds later …
//! curl -i $url -d 'me too'                     # … and meanwhile, 409: the holder as JSON, and Retry-After
//! curl -i -m 1 $url -d 'tell me a long story'; # the client gives up after a second; the work goes on …
//! curl -i $url                                 # … and a client that comes back gets its reply: 200; else 404
//! curl -i $url -X DELETE                       # 202: the run is asked to stop; clients that wait for it get 410
//! curl -i ${url%run}turn -d 'a short one'      # the same as a part of the request: it ends with its client
//! curl -N ${url%run}events                     # how the session is, and each change, as server-sent events
//! curl -i http://127.0.0.1:8080/ready          # 200; 503 while draining, and when the database is away
//! ```
//!
//! Ctrl-C or SIGTERM drains the service: it refuses new runs with 503, lets the others go on for half a minute, and
//! then stops them. A second server on the same database (`PORT=8081`) answers 409 for sessions that the first one
//! holds.

use std::{convert::Infallible, env, error::Error, net::Ipv4Addr, time::Duration};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
    routing::{get, post},
};
use futures::{Stream, StreamExt};
use tenure::{
    LeaseSupervisor, RunContext, StopAnswer,
    web::{Problem, RequestedSession, Sessions},
};
use tokio::{
    net::TcpListener,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// How long one turn of the pretended agent takes.
const TURN: Duration = Duration::from_millis(500);
/// How long runs may go on when the service is told to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// Stands in for an agent.
async fn agent(ctx: RunContext, prompt: String) -> String {
    let mut reply = Vec::new();
    for (turn, word) in prompt.split_whitespace().enumerate() {
        // Callers who are refused meanwhile see this phase.
        ctx.set_phase(format!("turn {}", turn + 1)).expect("a short text");
        let thought = ctx.token().run_until_cancelled_owned(sleep(TURN)).await;
        // Right before each side effect, of which this example has none.
        if thought.is_none() || !ctx.is_held() {
            break;
        }
        reply.push(word.to_uppercase());
        ctx.beat();
    }
    reply.join(" ")
}

/// POST …/run: work that is bound to its run. It goes on when the client disconnects.
async fn start(session: RequestedSession, prompt: String) -> Result<String, Problem> {
    let run = session.acquire().max_silence(Duration::from_secs(60)).await?;
    Ok(run.spawn_scope(|ctx| agent(ctx, prompt)).attach().await?)
}

/// GET …/run: attaches to the work of this session in this process.
async fn attach(session: RequestedSession) -> Result<Response, Problem> {
    match session.local().await.and_then(|run| run.scope_handle::<String>()) {
        Some(work) => Ok(work.attach().await?.into_response()),
        // The work may go on in another process: the status names the holder. Or it has ended: a real agent would have
        // stored its reply.
        None => Ok((StatusCode::NOT_FOUND, Json(session.inspect().await?)).into_response()),
    }
}

/// DELETE …/run: asks the run to stop, whichever server it is on; the session is free when its work has ended.
async fn stop(session: RequestedSession) -> Result<Response, Problem> {
    Ok(match session.stop().by("its user").await? {
        StopAnswer::Asked(asked) => (StatusCode::ACCEPTED, Json(asked.holder())).into_response(),
        StopAnswer::Idle => StatusCode::NOT_FOUND.into_response(),
    })
}

/// POST …/turn: work that is bound to its request. When the client disconnects, the work is dropped and the session
/// released.
async fn turn(session: RequestedSession, prompt: String) -> Result<String, Problem> {
    let run = session.acquire().await?;
    Ok(run.scope(async |ctx| agent(ctx, prompt).await).await?)
}

/// GET …/events: the session as it is, and each change, as server-sent events. They end when the service does.
async fn events(session: RequestedSession) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let event = |observed| Ok(Event::default().json_data(observed).expect("an answer of the database"));
    Sse::new(session.watch().map(event)).keep_alive(KeepAlive::default())
}

/// GET /ready: for the load balancer.
async fn ready(State(sessions): State<Sessions>) -> StatusCode {
    if sessions.supervisor().is_ready().await { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).or_else(|| env::var("TENURE_DATABASE_URL").ok());
    let url = url.unwrap_or_else(|| "sqlite://leases.db".to_owned());
    let port = env::var("PORT").map_or(Ok(8080), |port| port.parse())?;
    // Once would be enough, but a repetition does no harm. A real service would do this in its deployment.
    tenure::migrate(&url).await?;
    let holder = format!("axum {}", std::process::id());
    let supervisor = LeaseSupervisor::builder(url).holder_label(holder).start().await?;

    let app = Router::new()
        .route("/sessions/{account}/{session}/run", post(start).get(attach).delete(stop))
        .route("/sessions/{account}/{session}/turn", post(turn))
        .route("/sessions/{account}/{session}/events", get(events))
        .route("/ready", get(ready))
        .with_state(Sessions::new(supervisor.clone()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    println!("listening on http://{}, leases in {}", listener.local_addr()?, supervisor.location());
    let closed = CancellationToken::new();
    let server = axum::serve(listener, app).with_graceful_shutdown(closed.clone().cancelled_owned());
    let server = tokio::spawn(server.into_future());

    told_to_leave().await;
    println!(
        "draining: new runs are refused, others may go on for {PATIENCE:?}, or until told to leave again"
    );
    // Meanwhile the server answers, so that the load balancer sees that it is not ready, and clients can come back.
    tokio::select! {
        () = supervisor.drain() => {}
        () = sleep(PATIENCE) => {}
        () = told_to_leave() => {}
    }
    let report = supervisor.shutdown(supervisor.timing().stop_grace()).await;
    println!(
        "runs ended by the shutdown: {}; sessions left to expire: {:?}",
        report.ended.len(),
        report.left
    );
    // Clients that waited for a run have their answers now.
    closed.cancel();
    let _ = timeout(Duration::from_secs(5), server).await;
    Ok(())
}

/// Waits for SIGTERM or Ctrl-C.
async fn told_to_leave() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate()).expect("signals can be handled");
        let mut interrupt = signal(SignalKind::interrupt()).expect("signals can be handled");
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await.expect("signals can be handled");
}
