//! Looking at sessions: who holds which, in every state.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tenure::{RunId, RunStage, store::Renew};

use crate::{
    events::{assert_recent, instant, names},
    scene::{ACCOUNT, Scene},
    support::{
        backend::Reachable,
        client::{Client, acquire, key, renew},
        process_table,
    },
};

on_every_backend! {
    a_session_that_nobody_holds_is_idle_and_code_1
    a_held_session_shows_every_field
    a_session_that_is_stopping_says_who_asked_and_why
    a_run_whose_guardian_stands_still_ends_on_request_all_the_same
    an_expired_session_is_code_1_and_listed_only_when_asked_for
    a_list_shows_every_session_or_those_of_one_account
    a_sweep_removes_what_has_long_expired_and_nothing_else
    looking_changes_nothing
}

pub(crate) const FIELDS: [&str; 13] = [
    "account",
    "acquired_at",
    "expires_at",
    "expires_in_ms",
    "fence",
    "holder",
    "phase",
    "run_id",
    "session",
    "standby",
    "state",
    "stop_requested",
    "waiting",
];

async fn a_session_that_nobody_holds_is_idle_and_code_1(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let (code, status) = scene.status(&url, "chat");
    assert_eq!((code, names(&status)), (1, FIELDS.to_vec()));
    for (name, value) in status.as_object().unwrap() {
        let expected: Value = match name.as_str() {
            "account" => ACCOUNT.into(),
            "session" => "chat".into(),
            "state" => "idle".into(),
            "waiting" => 0.into(),
            _ => Value::Null,
        };
        assert_eq!(*value, expected, "{name}");
    }
    let done = scene.output(["--database", &url, "status", "-s", "chat"]);
    assert_eq!(done.code, 1);
    assert!(done.text().starts_with("local/chat is idle (in "), "{done:?}");
    let done = scene.output(["--database", &url, "list"]);
    assert_eq!(done.code, 0);
    assert!(done.text().starts_with("no sessions (in "), "{done:?}");
    assert_eq!(scene.output(["--database", &url, "--json", "list"]).json(), Value::Array(vec![]));
}

async fn a_held_session_shows_every_field(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let script = "$TENURE phase 'waiting for approval'; ready; sleep 6000";
    let mut run = scene.run(&url, "chat", &["--ttl", "10s"], script);
    let acquired = run.event("acquired");
    scene.wait_for("ready");
    let mut seen = Value::Null;
    crate::support::wait_until("the phase has arrived", || {
        seen = scene.status(&url, "chat").1;
        seen["phase"] == "waiting for approval"
    });
    assert_eq!(names(&seen), FIELDS);
    assert_eq!(seen["state"], "running");
    for name in ["account", "session", "run_id", "fence", "holder"] {
        assert_eq!(seen[name], acquired[name], "{name}");
    }
    assert_eq!(seen["acquired_at"], acquired["at"]);
    assert_recent(instant(&seen["acquired_at"]));
    assert!(instant(&seen["expires_at"]) > instant(&seen["acquired_at"]));
    assert!(seen["expires_in_ms"].as_u64().is_some_and(|left| left <= 10_000), "{seen}");
    assert_eq!((&seen["stop_requested"], &seen["waiting"]), (&Value::Null, &0.into()));
    assert!(seen["standby"].is_null(), "the authority has said so: {seen}");
    let list = scene.output(["--database", &url, "--json", "list"]).json();
    assert_eq!((names(&list[0]), &list[0]["run_id"]), (FIELDS.to_vec(), &seen["run_id"]));
    let done = scene.output(["--database", &url, "status", "-a", ACCOUNT, "-s", "chat"]);
    assert_eq!(done.code, 0);
    let text = |name: &str| seen[name].as_str().unwrap();
    for part in ["acct/chat is running", "waiting for approval", text("holder"), text("run_id")] {
        assert!(done.text().contains(part), "{part}: {done:?}");
    }
    run.signal(Signal::TERM);
    assert_eq!(run.exit(), -15);
}

async fn a_session_that_is_stopping_says_who_asked_and_why(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let script = "trap '' TERM; ready; while :; do sleep 0.01; done";
    let mut run = scene.run(&url, "chat", &["--ttl", "10s", "--stop-grace", "10m"], script);
    scene.wait_for("ready");
    backend.request_stop(&key("chat"), "alice", "enough").await;
    run.event("stopping");
    let mut seen = Value::Null;
    crate::support::wait_until("it is shown as stopping", || {
        seen = scene.status(&url, "chat").1;
        seen["state"] == "stopping"
    });
    let stop = &seen["stop_requested"];
    assert_eq!(names(stop), ["at", "by", "reason"]);
    assert_eq!((&stop["by"], &stop["reason"]), (&"alice".into(), &"enough".into()));
    assert_recent(instant(&stop["at"]));
    let done = scene.output(["--database", &url, "status", "-a", ACCOUNT, "-s", "chat"]);
    assert_eq!(done.code, 0);
    assert!(done.text().contains("acct/chat is stopping") && done.text().contains("by alice: enough"));
    run.signal(Signal::TERM);
    run.signal(Signal::INT);
    assert_eq!(run.exit(), 77);
}

async fn a_run_whose_guardian_stands_still_ends_on_request_all_the_same(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let script = "echo $$ > $pids; ready; sleep 6000";
    let mut run = scene.run(&url, "chat", &["--ttl", "10s", "--stop-grace", "100ms"], script);
    scene.wait_for("ready");
    process_table::freeze(run.guardian());
    backend.request_stop(&key("chat"), "alice", "enough").await;
    run.event("stopping");
    assert_eq!(run.exit(), 77);
    scene.assert_gone();
    scene.assert_idle(&url, "chat");
}

async fn an_expired_session_is_code_1_and_listed_only_when_asked_for(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let run = RunId::random();
    let mut client = Client::connect(&*backend.store()).await;
    client.granted(acquire(&key("chat"), run)).await;
    client.close().await;
    backend.set_remaining(&key("chat"), -1_000).await;
    let (code, status) = scene.status(&url, "chat");
    assert_eq!((code, names(&status)), (1, FIELDS.to_vec()));
    assert_eq!((&status["state"], &status["expires_in_ms"]), (&"expired".into(), &0.into()));
    assert_eq!(status["run_id"], run.to_string());
    let done = scene.output(["--database", &url, "status", "-a", ACCOUNT, "-s", "chat"]);
    assert_eq!(done.code, 1);
    assert!(done.text().contains("acct/chat has expired: nobody holds it"), "{done:?}");
    let list = |args: &[&str]| {
        let mut command = scene.tenure(["--database", &url, "--json", "list"]);
        command.args(args);
        crate::scene::Running::start(command).finish().json().as_array().unwrap().len()
    };
    assert_eq!((list(&[]), list(&["--expired"]), list(&["--expired", "-a", "other"])), (0, 1, 0));
    assert_eq!(scene.run(&url, "chat", &[], "exit 3").exit(), 3, "the next run takes it over");
}

async fn a_list_shows_every_session_or_those_of_one_account(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut client = Client::connect(&*backend.store()).await;
    for (account, session) in [("ann", "1"), ("ann", "2"), ("bob", "1")] {
        let key = tenure::SessionKey::new(account, session).unwrap();
        client.granted(acquire(&key, RunId::random())).await;
    }
    client.close().await;
    let list = |account: Option<&str>| {
        let mut command = scene.tenure(["--database", &url, "--json", "list"]);
        command.args(account.map(|account| format!("--account={account}")));
        let done = crate::scene::Running::start(command).finish();
        let list = done.json();
        let name = |one: &Value| format!("{}/{}", one["account"], one["session"]).replace('"', "");
        list.as_array().unwrap().iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(list(None), ["ann/1", "ann/2", "bob/1"]);
    assert_eq!(list(Some("ann")), ["ann/1", "ann/2"]);
    assert_eq!(list(Some("eve")), [""; 0]);
    let table = scene.output(["--database", &url, "list"]).text();
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.starts_with("ACCOUNT") || table.starts_with(" ACCOUNT"), "{table}");
}

async fn a_sweep_removes_what_has_long_expired_and_nothing_else(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut client = Client::connect(&*backend.store()).await;
    let hour = Duration::from_secs(3_600).as_millis() as i64;
    for (session, left) in [("held", 30_000), ("expired", -1_000), ("long", -2 * hour)] {
        client.granted(acquire(&key(session), RunId::random())).await;
        backend.set_remaining(&key(session), left).await;
    }
    client.close().await;
    let done = scene.output(["--database", &url, "--json", "sweep"]);
    assert_eq!((done.code, &done.json()["removed"]), (0, &1.into()));
    assert!(backend.image(&key("long")).await.is_none());
    assert!(backend.image(&key("expired")).await.is_some());
    assert_eq!(scene.status(&url, "held").0, 0);
}

async fn looking_changes_nothing(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let run = RunId::random();
    let mut client = Client::connect(&*backend.store()).await;
    client.granted(acquire(&key("chat"), run)).await;
    let stuck = Renew { stage: RunStage::Stuck, ..renew(&key("chat"), run) };
    client.renewed(stuck).await;
    let before = backend.image(&key("chat")).await;
    assert_eq!(scene.status(&url, "chat").1["state"], "stuck");
    for word in ["list", "sweep"] {
        assert_eq!(scene.output(["--database", &url, word]).code, 0);
    }
    assert_eq!(backend.image(&key("chat")).await, before);
    client.close().await;
}
