//! Whatever a run started is found and ended, however it tries to stay.

#![cfg(target_os = "linux")]

mod support;

use std::{
    fs,
    process::{Child, Command, Stdio},
    time::Duration,
};

use support::{process, process_table};
use tempfile::TempDir;
use tenure::{
    RunId,
    process::{ProcessOutcome, ProcessTree, Progress, TreeEnd, marker_name, prepare},
};

/// Longer than any test: what ends sooner was ended.
const LONG_GRACE: Duration = Duration::from_secs(600);
/// Long enough to be noticed, by a process that ignores the request.
const SHORT_GRACE: Duration = Duration::from_millis(300);

/// A tree under test; killed when a test panics, without the code under test.
struct Tree {
    run: RunId,
    child: Child,
    dir: TempDir,
}

impl Tree {
    /// Runs a shell script as the root. The script says that its tree stands by `ready`, and may write process
    /// ids to the file `$pids`.
    fn start(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let run = RunId::random();
        let mut command = Command::new("sh");
        // Builtins alone, so that the tree has no members but those that the script starts on purpose.
        let ready = r#"ready() { : > "$dir/ready"; }; export pids="$dir/pids"; "#;
        command.args(["-c", &format!("{ready}{script}")]).env("dir", dir.path()).stdin(Stdio::null());
        prepare(&mut command, run);
        let child = command.spawn().unwrap();
        let tree = Self { run, child, dir };
        tree.wait_for("ready");
        assert_eq!(script.contains("$pids"), !tree.pids().is_empty(), "the script has told its processes");
        tree
    }

    fn wait_for(&self, file: &str) {
        let path = self.dir.path().join(file);
        support::wait_until(file, || path.exists());
    }

    fn handle(&self) -> ProcessTree {
        ProcessTree::of(self.run).with_root(self.child.id())
    }

    fn pids(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.dir.path().join("pids")).unwrap_or_default();
        text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }

    fn assert_gone(&mut self, end: &TreeEnd) {
        assert!(end.is_verified(), "{end:?}");
        for pid in self.pids() {
            assert!(!process_table::is_alive(pid), "{pid} is alive after {end:?}");
        }
        assert!(ProcessTree::of(self.run).members().is_empty());
        self.child.try_wait().unwrap().expect("the child has ended, and its status is still ours to take");
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        process_table::kill_all_with(&format!("dir={}", self.dir.path().display()));
        kill_if_sleeping(&self.pids());
        let _ = self.child.wait();
    }
}

/// One with a cleared environment shows only by what it does.
fn kill_if_sleeping(pids: &[i32]) {
    for pid in pids {
        if fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"sleep\x00600\0") {
            process_table::signal(*pid, rustix::process::Signal::KILL);
        }
    }
}

fn how(end: &TreeEnd, pid: i32) -> ProcessOutcome {
    let found = end.processes().iter().find(|process| process.pid == pid as u32);
    found.unwrap_or_else(|| panic!("{pid} is not in {end:?}")).how
}

#[test]
fn a_child_and_a_grandchild_end_by_sigterm_within_the_grace() {
    let mut tree = Tree::start(r#"sleep 600 & echo $! > $pids; ready; wait"#);
    let end = tree.handle().end_blocking(LONG_GRACE);
    tree.assert_gone(&end);
    assert_eq!(how(&end, tree.child.id() as i32), ProcessOutcome::Terminated);
    assert_eq!(how(&end, tree.pids()[0]), ProcessOutcome::Terminated);
    assert_eq!(end.killed().count(), 0);
}

#[test]
fn a_grandchild_in_a_session_of_its_own_does_not_outlive_the_run() {
    let mut tree = Tree::start(r#"setsid sh -c 'echo $$ > $pids; : > $dir/ready; exec sleep 600' & wait"#);
    let end = tree.handle().end_blocking(LONG_GRACE);
    tree.assert_gone(&end);
    assert_eq!(how(&end, tree.pids()[0]), ProcessOutcome::Terminated);
}

#[test]
fn a_daemon_that_forked_twice_does_not_outlive_the_run() {
    let script = r#"(setsid sh -c 'sleep 600 & echo $! > $pids; : > $dir/ready' &); exec sleep 600"#;
    let mut tree = Tree::start(script);
    let end = tree.handle().end_blocking(LONG_GRACE);
    tree.assert_gone(&end);
    assert_eq!(how(&end, tree.pids()[0]), ProcessOutcome::Terminated);
}

#[test]
fn a_daemon_is_found_when_the_child_has_long_ended_and_was_waited_for() {
    let mut tree = Tree::start(r#"setsid sh -c 'sleep 600 & echo $! > $pids; : > $dir/ready'"#);
    tree.child.wait().unwrap();
    let end = ProcessTree::of(tree.run).end_blocking(LONG_GRACE);
    tree.assert_gone(&end);
}

#[test]
fn a_process_with_a_cleared_environment_is_found_below_its_parents() {
    let script = r#"setsid env -i sleep 600 & echo $! > $pids
        until [ "$(cat /proc/$!/comm)" = sleep ]; do :; done; ready; wait"#;
    let mut tree = Tree::start(script);
    let end = tree.handle().end_blocking(LONG_GRACE);
    tree.assert_gone(&end);
    assert_eq!(how(&end, tree.pids()[0]), ProcessOutcome::Terminated);
}

#[test]
fn a_hidden_daemon_is_found_when_it_was_seen_before_its_parents_left() {
    // $() ends when all writers have: the daemon's output goes elsewhere.
    let script = r#"setsid env -i sh -c 'sleep 600 >/dev/null & echo $!; read line' < $dir/fifo > $pids &
        until [ -s $pids ]; do :; done; ready; wait; : > $dir/left; exec sleep 600"#;
    let script = format!("mkfifo $dir/fifo; exec 3<>$dir/fifo; {script}");
    let mut tree = Tree::start(&script);
    let mut handle = tree.handle();
    assert!(handle.members().iter().any(|member| member.pid() as i32 == tree.pids()[0]));
    fs::write(tree.dir.path().join("fifo"), "leave\n").unwrap();
    tree.wait_for("left");
    let end = handle.end_blocking(LONG_GRACE);
    tree.assert_gone(&end);
    assert_eq!(how(&end, tree.pids()[0]), ProcessOutcome::Terminated);
}

#[test]
fn a_sub_reaper_finds_a_hidden_daemon_that_it_never_saw_below_the_child() {
    let mut worker = process::Worker::spawn("sub-reaper", &[]);
    let answer = support::background::handle().block_on(worker.expect("ended "));
    let (verified, pid) = answer.split_once(' ').unwrap();
    assert_eq!(verified, "true");
    assert!(!process_table::is_alive(pid.parse().unwrap()));
}

#[test]
fn one_that_ignores_sigterm_is_killed_after_the_grace() {
    let mut tree = Tree::start(r#"trap '' TERM; sleep 600 & echo $! > $pids; ready; wait"#);
    let end = tree.handle().end_blocking(SHORT_GRACE);
    tree.assert_gone(&end);
    assert_eq!(how(&end, tree.pids()[0]), ProcessOutcome::Killed);
    assert_eq!(how(&end, tree.child.id() as i32), ProcessOutcome::Killed);
}

#[test]
fn without_a_grace_nobody_is_asked() {
    let mut tree = Tree::start(r#"trap 'exit 3' TERM; ready; while :; do sleep 0.01; done"#);
    let end = tree.handle().end_blocking(Duration::ZERO);
    tree.assert_gone(&end);
    assert!(process::was_killed(tree.child.wait().unwrap()));
}

#[test]
fn a_clean_up_that_starts_on_sigterm_is_left_to_finish() {
    let script = r#"trap 'sleep 0.3; : > $dir/cleaned; exit 7' TERM; ready; while :; do sleep 0.01; done"#;
    let mut tree = Tree::start(script);
    let end = tree.handle().end_blocking(LONG_GRACE);
    tree.assert_gone(&end);
    assert!(tree.dir.path().join("cleaned").exists());
    assert_eq!(tree.child.wait().unwrap().code(), Some(7));
}

#[test]
fn the_grace_can_be_cut_short() {
    let mut tree = Tree::start(r#"trap '' TERM; ready; while :; do sleep 600; done"#);
    let mut ending = tree.handle().ending(LONG_GRACE);
    assert!(matches!(ending.step(), Progress::Wait(_)));
    ending.shorten(Duration::ZERO);
    while let Progress::Wait(pause) = ending.step() {
        std::thread::sleep(pause);
    }
    let end = ending.finish();
    tree.assert_gone(&end);
}

#[test]
fn one_that_keeps_the_output_open_does_not_keep_anybody_waiting() {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' TERM; sleep 600 & echo up; wait"]).stdout(Stdio::piped());
    let run = RunId::random();
    prepare(&mut command, run);
    let mut child = command.spawn().unwrap();
    let output = child.stdout.take().unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(output);
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    let end = ProcessTree::of(run).with_root(child.id()).end_blocking(SHORT_GRACE);
    assert!(end.is_verified(), "{end:?}");
    child.wait().unwrap();
}

#[test]
fn stopped_processes_are_continued_so_that_they_can_end() {
    // It starts nothing meanwhile: a shell stopped between fork and exec of a child does not show as stopped.
    let script = r#"mkfifo $dir/fifo; exec 3<>$dir/fifo; trap 'exit 5' TERM; ready
        while :; do read line <&3; done"#;
    let mut tree = Tree::start(script);
    let pid = tree.child.id() as i32;
    process_table::freeze_family(pid);
    assert!(tree.handle().members().iter().all(|member| member.is_stopped()));
    let end = tree.handle().end_blocking(LONG_GRACE);
    tree.assert_gone(&end);
    assert_eq!(tree.child.wait().unwrap().code(), Some(5));
}

#[test]
fn a_tree_that_forks_all_the_time_is_not_outrun() {
    // Each generation ends as soon as it has started the next, in another session every time.
    let hop = r#"trap "" TERM; hop() { n=$1; while [ $n -gt 0 ]; do n=$((n - 1)); (:) ; done; exec setsid sh "$dir/hop" & }; "#;
    let script = format!(
        r#"cat > $dir/hop <<'HOP'
{hop} : > $dir/ready; hop 3; exit
HOP
        trap '' TERM; for i in 1 2 3 4 5 6; do sh $dir/hop & done; while :; do sleep 0.01; done"#
    );
    let mut tree = Tree::start(&script);
    let end = tree.handle().end_blocking(Duration::from_millis(50));
    tree.assert_gone(&end);
}

#[test]
fn a_nested_run_is_part_of_the_outer_one_and_not_the_other_way_round() {
    let inner = RunId::random();
    let script = format!(
        r#"{}=1 setsid sh -c 'echo $$ > $pids; : > $dir/ready; exec sleep 600' & wait"#,
        marker_name(inner)
    );
    let mut tree = Tree::start(&script);
    let end = ProcessTree::of(inner).end_blocking(LONG_GRACE);
    assert_eq!(end.processes().len(), 1, "{end:?}");
    let mut tree_of_two = Tree::start(&script);
    let end = tree_of_two.handle().end_blocking(LONG_GRACE);
    tree_of_two.assert_gone(&end);
    let end = tree.handle().end_blocking(LONG_GRACE);
    tree.assert_gone(&end);
}

#[test]
fn a_stranger_is_left_alone() {
    let mut stranger = Tree::start("ready; while :; do sleep 600; done");
    let mut tree = Tree::start("ready; while :; do sleep 600; done");
    let end = tree.handle().end_blocking(LONG_GRACE);
    tree.assert_gone(&end);
    assert!(process_table::is_alive(stranger.child.id() as i32));
    let end = stranger.handle().end_blocking(LONG_GRACE);
    stranger.assert_gone(&end);
}

#[tokio::test]
async fn tokio_still_gets_the_exit_status_of_a_child_whose_tree_was_ended() {
    let run = RunId::random();
    let mut command = tokio::process::Command::new("sh");
    command.args(["-c", "trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done"]).stdout(Stdio::piped());
    prepare(command.as_std_mut(), run);
    let mut child = command.spawn().unwrap();
    let tree = ProcessTree::of(run).with_root(child.id().unwrap());
    let mut byte = [0];
    tokio::io::AsyncReadExt::read_exact(child.stdout.as_mut().unwrap(), &mut byte).await.unwrap();
    let end = tree.end(LONG_GRACE).await;
    assert!(end.is_verified(), "{end:?}");
    assert_eq!(child.wait().await.unwrap().code(), Some(9));
}

#[tokio::test]
async fn an_end_goes_on_when_nobody_waits_for_it() {
    let mut tree = Tree::start(r#"ready; while :; do sleep 600; done"#);
    drop(tree.handle().end(LONG_GRACE));
    support::wait_until("the tree is empty", || tree.handle().members().is_empty());
    tree.child.wait().unwrap();
}

#[test]
fn worker_entry() {
    process::enter(|role, commands| match role {
        "sub-reaper" => end_a_hidden_daemon(commands),
        _ => panic!("no role {role}"),
    });
}

fn end_a_hidden_daemon(commands: process::Commands) {
    tenure::process::become_subreaper().unwrap();
    // Its parents have ended, it leads its own session and shows no marker.
    let mut tree = Tree::start(r#"setsid env -i sh -c 'sleep 600 & echo $!' > $pids; ready"#);
    tree.child.wait().unwrap();
    assert!(tree.handle().members().is_empty(), "only parenthood leads to it");
    let pid = tree.pids()[0];
    let end = ProcessTree::of(tree.run).with_all_below_this_process().end_blocking(LONG_GRACE);
    process::say(format_args!(
        "ended {} {pid}",
        end.is_verified() && how(&end, pid) == ProcessOutcome::Terminated
    ));
    commands.stay()
}
