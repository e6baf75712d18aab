//! The command on a terminal, as shells and people have it there.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, Command},
    sync::{Arc, Mutex},
    thread,
};

use rustix::{
    process::{Signal, ioctl_tiocsctty, setsid},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, tcgetattr},
};

use crate::{
    scene::Scene,
    support::{self, process_table},
};

/// A terminal, with a program that leads its session.
struct Screen {
    keyboard: File,
    shown: Arc<Mutex<String>>,
    child: Child,
}

impl Screen {
    #[allow(unsafe_code, reason = "a session is begun between fork and exec")]
    fn start(scene: &Scene, program: &[&str]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let tty = File::options().read(true).write(true).open(name).unwrap();
        // A shell starts its background jobs with some of these ignored.
        let mut command = scene.undirected(Command::new("env"), ["--default-signal"]);
        command.args(program).env("PS1", "").env("TERM", "dumb");
        let file = || tty.try_clone().unwrap();
        command.stdin(file()).stdout(file()).stderr(file());
        let control = file();
        let begin = move || {
            setsid()?;
            Ok(ioctl_tiocsctty(&control)?)
        };
        // SAFETY: two system calls.
        unsafe { command.pre_exec(begin) };
        let child = command.spawn().unwrap();
        let keyboard = File::from(master);
        let shown = Arc::new(Mutex::new(String::new()));
        let (mut screen, seen) = (keyboard.try_clone().unwrap(), shown.clone());
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = screen.read(&mut buffer) {
                seen.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
        });
        Self { keyboard, shown, child }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    #[track_caller]
    fn wait_for(&self, text: &str) {
        support::wait_until(&format!("{text:?} in {:?}", self.shown()), || self.shown().contains(text));
    }

    /// Minus n: by signal n.
    fn exit(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt as _;

        let mut status = None;
        support::wait_until("the program ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let status = status.unwrap();
        status.code().unwrap_or_else(|| -status.signal().unwrap())
    }

    fn has(&self, mode: LocalModes) -> bool {
        tcgetattr(&self.keyboard).unwrap().local_modes.contains(mode)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn state(pid: i32) -> char {
    process_table::process(pid).map_or('-', |process| process.state)
}

fn pid_in(scene: &Scene, file: &str) -> i32 {
    support::wait_until(file, || scene.text(file).ends_with('\n'));
    scene.text(file).trim().parse().unwrap()
}

/// CMD of the tests, and what it is replaced by.
const CMD: &str = "$TENURE run -s chat -- sh -c 'echo $$ > $dir/cmd; exec sleep 6000'";

#[test]
fn ctrl_c_ends_the_whole_script_that_the_command_is_in() {
    for shell in ["bash", "dash"] {
        let scene = Scene::new();
        let script = format!("for round in 1 2 3; do {CMD}; done; echo CONTINUED; : > $dir/continued");
        let mut screen = Screen::start(&scene, &[shell, "-c", &script]);
        let cmd = pid_in(&scene, "cmd");
        // It is `sleep` when it can be interrupted.
        support::wait_until("exec", || {
            std::fs::read(format!("/proc/{cmd}/comm")).is_ok_and(|name| name == b"sleep\n")
        });
        screen.press("\u{3}");
        assert_eq!(screen.exit(), -2, "{shell}: {}", screen.shown());
        assert!(!scene.has("continued"), "{shell}");
        process_table::wait_until_gone(cmd, crate::scene::AT_LAST);
        // Whoever reads the screen may be later than the end.
        support::wait_until("the release is told", || screen.shown().contains("released"));
    }
}

#[test]
fn a_job_that_is_stopped_stops_cmd_and_goes_on_with_it() {
    let scene = Scene::new();
    let mut screen = Screen::start(&scene, &["bash", "--norc", "--noprofile", "-i"]);
    screen.press(&format!("{CMD} &\n"));
    let cmd = pid_in(&scene, "cmd");
    screen.press("kill -TSTP %1\n");
    support::wait_until("CMD stands still", || state(cmd) == 'T');
    screen.wait_for("suspended: the lease lasts for ");
    // The shell knows that the job is stopped when it says so.
    support::wait_until("the job is stopped", || {
        screen.press("jobs\n");
        thread::sleep(std::time::Duration::from_millis(50));
        screen.shown().contains("Stopped")
    });
    screen.press("kill -CONT %1\n");
    support::wait_until("CMD goes on", || state(cmd) == 'S');
    screen.press("kill %1; wait; echo over > $dir/over\n");
    scene.wait_for("over");
    assert_eq!(state(cmd), '-');
}

#[test]
fn at_ctrl_z_it_says_until_when_the_lease_lasts_and_cmd_goes_on_in_time() {
    let scene = Scene::new();
    let mut screen = Screen::start(&scene, &["bash", "--norc", "--noprofile", "-i"]);
    screen
        .press("$TENURE run -s chat --ttl 10m -- sh -c 'echo $$ > $dir/cmd; read line; echo \"<$line>\"'\n");
    let cmd = pid_in(&scene, "cmd");
    screen.press("\u{1a}");
    support::wait_until("CMD stands still", || state(cmd) == 'T');
    screen.wait_for("suspended: the lease lasts for 7m ");
    screen.wait_for("Stopped");
    screen.press("fg\n");
    support::wait_until("CMD goes on", || state(cmd) == 'S');
    screen.press("a line\n");
    screen.wait_for("<a line>");
    screen.press("exit 3\n");
    assert_eq!(screen.exit(), 3);
}

#[test]
fn the_modes_of_the_terminal_are_restored_when_cmd_is_killed_and_left_when_it_ends_by_itself() {
    let both = LocalModes::ECHO | LocalModes::ICANON;
    let raw = "stty raw -echo; echo $$ > $dir/cmd; ";
    for (rest, ends_by_itself) in [("exec sleep 6000", false), ("read line; exit 0", true)] {
        let scene = Scene::new();
        let script = format!("$TENURE run -q -s chat -- sh -c '{raw}{rest}'; : > $dir/over; exec sleep 6000");
        let mut screen = Screen::start(&scene, &["sh", "-c", &script]);
        assert!(screen.has(both));
        let cmd = pid_in(&scene, "cmd");
        assert!(!screen.has(LocalModes::ECHO) && !screen.has(LocalModes::ICANON));
        match ends_by_itself {
            true => screen.press("\n"),
            false => process_table::signal(cmd, Signal::KILL),
        }
        scene.wait_for("over");
        assert_eq!(screen.has(both), !ends_by_itself);
    }
}

#[test]
fn a_pager_beside_cmd_keeps_its_modes_when_cmd_is_killed() {
    let scene = Scene::new();
    let script = "$TENURE run -q -s chat -- sh -c 'echo $$ > $dir/cmd; exec sleep 6000' |
        sh -c 'stty raw -echo < /dev/tty; : > $dir/ready; cat; : > $dir/over; exec sleep 6000'";
    let screen = Screen::start(&scene, &["sh", "-c", script]);
    scene.wait_for("ready");
    process_table::signal(pid_in(&scene, "cmd"), Signal::KILL);
    scene.wait_for("over");
    assert!(!screen.has(LocalModes::ECHO), "they are the pager's");
}

/// The process group of the command is outside, and has no number inside.
#[test]
fn in_a_pid_namespace_cmd_runs_with_a_terminal_that_is_not_the_commands_to_give() {
    let scene = Scene::new();
    let args = [
        "unshare",
        "-Urfp",
        "--mount-proc",
        crate::scene::TENURE,
        "-q",
        "run",
        "-s",
        "chat",
        "--",
        "echo",
        "worked",
    ];
    let mut screen = Screen::start(&scene, &args);
    let code = screen.exit();
    if screen.shown().contains("unshare: ") {
        eprintln!("SKIPPED: this user may have no namespace: {}", screen.shown());
        return;
    }
    assert_eq!(code, 0, "{}", screen.shown());
    screen.wait_for("worked");
}
