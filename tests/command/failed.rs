//! With `--json`, what fails is an object, where JSON is awaited; and every run that was acquired has an end.

use serde_json::Value;

use crate::{
    events::names,
    scene::{ACCOUNT, Finished, Running, Scene},
    support::backend::Reachable,
};

on_every_backend! {
    a_run_that_fails_after_its_grant_still_tells_its_end
}

#[track_caller]
fn assert_failed(event: &Value, code: i32, error: &str, remedy: &str) {
    assert_eq!((&event["event"], &event["code"]), (&"failed".into(), &code.into()), "{event}");
    for (name, says) in [("error", error), ("remedy", remedy)] {
        assert!(
            event[name].as_str().unwrap_or_default().contains(says),
            "{name} does not say {says}: {event}"
        );
    }
}

fn failing(scene: &Scene, args: &[&str]) -> Finished {
    scene.output([&["--json"][..], args].concat())
}

#[test]
fn what_fails_is_an_object_on_stdout_and_words_on_stderr() {
    let scene = Scene::new();
    let broken = ["--database", "sqlite:///none?mode=perhaps"];
    for command in [
        &["status", "-s", "chat"][..],
        &["stop", "-s", "chat"],
        &["watch", "-s", "chat"],
        &["list"],
        &["sweep"],
        &["migrate"],
        &["doctor"],
    ] {
        let done = failing(&scene, &[&broken[..], command].concat());
        assert_eq!(done.code, 78, "{done:?}");
        assert_eq!(names(&done.json()), ["code", "error", "event", "remedy"]);
        assert_failed(&done.json(), 78, "mode=perhaps is unknown", "use ro, rw or rwc");
        assert!(done.is_said("tenure: unusable database URL"), "{done:?}");
    }
    let done = failing(&scene, &["status", "-s", ""]);
    assert_failed(&done.json(), 64, "session id is 0 bytes", "use 1 to 255 bytes");
    let done = failing(&scene, &["phase", "x"]);
    assert_failed(&done.json(), 64, "TENURE_SOCKET is not set", "");
}

#[test]
fn wrong_usage_is_an_object_too() {
    let scene = Scene::new();
    for (args, error) in [
        (&["status"][..], "--session"),
        (&["list", "--nonsense"], "--nonsense"),
        (&["no-such-command"], "no-such-command"),
        (&["doctor", "--for", "5"], "5s"),
    ] {
        let done = failing(&scene, args);
        assert_eq!(done.code, 64, "{done:?}");
        assert_failed(&done.json(), 64, error, "--help");
        assert!(done.is_said(error), "{done:?}");
        assert!(!done.json()["remedy"].to_string().contains("Usage"), "{done:?}");
    }
    let tip = failing(&scene, &["status", "x"]).json()["remedy"].clone();
    assert!(tip.as_str().is_some_and(|tip| tip.starts_with("name the session with -s")), "{tip}");
    for args in [&["run", "-s", "x"][..], &["run", "-s", "x", "--ttl", "5", "--", "touch", "started"]] {
        let done = failing(&scene, args);
        let [event] = &done.events()[..] else { panic!("{done:?}") };
        assert_failed(event, 64, "", "--help");
        assert_eq!(names(event), ["code", "error", "event", "remedy"]);
        assert_eq!((done.code, done.stdout.len(), done.stderr.len()), (64, 0, 1), "{done:?}");
    }
    let secret = failing(&scene, &["list", "postgres://me:s3cret@db/app"]);
    assert!(!secret.text().contains("s3cret") && !secret.is_said("s3cret"), "{secret:?}");
    let help = failing(&scene, &["--help"]);
    assert_eq!((help.code, help.stderr.len()), (0, 0), "{help:?}");
    assert!(!scene.has("started"));
}

#[test]
fn a_run_that_cannot_begin_is_an_event_among_its_events() {
    let scene = Scene::new();
    let url = format!("sqlite://{}", scene.path("none/t.db").display());
    let run = |options: &[&str]| scene.run(&url, "chat", options, "ready").finish();
    let done = run(&[]);
    let [event] = &done.events()[..] else { panic!("{done:?}") };
    assert_failed(event, 69, "does not exist", "create it");
    assert_eq!(names(event), ["account", "at", "code", "error", "event", "remedy", "session"]);
    assert_eq!((done.code, done.stdout.len(), done.stderr.len()), (69, 0, 1), "{done:?}");

    let apart = run(&["--events", "events"]);
    let event: Value = serde_json::from_str(scene.text("events").trim()).unwrap();
    assert_failed(&event, 69, "does not exist", "create it");
    assert!(apart.is_said("tenure: the directory"), "people read it as well: {apart:?}");
    assert!(!scene.has("ready"));
}

async fn a_run_that_fails_after_its_grant_still_tells_its_end(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut program =
        scene.tenure(["--json", "--database", &url, "run", "-a", ACCOUNT, "-s", "chat", "--", "./none"]);
    program.env("PATH", "/nowhere:/usr/bin:/bin");
    let done = Running::start(program).finish();
    let [acquired, failed, ended] = &done.events()[..] else { panic!("{done:?}") };
    assert_failed(failed, 127, "./none cannot be started", "");
    assert_eq!((&acquired["event"], &ended["event"]), (&"acquired".into(), &"ended".into()));
    assert_eq!((&ended["exit_code"], &ended["reason"]), (&127.into(), &"completed".into()), "{ended}");
    assert_eq!((&failed["run_id"], &ended["run_id"]), (&acquired["run_id"], &acquired["run_id"]));
    assert_eq!((done.code, &ended["released"]), (127, &true.into()), "{done:?}");
    scene.assert_idle(&url, "chat");
}
