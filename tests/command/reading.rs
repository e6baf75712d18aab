//! Looking at a SQLite file that this user may only read.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::Path,
    process::Command,
};

use crate::scene::{ACCOUNT, Finished, Running, Scene, unprivileged};

/// A file of the user who runs the tests, which everybody may read, in a directory that everybody may enter.
fn readable(scene: &Scene) -> String {
    fs::set_permissions(scene.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(scene.path("theirs")).unwrap();
    fs::set_permissions(scene.path("theirs"), fs::Permissions::from_mode(0o755)).unwrap();
    let url = format!("sqlite://{}", scene.path("theirs/tenure.db").display());
    assert_eq!(scene.output(["--database", &url, "run", "-s", "first", "--", "true"]).code, 0);
    // A run leaves the log to the next one; this closes the file.
    assert_eq!(scene.output(["--database", &url, "sweep"]).code, 0);
    fs::set_permissions(scene.path("theirs/tenure.db"), fs::Permissions::from_mode(0o644)).unwrap();
    url
}

/// As somebody who may write nothing there.
fn stranger(scene: &Scene, args: &[&str]) -> Finished {
    let (command, _program) = unprivileged(scene, args);
    Running::start(command).finish()
}

/// In each way in which the file can be named.
#[track_caller]
fn assert_shown(scene: &Scene, url: &str, state: &str) {
    for url in [url.to_owned(), format!("{url}?mode=ro"), format!("{url}?mode=rw")] {
        let status = stranger(scene, &["--database", &url, "--json", "status", "-a", ACCOUNT, "-s", "chat"]);
        assert_eq!(status.code, i32::from(state == "idle"), "{url}: {status:?}");
        assert_eq!((&status.json()["state"], status.stderr.len()), (&state.into(), 0), "{url}: {status:?}");
        let list = stranger(scene, &["--database", &url, "--json", "list"]);
        let shown = list.json().as_array().map(Vec::len);
        assert_eq!((list.code, shown), (0, Some(usize::from(state != "idle"))), "{url}: {list:?}");
    }
}

fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_that_may_only_be_read_shows_who_holds_what() {
    let scene = Scene::new();
    let url = readable(&scene);
    assert_eq!(entries(&scene.path("theirs")), ["tenure.db"], "nobody has it open");
    assert_shown(&scene, &url, "idle");
    let mut run = scene.run(&url, "chat", &[], "ready; sleep 6000");
    run.event("acquired");
    scene.wait_for("ready");
    assert_shown(&scene, &url, "running");
    let before = entries(&scene.path("theirs"));
    assert_shown(&scene, &url, "running");
    assert_eq!(entries(&scene.path("theirs")), before, "looking leaves nothing");
    run.signal(rustix::process::Signal::TERM);
    assert_eq!(run.exit(), -15);
    assert_shown(&scene, &url, "idle");

    for args in [&["stop", "-a", ACCOUNT, "-s", "chat"][..], &["run", "-s", "x", "--", "true"]] {
        let refused = stranger(&scene, &[&["--database", &url][..], args].concat());
        assert!(refused.code == 69 && refused.is_said("let this user"), "{refused:?}");
    }
}

/// The log comes and goes while somebody watches who cannot make it.
#[test]
fn a_watcher_who_may_only_read_sees_runs_come_and_go() {
    let scene = Scene::new();
    let url = readable(&scene);
    let script = "exec \"$PROGRAM\" --json --database \"$1\" watch -a acct -s chat >&2";
    let (program, file) = unprivileged(&scene, &[]);
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
    let mut command = Command::new("sh");
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    command.env("PROGRAM", program.get_program());
    let mut watch = Running::start(scene.dress(command, ["-c", script, "sh", &url]));
    for _ in 0..2 {
        watch.line("idle", |line| line["state"] == "idle");
        let mut run = scene.run(&url, "chat", &[], "ready; sleep 6000");
        run.event("acquired");
        watch.line("running", |line| line["state"] == "running");
        scene.wait_for("ready");
        run.signal(rustix::process::Signal::TERM);
        assert_eq!(run.exit(), -15);
    }
    watch.line("idle", |line| line["state"] == "idle");
}

/// What was committed but is still in the log only is shown, too, by whoever may not make that log's index.
#[test]
fn what_a_crash_has_left_in_the_log_is_shown() {
    let scene = Scene::new();
    let url = readable(&scene);
    let mut run = scene.run(&url, "chat", &["--ttl", "10m"], "ready; sleep 6000");
    run.event("acquired");
    scene.wait_for("ready");
    // The guardian goes with it, and CMD: nobody has the file open any more.
    run.signal(rustix::process::Signal::KILL);
    assert_eq!(run.exit(), -9);
    assert!(scene.has("theirs/tenure.db-wal"), "what was written last is in there");
    assert_shown(&scene, &url, "running");
}
