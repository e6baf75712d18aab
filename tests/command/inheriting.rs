//! What CMD takes over from whoever started the command is what it would be without it.

use std::{
    fs::{self, File},
    io::Read as _,
    process::Command,
};

use crate::{
    scene::{Running, Scene, TENURE},
    support::{self, process_table},
};

/// What a program prints of itself, started with and without the command by the same shell line.
fn with_and_without(before: &str, program: &str) -> [String; 2] {
    let scene = Scene::new();
    [format!("$TENURE run -q -s chat -- {program}"), program.to_owned()].map(|line| {
        let script = format!("{before} {line}");
        let done = Running::start(scene.dress(Command::new("bash"), ["-c", &script])).finish();
        assert_eq!(done.code, 0, "{done:?}");
        done.text()
    })
}

/// Without the two signals that the C library keeps for itself, 32 and 33: their dispositions are its own to set.
fn known_signals(text: &str) -> String {
    let known = |line: &str| {
        let (name, mask) = line.split_once('\t').unwrap();
        let mask = u64::from_str_radix(mask, 16).unwrap() & !(0b11 << 31);
        format!("{name} {mask:016x}\n")
    };
    text.lines().map(known).collect()
}

#[test]
fn the_signal_mask_and_what_is_ignored_reach_cmd_unchanged() {
    let show = "grep -E 'Sig(Blk|Ign)' /proc/self/status";
    for how in [
        "",
        "--ignore-signal=PIPE,CHLD,HUP,USR1",
        "--block-signal=TERM,PIPE,CHLD,USR2,RTMIN",
        "--ignore-signal=INT --block-signal=PIPE",
    ] {
        let [with, without] =
            with_and_without(&format!("exec env {how}"), show).map(|text| known_signals(&text));
        assert_eq!(with, without, "{how}");
        assert_eq!(with.lines().count(), 2, "{with}");
    }
}

#[test]
fn what_a_process_has_beside_its_arguments_reaches_cmd_unchanged() {
    // What tests beside this one leave open for their own programs is closed first.
    let set = "for fd in $(ls /proc/$$/fd); do [ $fd -le 2 ] || eval \"exec $fd>&-\"; done; \
               umask 027; ulimit -S -n 123; ulimit -c 0; ulimit -S -s 4000; cd /usr; \
               exec 3</etc/passwd 7>/dev/null 12</dev/null;";
    let show = "bash -c 'umask; ulimit -a; nice; pwd; echo $0; (cd /proc/$$/fd; echo *);\
                readlink /proc/$$/fd/3 /proc/$$/fd/7; cat /proc/$$/oom_score_adj'";
    for nice in ["", "renice -n 5 $$ > /dev/null;"] {
        let [with, without] = with_and_without(&format!("{set} {nice} exec"), show);
        assert_eq!(with, without);
        assert!(with.contains("/etc/passwd") && with.contains(" 12 "), "{with}");
    }
}

#[test]
fn what_points_to_the_command_points_to_cmd() {
    let scene = Scene::new();
    let script = "LISTEN_FDS=2 LISTEN_PID=$$ LISTEN_PIDFDID=7 WATCHDOG_PID=$$ SYSTEMD_EXEC_PID=4 \
                  exec $TENURE run -q -s chat -- sh -c 'echo $$ $LISTEN_FDS $LISTEN_PID $LISTEN_PIDFDID $WATCHDOG_PID \
                  $SYSTEMD_EXEC_PID'";
    let done = Running::start(scene.dress(Command::new("sh"), ["-c", script])).finish();
    let text = done.text();
    let words: Vec<_> = text.split_whitespace().collect();
    let [own, fds, listen, watchdog, other] = words[..] else { panic!("{done:?}") };
    assert_eq!((fds, listen, watchdog, other), ("2", own, own, "4"), "{done:?}");
}

#[test]
fn whoever_reads_sees_the_end_when_cmd_closes_what_it_writes_to() {
    for (redirection, options, close) in [
        ("1>$dir/fifo", "", "exec >&-"),
        ("3>$dir/fifo", "", "exec 3>&-"),
        ("12>$dir/fifo", "", "exec 12>&-"),
        ("2>$dir/fifo", "--events $dir/events", "exec 2>&-"),
    ] {
        let scene = Scene::new();
        assert!(Command::new("mkfifo").arg(scene.path("fifo")).status().unwrap().success());
        let script = format!(
            "exec {redirection}; exec $TENURE run -s chat {options} -- bash -c '{close}; : > $dir/closed
                while [ ! -e $dir/end ]; do sleep 0.01; done'"
        );
        let mut run = Running::start(scene.dress(Command::new("bash"), ["-c", &script]));
        // Opens when it is opened for writing, and ends when nobody has it open any more.
        let mut read = Vec::new();
        File::open(scene.path("fifo")).unwrap().read_to_end(&mut read).unwrap();
        assert!(!run.has_ended() && read.is_empty(), "{redirection}: {read:?}");
        fs::write(scene.path("end"), "").unwrap();
        assert_eq!(run.exit(), 0, "{redirection}");
    }
}

#[test]
fn the_command_and_its_guardian_keep_nothing_of_the_callers_open() {
    let scene = Scene::new();
    let script =
        "exec 3</etc/passwd 9>$dir/written; exec $TENURE run -s chat -- sh -c ': > $dir/ready; sleep 6000'";
    let run = Running::start(scene.dress(Command::new("bash"), ["-c", script]));
    scene.wait_for("ready");
    for pid in [run.pid(), run.guardian()] {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        for file in files.filter_map(|file| fs::read_link(file.path()).ok()) {
            assert!(!file.ends_with("passwd") && !file.ends_with("written"), "{pid}: {}", file.display());
        }
    }
}

/// As process 1 has it, which is given every orphan of its container.
#[test]
fn children_that_the_command_did_not_start_are_waited_for() {
    let scene = Scene::new();
    let script = "for child in 1 2 3 4 5; do sleep 0.1 & done; sleep 6000 & echo $! > $dir/kept
        exec $TENURE run -s chat -- sh -c ': > $dir/ready; while [ ! -e $dir/end ]; do sleep 0.01; done; exit 5'";
    let mut run = Running::start(scene.dress(Command::new("sh"), ["-c", script]));
    scene.wait_for("ready");
    support::wait_until("only the guardian is left, and one that was there before", || {
        run.children().len() == 2
    });
    process_table::signal(scene.text("kept").trim().parse().unwrap(), rustix::process::Signal::KILL);
    support::wait_until("only the guardian is left", || run.children().len() == 1);
    fs::write(scene.path("end"), "").unwrap();
    assert_eq!(run.exit(), 5);
}

/// Process 1 of a container often waits for nobody.
#[test]
fn nothing_is_left_for_process_1_to_wait_for() {
    let scene = Scene::new();
    let script = "import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
for round in range(60):
    subprocess.run([sys.argv[1], '-q', 'run', '-s', 'chat', '--', 'true'], check=True)
    try:
        sys.exit(f'round {round} left {os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)}')
    except ChildProcessError:
        pass";
    let done = Running::start(scene.dress(Command::new("python3"), ["-c", script, TENURE])).finish();
    assert_eq!(done.code, 0, "{done:?}");
}

#[test]
fn the_dashes_may_be_left_out_before_a_program_that_has_none() {
    let scene = Scene::new();
    for args in [
        &["run", "-s", "chat", "printf", "%s|", "-x", "--json", "--", "a"][..],
        &["run", "-s", "chat", "--", "printf", "%s|", "-x", "--json", "--", "a"],
    ] {
        let done = scene.output(args);
        assert_eq!((done.code, done.text().as_str()), (0, "-x|--json|--|a|"), "{done:?}");
    }
    let done = scene.output(["run", "-s", "chat", "-x", "true"]);
    assert_eq!(done.code, 64, "{done:?}");
    assert!(fs::exists(TENURE).unwrap());
}
