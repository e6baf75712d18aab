//! `tenure stop`: whom it asks, what it says, and its exit codes.

use serde_json::Value;
use tenure::RunId;

use crate::{
    events::names,
    scene::{ACCOUNT, Finished, Running, Scene},
    support::backend::Reachable,
};

on_every_backend! {
    a_stop_ends_the_run_and_returns_when_it_has_ended
    whoever_is_stopped_reads_who_asked_and_why
    an_ended_run_is_not_shown_as_live
    a_stop_returns_when_the_request_is_recorded
    a_stop_without_a_reason_shows_none
    a_stop_of_a_session_that_nobody_holds_is_code_1
    a_stop_that_names_another_run_is_code_1_and_leaves_the_run_alone
    a_wait_that_runs_out_is_code_75_and_names_the_holder
}

/// Waits for the end of its input, or to be told.
const PATIENT: &str = "trap 'exit 0' TERM; ready; while :; do sleep 0.01; done";
/// Does not listen.
const STUBBORN: &str = "trap '' TERM; ready; while :; do sleep 0.01; done";

fn holder(scene: &Scene, url: &str, script: &str) -> Running {
    let run =
        scene.run(url, "chat", &["--ttl", "10m", "--stop-grace", "10m", "--holder", "ann@laptop"], script);
    scene.wait_for("ready");
    run
}

fn stop(scene: &Scene, url: &str, options: &[&str]) -> Finished {
    let mut command = scene.tenure(["--database", url, "stop", "-a", ACCOUNT, "-s", "chat"]);
    command.args(options);
    Running::start(command).finish()
}

async fn a_stop_ends_the_run_and_returns_when_it_has_ended(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut run = holder(&scene, &url, PATIENT);
    let done = stop(&scene, &url, &["--reason", "wrong branch", "--wait", "5m"]);
    assert_eq!(
        (done.code, done.text().as_str()),
        (0, "acct/chat: the run of ann@laptop has ended\n"),
        "{done:?}"
    );
    scene.assert_idle(&url, "chat");
    let stopping = run.event("stopping");
    assert_eq!(stopping["reason"], "stopped");
    assert!(stopping["by"].as_str().is_some_and(|by| by.contains('@')), "{stopping}");
    assert_eq!(run.exit(), 77);
}

async fn whoever_is_stopped_reads_who_asked_and_why(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let script = "trap 'exit 0' TERM; : > $dir/ready; while :; do sleep 0.01; done";
    let options = ["run", "-a", ACCOUNT, "-s", "chat", "--ttl", "10m", "--", "sh", "-c", script];
    let run = Running::start(scene.tenure(["--database", &url].into_iter().chain(options)));
    scene.wait_for("ready");
    assert_eq!(stop(&scene, &url, &["--reason", "wrong\tbranch"]).code, 0);
    let done = run.finish();
    assert_eq!(done.code, 77, "{done:?}");
    assert!(done.is_said("stopping (stopped, asked by "), "{done:?}");
    assert!(done.is_said(": wrong\\tbranch)"), "{done:?}");
}

async fn an_ended_run_is_not_shown_as_live(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut run = holder(&scene, &url, PATIENT);
    let done = stop(&scene, &url, &["--wait", "5m", "--json"]);
    let ended = done.json();
    assert_eq!((done.code, &ended["ended"], &ended["first"]), (0, &true.into(), &true.into()), "{done:?}");
    assert_eq!((&ended["state"], &ended["run_id"]), (&"idle".into(), &Value::Null));
    assert_eq!((&ended["expires_in_ms"], &ended["stop_requested"]), (&Value::Null, &Value::Null));
    assert_eq!(run.exit(), 77);
}

async fn a_stop_returns_when_the_request_is_recorded(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut run = holder(&scene, &url, STUBBORN);
    let acquired = run.event("acquired");
    let run_id = acquired["run_id"].as_str().unwrap();
    let done = stop(&scene, &url, &["--run", run_id, "--reason", "wrong branch", "--json"]);
    assert_eq!(done.code, 0, "{done:?}");
    let asked = done.json();
    let mut fields = crate::looking::FIELDS.to_vec();
    fields.extend(["first", "ended"]);
    fields.sort_unstable();
    assert_eq!(names(&asked), fields);
    assert_eq!((&asked["run_id"], &asked["state"]), (&acquired["run_id"], &"stopping".into()));
    assert_eq!((&asked["first"], &asked["ended"]), (&true.into(), &Value::Null));
    assert_eq!(asked["stop_requested"]["reason"], "wrong branch");
    run.event("stopping");

    let again = stop(&scene, &url, &["--reason", "no reason", "--json"]).json();
    assert_eq!((&again["first"], &again["stop_requested"]), (&false.into(), &asked["stop_requested"]));
    let shown = scene.output(["--database", &url, "status", "-a", ACCOUNT, "-s", "chat"]);
    assert!(shown.text().contains(": wrong branch\n"), "{shown:?}");
    let again = stop(&scene, &url, &[]);
    assert!(again.code == 0 && again.text().contains("had been asked to stop before"), "{again:?}");
}

async fn a_stop_without_a_reason_shows_none(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let _run = holder(&scene, &url, STUBBORN);
    assert_eq!(stop(&scene, &url, &[]).code, 0);
    let shown = scene.output(["--database", &url, "status", "-a", ACCOUNT, "-s", "chat"]);
    let text = shown.text();
    let line = text.lines().find(|line| line.contains("requested ")).unwrap_or_else(|| panic!("{shown:?}"));
    assert!(line.contains(" by ") && !line.contains('?') && !line.ends_with(':'), "{line}");
}

async fn a_stop_of_a_session_that_nobody_holds_is_code_1(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let done = stop(&scene, &url, &["--wait", "1h"]);
    assert_eq!(done.code, 1);
    assert!(
        done.text().starts_with("acct/chat is idle (in ") && done.text().contains("nothing to stop"),
        "{done:?}"
    );
    let done = stop(&scene, &url, &["--json"]);
    assert_eq!((done.code, done.json()["state"].as_str()), (1, Some("idle")));
}

async fn a_stop_that_names_another_run_is_code_1_and_leaves_the_run_alone(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut run = holder(&scene, &url, PATIENT);
    let acquired = run.event("acquired");
    let another = RunId::random().to_string();
    let done = stop(&scene, &url, &["--run", &another]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.text().contains(&another) && done.text().contains("nothing to stop"), "{done:?}");
    let done = stop(&scene, &url, &["--run", &another, "--json"]);
    assert_eq!((done.code, &done.json()["run_id"]), (1, &acquired["run_id"]));
    let (_, status) = scene.status(&url, "chat");
    assert_eq!((&status["state"], &status["stop_requested"]), (&"running".into(), &Value::Null));
    assert!(!run.has_ended());
}

async fn a_wait_that_runs_out_is_code_75_and_names_the_holder(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut run = holder(&scene, &url, STUBBORN);
    let done = stop(&scene, &url, &["--wait", "500ms"]);
    assert_eq!(done.code, 75, "{done:?}");
    assert!(done.text().contains("asked ann@laptop to stop"), "{done:?}");
    assert!(done.is_said("acct/chat is stopping") && done.is_said("held by ann@laptop"), "{done:?}");
    let done = stop(&scene, &url, &["--wait", "500ms", "--json", "-q"]);
    assert_eq!((done.code, done.json()["ended"].as_bool()), (75, Some(false)), "{done:?}");
    assert_eq!(done.stderr, [""; 0]);
    assert!(!run.has_ended());
}

#[test]
fn what_cannot_be_asked_for_is_wrong_usage() {
    let scene = Scene::new();
    let url = format!("sqlite://{}", scene.path("t.db").display());
    let run = scene.run(&url, "chat", &[], PATIENT);
    scene.wait_for("ready");
    let long = "x".repeat(1_001);
    for options in [&["--run", "chat"][..], &["--wait", "5"], &["--reason", &long], &["--reason", ""]] {
        let done = stop(&scene, &url, options);
        assert_eq!(done.code, 64, "{options:?}: {done:?}");
    }
    assert_eq!(scene.status(&url, "chat").1["stop_requested"], Value::Null);
    drop(run);
}

#[test]
fn a_stop_creates_nothing_and_names_where_it_looked() {
    let scene = Scene::new();
    let done = scene.output(["stop", "-s", "chat"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.text().contains(&scene.path("state/tenure/tenure.db").display().to_string()), "{done:?}");
    assert_eq!(std::fs::read_dir(scene.path("state")).unwrap().count(), 0);
}
