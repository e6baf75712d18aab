//! What the command tells of a run, field by field.

use std::{
    fs::{self, OpenOptions},
    io::Read as _,
    os::{fd::AsRawFd as _, unix::net::UnixStream},
    time::{Duration, SystemTime},
};

use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::Signal,
};
use serde_json::Value;

use crate::{
    scene::{ACCOUNT, Running, Scene},
    support::{
        backend::Reachable,
        client::{Client, acquire, key},
    },
};

on_every_backend! {
    every_event_has_the_fields_that_are_promised
    a_busy_event_shows_the_holder_as_status_does
    events_go_to_a_file_that_is_appended_to
    events_go_to_an_open_descriptor
    events_go_to_a_socket
    events_that_cannot_be_written_are_said_to_be_lost_once
    a_place_that_cannot_take_events_is_wrong_usage_and_nothing_is_held
    a_pipe_that_nobody_reads_is_wrong_usage_and_nothing_waits_for_a_reader
    quiet_says_nothing
    text_is_one_line_an_event_and_shows_control_characters_escaped
}

/// The names of all fields.
pub(crate) fn names(object: &Value) -> Vec<&str> {
    let mut names: Vec<_> = object.as_object().expect("an object").keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

/// An instant in UTC, written as promised.
#[track_caller]
pub(crate) fn instant(value: &Value) -> SystemTime {
    let text = value.as_str().unwrap_or_else(|| panic!("no text: {value}"));
    assert!(text.ends_with('Z'), "{text}");
    humantime::parse_rfc3339(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Close to now, on one machine.
#[track_caller]
pub(crate) fn assert_recent(at: SystemTime) {
    let now = SystemTime::now();
    let apart = now.duration_since(at).unwrap_or_else(|error| error.duration());
    assert!(apart < Duration::from_secs(60), "{at:?} at {now:?}");
}

async fn every_event_has_the_fields_that_are_promised(backend: impl Reachable) {
    let scene = Scene::new();
    let options = ["--ttl", "2500ms", "--holder", "me\u{1b}[31m\n\"you\""];
    let mut run = scene.run(&backend.url(), "chat", &options, "ready; sleep 6000");
    let acquired = run.event("acquired");
    scene.wait_for("ready");
    run.signal(Signal::TERM);
    let done = run.finish();
    let events = done.events();
    assert_eq!(
        names(&acquired),
        ["account", "at", "database", "event", "fence", "holder", "run_id", "session", "ttl_ms"]
    );
    assert_eq!(acquired["ttl_ms"], 2_500);
    assert_eq!(acquired["holder"], "me\u{1b}[31m\n\"you\"");
    assert!(acquired["fence"].as_i64().is_some_and(|fence| fence > 0));
    let run_id = acquired["run_id"].as_str().unwrap();
    assert_eq!(run_id.parse::<uuid::Uuid>().unwrap().to_string(), run_id);

    let [_, stopping, ended] = &events[..] else { panic!("{done:?}") };
    let why = ["by", "cause", "confirmed_at", "limit_ms", "reason", "why"];
    let with = |more: &[&'static str]| {
        let mut names = [&["account", "at", "event", "run_id", "session"], &why[..], more].concat();
        names.sort_unstable();
        names
    };
    assert_eq!(names(stopping), with(&[]));
    assert_eq!((&stopping["reason"], &stopping["by"]), (&"signal".into(), &Value::Null));
    assert_eq!((&stopping["why"], &ended["why"]), (&Value::Null, &Value::Null));
    assert_eq!(names(ended), with(&["exit_code", "released"]));
    assert_eq!(
        (&ended["cause"], &ended["confirmed_at"], &ended["limit_ms"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    assert_eq!((&ended["exit_code"], &ended["released"]), (&143.into(), &true.into()));
    for event in &events {
        assert_eq!(event["run_id"], run_id);
        assert_eq!((&event["account"], &event["session"]), (&ACCOUNT.into(), &"chat".into()));
        assert_recent(instant(&event["at"]));
        assert_eq!(event["run_id"], run_id);
    }
}

async fn a_busy_event_shows_the_holder_as_status_does(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut client = Client::connect(&*backend.store()).await;
    client.granted(acquire(&key("chat"), tenure::RunId::random())).await;
    client.close().await;
    backend.request_stop(&key("chat"), "alice", "enough").await;
    let done = scene.run(&url, "chat", &[], "ready").finish();
    let [busy] = &done.events()[..] else { panic!("{done:?}") };
    assert_eq!(names(busy), ["account", "at", "event", "holder", "session", "waiting"]);
    assert_eq!(busy["waiting"], 0);
    assert_recent(instant(&busy["at"]));
    let (code, mut status) = scene.status(&url, "chat");
    let mut holder = busy["holder"].clone();
    for one in [&mut holder, &mut status] {
        // Passes meanwhile.
        one["expires_in_ms"].take();
    }
    assert_eq!((code, holder), (0, status));
}

async fn events_go_to_a_file_that_is_appended_to(backend: impl Reachable) {
    let scene = Scene::new();
    fs::write(scene.path("events"), "before\n").unwrap();
    let done = scene.run(&backend.url(), "chat", &["--events", "events"], "exit 0").finish();
    assert_eq!((done.code, done.stderr.len()), (0, 0), "{done:?}");
    let events = scene.text("events");
    let words: Vec<Value> = events
        .lines()
        .skip(1)
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["event"].take())
        .collect();
    assert!(events.starts_with("before\n"));
    assert_eq!(words, ["acquired", "ended"]);
}

async fn events_go_to_an_open_descriptor(backend: impl Reachable) {
    let scene = Scene::new();
    let file = OpenOptions::new().create(true).append(true).open(scene.path("events")).unwrap();
    fcntl_setfd(&file, FdFlags::empty()).unwrap();
    let number = file.as_raw_fd().to_string();
    let done = scene.run(&backend.url(), "chat", &["--events", &number], "exit 0").finish();
    assert_eq!((done.code, done.stderr.len()), (0, 0), "{done:?}");
    assert_eq!(scene.text("events").lines().count(), 2);
    assert!(!scene.has(&number), "a number is no file name");
}

async fn events_go_to_a_socket(backend: impl Reachable) {
    // What a service manager gives as stderr.
    let scene = Scene::new();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    fcntl_setfd(&theirs, FdFlags::empty()).unwrap();
    let number = theirs.as_raw_fd().to_string();
    let run = scene.run(&backend.url(), "chat", &["--events", &number], "exit 0");
    drop(theirs);
    let done = run.finish();
    assert_eq!(done.code, 0, "{done:?}");
    let mut events = String::new();
    ours.read_to_string(&mut events).unwrap();
    assert_eq!(events.lines().count(), 2);
}

async fn events_that_cannot_be_written_are_said_to_be_lost_once(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let done = scene.run(&url, "chat", &["--events", "/dev/full"], "exit 3").finish();
    assert_eq!((done.code, done.stderr.len()), (3, 1), "{done:?}");
    assert!(done.is_said("/dev/full takes no events: No space left"), "{done:?}");

    let (reader, writer) = UnixStream::pair().unwrap();
    drop(reader);
    fcntl_setfd(&writer, FdFlags::empty()).unwrap();
    let descriptor = writer.as_raw_fd().to_string();
    let done = scene.run(&url, "chat", &["--events", &descriptor], "exit 3").finish();
    assert_eq!((done.code, done.stderr.len()), (3, 1), "{done:?}");
    assert!(done.is_said(&format!("descriptor {descriptor} takes no events: Broken pipe")), "{done:?}");
}

async fn a_place_that_cannot_take_events_is_wrong_usage_and_nothing_is_held(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    for place in ["none/there", "home", "199", "4294967295"] {
        let done = scene.run(&url, "chat", &["--events", place], "ready").finish();
        assert_eq!(done.code, 64, "{place}: {done:?}");
        assert!(done.is_said("--events: ") && done.is_said(place), "{done:?}");
    }
    assert!(!scene.has("ready"));
    scene.assert_idle(&url, "chat");
}

async fn a_pipe_that_nobody_reads_is_wrong_usage_and_nothing_waits_for_a_reader(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    assert!(std::process::Command::new("mkfifo").arg(scene.path("fifo")).status().unwrap().success());
    let done = scene.run(&url, "chat", &["--events", "fifo"], "ready").finish();
    assert_eq!(done.code, 64, "{done:?}");
    assert!(!scene.has("ready"));
    scene.assert_idle(&url, "chat");
}

async fn quiet_says_nothing(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let done =
        scene.output(["-q", "--database", &url, "run", "-s", "chat", "--", "sh", "-c", "echo out; exit 3"]);
    assert_eq!((done.code, done.text().as_str(), done.stderr.len()), (3, "out\n", 0), "{done:?}");
}

async fn text_is_one_line_an_event_and_shows_control_characters_escaped(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let evil = "a\u{1b}[31m\r\nb\u{7f}\u{9b}c";
    let mut command = scene.tenure(["--database", &url, "run", "-a", ACCOUNT, "-s", evil, "--ttl", "10s"]);
    let script = "exec 2> /dev/null; trap ': > $dir/told' TERM; : > $dir/ready; while :; do sleep 0.01; done";
    command.args(["--stop-grace", "10m", "--holder", evil, "--", "sh", "-c", script]);
    let run = Running::start(command);
    scene.wait_for("ready");
    let look = |args: &[&str]| {
        let mut command = scene.tenure(["--database", &url]);
        command.args(args);
        Running::start(command).finish()
    };
    backend.request_stop(&key(evil), evil, evil).await;
    let busy = look(&["run", "-a", ACCOUNT, "-s", evil, "--", "true"]);
    let (status, list) = (look(&["status", "-a", ACCOUNT, "-s", evil]), look(&["list"]));
    scene.wait_for("told");
    // The second has no more patience. One like the first would be lost while that is pending.
    run.signal(Signal::TERM);
    run.signal(Signal::INT);
    let shown = [status, list, busy, run.finish()];
    assert_eq!(shown.each_ref().map(|done| done.code), [0, 0, 75, 77], "{shown:?}");
    for done in shown {
        let text = done.text() + &done.stderr.join("\n");
        assert!(text.contains(r"a\u{1b}[31m\r\nb\u{7f}\u{9b}c"), "{text:?}");
        assert!(text.chars().all(|char| char == '\n' || !char.is_control()), "{text:?}");
        for line in &done.stderr {
            let time = line.strip_prefix("tenure: ").and_then(|line| line.split_once(' ')).unwrap().0;
            assert_recent(humantime::parse_rfc3339(time).unwrap_or_else(|error| panic!("{line}: {error}")));
        }
    }
}
