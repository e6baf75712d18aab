//! `tenure why` and `tenure break`: what they say, and whom a break spares.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tenure::RunId;

use crate::{
    scene::{ACCOUNT, Finished, Running, Scene},
    support::{
        backend::Reachable,
        client::{Client, acquire, key},
        process_table,
    },
};

on_every_backend! {
    why_says_how_it_is_and_how_the_last_runs_ended
    why_says_where_no_history_is_kept
    an_idle_status_ends_with_the_last_run
    a_dead_run_is_broken_and_the_next_has_a_greater_fence
    a_live_run_is_not_broken
    a_frozen_run_is_broken_and_ends_at_once_when_it_thaws
    a_break_names_one_run_and_wants_to_be_sure
}

/// The longest time between two renewals and an attempt are 4.5 s.
const TTL: &str = "12s";

fn tenure(scene: &Scene, url: &str, args: &[&str]) -> Finished {
    let (command, options) = args.split_first().expect("a command");
    let command = ["--database", url, "--json", command, "-a", ACCOUNT, "-s", "chat"];
    scene.output([&command[..], options].concat())
}

fn why(scene: &Scene, url: &str) -> Value {
    let done = tenure(scene, url, &["why"]);
    assert_eq!(done.code, 0, "{done:?}");
    done.json()
}

fn holder(scene: &Scene, url: &str) -> (Running, String, i64) {
    let script = "ready; while :; do sleep 0.01; done";
    let mut run = scene.run(url, "chat", &["--ttl", TTL, "--holder", "ann@laptop"], script);
    scene.wait_for("ready");
    let acquired = run.event("acquired");
    let run_id = acquired["run_id"].as_str().expect("it has one").to_owned();
    (run, run_id, acquired["fence"].as_i64().expect("a number"))
}

fn break_it(scene: &Scene, url: &str, run_id: &str) -> Finished {
    tenure(scene, url, &["break", "--run", run_id, "--i-know-it-is-dead", "--reason", "burnt"])
}

async fn why_says_how_it_is_and_how_the_last_runs_ended(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    assert_eq!(why(&scene, &url)["history"], Value::Array(Vec::new()));
    let run = |options: &[&str], script: &str| {
        scene.run(&url, "chat", &[options, &["--holder", "ann@laptop"]].concat(), script)
    };
    assert_eq!(run(&[], "exit 3").finish().code, 3);
    let mut long = run(&["--ttl", "10m"], "trap 'exit 0' TERM; ready; while :; do sleep 0.01; done");
    scene.wait_for("ready");
    let shown = scene.output(["--database", &url, "why", "-a", ACCOUNT, "-s", "chat"]).text();
    assert!(shown.starts_with("acct/chat is running: ann@laptop has held it for "), "{shown}");
    assert!(shown.contains("nobody has asked it to stop"), "{shown}");
    assert_eq!(tenure(&scene, &url, &["stop", "--reason", "wrong\tbranch"]).code, 0);
    assert_eq!(long.exit(), 77);
    assert_eq!(run(&["--max-duration", "50ms"], "sleep 600").finish().code, 124);

    let found = why(&scene, &url);
    assert_eq!(found["state"], "idle");
    let past = found["history"].as_array().expect("it is kept");
    let ends: Vec<_> = past.iter().map(|run| (run["how"].as_str(), run["reason"].as_str())).collect();
    let released = |reason| (Some("released"), Some(reason));
    assert_eq!(ends, [released("timed_out"), released("stopped"), released("completed")]);
    assert_eq!(past[1]["why"], "wrong\tbranch");
    assert!(past[1]["by"].as_str().is_some_and(|by| by.contains('@')), "{past:?}");
    assert_eq!(past[1]["stop_requested"]["reason"], "wrong\tbranch");
    assert!(past[0]["fence"].as_i64() > past[1]["fence"].as_i64(), "{past:?}");
    let shown = scene.output(["--database", &url, "why", "-a", ACCOUNT, "-s", "chat", "-n", "2"]).text();
    assert!(shown.starts_with("acct/chat is idle: the run of ann@laptop ended at "), "{shown}");
    assert!(shown.contains("(wrong\\tbranch)") && !shown.contains("completed"), "{shown}");
}

async fn why_says_where_no_history_is_kept(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let migrate = |option| scene.output(["--database", &url, "migrate", option]);
    let doctor = || scene.output(["--database", &url, "doctor", "--for", "50ms"]).text();
    assert!(doctor().contains("runs that are over are recorded"), "{}", doctor());
    assert_eq!(migrate("--without-history").code, 0);
    assert!(doctor().contains("no runs that are over are recorded"), "{}", doctor());
    assert_eq!(scene.run(&url, "chat", &[], "true").finish().code, 0);
    assert_eq!(why(&scene, &url)["history"], Value::Null);
    let shown = scene.output(["--database", &url, "why", "-a", ACCOUNT, "-s", "chat"]).text();
    assert!(shown.contains("keeps no history of runs; `tenure migrate --with-history`"), "{shown}");
    assert_eq!(migrate("--with-history").code, 0);
    assert_eq!(scene.run(&url, "chat", &[], "true").finish().code, 0);
    assert_eq!(why(&scene, &url)["history"].as_array().map(Vec::len), Some(1));
}

async fn an_idle_status_ends_with_the_last_run(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let status = || scene.output(["--database", &url, "status", "-a", ACCOUNT, "-s", "chat"]);
    assert_eq!(status().text().lines().count(), 1);
    assert_eq!(scene.run(&url, "chat", &["--holder", "ann@laptop"], "true").finish().code, 0);
    let shown = status();
    let last = shown.text().lines().last().map(str::to_owned).unwrap_or_default();
    assert!(last.starts_with("  last by  ann@laptop, ended at ") && last.ends_with("completed"), "{shown:?}");
    assert_eq!(shown.code, 1);
}

/// I8.
async fn a_dead_run_is_broken_and_the_next_has_a_greater_fence(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let (mut run, run_id, fence) = holder(&scene, &url);
    process_table::signal(run.guardian(), Signal::KILL);
    run.signal(Signal::KILL);
    run.exit();
    let began = Instant::now();
    assert_eq!(scene.run(&url, "chat", &[], "true").finish().code, 75, "it is still closed");
    let done = break_it(&scene, &url, &run_id);
    assert!(began.elapsed() < Duration::from_secs(12), "no sooner than by itself: {:?}", began.elapsed());
    let broken = done.json();
    assert_eq!((done.code, &broken["broken"]), (0, &Value::Bool(true)), "{done:?}");
    assert!(broken["may_act_until"].is_string(), "nobody can know: {broken}");
    let mut next = scene.run(&url, "chat", &[], "true");
    assert!(next.event("acquired")["fence"].as_i64() > Some(fence));
    assert_eq!(next.exit(), 0);

    let past = &why(&scene, &url)["history"];
    let broken = &past[1];
    assert_eq!((&broken["how"], &broken["why"]), (&"broken".into(), &"burnt".into()), "{past}");
    assert!(broken["by"].as_str().is_some_and(|by| by.contains('@')), "{broken}");
    assert_eq!((&broken["run_id"], &past[0]["how"]), (&run_id.as_str().into(), &"released".into()));
    let again = break_it(&scene, &url, &run_id);
    assert_eq!((again.code, &again.json()["broken"]), (1, &Value::Bool(false)));
}

async fn a_live_run_is_not_broken(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let (mut run, run_id, _) = holder(&scene, &url);
    let done = break_it(&scene, &url, &run_id);
    assert_eq!(done.code, 75, "{done:?}");
    assert!(done.is_said("it has just renewed"), "{done:?}");
    assert!(!run.has_ended());
    let (code, status) = scene.status(&url, "chat");
    assert_eq!((code, &status["run_id"]), (0, &run_id.as_str().into()));
    run.signal(Signal::TERM);
    run.exit();
}

/// I13. Its guardian ends the program in time, as always.
async fn a_frozen_run_is_broken_and_ends_at_once_when_it_thaws(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let (mut run, run_id, fence) = holder(&scene, &url);
    run.signal(Signal::STOP);
    let done = break_it(&scene, &url, &run_id);
    assert_eq!(done.code, 0, "{done:?}");
    let mut client = Client::connect(&*backend.store()).await;
    let next = RunId::random();
    let grant = client.granted(acquire(&key("chat"), next)).await;
    assert!(grant.fence.as_i64() > fence);
    run.signal(Signal::CONT);
    assert_eq!(run.exit(), 76);
    let held = client.holder(&key("chat")).await.map(|holder| holder.run_id);
    assert_eq!(held, Some(next), "the next run's row is its own");
    client.close().await;
}

async fn a_break_names_one_run_and_wants_to_be_sure(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut client = Client::connect(&*backend.store()).await;
    client.granted(acquire(&key("chat"), RunId::random())).await;
    client.close().await;
    let other = RunId::random().to_string();
    assert_eq!(break_it(&scene, &url, &other).code, 1);
    let text = ["--database", &url, "break", "-a", ACCOUNT, "-s", "chat", "--run", &other];
    let unsure = scene.output(text);
    assert!(unsure.code == 64 && unsure.is_said("--i-know-it-is-dead"), "{unsure:?}");
    let done = scene.output([&text[..], &["--i-know-it-is-dead"]].concat());
    assert!(done.code == 1 && done.text().contains("does not hold acct/chat; nothing to break"), "{done:?}");
    let unnamed = tenure(&scene, &url, &["break", "--i-know-it-is-dead"]);
    assert_eq!(unnamed.code, 64);
}
