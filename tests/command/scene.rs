//! The command as its users meet it: the built program, started in a place of its own, and what it says.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{self, process_table};

/// How long whatever must come at last may take, on a machine at full load.
pub const AT_LAST: Duration = Duration::from_secs(60);

/// The program under test.
pub const TENURE: &str = env!("CARGO_BIN_EXE_tenure");

/// The account of the sessions of every test, unless it says otherwise.
pub const ACCOUNT: &str = "acct";

/// Everything that tries to stay: a grandchild with its own session, a daemon, one with a cleared environment,
/// and each ignores SIGTERM.
pub const NASTY: &str = r#"
    trap '' TERM
    sleep 6000 & echo $! >> $pids
    setsid sleep 6000 & echo $! >> $pids
    (setsid sh -c 'sleep 6000 & echo $! >> $pids' &)
    (setsid env -i sh -c 'sleep 6000 & echo $!' >> $pids &)
    echo $$ >> $pids
    until [ $(grep -c . $pids) = 5 ]; do sleep 0.01; done
    ready
    while :; do sleep 6000; done"#;

/// A directory that commands run in; all that they started ends with it, without the code under test.
pub struct Scene {
    dir: TempDir,
}

impl Scene {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("there is room for a directory");
        for name in ["home", "state", "runtime"] {
            fs::create_dir(dir.path().join(name)).expect("the directory is ours");
        }
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub fn wait_for(&self, name: &str) {
        support::wait_until(name, || self.has(name));
    }

    /// What scripts have written to `$pids`.
    pub fn pids(&self) -> Vec<i32> {
        self.text("pids").split_whitespace().map(|pid| pid.parse().expect("a process id")).collect()
    }

    pub fn assert_gone(&self) {
        for pid in self.pids() {
            assert!(!process_table::is_alive(pid), "{pid} is alive");
        }
    }

    pub fn wait_until_gone(&self) {
        for pid in self.pids() {
            process_table::wait_until_gone(pid, AT_LAST);
        }
    }

    /// The command with nothing of the developer's own settings.
    pub fn tenure<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        // A shell starts its background jobs with some of these ignored, which the command would respect.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,QUIT,HUP,TERM", TENURE]);
        self.dress(command, args)
    }

    /// Gives another way to start the command the same environment.
    pub fn dress<S: AsRef<OsStr>>(&self, mut command: Command, args: impl IntoIterator<Item = S>) -> Command {
        command.process_group(0).stdin(Stdio::null());
        self.undirected(command, args)
    }

    /// The same with the group and the input of the test's, for a test that gives it others.
    pub fn undirected<S: AsRef<OsStr>>(
        &self,
        mut command: Command,
        args: impl IntoIterator<Item = S>,
    ) -> Command {
        command.args(args).current_dir(self.dir.path());
        for name in [
            "TENURE_DATABASE_URL",
            "DATABASE_URL",
            "TENURE_SOCKET",
            "TENURE_RUN_ID",
            "TENURE_TTL",
            "TENURE_HOLDER",
            "TENURE_ACCOUNT",
            "NO_COLOR",
        ] {
            command.env_remove(name);
        }
        command.env("HOME", self.path("home")).env("XDG_STATE_HOME", self.path("state"));
        command.env("XDG_RUNTIME_DIR", self.path("runtime"));
        command.env("SCENE", self.dir.path()).env("dir", self.dir.path()).env("pids", self.path("pids"));
        command.env("TENURE", TENURE);
        command
    }

    /// `tenure run` with a shell script as CMD and JSON events on stderr. The script says by `ready` that it has
    /// come so far.
    pub fn run(&self, url: &str, session: &str, options: &[&str], script: &str) -> Running {
        Running::start(self.run_command(url, session, options, script))
    }

    pub fn run_command(&self, url: &str, session: &str, options: &[&str], script: &str) -> Command {
        let mut command = self.tenure(["--json", "run", "-a", ACCOUNT, "-s", session]);
        command.env("TENURE_DATABASE_URL", url).args(options);
        let script = format!("ready() {{ : > $dir/ready; }}; {script}");
        command.args(["--", "sh", "-c", &script]);
        command
    }

    /// Runs the command to its end.
    pub fn output<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Finished {
        Running::start(self.tenure(args)).finish()
    }

    /// `tenure status --json` of a session: the exit code and what was printed.
    pub fn status(&self, url: &str, session: &str) -> (i32, Value) {
        let done = self.output(["--database", url, "--json", "status", "-a", ACCOUNT, "-s", session]);
        (done.code, done.json())
    }

    /// `tenure watch --json`, with its lines to be read as they come by [`Running::line`].
    pub fn watch(&self, url: &str, session: &str) -> Running {
        let script = "exec \"$TENURE\" --json watch -a \"$1\" -s \"$2\" >&2";
        let mut command = self.dress(Command::new("sh"), ["-c", script, "sh", ACCOUNT, session]);
        command.env("TENURE_DATABASE_URL", url);
        Running::start(command)
    }

    /// Nobody holds the session, and it has no row.
    #[track_caller]
    pub fn assert_idle(&self, url: &str, session: &str) {
        let (code, status) = self.status(url, session);
        assert_eq!((code, status["state"].as_str()), (1, Some("idle")), "{status}");
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        process_table::kill_all_with(&format!("SCENE={}", self.dir.path().display()));
        for pid in self.pids() {
            // One with a cleared environment shows only by what it does.
            if fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"sleep\x006000\0") {
                process_table::signal(pid, Signal::KILL);
            }
        }
    }
}

/// A command that was started; killed, stopped or not, when this is dropped.
pub struct Running {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// What came on stderr so far.
    said: Vec<String>,
    output: Option<JoinHandle<Vec<u8>>>,
}

impl Running {
    /// With pipes for stdout and stderr.
    pub fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command starts");
        let mut stdout = child.stdout.take().expect("it is piped");
        let output = thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stdout.read_to_end(&mut bytes);
            bytes
        });
        let mut stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let mut line = Vec::new();
            while stderr.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
                line.clear();
                if sender.send(text).is_err() {
                    return;
                }
            }
        });
        Self { input: child.stdin.take(), child, lines, said: Vec::new(), output: Some(output) }
    }

    pub fn pid(&self) -> i32 {
        self.child.id().try_into().expect("process ids are small")
    }

    pub fn signal(&self, signal: Signal) {
        process_table::signal(self.pid(), signal);
    }

    /// Ends CMD's input, which was piped.
    /// Before that, the default action of a signal ends the command, which has done nothing yet.
    pub fn wait_until_heard(&self, signal: Signal) {
        support::wait_until("it holds signals", || {
            let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
            // Whoever starts a program blocks all signals until it has become that program.
            let is_it = status.lines().next() == Some("Name:\ttenure");
            let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap_or("0");
            is_it && u64::from_str_radix(blocked.trim(), 16).unwrap() & (1 << (signal.as_raw() - 1)) != 0
        });
    }

    pub fn close_input(&mut self) {
        self.input = None;
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.input.as_mut().expect("it is piped").write_all(bytes).expect("CMD reads");
    }

    /// The guardian: the child that this command has.
    #[track_caller]
    pub fn guardian(&self) -> i32 {
        let children = self.children();
        let [guardian] = children[..] else { panic!("not one child: {children:?}") };
        guardian
    }

    pub fn children(&self) -> Vec<i32> {
        let children = process_table::all().into_iter().filter(|process| process.parent == self.pid());
        children.map(|process| process.pid).collect()
    }

    /// Waits for an event, and answers it; what comes before is passed over.
    #[track_caller]
    pub fn event(&mut self, name: &str) -> Value {
        self.line(name, |event| event["event"] == name)
    }

    /// The same of any line.
    #[track_caller]
    pub fn line(&mut self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + AT_LAST;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("no {what:?} after {:#?}", self.said);
            };
            let event = serde_json::from_str::<Value>(&line).unwrap_or_default();
            self.said.push(line);
            if is_wanted(&event) {
                return event;
            }
        }
    }

    /// The same of a line for people.
    #[track_caller]
    pub fn line_of_text(&mut self, text: &str) {
        let until = Instant::now() + AT_LAST;
        while !self.said.iter().any(|line| line.contains(text)) {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => self.said.push(line),
                Err(_) => panic!("no {text:?} after {:#?}", self.said),
            }
        }
    }

    /// Waits for its end. Minus n: it was ended by signal n.
    #[track_caller]
    pub fn exit(&mut self) -> i32 {
        let until = Instant::now() + AT_LAST;
        loop {
            if let Some(status) = self.child.try_wait().expect("the child is ours") {
                return status.code().unwrap_or_else(|| -status.signal().unwrap_or_default());
            }
            if Instant::now() > until {
                let said: Vec<_> = self.said.iter().cloned().chain(self.lines.try_iter()).collect();
                panic!("still running after {said:#?}");
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("the child is ours").is_some()
    }

    /// Waits for its end, and for that of its output.
    #[track_caller]
    pub fn finish(mut self) -> Finished {
        let code = self.exit();
        let until = Instant::now() + AT_LAST;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => self.said.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    panic!("somebody keeps stderr open: {:#?}", self.said)
                }
            }
        }
        let output = self.output.take().expect("it is taken here only");
        support::wait_until("stdout ends", || output.is_finished());
        let stdout = output.join().expect("the reader does not panic");
        Finished { code, stdout, stderr: std::mem::take(&mut self.said) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What is known of a command after its end.
#[derive(Debug)]
pub struct Finished {
    pub code: i32,
    pub stdout: Vec<u8>,
    /// By lines.
    pub stderr: Vec<String>,
}

impl Finished {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// What was printed, as one document.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Every event. CMD may have said something in between: a shell does, of its killed children.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        let event =
            |line: &String| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        self.stderr.iter().filter(|line| line.starts_with('{')).map(event).collect()
    }

    pub fn is_said(&self, text: &str) -> bool {
        self.stderr.iter().any(|line| line.contains(text))
    }
}

/// The command as a user who may do nothing to the files of whoever runs the tests: root passes every permission.
/// The file is to be kept open until the start.
pub fn unprivileged(scene: &Scene, args: &[&str]) -> (Command, File) {
    // By descriptor, since the directories above the program may be closed to that user.
    let program = File::open(TENURE).expect("the program is there");
    let number = std::os::fd::AsRawFd::as_raw_fd(&program);
    let mut command = scene.dress(Command::new(format!("/proc/self/fd/{number}")), args);
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    (command, program)
}
