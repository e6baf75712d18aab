//! What CMD is told of its run, and what it may say of itself.

use std::process::Stdio;

use serde_json::Value;

use crate::{
    scene::{ACCOUNT, Running, Scene},
    support::backend::Reachable,
};

on_every_backend! {
    cmd_is_told_its_session_its_run_and_its_fence
    a_phase_is_shown_to_those_who_look_until_it_is_emptied
    a_phase_is_at_most_64_bytes
    a_phase_said_in_a_nested_run_is_that_of_the_inner_one
    a_phase_after_the_end_of_its_run_is_69
    a_runtime_directory_that_is_not_there_costs_no_run
    nothing_of_a_run_stays_in_the_runtime_directory
}

/// Runs a script, and goes on with it step by step: `step` waits for the next.
fn stepped(scene: &Scene, url: &str, script: &str) -> Running {
    let script = format!("step() {{ echo $1 > $dir/step; read line; }}; {script}");
    let mut command = scene.run_command(url, "chat", &["--ttl", "6s"], &script);
    command.stdin(Stdio::piped());
    Running::start(command)
}

fn wait_for_step(scene: &Scene, step: u32) {
    crate::support::wait_until("the script has come so far", || scene.text("step") == format!("{step}\n"));
}

/// Renewals carry a phase to the database.
fn wait_for_phase(scene: &Scene, url: &str, session: &str, phase: &str) {
    crate::support::wait_until(phase, || scene.status(url, session).1["phase"] == phase);
}

async fn cmd_is_told_its_session_its_run_and_its_fence(backend: impl Reachable) {
    let scene = Scene::new();
    let session = "chat 'quoted' \u{1f600}";
    let script = r#"printf '%s\n' "$TENURE_ACCOUNT" "$TENURE_SESSION" "$TENURE_RUN_ID" "$TENURE_FENCE"
        test -S "$TENURE_SOCKET" && echo "${TENURE_DATABASE_URL-none}""#;
    let done = scene.run(&backend.url(), session, &[], script).finish();
    let acquired = &done.events()[0];
    let text = |name: &str| acquired[name].as_str().unwrap().to_owned();
    let expected = [ACCOUNT, session, &text("run_id"), &acquired["fence"].to_string(), "none"];
    assert_eq!(done.text().lines().collect::<Vec<_>>(), expected);
}

async fn a_phase_is_shown_to_those_who_look_until_it_is_emptied(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut run = stepped(
        &scene,
        &url,
        r#"$TENURE phase 'waiting for "approval" \o/ é'; step 1
           $TENURE phase "$(printf 'a\033[31mb')"; step 2
           $TENURE phase ''; step 3"#,
    );
    wait_for_step(&scene, 1);
    wait_for_phase(&scene, &url, "chat", r#"waiting for "approval" \o/ é"#);
    run.write(b"\n");
    wait_for_step(&scene, 2);
    wait_for_phase(&scene, &url, "chat", "a\u{1b}[31mb");
    let shown = scene.output(["--database", &url, "status", "-a", ACCOUNT, "-s", "chat"]).text();
    assert!(shown.contains(r"a\u{1b}[31mb"), "{shown}");
    run.write(b"\n");
    wait_for_step(&scene, 3);
    wait_for_phase(&scene, &url, "chat", "");
    run.write(b"\n");
    assert_eq!(run.finish().code, 0);
}

async fn a_phase_is_at_most_64_bytes(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let good = "é".repeat(32);
    let script =
        format!("$TENURE phase {good}; echo $?; $TENURE phase {good}x 2> $dir/said; echo $?; step 1");
    let mut run = stepped(&scene, &url, &script);
    wait_for_step(&scene, 1);
    wait_for_phase(&scene, &url, "chat", &good);
    run.write(b"\n");
    assert_eq!(run.finish().text(), "0\n64\n");
    assert!(scene.text("said").contains("64"), "{}", scene.text("said"));
}

async fn a_phase_said_in_a_nested_run_is_that_of_the_inner_one(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let script = r#"$TENURE phase outer
        TENURE_DATABASE_URL=$URL $TENURE -q run -a acct -s inner --ttl 2s -- sh -c '
            $TENURE phase inner; echo $TENURE_SESSION; echo 1 > $dir/step; read line; exit 4'
        echo $? $TENURE_SESSION; $TENURE phase 'outer again'; step 2"#;
    let script = format!("URL='{url}'; export URL; {script}");
    let mut run = stepped(&scene, &url, &script);
    wait_for_step(&scene, 1);
    wait_for_phase(&scene, &url, "inner", "inner");
    wait_for_phase(&scene, &url, "chat", "outer");
    let ids = ["chat", "inner"].map(|session| scene.status(&url, session).1["run_id"].clone());
    assert_ne!(ids[0], ids[1]);
    assert_ne!(ids[0], Value::Null);
    run.write(b"\n");
    wait_for_step(&scene, 2);
    wait_for_phase(&scene, &url, "chat", "outer again");
    scene.assert_idle(&url, "inner");
    run.write(b"\n");
    let done = run.finish();
    assert_eq!((done.code, done.text().as_str()), (0, "inner\n4 chat\n"), "{done:?}");
}

async fn a_phase_after_the_end_of_its_run_is_69(backend: impl Reachable) {
    let scene = Scene::new();
    let done = scene.run(&backend.url(), "chat", &[], "echo $TENURE_SOCKET").finish();
    let mut command = scene.tenure(["phase", "late"]);
    command.env("TENURE_SOCKET", done.text().trim());
    let late = Running::start(command).finish();
    assert_eq!(late.code, 69, "{late:?}");
    assert!(late.is_said("tenure run"), "{late:?}");
}

async fn a_runtime_directory_that_is_not_there_costs_no_run(backend: impl Reachable) {
    // As after `su`, and in jobs of a scheduler; or too long for the path of a socket.
    let scene = Scene::new();
    let long = scene.path(&"x".repeat(100));
    std::fs::create_dir(&long).unwrap();
    for directory in [scene.path("none"), long] {
        let mut command = scene.run_command(&backend.url(), "chat", &[], "$TENURE phase here; exit 3");
        command.env("XDG_RUNTIME_DIR", &directory);
        let done = Running::start(command).finish();
        assert_eq!(done.code, 3, "{done:?}");
        assert!(!done.is_said("tenure run"), "{done:?}");
    }
}

async fn nothing_of_a_run_stays_in_the_runtime_directory(backend: impl Reachable) {
    let scene = Scene::new();
    assert_eq!(scene.run(&backend.url(), "chat", &[], "exit 0").exit(), 0);
    assert_eq!(std::fs::read_dir(scene.path("runtime")).unwrap().count(), 0);
}
