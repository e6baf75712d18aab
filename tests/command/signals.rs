//! Signals to the command: which end it, which are passed on, and by what it ends.

use rustix::process::Signal;

use crate::{
    scene::{Running, Scene},
    support::{backend::Reachable, process_table},
};

on_every_backend! {
    cmds_own_code_is_kept_where_it_ends_by_itself_after_a_signal
    the_command_dies_of_the_signal_that_cmd_died_of
    cmd_that_has_to_be_killed_after_a_signal_is_128_and_that_signal
}

const ENDS: [(Signal, &str); 4] =
    [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::QUIT, "QUIT"), (Signal::HUP, "HUP")];

/// Does nothing, and starts nothing meanwhile.
const IDLE: &str = "mkfifo $dir/idle; exec 9<>$dir/idle; ready; while :; do read line <&9; done";

async fn cmds_own_code_is_kept_where_it_ends_by_itself_after_a_signal(backend: impl Reachable) {
    let url = backend.url();
    for (signal, name) in ENDS.into_iter().filter(|(signal, _)| *signal != Signal::HUP) {
        for code in [0, 5] {
            let scene = Scene::new();
            let run = scene.run(&url, "chat", &[], &format!("trap 'exit {code}' {name}; {IDLE}"));
            scene.wait_for("ready");
            run.signal(signal);
            let done = run.finish();
            assert_eq!(done.code, code, "{name}: {done:?}");
            let ended = done.events().pop().unwrap();
            assert_eq!((&ended["reason"], &ended["exit_code"]), (&"signal".into(), &code.into()));
            assert_eq!(ended["released"], true);
            scene.assert_idle(&url, "chat");
        }
    }
}

async fn the_command_dies_of_the_signal_that_cmd_died_of(backend: impl Reachable) {
    let url = backend.url();
    for (signal, name) in ENDS {
        let scene = Scene::new();
        let run = scene.run(&url, "chat", &[], IDLE);
        scene.wait_for("ready");
        run.signal(signal);
        let done = run.finish();
        assert_eq!(done.code, -signal.as_raw(), "{name}: {done:?}");
        let ended = done.events().pop().unwrap();
        let code = 128 + signal.as_raw();
        assert_eq!((&ended["reason"], &ended["exit_code"]), (&"signal".into(), &code.into()), "{name}");
        assert_eq!(ended["released"], true);
        scene.assert_idle(&url, "chat");
    }
}

async fn cmd_that_has_to_be_killed_after_a_signal_is_128_and_that_signal(backend: impl Reachable) {
    let url = backend.url();
    for (signal, name) in ENDS.into_iter().filter(|(signal, _)| *signal != Signal::HUP) {
        let scene = Scene::new();
        let script = format!("trap '' TERM INT QUIT; {IDLE}");
        let run = scene.run(&url, "chat", &["--stop-grace", "200ms"], &script);
        scene.wait_for("ready");
        run.signal(signal);
        let done = run.finish();
        assert_eq!(done.code, 128 + signal.as_raw(), "{name}: {done:?}");
        assert_eq!(done.events().pop().unwrap()["reason"], "signal");
        scene.assert_idle(&url, "chat");
    }
}

/// A run on the database that the command makes by itself.
fn simple(scene: &Scene, options: &[&str], script: &str) -> Running {
    let url = format!("sqlite://{}", scene.path("t.db").display());
    scene.run(&url, "chat", options, script)
}

#[test]
fn every_signal_that_is_no_way_to_end_is_passed_on_to_cmd_alone() {
    let numbers = [10, 12, 14, 23, 24, 25, 26, 27, 28, 29, 30, 34, 40, 64];
    let traps: Vec<_> = numbers.iter().map(|n| format!("trap 'echo {n} >> $dir/got' {n};")).collect();
    let script = format!(
        "exec bash -c '{} trap \"exit 3\" TERM; (trap - 10; exec sleep 6000) & echo $! > $dir/child
            mkfifo $dir/idle; exec 9<>$dir/idle; : > $dir/ready; while :; do read -t 0.1 line <&9; done'",
        traps.join(" ").replace('\'', "\"")
    );
    let scene = Scene::new();
    let run = simple(&scene, &[], &script);
    scene.wait_for("ready");
    for (count, number) in (1..).zip(numbers) {
        let kill =
            std::process::Command::new("kill").arg(format!("-{number}")).arg(run.pid().to_string()).status();
        assert!(kill.unwrap().success());
        crate::support::wait_until(&format!("{number} is passed on"), || {
            scene.text("got").lines().count() == count
        });
    }
    assert_eq!(scene.text("got"), numbers.map(|number| format!("{number}\n")).concat());
    assert!(
        process_table::is_alive(scene.text("child").trim().parse().unwrap()),
        "a signal was for CMD alone"
    );
    run.signal(Signal::TERM);
    assert_eq!(run.finish().code, 3);
}

#[test]
fn sighup_is_cmds_own_where_cmd_does_not_die_of_it() {
    for (trap, told) in [("trap ': > $dir/told' HUP", true), ("trap '' HUP", false)] {
        let scene = Scene::new();
        let mut run = simple(&scene, &[], &format!("{trap}; trap 'exit 4' TERM; {IDLE}"));
        scene.wait_for("ready");
        run.signal(Signal::HUP);
        if told {
            scene.wait_for("told");
        }
        // After SIGHUP, since signals are heard in the order of their numbers.
        run.signal(Signal::TERM);
        let stopping = run.event("stopping");
        assert_eq!(stopping["reason"], "signal");
        assert_eq!(run.exit(), 4, "{trap}");
    }
}

#[test]
fn a_signal_that_was_blocked_at_the_start_ends_the_command_all_the_same() {
    let scene = Scene::new();
    let script = "trap 'exit 6' TERM; : > $dir/ready; while :; do sleep 0.01; done";
    let args = ["--block-signal=TERM", crate::scene::TENURE, "run", "-s", "chat", "--", "env"];
    let mut command = scene.dress(std::process::Command::new("env"), args);
    // CMD has it blocked, too, as it would have without the command: it takes what blocks it no longer.
    command.args(["python3", "-c"]);
    command.arg(format!(
        "import signal, os; signal.pthread_sigmask(signal.SIG_UNBLOCK, [15]); os.execvp('sh', ['sh', '-c', {script:?}])"
    ));
    let run = Running::start(command);
    scene.wait_for("ready");
    run.signal(Signal::TERM);
    let done = run.finish();
    assert_eq!(done.code, 6, "{done:?}");
}

#[test]
fn before_cmd_is_there_a_signal_ends_the_command_as_if_it_had_not_been_caught() {
    let scene = Scene::new();
    let url = format!("sqlite://{}", scene.path("t.db").display());
    assert_eq!(scene.run(&url, "chat", &[], "exit 0").finish().code, 0);
    let lock = "import sqlite3, sys, time; c = sqlite3.connect(sys.argv[1], isolation_level=None)
c.execute('BEGIN IMMEDIATE'); open(sys.argv[2], 'w'); time.sleep(600)";
    let mut command = scene.dress(std::process::Command::new("python3"), ["-c", lock]);
    let _locked = Running::start({
        command.arg(scene.path("t.db")).arg(scene.path("locked"));
        command
    });
    scene.wait_for("locked");
    let run = scene.run(&url, "chat", &["--ttl", "30s"], "ready");
    run.wait_until_heard(Signal::TERM);
    // One that is no way to end, and nobody to pass it on to.
    run.signal(Signal::USR1);
    run.signal(Signal::TERM);
    let done = run.finish();
    assert_eq!(done.code, -15, "{done:?}");
    assert!(!scene.has("ready"));
}

#[test]
fn a_service_manager_that_tells_all_processes_is_heard_once_by_cmd() {
    for tells_all in [true, false] {
        let scene = Scene::new();
        let script =
            format!("trap 'echo told >> $dir/told' TERM; trap 'exit 3' USR1; echo $$ > $dir/cmd; {IDLE}");
        let run = simple(&scene, &["--stop-grace", "10m"], &script);
        scene.wait_for("ready");
        // By its name it is systemd.
        std::fs::copy("/bin/sh", scene.path("systemd")).unwrap();
        let mut manager = scene.dress(std::process::Command::new(scene.path("systemd")), ["-c"]);
        let all = format!("{} {}", run.guardian(), scene.text("cmd").trim());
        let rest = if tells_all { all.as_str() } else { "" };
        manager.arg(format!("kill -TERM {} {rest}; while :; do sleep 0.01; done", run.pid()));
        let _manager = Running::start(manager);
        scene.wait_for("told");
        // Long enough for a second one.
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert_eq!(scene.text("told"), "told\n", "all: {tells_all}");
        run.signal(Signal::USR1);
        assert_eq!(run.finish().code, 3);
    }
}

/// Who only happens to signal the command and its guardian, by name, has not told CMD.
#[test]
fn whoever_signals_the_guardian_too_and_is_no_service_manager_has_not_told_cmd() {
    let scene = Scene::new();
    let run = simple(&scene, &["--stop-grace", "10m"], &format!("trap 'exit 3' TERM; {IDLE}"));
    scene.wait_for("ready");
    process_table::signal(run.guardian(), Signal::TERM);
    run.signal(Signal::TERM);
    assert_eq!(run.finish().code, 3);
}

/// In an orphaned group the kernel ignores a signal to stop, since no shell could continue the group.
#[cfg(feature = "sqlite")]
#[test]
fn a_command_that_cannot_be_stopped_does_not_say_that_it_is_and_cmd_goes_on() {
    let scene = Scene::new();
    // It starts no process: a shell that waits for one to begin cannot be stopped itself.
    let script = "trap ': > $dir/continued' CONT; : > $dir/ready; until [ -e $dir/continued ]; do :; done";
    let args = [crate::scene::TENURE, "--json", "run", "-s", "chat", "--", "sh", "-c", script];
    let mut command = scene.undirected(std::process::Command::new("setsid"), args);
    command.stdin(std::process::Stdio::null());
    let run = Running::start(command);
    scene.wait_for("ready");
    run.signal(Signal::TSTP);
    let done = run.finish();
    assert_eq!(done.code, 0, "{done:?}");
    let said: Vec<_> = done.events().iter().map(|event| event["event"].clone()).collect();
    assert_eq!(said, ["acquired", "ended"], "{done:?}");
}

/// As with a signal to a program that has just been started: it is not lost, and CMD answers it.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_signal_that_comes_while_the_session_is_acquired_is_kept_for_cmd() {
    use sqlx::{Connection as _, SqliteConnection};

    let scene = Scene::new();
    let url = format!("sqlite://{}", scene.path("t.db").display());
    assert_eq!(scene.run(&url, "chat", &[], "true").finish().code, 0);
    let mut writer = SqliteConnection::connect(&url).await.unwrap();
    for signal in [Signal::USR1, Signal::ALARM] {
        sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut writer).await.unwrap();
        let run = scene.run(&url, "chat", &[], "exec sleep 6000");
        run.wait_until_heard(signal);
        run.signal(signal);
        sqlx::raw_sql("COMMIT").execute(&mut writer).await.unwrap();
        let done = run.finish();
        assert_eq!(done.code, 128 + signal.as_raw(), "{done:?}");
        scene.assert_idle(&url, "chat");
    }
}
