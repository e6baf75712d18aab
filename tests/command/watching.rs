//! `tenure watch`: a line at once, then a line at every change, until nobody wants it any more.

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    events::{instant, names},
    looking::FIELDS,
    scene::{Running, Scene},
    support::backend::Reachable,
};

on_every_backend! {
    every_change_is_a_line_and_a_renewal_is_none
}

async fn every_change_is_a_line_and_a_renewal_is_none(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut watch = scene.watch(&url, "chat");
    let idle = watch.line("idle", |_| true);
    assert_eq!((names(&idle), &idle["state"]), (FIELDS.to_vec(), &"idle".into()));

    let script =
        "trap '' TERM; ready; until [ -e $dir/said ]; do sleep 0.01; done; $TENURE phase tidying; sleep 6000";
    let mut run = scene.run(&url, "chat", &["--ttl", "6s", "--stop-grace", "10m"], script);
    let acquired = run.event("acquired");
    let running = watch.line("running", |line| line["state"] != "unknown");
    assert_eq!((names(&running), &running["state"]), (FIELDS.to_vec(), &"running".into()));
    assert_eq!(running["run_id"], acquired["run_id"]);
    // Renewals come meanwhile; the next line is one of the phase.
    std::thread::sleep(std::time::Duration::from_secs(3));
    std::fs::write(scene.path("said"), "").unwrap();
    let tidying = watch.line("a phase", |line| line["state"] != "unknown");
    assert_eq!((&tidying["phase"], &tidying["state"]), (&"tidying".into(), &"running".into()));
    assert!(instant(&tidying["expires_at"]) > instant(&running["expires_at"]));

    assert_eq!(scene.output(["--database", &url, "stop", "-a", "acct", "-s", "chat"]).code, 0);
    let stopping = watch.line("stopping", |line| line["state"] == "stopping");
    assert!(stopping["stop_requested"]["by"].is_string(), "{stopping}");
    run.signal(Signal::TERM);
    run.signal(Signal::INT);
    assert_eq!(run.exit(), 77);
    watch.line("idle again", |line| line["state"] == "idle" && line["run_id"] == Value::Null);
    assert!(!watch.has_ended());
    watch.signal(Signal::INT);
    assert_eq!(watch.exit(), -Signal::INT.as_raw());
}

/// For people.
#[test]
fn a_line_says_what_has_changed_and_since_when_nobody_knows() {
    let scene = Scene::new();
    let url = format!("sqlite://{}", scene.path("t.db").display());
    let run = scene.run(
        &url,
        "chat",
        &["--holder", "ann@laptop"],
        "$TENURE phase 'tidying\tup'; ready; sleep 6000",
    );
    scene.wait_for("ready");
    let command = scene.dress(
        std::process::Command::new("sh"),
        ["-c", "\"$TENURE\" watch -a acct -s chat --database \"$1\" | head -n 1", "sh", &url],
    );
    crate::support::wait_until("the phase has arrived", || scene.status(&url, "chat").1["phase"] != "");
    let done = Running::start(command).finish();
    let text = done.text();
    assert!(text.contains(" acct/chat running: held by ann@laptop (run "), "{done:?}");
    assert!(text.trim_end().ends_with("), tidying\\tup"), "{done:?}");
    drop(run);
}

/// Whoever reads is gone, and so is the watch, whether it has anything to say or not.
#[test]
fn a_watch_that_nobody_reads_ends() {
    let scene = Scene::new();
    let url = format!("sqlite://{}", scene.path("t.db").display());
    let script =
        "\"$TENURE\" watch -a acct -s chat --database \"$1\" | head -n 1 >&2; echo \"${PIPESTATUS[*]}\"";
    for is_there in [false, true] {
        let watch = scene.dress(std::process::Command::new("bash"), ["-c", script, "bash", &url]);
        let done = Running::start(watch).finish();
        assert_eq!(done.text(), "0 0\n", "{done:?}");
        if !is_there {
            let made = scene.run(&url, "chat", &[], "exit 0").finish();
            assert_eq!(made.code, 0, "{made:?}");
        }
    }
}

/// A file that is not there has no sessions, and is not made; whoever makes it is seen.
#[test]
fn a_database_that_is_yet_to_be_made_is_watched() {
    let scene = Scene::new();
    let url = format!("sqlite://{}", scene.path("t.db").display());
    let mut watch = scene.watch(&url, "chat");
    watch.line("idle", |line| line["state"] == "idle");
    assert!(!scene.has("t.db"));
    let run = scene.run(&url, "chat", &[], "ready; sleep 6000");
    watch.line("running", |line| line["state"] == "running");
    drop(run);
    watch.signal(Signal::INT);
    let done = watch.finish();
    let place = scene.path("t.db").display().to_string();
    assert_eq!(done.stderr.iter().filter(|line| line.contains(&place)).count(), 1, "{done:?}");
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_begins_in_an_outage_says_unknown_and_outlives_it() {
    use crate::support::{postgres::Server, postgres_backend::PostgresBackend};

    let (scene, server) = (Scene::new(), Server::start());
    let backend = PostgresBackend::start(&server, "").await;
    let url = backend.url();
    server.stop().await;
    let mut watch = scene.watch(&url, "chat");
    let unknown = watch.line("unknown", |line| line["state"] == "unknown");
    assert_eq!((names(&unknown), &unknown["holder"]), (FIELDS.to_vec(), &Value::Null));
    let mut impatient = scene.watch(&url, "chat");
    impatient.line("unknown", |line| line["state"] == "unknown");
    impatient.signal(Signal::INT);
    assert_eq!(impatient.exit(), -Signal::INT.as_raw());
    server.start_again().await;
    watch.line("idle", |line| line["state"] == "idle");
    let run = scene.run(&url, "chat", &["--ttl", "10m"], "ready; sleep 6000");
    watch.line("running", |line| line["state"] == "running");
    drop(run);

    // What certainly will not do is no outage.
    let empty = server.database().await;
    let done = scene.output(["--database", &empty.url(), "watch", "-s", "chat"]);
    assert_eq!((done.code, done.text().as_str()), (78, ""), "{done:?}");
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_goes_away_is_unknown_and_no_holder_is_shown() {
    use crate::support::{postgres::Server, postgres_backend::PostgresBackend};

    let (scene, server) = (Scene::new(), Server::start());
    let backend = PostgresBackend::start(&server, "").await;
    let url = backend.url();
    let run = scene.run(&url, "chat", &["--ttl", "10m"], "ready; sleep 6000");
    scene.wait_for("ready");
    let mut watch = scene.watch(&url, "chat");
    let running = watch.line("running", |line| line["state"] == "running");
    server.stop().await;
    let unknown = watch.line("unknown", |line| line["state"] == "unknown");
    assert_eq!(names(&unknown), FIELDS);
    for name in ["run_id", "fence", "holder", "phase", "acquired_at", "expires_at", "expires_in_ms"] {
        assert_eq!(unknown[name], Value::Null, "{name}");
    }
    server.start_again().await;
    let again = watch.line("running", |line| line["state"] == "running");
    assert_eq!(again["run_id"], running["run_id"]);
    drop(run);
}
