//! The HTTP examples answer as their own documentation says: 200, 409, 410, 503, the run that outlives its client, and
//! the session as server-sent events.
//!
//! The examples are built by `cargo test`, but not by `cargo test --test examples_http`: that takes those it finds.

#![cfg(unix)]

mod support;

use std::{
    env,
    io::{BufRead, BufReader, Lines, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    time::Duration,
};

use futures::executor::block_on;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::wait_until;
use tempfile::TempDir;
use tenure::{Busy, LeaseSupervisor, RunId, SessionKey, SessionStatus};

const EXAMPLES: [&str; 2] = ["axum", "actix_web"];

#[test]
fn a_reply_is_200_and_a_busy_session_is_409_with_its_holder_and_retry_after() {
    for service in EXAMPLES.map(Service::start) {
        let run = block_on(service.elsewhere.acquire(&key("chat")).into_future()).expect("nobody holds it");
        let refused = service.post("chat/run", "hello").answer();
        assert_eq!(refused.status, 409, "{refused:?}");
        let busy: Busy =
            serde_json::from_str(&refused.body).unwrap_or_else(|error| panic!("{error}: {refused:?}"));
        assert_eq!((busy.holder().label.as_str(), busy.holder().run_id), ("the test", run.run_id()));
        assert!((1..=5).contains(&refused.retry_after()), "{refused:?}");
        assert_eq!(service.post("chat/turn", "hello").answer().status, 409);

        assert!(block_on(run.release()).released);
        let granted = service.post("chat/run", "hello there").answer();
        assert_eq!((granted.status, granted.body.as_str()), (200, "HELLO THERE"), "{granted:?}");
        let granted = service.post("chat/turn", "hello").answer();
        assert_eq!((granted.status, granted.body.as_str()), (200, "HELLO"), "{granted:?}");
    }
}

#[test]
fn a_key_that_cannot_be_stored_is_400() {
    for service in EXAMPLES.map(Service::start) {
        for session in ["x".repeat(300), "a%00b".to_owned(), "a%ffb".to_owned()] {
            for path in ["run", "turn"] {
                let refused = service.post(&format!("{session}/{path}"), "hello").answer();
                assert_eq!(refused.status, 400, "{session}/{path}: {refused:?}");
                assert_eq!(refused.json()["status"], 400, "{refused:?}");
            }
        }
    }
}

#[test]
fn a_run_outlives_its_client_and_a_part_of_a_request_does_not() {
    for service in EXAMPLES.map(Service::start) {
        let clients = ["chat/run", "other/turn"].map(|path| service.post(path, &minutes_of_work()));
        let run = service.wait_for_work("chat");
        service.wait_for_work("other");
        drop(clients);
        wait_until("the work of the request has ended", || service.holder("other").is_none());
        assert_eq!(service.holder("chat"), Some(run), "the run goes on");
        // As busy for a new prompt as if another process held it.
        let refused = service.post("chat/run", "me too").answer();
        assert_eq!(refused.status, 409, "{refused:?}");
        assert_eq!(refused.json()["holder"]["run_id"], run.to_string(), "{refused:?}");
    }
}

#[test]
fn a_client_that_comes_back_attaches_to_its_run_until_that_has_ended() {
    for service in EXAMPLES.map(Service::start) {
        // A server that is slow enough reads the first request after the run has ended by the second.
        let attached = (0..5).map(|_| attached_and_stopped(&service)).find(|back| back.status != 404);
        let stopped = attached.expect("a GET finds the run");
        assert_eq!(
            (stopped.status, &stopped.json()["reason"]),
            (410, &Value::from("stopped")),
            "{stopped:?}"
        );

        assert_eq!(service.delete("chat/run").answer().status, 404);
        wait_until("the work is forgotten", || service.get("chat/run").answer().status == 404);
        assert_eq!(service.get("chat/run").answer().json()["state"], "idle");
    }
}

/// What a client is told that comes back to a run, which is then stopped.
fn attached_and_stopped(service: &Service) -> Answer {
    let gone = service.post("chat/run", &minutes_of_work());
    service.wait_for_work("chat");
    drop(gone);
    let back = service.get("chat/run");
    assert_eq!(service.delete("chat/run").answer().status, 202);
    wait_until("the session is free", || service.holder("chat").is_none());
    back.answer()
}

#[test]
fn a_draining_service_refuses_with_503_lets_its_run_end_and_exits_with_success() {
    for mut service in EXAMPLES.map(Service::start) {
        let client = service.post("chat/run", &minutes_of_work());
        service.wait_for_work("chat");
        assert_eq!(service.ask("GET", "/ready", "").answer().status, 200);

        service.signal(Signal::TERM);
        wait_until("not ready", || service.ask("GET", "/ready", "").answer().status == 503);
        let refused = service.post("other/run", "hello").answer();
        assert_eq!(refused.status, 503, "{refused:?}");
        assert!(refused.body.contains("draining") && refused.retry_after() >= 1, "{refused:?}");

        // The run goes on, and its user may still stop it.
        assert_eq!(service.delete("chat/run").answer().status, 202);
        assert_eq!(client.answer().status, 410);
        assert!(service.exit().success());
        assert_eq!(service.holder("chat"), None, "it left nothing behind");
    }
}

#[test]
fn events_show_the_session_each_change_and_end_with_the_service() {
    for mut service in EXAMPLES.map(Service::start) {
        let mut events = service.get("chat/events").events();
        assert_eq!(events.next()["known"]["state"], "idle");
        let run = block_on(service.elsewhere.acquire(&key("chat")).into_future()).expect("nobody holds it");
        let running = events.next();
        assert_eq!(running["known"]["state"], "running");
        assert_eq!(running["known"]["holder"]["run_id"], run.run_id().to_string());
        assert!(block_on(run.release()).released);
        assert_eq!(events.next()["known"]["state"], "idle");

        service.signal(Signal::TERM);
        assert!(
            events.0.all(|line| line.is_ok_and(|line| !line.starts_with("data:"))),
            "nothing has changed"
        );
        assert!(service.exit().success());
    }
}

/// Words that no test waits for the end of, at half a second each.
fn minutes_of_work() -> String {
    "word ".repeat(600)
}

fn key(session: &str) -> SessionKey {
    SessionKey::new("acct-1", session).expect("a good key")
}

/// An example that runs as a process, on a database and a port of its own.
struct Service {
    process: Killed,
    address: SocketAddr,
    /// Open, so that what the service prints breaks no pipe.
    _output: BufReader<ChildStdout>,
    /// Another supervisor on the same database.
    elsewhere: LeaseSupervisor,
    _directory: TempDir,
}

impl Service {
    fn start(example: &str) -> Self {
        let directory = tempfile::tempdir().expect("there is room for a directory");
        let url = format!("sqlite://{}", directory.path().join("leases.db").display());
        let mut command = Command::new(executable(example));
        command.arg(&url).env("PORT", "0").stdout(Stdio::piped());
        let mut process = Killed(command.spawn().unwrap_or_else(|error| panic!("{example}: {error}")));
        let mut output = BufReader::new(process.0.stdout.take().expect("it is piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("its words are UTF-8");
        let address = line.strip_prefix("listening on http://").and_then(|line| line.split(',').next());
        let address = address.and_then(|address| address.parse().ok());
        let address = address.unwrap_or_else(|| panic!("{example} listens nowhere: {line:?}"));
        let elsewhere =
            block_on(LeaseSupervisor::builder(url).holder_label("the test").start()).expect("it starts");
        Self { process, address, _output: output, elsewhere, _directory: directory }
    }

    fn post(&self, path: &str, prompt: &str) -> Request {
        self.ask("POST", &format!("/sessions/acct-1/{path}"), prompt)
    }

    fn get(&self, path: &str) -> Request {
        self.ask("GET", &format!("/sessions/acct-1/{path}"), "")
    }

    fn delete(&self, path: &str) -> Request {
        self.ask("DELETE", &format!("/sessions/acct-1/{path}"), "")
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Request {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(ANSWER_BOUND)).expect("it is not zero");
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n");
        write!(stream, "{head}connection: close\r\n\r\n{body}").expect("it reads");
        Request { stream, what: format!("{method} {path}") }
    }

    fn status(&self, session: &str) -> SessionStatus {
        block_on(self.elsewhere.inspect(&key(session))).expect("the file is there")
    }

    fn holder(&self, session: &str) -> Option<RunId> {
        self.status(session).holder.map(|holder| holder.run_id)
    }

    /// Until the work under a run has begun, and shows it; before, a client that goes takes its request along.
    fn wait_for_work(&self, session: &str) -> RunId {
        let mut working = None;
        wait_until("work goes on", || {
            working = self.status(session).holder.filter(|holder| !holder.phase.as_str().is_empty());
            working.is_some()
        });
        working.expect("it goes on").run_id
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process.0), signal).expect("it runs");
    }

    fn exit(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("it exits", || {
            status = self.process.0.try_wait().expect("it is a child of ours");
            status.is_some()
        });
        status.expect("it has exited")
    }
}

/// Next to this test's executable, where cargo puts them.
fn executable(example: &str) -> PathBuf {
    let test = env::current_exe().expect("a process has an executable");
    let profile = test.parent().and_then(Path::parent).expect("target/<profile>/deps/<test>");
    let executable = profile.join("examples").join(example);
    let remedy = "cargo build --all-features --examples";
    assert!(executable.exists(), "{} is missing: run `{remedy}` first", executable.display());
    executable
}

/// A process that does not outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // One that has ended already is no error here.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Longer than any answer takes, on a machine at full load.
const ANSWER_BOUND: Duration = Duration::from_secs(60);

/// A request that was sent. Dropping it is a client that disconnects.
struct Request {
    stream: TcpStream,
    what: String,
}

impl Request {
    fn events(self) -> Events {
        Events(BufReader::new(self.stream).lines())
    }

    fn answer(mut self) -> Answer {
        let mut text = String::new();
        self.stream.read_to_string(&mut text).unwrap_or_else(|error| panic!("{}: {error}", self.what));
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{}: {text:?}", self.what));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("{}: {text:?}", self.what));
        Answer { status, head: head.to_lowercase(), body: body.to_owned() }
    }
}

/// The lines of a stream of server-sent events.
struct Events(Lines<BufReader<TcpStream>>);

impl Events {
    fn next(&mut self) -> Value {
        let mut lines = self.0.by_ref().map(|line| line.expect("it goes on"));
        let data = lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned));
        serde_json::from_str(&data.expect("there is another event")).expect("it is JSON")
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    /// In lower case.
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// In seconds.
    fn retry_after(&self) -> u64 {
        let value = self.head.lines().find_map(|line| line.strip_prefix("retry-after: "));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no Retry-After: {self:?}"))
    }
}
