//! Under the command, nothing of CMD outlives the lease, whatever happens to whom; and on a terminal CMD works as
//! without the command.

#![cfg(target_os = "linux")]

mod support;

#[path = "../src/bin/tenure/guarded.rs"]
#[allow(dead_code, reason = "the tests use a part")]
mod guarded;
#[path = "../src/bin/tenure/inherited.rs"]
#[allow(dead_code, reason = "the tests use a part")]
mod inherited;
#[path = "../src/bin/tenure/proc_stat.rs"]
mod proc_stat;
#[path = "../src/bin/tenure/terminal.rs"]
#[allow(dead_code, reason = "the tests use a part")]
mod terminal;
#[path = "../src/bin/tenure/timer.rs"]
mod timer;
#[path = "../src/bin/tenure/wire.rs"]
#[allow(dead_code, reason = "the tests use a part")]
mod wire;

use std::{fs, os::fd::OwnedFd, time::Duration};

use rustix::{
    process::Signal,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::tcgetpgrp,
};
use support::{process, process_table};
use tempfile::TempDir;

#[test]
fn worker_entry() {
    process::enter(|role, commands| match role {
        "command" => workers::command(commands),
        "shell" => workers::shell(commands),
        _ => panic!("no role {role}"),
    });
}

mod workers {
    use std::{env, process::Child, time::Duration};

    use nix::sys::signal::{SigSet, Signal as Number};
    use rustix::{
        process::{Pid, Signal, WaitOptions, getpid, ioctl_tiocsctty, kill_process_group, waitpid},
        termios::tcsetpgrp,
    };
    use tenure::{
        RunId,
        clock::{Clock as _, SystemClock},
    };

    use super::{
        guarded::{GuardPlan, Guarded, Reports, start},
        inherited::Dispositions,
        support::process::{Commands, Worker, say},
        terminal::Terminal,
        wire::{Deadlines, Group, Report, Setup, ToldBy},
    };

    fn trust(millis: u64) -> Deadlines {
        let until = SystemClock.now() + Duration::from_millis(millis);
        Deadlines { until, kill_at: until + Duration::from_millis(millis / 10) }
    }

    fn number<T: std::str::FromStr>(text: &str) -> T {
        text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
    }

    fn variable(name: &str) -> Option<String> {
        env::var(name).ok()
    }

    /// What `tenure run` does with a lease, told by a test and by the environment.
    pub(super) fn command(mut commands: Commands) {
        // A shell has to put it in front first.
        while variable("TTY").is_some() && commands.next_blocking() != "begin" {}
        SigSet::from_iter([Number::SIGTSTP]).thread_block().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.unwrap().block_on(async { Run::new().run(commands).await });
    }

    struct Run {
        guarded: Option<Guarded>,
        reports: Reports,
        terminal: Option<Terminal>,
        /// Shares the group, as the next command of a pipeline does.
        partner: Option<Child>,
        group: Group,
        program: u32,
    }

    impl Run {
        fn new() -> Self {
            let partner = variable("PARTNER")
                .map(|_| std::process::Command::new("sleep").arg("600").spawn().expect("sleep is there"));
            let terminal = Terminal::open().filter(|_| variable("TTY").is_some());
            let group = terminal.as_ref().map_or(Group::Own, Terminal::group_for_program);
            say(format_args!("group {}", if group == Group::Own { "own" } else { "shared" }));
            let setup = Setup {
                run: RunId::random(),
                trust: trust(variable("TRUST").map_or(600_000, |millis| number(&millis))),
                grace: Duration::from_millis(variable("GRACE").map_or(600_000, |millis| number(&millis))),
                group,
                dispositions: Dispositions { blocked: 0, ignored: 0 },
                leave: variable("LEAVE").into_iter().collect(),
            };
            let program: Vec<_> = match (variable("PROGRAM"), variable("SCRIPT")) {
                (Some(program), _) => vec![program.into()],
                (None, script) => vec!["sh".into(), "-c".into(), script.unwrap_or_default().into()],
            };
            let binary = env!("CARGO_BIN_EXE_tenure").into();
            let environment = vec![("SCRIPT".into(), None), ("GIVEN".into(), Some("given".into()))];
            let title = "tenure: guardian of the test".to_owned();
            let plan = GuardPlan { binary, title, setup, program, environment };
            let (guarded, reports) = start(&plan).unwrap();
            Self { guarded: Some(guarded), reports, terminal, partner, group, program: 0 }
        }

        async fn run(mut self, mut commands: Commands) {
            // In a group with CMD, it is CMD that the terminal means.
            let mut interrupts =
                tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt()).unwrap();
            loop {
                tokio::select! {
                    report = self.reports.next() => match report {
                        Some(report) => self.on_report(report).await,
                        None => break,
                    },
                    order = commands.next() => self.on_order(&order),
                    _ = interrupts.recv() => say("interrupted"),
                }
            }
            drop(self.terminal.take());
            if let Some(mut partner) = self.partner.take() {
                let _ = partner.kill();
                let _ = partner.wait();
            }
            say("over");
            loop {
                commands.next().await;
            }
        }

        fn on_order(&mut self, order: &str) {
            let (word, rest) = order.split_once(' ').unwrap_or((order, ""));
            if word == "drop" {
                self.guarded = None;
                return;
            }
            let Some(guarded) = &self.guarded else { return };
            let _ = match word {
                "go" => guarded.go(),
                "trust" => {
                    let told = guarded.trust(trust(number(rest)));
                    say("renewed");
                    told
                }
                "stop" => guarded.stop(Duration::from_millis(number(rest)), ToldBy::Sigterm),
                "interrupt" => {
                    guarded.stop(Duration::from_millis(number(rest)), ToldBy::Signal(Signal::INT.as_raw()))
                }
                "signal" => guarded.signal(number(rest)),
                "signal-group" => guarded.signal_group(number(rest)),
                _ => panic!("no order {order:?}"),
            };
        }

        async fn on_report(&mut self, report: Report) {
            if let Report::Ready(pid) = report {
                self.program = pid;
                if let Some(terminal) = &mut self.terminal {
                    terminal.lend(self.group, pid).unwrap();
                }
            }
            say(&report);
            if matches!(report, Report::Stopped(_)) && self.terminal.is_some() {
                self.on_stopped();
            }
        }

        fn on_stopped(&mut self) {
            let Some((terminal, guarded)) = self.terminal.as_mut().zip(self.guarded.as_ref()) else { return };
            if self.group != Group::Own {
                return;
            }
            terminal.follow_stop();
            say(if terminal.is_ours() { "resumed in front" } else { "resumed behind" });
            if variable("LOST").is_some() {
                guarded.stop(Duration::ZERO, ToldBy::Sigterm).unwrap();
                return;
            }
            terminal.lend(self.group, self.program).unwrap();
            guarded.signal_group(Signal::CONT.as_raw()).unwrap();
        }
    }

    /// A shell with job control on a terminal, and one job.
    pub(super) fn shell(mut commands: Commands) {
        let tty = std::fs::OpenOptions::new().read(true).write(true).open(variable("TTY").unwrap()).unwrap();
        ioctl_tiocsctty(&tty).unwrap();
        // Whoever hands out the foreground from the background needs this.
        SigSet::from_iter([Number::SIGTTOU]).thread_block().unwrap();
        let mut job = Worker::spawn("command", &[]);
        let group = Pid::from_raw(job.pid()).unwrap();
        tcsetpgrp(&tty, group).unwrap();
        say(format_args!("job {group}"));
        job.send("begin");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            loop {
                let line = tokio::select! {
                    line = job.expect("") => { say(line); continue },
                    line = commands.next() => line,
                };
                match line.as_str() {
                    "await stop" => {
                        let status = waitpid(Some(group), WaitOptions::UNTRACED).unwrap().unwrap().1;
                        tcsetpgrp(&tty, getpid()).unwrap();
                        say(format_args!("job stopped {}", status.stopping_signal().unwrap()));
                    }
                    "fg" | "bg" => {
                        if line == "fg" {
                            tcsetpgrp(&tty, group).unwrap();
                        }
                        kill_process_group(group, Signal::CONT).unwrap();
                    }
                    order => job.send(order),
                }
            }
        });
    }
}

/// One command with a script, and what is left of it.
struct Rig {
    command: process::Worker,
    dir: TempDir,
    terminal: Option<OwnedFd>,
}

impl Rig {
    /// The script may write process ids to `$pids` and say that its tree stands by `ready`; it is not started yet.
    fn new(script: &str, env: &[(&str, &str)]) -> Self {
        Self::start(script, env, None)
    }

    /// As the job of a shell on a terminal.
    fn on_terminal(script: &str, env: &[(&str, &str)]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        Self::start(script, env, Some(master))
    }

    fn start(script: &str, env: &[(&str, &str)], terminal: Option<OwnedFd>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let dir_text = dir.path().to_str().unwrap().to_owned();
        let pids = format!("{dir_text}/pids");
        let script = format!(r#"ready() {{ : > "$dir/ready"; }}; {script}"#);
        let mut env = env.to_vec();
        env.extend([("SCRIPT", script.as_str()), ("dir", &dir_text), ("pids", &pids)]);
        let tty = terminal.as_ref().map(|master| ptsname(master, Vec::new()).unwrap().into_string().unwrap());
        let command = match &tty {
            Some(tty) => {
                env.push(("TTY", tty));
                process::Worker::spawn_in_session("shell", &env)
            }
            None => process::Worker::spawn("command", &env),
        };
        Self { command, dir, terminal }
    }

    async fn expect(&mut self, prefix: &str) -> String {
        self.command.expect(prefix).await
    }

    fn send(&mut self, order: &str) {
        self.command.send(order);
    }

    /// Starts the script, and waits until its tree stands. The file `told` is there once the start was reported.
    async fn go(&mut self) -> i32 {
        self.expect("ready ").await;
        self.send("go");
        let pid = self.expect("started ").await.parse().unwrap();
        fs::write(self.dir.path().join("told"), "").unwrap();
        self.wait_for("ready");
        pid
    }

    fn wait_for(&self, file: &str) {
        support::wait_until(file, || self.has(file));
    }

    fn has(&self, file: &str) -> bool {
        self.dir.path().join(file).exists()
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.dir.path().join(file)).unwrap_or_default()
    }

    fn pids(&self) -> Vec<i32> {
        self.text("pids").split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }

    /// The guardian is the parent of CMD.
    fn guardian_of(&self, pid: i32) -> i32 {
        process_table::process(pid).unwrap().parent
    }

    fn wait_until_gone(&self, more: &[i32]) {
        assert!(!self.pids().is_empty());
        for pid in self.pids().iter().chain(more) {
            process_table::wait_until_gone(*pid, BOUND);
        }
    }

    fn assert_gone(&self) {
        for pid in self.pids() {
            assert!(!process_table::is_alive(pid), "{pid} is alive");
        }
    }

    fn press(&self, key: &[u8]) {
        rustix::io::write(self.terminal.as_ref().unwrap(), key).unwrap();
    }

    /// The group of the shell's job.
    async fn job(&mut self) -> i32 {
        self.expect("job ").await.parse().unwrap()
    }

    fn foreground(&self) -> i32 {
        tcgetpgrp(self.terminal.as_ref().unwrap()).unwrap().as_raw_pid()
    }
}

/// Ends what a failed test leaves, without the code under test.
impl Drop for Rig {
    fn drop(&mut self) {
        process_table::kill_all_with(&format!("dir={}", self.dir.path().display()));
        for pid in self.pids() {
            // One with a cleared environment shows only by what it does.
            if fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"sleep\x006000\0") {
                process_table::signal(pid, Signal::KILL);
            }
        }
    }
}

/// How long a kill may take to show, on a machine at full load.
const BOUND: Duration = Duration::from_secs(60);

/// Everything that tries to stay: a grandchild with its own session, a daemon, one with a cleared environment,
/// one that ignores SIGTERM, one that is stopped, and each hidden from the others.
const NASTY: &str = r#"
    trap '' TERM
    sleep 6000 & echo $! >> $pids
    setsid sleep 6000 & echo $! >> $pids
    (setsid sh -c 'sleep 6000 & echo $! >> $pids' &)
    (setsid env -i sh -c 'sleep 6000 & echo $!' >> $pids &)
    sh -c 'kill -STOP $$; sleep 6000' & echo $! >> $pids
    echo $$ >> $pids
    until [ $(grep -c . $pids) = 6 ]; do sleep 0.01; done
    ready
    while :; do sleep 6000; done"#;

#[tokio::test]
async fn the_exit_code_of_cmd_is_told_after_which_the_tree_is_empty() {
    let mut rig = Rig::new("ready; exit 3", &[]);
    rig.go().await;
    assert_eq!(rig.expect("exited ").await, "3");
    rig.expect("tree-empty").await;
    rig.expect("over").await;
}

#[tokio::test]
async fn a_signal_that_ended_cmd_is_told() {
    let mut rig = Rig::new("ready; kill -USR2 $$", &[]);
    rig.go().await;
    assert_eq!(rig.expect("signaled ").await, "12");
    rig.expect("tree-empty").await;
}

#[tokio::test]
async fn a_signal_is_passed_on_to_cmd_alone_and_one_for_the_group_to_all_of_it() {
    // The child dies of it, if it is told. Until its exec it has the trap of the shell.
    let script = "trap ': > $dir/told' USR1; sleep 6000 & echo $! >> $pids
        until grep -q sleep /proc/$!/comm; do :; done; ready
        while [ ! -e $dir/told ]; do wait; done; while [ ! -e $dir/end ]; do sleep 0.01; done; exit 4";
    for (order, is_for_all) in [("signal", false), ("signal-group", true)] {
        let mut rig = Rig::new(script, &[]);
        rig.go().await;
        rig.send(&format!("{order} 10"));
        rig.wait_for("told");
        let child = rig.pids()[0];
        if is_for_all {
            process_table::wait_until_gone(child, BOUND);
        } else {
            assert!(process_table::is_alive(child));
        }
        fs::write(rig.dir.path().join("end"), "").unwrap();
        assert_eq!(rig.expect("exited ").await, "4");
        rig.expect("tree-empty").await;
    }
}

#[tokio::test]
async fn cmd_is_told_by_the_signal_of_the_stop_and_what_it_leaves_by_sigterm() {
    let script =
        "trap 'echo told >> $dir/outside; exit 4' TERM; : > $dir/ready; while :; do sleep 0.01; done";
    let script = format!(
        "setsid sh -c '{}' & trap 'trap - INT; kill -INT $$' INT
        until [ -e $dir/ready ]; do sleep 0.01; done; while :; do sleep 0.01; done",
        script.replace('\'', r"'\''")
    );
    let mut rig = Rig::new(&script, &[]);
    rig.go().await;
    rig.send("interrupt 600000");
    assert_eq!(rig.expect("").await, "signaled 2");
    assert_eq!(rig.expect("").await, "tree-empty", "SIGTERM has sufficed for the rest");
    assert_eq!(rig.text("outside"), "told\n");
}

#[tokio::test]
async fn cmd_that_ignores_the_signal_of_a_stop_is_killed_when_its_grace_is_over() {
    let mut rig = Rig::new("trap '' INT; echo $$ >> $pids; ready; while :; do sleep 0.01; done", &[]);
    rig.go().await;
    rig.send("interrupt 300");
    rig.expect("signaled 9").await;
    rig.expect("tree-empty").await;
    rig.assert_gone();
}

#[tokio::test]
async fn a_process_that_never_became_cmd_is_not_told_as_killed() {
    for program in ["/does/not/exist", "/proc/self"] {
        for _ in 0..5 {
            let mut rig = Rig::new("", &[("PROGRAM", program)]);
            rig.expect("ready ").await;
            rig.send("go");
            rig.expect("cannot-start ").await;
            assert_eq!(rig.expect("").await, "tree-empty");
        }
    }
    let mut rig = Rig::new("ready", &[]);
    rig.expect("ready ").await;
    rig.send("stop 0");
    assert_eq!(rig.expect("").await, "tree-empty");
}

#[tokio::test]
async fn a_guardian_that_was_stopped_goes_on_with_the_next_order() {
    let script = "trap 'exit 9' TERM; until [ -e $dir/told ]; do sleep 0.01; done
        kill -STOP $PPID; ready; while :; do sleep 0.01; done";
    let mut rig = Rig::new(script, &[]);
    rig.go().await;
    rig.send("stop 600000");
    assert_eq!(rig.expect("").await, "exited 9", "with its grace");
    assert_eq!(rig.expect("").await, "tree-empty");
}

#[tokio::test]
async fn a_guardian_that_is_stopped_again_and_again_holds_up_no_stop() {
    let script = "trap '' TERM; echo $$ >> $pids; until [ -e $dir/told ]; do sleep 0.01; done
        kill -STOP $PPID; ready; while :; do kill -STOP $PPID; done";
    let mut rig = Rig::new(script, &[]);
    let pid = rig.go().await;
    let guardian = rig.guardian_of(pid);
    // With a patience that is meant for one that hears and obeys.
    rig.send("stop 600000");
    rig.expect("guardian-lost").await;
    let next = rig.expect("").await;
    assert!(next == "tree-empty" || next.starts_with(&format!("killed {pid} ")), "{next}");
    if next != "tree-empty" {
        assert_eq!(rig.expect("").await, "tree-empty", "the guardian is none of CMD's processes");
    }
    rig.assert_gone();
    process_table::wait_until_gone(guardian, BOUND);
}

#[tokio::test]
async fn what_may_be_left_lives_on_and_is_told() {
    let script = "setsid sh -c 'sleep 6000 & echo $! > $dir/child; printf helper > /proc/self/comm
            echo $$ > $dir/helper; : > $dir/there; wait' &
        sleep 6000 & echo $! >> $pids; until [ -e $dir/there ]; do sleep 0.01; done; ready; exit 3";
    for lost in [false, true] {
        let mut rig =
            Rig::new(&script.replace("exit 3", "while :; do sleep 0.01; done"), &[("LEAVE", "helper")]);
        let pid = rig.go().await;
        let number = |file| rig.text(file).trim().parse::<i32>().unwrap();
        let (helper, child) = (number("helper"), number("child"));
        if lost {
            process_table::signal(rig.guardian_of(pid), Signal::KILL);
            rig.expect("guardian-lost").await;
        } else {
            rig.send("stop 600000");
        }
        assert_eq!(rig.expect("left ").await, format!("{helper} helper"));
        rig.expect("tree-empty").await;
        rig.assert_gone();
        assert!(process_table::is_alive(helper) && process_table::is_alive(child));
        for pid in [helper, child] {
            process_table::signal(pid, Signal::KILL);
        }
    }
}

#[tokio::test]
async fn a_program_that_is_not_there_and_one_that_cannot_run_are_told_apart() {
    let mut rig = Rig::new("", &[("PROGRAM", "/does/not/exist")]);
    rig.expect("ready ").await;
    rig.send("go");
    assert!(rig.expect("cannot-start ").await.starts_with("2 "));
    rig.expect("tree-empty").await;
    let mut rig = Rig::new("", &[("PROGRAM", "/proc/self")]);
    rig.expect("ready ").await;
    rig.send("go");
    let answer = rig.expect("cannot-start ").await;
    assert!(answer.starts_with("13 "), "{answer}");
    rig.expect("tree-empty").await;
}

#[tokio::test]
async fn a_stop_before_go_starts_nothing() {
    let mut rig = Rig::new("ready", &[]);
    rig.expect("ready ").await;
    rig.send("stop 600000");
    rig.send("go");
    rig.expect("tree-empty").await;
    rig.expect("over").await;
    assert!(!rig.has("ready"));
}

#[tokio::test]
async fn an_end_of_trust_before_go_starts_nothing() {
    let mut rig = Rig::new("ready", &[("TRUST", "200")]);
    rig.expect("ready ").await;
    rig.expect("overdue").await;
    rig.send("go");
    rig.expect("tree-empty").await;
    assert!(!rig.has("ready"));
}

#[tokio::test]
async fn a_command_that_dies_before_go_starts_nothing() {
    let mut rig = Rig::new("ready", &[]);
    let pid = rig.expect("ready ").await.parse().unwrap();
    let guardian = rig.guardian_of(pid);
    rig.command.kill();
    for pid in [pid, guardian] {
        process_table::wait_until_gone(pid, BOUND);
    }
    assert!(!rig.has("ready"));
}

#[tokio::test]
async fn a_stop_ends_everything_that_tries_to_stay() {
    let mut rig = Rig::new(NASTY, &[]);
    rig.go().await;
    rig.send("stop 300");
    assert!(rig.expect("killed ").await.ends_with("sh"));
    rig.expect("tree-empty").await;
    rig.assert_gone();
}

#[tokio::test]
async fn a_second_stop_shortens_the_grace() {
    let mut rig = Rig::new(NASTY, &[]);
    rig.go().await;
    rig.send("stop 600000");
    rig.send("stop 0");
    rig.expect("tree-empty").await;
    rig.assert_gone();
}

#[tokio::test]
async fn what_cmd_leaves_behind_is_ended_before_the_tree_counts_as_empty() {
    let script = r#"(setsid env -i sh -c 'sleep 6000 & echo $!' >> $pids &)
        until [ -s $pids ]; do sleep 0.01; done; ready; exit 5"#;
    let mut rig = Rig::new(script, &[]);
    rig.go().await;
    assert_eq!(rig.expect("exited ").await, "5");
    rig.expect("tree-empty").await;
    rig.assert_gone();
}

#[tokio::test]
async fn renewals_keep_cmd_running_beyond_the_first_deadline() {
    let mut rig = Rig::new("ready; sleep 1.5; exit 4", &[("TRUST", "1000")]);
    rig.expect("ready ").await;
    rig.send("trust 600000");
    rig.send("go");
    rig.expect("started ").await;
    assert_eq!(rig.expect("").await, "exited 4");
}

#[tokio::test]
async fn nothing_outlives_the_command_that_was_killed() {
    let mut rig = Rig::new(NASTY, &[("GRACE", "300")]);
    let pid = rig.go().await;
    let guardian = rig.guardian_of(pid);
    rig.command.kill();
    rig.wait_until_gone(&[pid, guardian]);
}

#[tokio::test]
async fn nothing_outlives_the_lease_of_a_command_that_stands_still() {
    let mut rig = Rig::new(NASTY, &[]);
    let pid = rig.go().await;
    rig.send("trust 2000");
    rig.expect("renewed").await;
    rig.command.freeze();
    let guardian = rig.guardian_of(pid);
    rig.wait_until_gone(&[pid, guardian]);
    assert_eq!(process_table::process(rig.command.pid()).unwrap().state, 'T');
    rig.command.thaw();
    rig.expect("tree-empty").await;
}

#[tokio::test]
async fn a_command_that_lets_go_of_its_guardian_stops_cmd() {
    let mut rig = Rig::new(NASTY, &[("GRACE", "300")]);
    rig.go().await;
    rig.send("drop");
    rig.expect("tree-empty").await;
    rig.assert_gone();
}

#[tokio::test]
async fn nothing_outlives_the_guardian_that_was_killed() {
    let mut rig = Rig::new(NASTY, &[]);
    let pid = rig.go().await;
    process_table::signal(rig.guardian_of(pid), Signal::KILL);
    rig.expect("guardian-lost").await;
    rig.expect("tree-empty").await;
    rig.assert_gone();
}

#[tokio::test]
async fn nothing_outlives_the_lease_under_a_guardian_that_stands_still() {
    let mut rig = Rig::new(NASTY, &[("TRUST", "3000")]);
    let pid = rig.go().await;
    let guardian = rig.guardian_of(pid);
    process_table::freeze(guardian);
    rig.expect("guardian-lost").await;
    rig.expect("tree-empty").await;
    rig.assert_gone();
    process_table::wait_until_gone(guardian, BOUND);
}

#[tokio::test]
async fn the_guardian_ignores_what_is_meant_for_others() {
    let mut rig = Rig::new("ready; while ! [ -e $dir/end ]; do sleep 0.01; done; exit 6", &[]);
    let pid = rig.go().await;
    let guardian = rig.guardian_of(pid);
    for signal in [
        Signal::INT,
        Signal::TERM,
        Signal::HUP,
        Signal::QUIT,
        Signal::TSTP,
        Signal::TTIN,
        Signal::TTOU,
        Signal::USR1,
        Signal::PIPE,
    ] {
        process_table::signal(guardian, signal);
    }
    fs::write(rig.dir.path().join("end"), "").unwrap();
    assert_eq!(rig.expect("exited ").await, "6");
    rig.expect("tree-empty").await;
}

#[tokio::test]
async fn cmd_gets_no_file_and_no_blocked_signal_of_ours_and_the_guardian_none_of_cmds() {
    let script = r#"ls /proc/$$/fd > $dir/files; cat /proc/self/status > $dir/status
        env > $dir/env; ready; while ! [ -e $dir/end ]; do sleep 0.01; done"#;
    let mut rig = Rig::new(script, &[]);
    let pid = rig.go().await;
    let files: Vec<_> = rig.text("files").split_whitespace().map(str::to_owned).collect();
    // Some come from whoever runs the tests.
    let direct = std::process::Command::new("sh")
        .args(["-c", "ls /proc/$$/fd > $dir/direct; :"])
        .env("dir", rig.dir.path())
        .status();
    assert!(direct.unwrap().success());
    assert_eq!(files, rig.text("direct").split_whitespace().collect::<Vec<_>>());
    let status = rig.text("status");
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    assert_eq!(u64::from_str_radix(blocked.trim(), 16), Ok(0));
    let env = rig.text("env");
    assert!(env.contains("GIVEN=given") && env.contains("TENURE_RUN_") && !env.contains("SCRIPT="));
    let guardian = rig.guardian_of(pid);
    for file in 0..=2 {
        let target = fs::read_link(format!("/proc/{guardian}/fd/{file}")).unwrap();
        assert_eq!(target.to_str(), Some("/dev/null"));
    }
    fs::write(rig.dir.path().join("end"), "").unwrap();
    rig.expect("tree-empty").await;
}

mod terminal_tests {
    use super::*;

    const INTERRUPT: &[u8] = b"\x03";
    const SUSPEND: &[u8] = b"\x1a";

    /// Goes on at SIGCONT. It starts nothing meanwhile: a shell that is stopped between fork and exec of a child
    /// does not count as stopped.
    const WAITING: &str = "mkfifo $dir/fifo; exec 3<>$dir/fifo; trap 'continued=1' CONT; ready
        while [ -z \"$continued\" ]; do read line <&3; done; ";

    #[tokio::test]
    async fn ctrl_c_is_for_cmd_alone_and_the_foreground_comes_back() {
        let mut rig = Rig::on_terminal("trap 'exit 42' INT; ready; while :; do sleep 0.01; done", &[]);
        let job = rig.job().await;
        assert_eq!(rig.expect("group ").await, "own");
        let pid = rig.go().await;
        assert_eq!(rig.foreground(), pid);
        rig.press(INTERRUPT);
        assert_eq!(rig.expect("").await, "exited 42");
        rig.expect("over").await;
        assert_eq!(rig.foreground(), job);
    }

    #[tokio::test]
    async fn ctrl_z_stops_the_command_too_and_fg_continues_both() {
        let script = "trap 'exit 42' INT; read line < /dev/tty; ready; while :; do sleep 0.01; done";
        let mut rig = Rig::on_terminal(script, &[]);
        rig.expect("ready ").await;
        rig.send("go");
        let pid: i32 = rig.expect("started ").await.parse().unwrap();
        support::wait_until("CMD has the terminal", || rig.foreground() == pid);
        rig.press(SUSPEND);
        assert_eq!(rig.expect("stopped ").await, "20");
        rig.send("await stop");
        assert_eq!(rig.expect("job stopped ").await, "20");
        rig.send("fg");
        rig.expect("resumed in front").await;
        support::wait_until("CMD has the terminal", || rig.foreground() == pid);
        rig.press(b"a line\n");
        rig.wait_for("ready");
        rig.press(INTERRUPT);
        assert_eq!(rig.expect("exited ").await, "42");
        rig.expect("over").await;
    }

    #[tokio::test]
    async fn a_lease_lost_while_stopped_is_not_followed_by_a_continued_cmd() {
        let script = format!("{WAITING}: > $dir/continued");
        let mut rig = Rig::on_terminal(&script, &[("LOST", "1")]);
        rig.go().await;
        rig.press(SUSPEND);
        rig.send("await stop");
        rig.expect("job stopped ").await;
        rig.send("fg");
        rig.expect("resumed in front").await;
        rig.expect("tree-empty").await;
        assert!(!rig.has("continued"));
    }

    #[tokio::test]
    async fn bg_continues_cmd_without_taking_the_terminal_from_the_shell() {
        let script = format!("{WAITING}: > $dir/continued; read line < $dir/fifo");
        let mut rig = Rig::on_terminal(&script, &[]);
        rig.go().await;
        rig.press(SUSPEND);
        rig.send("await stop");
        rig.expect("job stopped ").await;
        rig.send("bg");
        rig.expect("resumed behind").await;
        rig.wait_for("continued");
        assert_eq!(rig.foreground(), rig.command.pid());
        fs::write(rig.dir.path().join("fifo"), "end\n").unwrap();
        rig.expect("over").await;
        assert_eq!(rig.foreground(), rig.command.pid());
    }

    #[tokio::test]
    async fn in_a_pipeline_the_terminal_stays_with_all_of_it() {
        let mut rig =
            Rig::on_terminal("trap 'exit 42' INT; ready; while :; do sleep 0.01; done", &[("PARTNER", "1")]);
        let job = rig.job().await;
        assert_eq!(rig.expect("group ").await, "shared");
        rig.go().await;
        assert_eq!(rig.foreground(), job);
        rig.press(INTERRUPT);
        assert_eq!(rig.expect("exited ").await, "42");
        rig.expect("over").await;
    }
}
