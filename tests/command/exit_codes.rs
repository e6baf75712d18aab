//! How a run that had begun ends, by its exit code.

use rustix::process::Signal;

use crate::{
    scene::Scene,
    support::{backend::Reachable, client::key},
};

on_every_backend! {
    the_exit_code_of_cmd_is_passed_on
    cmd_that_died_by_a_signal_of_its_own_is_128_and_that_signal
    a_program_that_is_not_there_is_127_and_nothing_stays_held
    a_program_that_cannot_run_is_126_and_nothing_stays_held
    a_lost_lease_is_76_and_cmd_is_gone
    a_stop_from_elsewhere_is_77_and_says_by_whom
    a_stop_from_elsewhere_that_a_loss_overtakes_is_77_still
    a_stop_from_elsewhere_stays_77_when_the_command_is_told_to_end_too
    a_grace_longer_than_the_lease_is_granted_while_renewals_go_on
    a_time_limit_is_124
    a_time_limit_that_is_over_at_once_starts_nothing
    a_time_limit_holds_under_a_guardian_that_was_stopped
}

async fn the_exit_code_of_cmd_is_passed_on(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    for code in [0, 1, 3, 64, 75, 255] {
        let done = scene.run(&url, "chat", &[], &format!("exit {code}")).finish();
        assert_eq!(done.code, code, "{done:?}");
        let ended = done.events().pop().unwrap();
        assert_eq!((&ended["event"], &ended["reason"]), (&"ended".into(), &"completed".into()));
        assert_eq!((&ended["exit_code"], &ended["released"]), (&code.into(), &true.into()));
        scene.assert_idle(&url, "chat");
    }
}

async fn cmd_that_died_by_a_signal_of_its_own_is_128_and_that_signal(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    for (name, code) in [("TERM", 143), ("KILL", 137), ("USR1", 138)] {
        let done = scene.run(&url, "chat", &[], &format!("kill -{name} $$")).finish();
        assert_eq!(done.code, code, "{done:?}");
        assert_eq!(done.events().pop().unwrap()["reason"], "completed");
        scene.assert_idle(&url, "chat");
    }
}

async fn a_program_that_is_not_there_is_127_and_nothing_stays_held(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    for program in ["/does/not/exist", "no-such-program-anywhere"] {
        let done = scene.output(["--database", &url, "run", "-a", "acct", "-s", "chat", "--", program]);
        assert_eq!(done.code, 127, "{done:?}");
        assert!(done.is_said(&format!("Z {program} cannot be started: No such file")), "{done:?}");
        let done =
            scene.output(["--json", "--database", &url, "run", "-a", "acct", "-s", "chat", "--", program]);
        let [_, failed, ended] = &done.events()[..] else { panic!("{done:?}") };
        assert_eq!((&failed["event"], &failed["code"]), (&"failed".into(), &127.into()));
        assert!(failed["error"].as_str().unwrap().starts_with(program), "{failed}");
        assert_eq!((&ended["exit_code"], &ended["run_id"]), (&127.into(), &failed["run_id"]));
        scene.assert_idle(&url, "chat");
    }
}

async fn a_program_that_cannot_run_is_126_and_nothing_stays_held(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    std::fs::write(scene.path("text"), "no program").unwrap();
    for program in ["./text", "."] {
        let done = scene.output(["--database", &url, "run", "-a", "acct", "-s", "chat", "--", program]);
        assert_eq!(done.code, 126, "{done:?}");
        assert!(done.is_said("cannot be started"), "{done:?}");
        assert!(!done.is_said("killed process"), "{done:?}");
        scene.assert_idle(&url, "chat");
    }
}

async fn a_lost_lease_is_76_and_cmd_is_gone(backend: impl Reachable) {
    let scene = Scene::new();
    let script = "echo $$ > $pids; ready; sleep 6000";
    let mut run = scene.run(&backend.url(), "chat", &["--ttl", "10s"], script);
    scene.wait_for("ready");
    backend.set_remaining(&key("chat"), 0).await;
    let stopping = run.event("stopping");
    assert_eq!((&stopping["reason"], &stopping["by"]), (&"expired".into(), &serde_json::Value::Null));
    let done = run.finish();
    assert_eq!(done.code, 76, "{done:?}");
    let ended = done.events().pop().unwrap();
    assert_eq!((&ended["reason"], &ended["exit_code"]), (&"expired".into(), &76.into()));
    assert_eq!(ended["released"], false);
    scene.assert_gone();
}

async fn a_stop_from_elsewhere_is_77_and_says_by_whom(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let script = "trap 'echo told > $dir/told; exit 0' TERM; ready; while :; do sleep 0.01; done";
    let mut run = scene.run(&url, "chat", &["--ttl", "10s", "--stop-grace", "10m"], script);
    scene.wait_for("ready");
    backend.request_stop(&key("chat"), "alice", "enough").await;
    let stopping = run.event("stopping");
    assert_eq!((&stopping["reason"], &stopping["by"]), (&"stopped".into(), &"alice".into()));
    assert_eq!(stopping["why"], "enough");
    let done = run.finish();
    assert_eq!(done.code, 77, "{done:?}");
    let ended = done.events().pop().unwrap();
    assert_eq!((&ended["reason"], &ended["exit_code"]), (&"stopped".into(), &77.into()));
    assert_eq!(ended["why"], "enough");
    assert_eq!(ended["released"], true);
    assert!(scene.has("told"));
    scene.assert_idle(&url, "chat");
}

async fn a_stop_from_elsewhere_that_a_loss_overtakes_is_77_still(backend: impl Reachable) {
    let scene = Scene::new();
    let script = "trap '' TERM; echo $$ > $pids; ready; while :; do sleep 0.01; done";
    let mut run = scene.run(&backend.url(), "chat", &["--ttl", "10s", "--stop-grace", "10m"], script);
    scene.wait_for("ready");
    backend.request_stop(&key("chat"), "alice", "enough").await;
    run.event("stopping");
    // Whatever is stopped so patiently is killed when the lease does not wait any longer.
    backend.set_remaining(&key("chat"), 0).await;
    let done = run.finish();
    assert_eq!(done.code, 77, "{done:?}");
    let ended = done.events().pop().unwrap();
    assert_eq!((&ended["reason"], &ended["exit_code"]), (&"stopped".into(), &77.into()));
    assert_eq!(ended["released"], false);
    scene.assert_gone();
}

async fn a_stop_from_elsewhere_stays_77_when_the_command_is_told_to_end_too(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let script = "trap '' TERM; ready; while :; do sleep 0.01; done";
    let mut run = scene.run(&url, "chat", &["--ttl", "10s", "--stop-grace", "10m"], script);
    scene.wait_for("ready");
    backend.request_stop(&key("chat"), "alice", "enough").await;
    run.event("stopping");
    // Told twice, it has no more patience. A second signal like the first would be lost while that is pending.
    run.signal(Signal::TERM);
    run.signal(Signal::INT);
    let done = run.finish();
    assert_eq!(done.code, 77, "{done:?}");
    assert_eq!(done.events().pop().unwrap()["reason"], "stopped");
    scene.assert_idle(&url, "chat");
}

async fn a_grace_longer_than_the_lease_is_granted_while_renewals_go_on(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let script = "trap 'sleep 5; : > $dir/cleaned; exit 0' TERM; ready; while :; do sleep 0.01; done";
    let run = scene.run(&url, "chat", &["--ttl", "4s", "--stop-grace", "10m"], script);
    scene.wait_for("ready");
    run.signal(Signal::TERM);
    let done = run.finish();
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(done.events().pop().unwrap()["released"], true, "{done:?}");
    assert!(scene.has("cleaned"), "{done:?}");
}

async fn a_time_limit_is_124(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let script = "echo $$ > $pids; sleep 6000";
    let done = scene.run(&url, "chat", &["--max-duration", "500ms"], script).finish();
    assert_eq!(done.code, 124, "{done:?}");
    let events = done.events();
    let words: Vec<_> = events.iter().map(|event| (&event["event"], &event["reason"])).collect();
    assert_eq!(
        words[1..],
        [(&"stopping".into(), &"timed_out".into()), (&"ended".into(), &"timed_out".into())]
    );
    assert_eq!((&events[2]["exit_code"], &events[2]["released"]), (&124.into(), &true.into()));
    assert_eq!((&events[1]["limit_ms"], &events[2]["limit_ms"]), (&500.into(), &500.into()));
    scene.assert_gone();
    scene.assert_idle(&url, "chat");
}

/// The stop comes before anything was heard of the guardian, and must reach it all the same: with this ttl, the
/// deadline that would end it otherwise is far away.
async fn a_time_limit_that_is_over_at_once_starts_nothing(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let options = ["--ttl", "1h", "--max-duration", "0s"];
    let done = scene.run(&url, "chat", &options, "ready").finish();
    assert_eq!(done.code, 124, "{done:?}");
    assert!(!scene.has("ready"), "{done:?}");
    scene.assert_idle(&url, "chat");
}

async fn a_time_limit_holds_under_a_guardian_that_was_stopped(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let script = "echo $$ > $pids; kill -STOP $PPID; sleep 6000";
    let done = scene.run(&url, "chat", &["--max-duration", "1s"], script).finish();
    assert_eq!(done.code, 124, "{done:?}");
    scene.assert_gone();
    scene.assert_idle(&url, "chat");
}
