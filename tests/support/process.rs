//! Separate processes: the test binary starts itself again and talks with the copy by lines.
//!
//! A test binary that wants workers has this entry at its root, and the workers' code in it:
//!
//! ```text
//! #[test]
//! fn worker_entry() {
//!     support::process::enter(|role, commands| match role {
//!         "holder" => hold(commands),
//!         _ => panic!("no role {role}"),
//!     });
//! }
//! ```text
//!
//! A worker ends when its standard input does, so none outlives a test process that was killed. A *frozen* one
//! cannot notice: it is in a process group of its own, which the kernel hangs up (SIGHUP, SIGCONT) when it is
//! orphaned with a stopped member.

use std::{
    env,
    fmt::Display,
    io::{self, BufRead, BufReader, Write as _},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio, exit},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tokio::sync::mpsc;

use super::{background, process_table};

/// The name of the test that is a worker's entry.
const ENTRY: &str = "worker_entry";
/// Names the role, in the environment of whoever starts a worker by other means.
pub const ROLE: &str = "TENURE_TEST_ROLE";
/// Marks a worker's line; libtest writes lines of its own, and words before ours.
const MARK: &str = "\u{1}worker ";
/// How long a worker may take to say what is expected, on a machine at full load.
const ANSWER_BOUND: Duration = Duration::from_secs(60);

/// A separate process; killed, stopped or not, and reaped when this is dropped.
pub struct Worker {
    child: Child,
    role: String,
    input: ChildStdin,
    lines: mpsc::UnboundedReceiver<String>,
    /// All that was said, for the message of a panic.
    said: Vec<String>,
}

impl Worker {
    /// Starts a copy of this test binary in a role, with more variables in its environment.
    pub fn spawn(role: &str, env: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env::current_exe().expect("a process has an executable"));
        command.process_group(0);
        Self::start(command, role, env)
    }

    /// The same as the leader of a session of its own, which may take a terminal.
    pub fn spawn_in_session(role: &str, env: &[(&str, &str)]) -> Self {
        let mut command = Command::new("setsid");
        // A shell starts its background jobs with these ignored, which would be inherited: Ctrl-C would do nothing.
        command.args(["env", "--default-signal=INT,QUIT,HUP,TSTP,TTIN,TTOU"]);
        command.arg(env::current_exe().expect("a process has an executable"));
        Self::start(command, role, env)
    }

    fn start(mut command: Command, role: &str, env: &[(&str, &str)]) -> Self {
        let mut child = command
            .args([ENTRY, "--exact", "--nocapture"])
            .env(ROLE, role)
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this binary starts again");
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, lines) = mpsc::unbounded_channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let line = line.split_once(MARK).map_or(line.as_str(), |(_, said)| said);
                if sender.send(line.to_owned()).is_err() {
                    return;
                }
            }
        });
        Self { child, role: role.to_owned(), input, lines, said: Vec::new() }
    }

    /// The process id.
    pub fn pid(&self) -> i32 {
        self.child.id().try_into().expect("process ids are small")
    }

    /// Sends a command; what it does shows in what is said next.
    pub fn send(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap_or_else(|error| panic!("{}: {error}", self.story()));
    }

    /// Waits, bounded, for a line that begins like this, and answers the rest of it. Lines before are passed
    /// over.
    pub async fn expect(&mut self, prefix: &str) -> String {
        self.expect_within(prefix, ANSWER_BOUND).await
    }

    /// The same with a bound of the caller's.
    pub async fn expect_within(&mut self, prefix: &str, bound: Duration) -> String {
        let mut late = std::pin::pin!(background::sleep(bound));
        loop {
            let line = tokio::select! {
                biased;
                line = self.lines.recv() => line,
                () = &mut late => panic!("no {prefix:?} within {bound:?} from {}", self.story()),
            };
            let Some(line) = line else { panic!("no {prefix:?} before the end of {}", self.story()) };
            self.said.push(line);
            if let Some(rest) = self.said.last().and_then(|line| line.strip_prefix(prefix)) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Kills it, stopped or not: no destructor of it runs. Returns when it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops every thread of it, not its children, and returns when it stands still.
    pub fn freeze(&self) {
        process_table::freeze(self.pid());
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        process_table::signal(self.pid(), Signal::CONT);
    }

    /// Waits, bounded, for its own end.
    pub async fn exit(&mut self) -> ExitStatus {
        let deadline = Instant::now() + ANSWER_BOUND;
        loop {
            if let Some(status) = self.child.try_wait().expect("the child is ours") {
                return status;
            }
            assert!(Instant::now() < deadline, "still running: {}", self.story());
            background::sleep(Duration::from_millis(5)).await;
        }
    }

    fn story(&self) -> String {
        format!("worker {:?}, which said {:#?}", self.role, self.said)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether an exit was by SIGKILL.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}

/// In a worker, runs its code; in an ordinary run of the tests, returns at once.
pub fn enter(work: impl FnOnce(&str, Commands)) {
    if let Ok(role) = env::var(ROLE) {
        work(&role, Commands::read());
    }
}

/// In a worker: says a line to the test.
pub fn say(line: impl Display) {
    let mut out = io::stdout().lock();
    // One that nobody hears is lost on purpose: a worker may outlive its reader by a moment.
    let _ = writeln!(out, "{MARK}{line}").and_then(|()| out.flush());
}

/// In a worker: what the test sends. When the test is gone, the process exits.
pub struct Commands {
    lines: mpsc::UnboundedReceiver<String>,
}

impl Commands {
    fn read() -> Self {
        let (sender, lines) = mpsc::unbounded_channel();
        thread::spawn(move || {
            for line in io::stdin().lines().map_while(Result::ok) {
                // The worker's code may have had enough; its standard input still tells of the test's end.
                let _ = sender.send(line);
            }
            exit(0);
        });
        Self { lines }
    }

    /// The next command.
    pub async fn next(&mut self) -> String {
        match self.lines.recv().await {
            Some(line) => line,
            // The reader exits the process before it ends.
            None => std::future::pending().await,
        }
    }

    /// The next command, blocking.
    pub fn next_blocking(&mut self) -> String {
        // The reader exits the process before it ends.
        self.lines.blocking_recv().unwrap_or_else(|| exit(0))
    }

    /// Nothing more to do but to stay until the test ends it.
    pub fn stay(mut self) -> ! {
        loop {
            self.next_blocking();
        }
    }
}
