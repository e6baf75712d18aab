//! A chat service on actix-web: handlers under a lease, and clients that may disconnect and come back.
//!
//! ```sh
//! cargo run --example actix_web --features actix-web                         # on leases.db, in this directory
//! PORT=8081 cargo run --example actix_web --features actix-web -- postgres://user@localhost/db
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

use std::{convert::Infallible, env, error::Error, net::Ipv4Addr, rc::Rc, time::Duration};

use actix_web::{
    App, HttpResponse, HttpServer,
    web::{self, Bytes, Data},
};
use futures::{StreamExt, stream};
use tenure::{
    LeaseSupervisor, RunContext, StopAnswer,
    web::{Problem, RequestedSession, Sessions},
};
use tokio::time::{sleep, timeout};

/// How long one turn of the pretended agent takes.
const TURN: Duration = Duration::from_millis(500);
/// How long runs may go on when the service is told to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a stream of events shows that it is alive. Only so does the server see that a client has gone.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

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
async fn attach(session: RequestedSession) -> Result<HttpResponse, Problem> {
    match session.local().await.and_then(|run| run.scope_handle::<String>()) {
        Some(work) => Ok(HttpResponse::Ok().body(work.attach().await?)),
        // The work may go on in another process: the status names the holder. Or it has ended: a real agent would have
        // stored its reply.
        None => Ok(HttpResponse::NotFound().json(session.inspect().await?)),
    }
}

/// DELETE …/run: asks the run to stop, whichever server it is on; the session is free when its work has ended.
async fn stop(session: RequestedSession) -> Result<HttpResponse, Problem> {
    Ok(match session.stop().by("its user").await? {
        StopAnswer::Asked(asked) => HttpResponse::Accepted().json(asked.holder()),
        StopAnswer::Idle => HttpResponse::NotFound().finish(),
    })
}

/// POST …/turn: work that is bound to its request. When the client disconnects, the work is dropped and the session
/// released.
async fn turn(session: RequestedSession, prompt: String) -> Result<String, Problem> {
    let run = session.acquire().await?;
    // Like much in a handler of this framework, this is not `Send`.
    let prompt = Rc::new(prompt);
    Ok(run.scope(async |ctx| agent(ctx, prompt.to_string()).await).await?)
}

/// GET …/events: the session as it is, and each change, as server-sent events. They end when the service does.
async fn events(session: RequestedSession) -> HttpResponse {
    let events = stream::unfold(session.watch(), async |mut changes| {
        let event = match timeout(KEEP_ALIVE, changes.next()).await {
            Ok(observed) => {
                let json = serde_json::to_string(&observed?).expect("an answer of the database");
                format!("data: {json}\n\n")
            }
            Err(_nothing_new) => ":\n\n".to_owned(),
        };
        Some((Ok::<_, Infallible>(Bytes::from(event)), changes))
    });
    let fresh = ("cache-control", "no-cache");
    HttpResponse::Ok().content_type("text/event-stream").insert_header(fresh).streaming(events)
}

/// GET /ready: for the load balancer.
async fn ready(sessions: Data<Sessions>) -> HttpResponse {
    match sessions.supervisor().is_ready().await {
        true => HttpResponse::Ok().finish(),
        false => HttpResponse::ServiceUnavailable().finish(),
    }
}

#[actix_web::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).or_else(|| env::var("TENURE_DATABASE_URL").ok());
    let url = url.unwrap_or_else(|| "sqlite://leases.db".to_owned());
    let port = env::var("PORT").map_or(Ok(8080), |port| port.parse())?;
    // Once would be enough, but a repetition does no harm. A real service would do this in its deployment.
    tenure::migrate(&url).await?;
    let holder = format!("actix_web {}", std::process::id());
    let supervisor = LeaseSupervisor::builder(url).holder_label(holder).start().await?;

    let sessions = Data::new(Sessions::new(supervisor.clone()));
    let app = move || {
        let run = web::resource("/run").post(start).get(attach).delete(stop);
        let session = web::scope("/sessions/{account}/{session}")
            .service(run)
            .route("/turn", web::post().to(turn))
            .route("/events", web::get().to(events));
        App::new().app_data(sessions.clone()).service(session).route("/ready", web::get().to(ready))
    };
    // On a signal, the runs are ended first, and the server last: so the server must not handle signals itself.
    let server = HttpServer::new(app).workers(2).disable_signals().shutdown_timeout(5);
    // Without this, actix-web does not notice that a client has disconnected, and `turn` works on for nobody.
    let server = server.h1_allow_half_closed(false);
    let server = server.bind((Ipv4Addr::LOCALHOST, port))?;
    println!("listening on http://{}, leases in {}", server.addrs()[0], supervisor.location());
    let server = server.run();
    let handle = server.handle();
    actix_web::rt::spawn(server);

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
    handle.stop(true).await;
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
