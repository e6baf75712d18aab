//! In front of HTTP services: processes of their own, and a client that is frozen while another run takes its session over.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Extension, Router,
    body::{Body, to_bytes},
    extract::State,
    response::Response,
    routing::{get, put},
};
use sqlx::{Connection as _, Executor as _, SqliteConnection};
use tenure::{
    LeaseSupervisor,
    fence_gate::{FenceGate, FenceLayer, Fenced, GateError, SQLITE_TABLE, admit, headers},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::{
    support::{
        background,
        process::{Commands, Worker, say},
    },
    *,
};

const SERVER: &str = "server";
const CLIENT: &str = "client";
const TTL: Duration = Duration::from_secs(1);

pub(super) fn work(role: &str, commands: Commands) {
    let runtime = tokio::runtime::Runtime::new().expect("threads are to be had");
    match role {
        SERVER => runtime.block_on(serve(commands)),
        CLIENT => runtime.block_on(write_as_told(commands)),
        _ => panic!("no role {role}"),
    }
}

/// Two servers of one resource, each with a gate of its own, and a table beside the data that both share.
#[tokio::test]
async fn a_client_that_was_frozen_writes_nothing_after_a_later_run_on_whichever_server() {
    let directory = tempfile::tempdir().unwrap();
    let url = |name: &str| format!("sqlite://{}/{name}.db?mode=rwc", directory.path().display());
    let (leases, data) = (url("leases").replace("?mode=rwc", ""), url("data"));
    let mut database = SqliteConnection::connect(&data).await.unwrap();
    database.execute(SQLITE_TABLE).await.unwrap();
    database.execute("CREATE TABLE write (n INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT)").await.unwrap();
    let [mut one, mut two] = [(); 2].map(|()| Worker::spawn(SERVER, &[("DATA", &data)]));
    let (one, two) = (address(&mut one).await, address(&mut two).await);

    let start = |name| Worker::spawn(CLIENT, &[("LEASES", &leases), ("NAME", name)]);
    let mut frozen = start("frozen");
    frozen.expect("held ").await;
    assert_eq!(put_through(&mut frozen, one, "before").await, "200");
    // Its head has come, its body has not.
    frozen.send(&format!("begin {two} half"));
    frozen.expect("begun").await;
    frozen.freeze();

    let mut later = start("later");
    let fence = later.expect("held ").await;
    assert_eq!(put_through(&mut later, two, "after").await, "200");
    frozen.thaw();
    frozen.send("finish");
    // The gate has let its head pass; the handler asks again.
    assert_eq!(frozen.expect("answer ").await, format!("412 {fence}"));
    // The gate of this server knows better; the handler of the other has to ask the table.
    assert_eq!(put_through(&mut frozen, two, "late").await, format!("412 {fence}"));
    assert_eq!(put_through(&mut frozen, one, "late").await, format!("412 {fence}"));
    assert_eq!(put_through(&mut later, one, "and after").await, "200");

    let written: Vec<String> =
        sqlx::query_scalar("SELECT text FROM write ORDER BY n").fetch_all(&mut database).await.unwrap();
    assert_eq!(written, ["before", "after", "and after"]);
}

#[tokio::test]
async fn what_says_no_fence_is_told_what_to_send_and_what_only_reads_passes() {
    let service = Router::new().route("/data", get(async || "read").put(async || "written"));
    let strict = FenceGate::new().strict();
    let from = strict.vouches_from();
    let layers = [
        FenceLayer::new(FenceGate::new()),
        FenceLayer::new(strict),
        FenceLayer::new(FenceGate::new()).optional(),
    ];
    let [plain, strict, optional] = layers.map(|layer| {
        let service = service.clone().layer(layer);
        async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(async move { axum::serve(listener, service).await });
            address
        }
    });
    let (plain, strict, optional) = (plain.await, strict.await, optional.await);
    let fence = |value: &str| format!("tenure-fence: {value}\r\n");
    let session = |value: &str| format!("tenure-session: {value}\r\n");
    let both = |number: &str| fence(number) + &session("acct/chat");
    for (address, method, head, status) in [
        (plain, "PUT", both("7"), "200"),
        (plain, "PUT", both("7"), "200"),
        (plain, "PUT", both("6"), "412 7"),
        (plain, "GET", both("6"), "412 7"),
        (plain, "PUT", fence("6") + &session("acct/other"), "200"),
        (plain, "PUT", String::new(), "428"),
        (plain, "GET", String::new(), "200"),
        (plain, "PUT", fence("8"), "400"),
        (plain, "PUT", session("acct/chat"), "400"),
        (plain, "GET", session("acct/chat"), "400"),
        (plain, "PUT", both("eight"), "400"),
        (plain, "PUT", both("8") + &fence("9"), "400"),
        (plain, "PUT", fence("8") + &session("chat"), "400"),
        (plain, "PUT", both("7"), "200"),
        (strict, "PUT", both("7"), &format!("412 {from}")),
        (strict, "PUT", both(&from.to_string()), "200"),
        (optional, "PUT", String::new(), "200"),
        (optional, "PUT", both("7"), "200"),
        (optional, "PUT", both("6"), "412 7"),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("{method} /data HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{head}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        assert_eq!(answer(stream).await, status, "{method} {head}");
    }
}

async fn address(server: &mut Worker) -> SocketAddr {
    server.expect("listening ").await.parse().expect("it says an address")
}

async fn put_through(client: &mut Worker, address: SocketAddr, text: &str) -> String {
    client.send(&format!("put {address} {text}"));
    client.expect("answer ").await
}

/// A service that guards a table with a gate in front and a gate beside.
async fn serve(mut commands: Commands) {
    let data: Arc<str> = std::env::var("DATA").expect("the test says it").into();
    let service = Router::new().route("/data", put(write)).with_state(data);
    let service = service.layer(FenceLayer::new(FenceGate::new()));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    say(format_args!("listening {}", listener.local_addr().expect("it is bound")));
    tokio::spawn(async move { axum::serve(listener, service).await });
    commands.next().await;
}

async fn write(State(data): State<Arc<str>>, Extension(writer): Extension<Fenced>, body: Body) -> Response {
    let text = to_bytes(body, 1_000).await.expect("it is short");
    let _passage = match writer.enter().await {
        Ok(passage) => passage,
        Err(refused) => return refused.into_response(),
    };
    let mut database = SqliteConnection::connect(&data).await.expect("the file is there");
    let mut tx = database.begin_with("BEGIN IMMEDIATE").await.expect("nobody is long");
    match admit(&mut *tx, writer.key(), writer.fence()).await {
        Err(GateError::Refused(refused)) => return refused.into_response(),
        other => other.expect("the table is there"),
    }
    let query = sqlx::query("INSERT INTO write (text) VALUES (?1)");
    query.bind(String::from_utf8_lossy(&text).into_owned()).execute(&mut *tx).await.expect("it is a text");
    tx.commit().await.expect("nobody is in the way");
    Response::new(Body::from("written"))
}

/// A run, and what it writes when it is told to; whether it is still held is left to the other end to find out.
async fn write_as_told(mut commands: Commands) {
    let env = |name| std::env::var(name).expect("the test says it");
    let supervisor = LeaseSupervisor::builder(env("LEASES")).holder_label(env("NAME")).ttl(TTL).start().await;
    let supervisor = supervisor.expect("the file is there");
    let run = loop {
        match supervisor.acquire(&key("chat")).await {
            Ok(run) => break run,
            Err(_) => background::sleep(Duration::from_millis(10)).await,
        }
    };
    say(format_args!("held {}", run.fence()));
    let head = |length: usize| {
        let (session, fence) = (headers::session(run.key()), run.fence());
        format!(
            "PUT /data HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}\r\n\
             {}: {session}\r\n{}: {fence}\r\n\r\n",
            headers::SESSION,
            headers::FENCE
        )
    };
    let mut begun: Option<(TcpStream, String)> = None;
    loop {
        let command = commands.next().await;
        let mut words = command.splitn(3, ' ');
        let (verb, address, text) =
            (words.next(), words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if verb != Some("finish") {
            let mut stream = TcpStream::connect(address).await.expect("it listens");
            stream.write_all(head(text.len()).as_bytes()).await.expect("it reads");
            begun = Some((stream, text.to_owned()));
        }
        if verb == Some("begin") {
            // Until the server has read the head, too.
            background::sleep(Duration::from_millis(100)).await;
            say("begun");
            continue;
        }
        let (mut stream, text) = begun.take().expect("it has begun");
        stream.write_all(text.as_bytes()).await.expect("it reads");
        say(format_args!("answer {}", answer(stream).await));
    }
}

/// The status, and the fence where there is one.
async fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it is text");
    let status = answer.split(' ').nth(1).unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let fence = answer.lines().find_map(|line| line.strip_prefix("tenure-fence: "));
    [Some(status), fence].into_iter().flatten().collect::<Vec<_>>().join(" ")
}
