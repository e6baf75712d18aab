//! Inside CMD: `tenure` speaks through the run's own socket, works with the run's own database, or is refused.

use std::fs;

use crate::{
    scene::{ACCOUNT, Running, Scene},
    support::backend::Reachable,
};

on_every_backend! {
    inside_a_run_every_command_finds_the_runs_own_database
    inside_a_run_without_a_socket_no_other_database_is_used
    a_run_goes_on_without_a_socket_where_none_can_be_made
    acquired_names_the_database
    a_phase_has_arrived_when_the_command_returns
    a_socket_that_was_removed_comes_back
}

async fn inside_a_run_every_command_finds_the_runs_own_database(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let script = r#"cd /; export XDG_STATE_HOME=$dir/elsewhere
        $TENURE --json status -a acct -s chat; $TENURE list | wc -l
        $TENURE -q run -a acct -s other -- sh -c '$TENURE --json status -a acct -s other; exit 4'; echo $?
        $TENURE stop -a acct -s nobody > /dev/null; echo $?
        $TENURE stop -a acct -s chat > /dev/null; sleep 6000"#;
    let done = scene.run(&url, "chat", &[], script).finish();
    let text = done.text();
    let lines: Vec<_> = text.lines().collect();
    let [chat, sessions, other, code, nobody] = lines[..] else { panic!("{done:?}") };
    for (answer, session) in [(chat, "chat"), (other, "other")] {
        let answer: serde_json::Value = serde_json::from_str(answer).unwrap();
        assert_eq!((&answer["session"], &answer["state"]), (&session.into(), &"running".into()), "{done:?}");
    }
    assert_eq!((sessions.trim(), code, nobody), ("2", "4", "1"), "{done:?}");
    assert_eq!(done.code, 77, "it has stopped itself: {done:?}");
    assert!(!scene.has("elsewhere"), "no local file was made");
}

async fn inside_a_run_without_a_socket_no_other_database_is_used(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let script = r#"ask() { "$@" $TENURE status -s chat >> $dir/said 2>&1; echo $?; }
        ask env -u TENURE_SOCKET; ask env TENURE_SOCKET=/nowhere/socket
        ask env -u TENURE_SOCKET TENURE_DATABASE_URL="$URL"
        env -u TENURE_SOCKET $TENURE run -s other -- touch $dir/started 2>> $dir/said; echo $?"#;
    let mut command = scene.run_command(&url, "chat", &[], script);
    command.env("URL", &url);
    let done = Running::start(command).finish();
    assert_eq!(done.text(), "69\n69\n0\n69\n", "{done:?} {}", scene.text("said"));
    assert!(scene.text("said").contains("name the database with --database"), "{}", scene.text("said"));
    assert!(!scene.has("started") && !scene.has("state/tenure/tenure.db"));
}

async fn a_run_goes_on_without_a_socket_where_none_can_be_made(backend: impl Reachable) {
    let scene = Scene::new();
    let long = scene.path(&"x".repeat(100));
    fs::create_dir(&long).unwrap();
    for directory in [&long, &scene.path("none")] {
        let script = "echo ${TENURE_SOCKET-none}; $TENURE phase x 2> $dir/said; echo $?; exit 3";
        let mut command = scene.tenure(["run", "-a", ACCOUNT, "-s", "chat", "--", "sh", "-c", script]);
        command.env("TENURE_DATABASE_URL", backend.url()).env("TMPDIR", directory);
        // As if within another run, whose socket is not this one's.
        command.env_remove("XDG_RUNTIME_DIR").env("TENURE_SOCKET", "/nowhere/socket");
        let done = Running::start(command).finish();
        assert_eq!((done.code, done.text().as_str()), (3, "none\n69\n"), "{done:?}");
        assert!(done.is_said("CMD runs without the socket"), "{done:?}");
        assert!(done.is_said(directory.to_str().unwrap()), "it says where: {done:?}");
        assert!(scene.text("said").contains("no socket"), "{}", scene.text("said"));
        assert_eq!(fs::read_dir(&long).unwrap().count(), 0);
    }
}

async fn acquired_names_the_database(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let location = tenure::store::open(&url).unwrap().location().to_owned();
    let done = scene.run(&url, "chat", &[], "exit 0").finish();
    assert_eq!(done.events()[0]["database"], *location);
    let done = scene.output(["--database", &url, "run", "-s", "other", "--", "true"]);
    assert!(done.stderr[0].ends_with(&location), "{done:?}");
}

async fn a_phase_has_arrived_when_the_command_returns(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let script = r#"for phase in one two; do
        $TENURE phase $phase; $TENURE --json status -a acct -s chat; done"#;
    let done = scene.run(&url, "chat", &[], script).finish();
    let phase = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["phase"].clone();
    assert_eq!(done.text().lines().map(phase).collect::<Vec<_>>(), ["one", "two"], "{done:?}");
}

/// As by those who clean up temporary directories.
async fn a_socket_that_was_removed_comes_back(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let script = r#"
        rm $TENURE_SOCKET; until [ -S $TENURE_SOCKET ]; do sleep 0.02; done; $TENURE phase one || exit 9
        rm -r ${TENURE_SOCKET%/*}; until [ -S $TENURE_SOCKET ]; do sleep 0.02; done; $TENURE phase two || exit 9
        exit 3"#;
    let done = scene.run(&url, "chat", &["--ttl", "1s"], script).finish();
    assert_eq!(done.code, 3, "{done:?}");
    assert_eq!(fs::read_dir(scene.path("runtime")).unwrap().count(), 0);
}

#[cfg(feature = "sqlite")]
#[test]
fn what_a_killed_run_has_left_is_swept_by_the_next_and_that_of_a_living_one_is_not() {
    let scene = Scene::new();
    let url = format!("sqlite://{}", scene.path("t.db").display());
    let sockets = || fs::read_dir(scene.path("runtime")).unwrap().count();
    let killed = scene.run(&url, "killed", &[], "ready; sleep 6000");
    scene.wait_for("ready");
    killed.signal(rustix::process::Signal::KILL);
    drop(killed);
    assert_eq!(sockets(), 1);
    fs::remove_file(scene.path("ready")).unwrap();
    let script = "ready; until [ -e $dir/go ]; do sleep 0.02; done; $TENURE phase here";
    let living = scene.run(&url, "living", &[], script);
    scene.wait_for("ready");
    assert_eq!(sockets(), 1);
    // What only looks like it is left alone.
    fs::create_dir(scene.path("runtime/tenure-notes")).unwrap();
    assert_eq!(scene.run(&url, "next", &[], "exit 0").exit(), 0);
    fs::write(scene.path("go"), "").unwrap();
    assert_eq!(living.finish().code, 0);
    crate::support::wait_until("nothing but the notes is left", || sockets() == 1);
}

/// CMD may go anywhere and still reach its run; and nothing is put into the working directory.
#[cfg(feature = "sqlite")]
#[test]
fn an_empty_or_relative_directory_for_the_socket_is_no_directory() {
    for (runtime, temporary) in [(None, ""), (None, "runtime"), (Some(""), "runtime"), (Some("runtime"), "")]
    {
        let scene = Scene::new();
        let script = "echo $TENURE_SOCKET; ls runtime; cd /; $TENURE phase x; $TENURE status -s chat | wc -l";
        let mut command = scene.tenure(["-q", "run", "-s", "chat", "--", "sh", "-c", script]);
        command.env_remove("XDG_RUNTIME_DIR").envs(runtime.map(|path| ("XDG_RUNTIME_DIR", path)));
        command.env("TMPDIR", temporary);
        let done = Running::start(command).finish();
        let text = done.text();
        let [socket, lines] = text.lines().collect::<Vec<_>>()[..] else { panic!("{done:?}") };
        assert!(socket.starts_with("/tmp/tenure-") && lines.trim() != "0", "{done:?}");
        assert!(done.stderr.is_empty(), "{done:?}");
    }
}

/// A relative path is one of the directory that the run was started in.
#[cfg(feature = "sqlite")]
#[test]
fn a_relative_database_is_found_from_any_directory() {
    let scene = Scene::new();
    let script = "mkdir $dir/below; cd $dir/below; $TENURE --json status -a acct -s chat; ls";
    for url in ["sqlite://odd%20%25%3f.db", "sqlite:odd%20%25%3f.db?mode=rwc"] {
        let done = scene.run(url, "chat", &[], script).finish();
        assert_eq!((done.code, &done.json()["state"]), (0, &"running".into()), "{done:?}");
        fs::remove_dir(scene.path("below")).unwrap();
    }
    assert!(scene.has("odd %?.db"));
}
