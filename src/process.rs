//! Child process trees: started so that every member can be found again, and ended so that none is left.
//!
//! A run that was lost must not go on in a child it started, nor in what that child started. Killing the child,
//! or its process group, is not enough: a grandchild may have called `setsid`, a daemon has forked twice. So
//! [`prepare`] puts the child into a process group of its own and marks its environment, and [`ProcessTree`]
//! finds on Linux, at each look:
//!
//! 1. the child, and all that descend from a member by parenthood;
//! 2. the process groups and the sessions that a member leads or has led;
//! 3. processes that carry the marker in the environment they were started with. The run's id is part of the
//!    marker's *name*, so that a run nested in another adds its marker and hides none;
//! 4. whatever was a member at an earlier look of the same value, and what descends from it;
//! 5. all that descends from this process, when the tree was told so by
//!    [`with_all_below_this_process`](ProcessTree::with_all_below_this_process). In a sub-reaper
//!    ([`become_subreaper`]) that is complete: no fork leads out of it.
//!
//! A process is identified by its id together with the time it started, and is signalled through a pidfd
//! (or, where the kernel has none, after a last look), so a recycled id never hits a stranger. Nothing here waits
//! for a child's exit status: that stays with whoever started it ([`std::process::Child`], or tokio's).
//!
//! # Ending
//!
//! SIGTERM, then SIGCONT so that stopped processes can act on it → up to `grace` → SIGKILL to all that is left,
//! again and again until two looks in a row find nobody. Processes that fork faster than they are killed are
//! stopped first. What was found, and how it ended, is in the [`TreeEnd`]. Zombies do not count as alive. Output
//! that somebody still holds open delays nothing, and all waiting is bounded: a process that survives SIGKILL,
//! because the kernel does not let go of it or because it belongs to another user, is reported as a survivor.
//!
//! What members start *while they are ending*, such as a clean-up script, gets no SIGTERM; it has until `grace`.
//!
//! # What is not found
//!
//! - **Outside a sub-reaper**: a process that has left its parents (they have ended, as when forking twice), leads or
//!   has joined a session that no member was seen to lead, *and* whose environment does not show the marker:
//!   it was started with a cleared one, has overwritten its own (as some daemons do to change their title), or
//!   cannot be read (another user, set-user-id). All three are needed to get away.
//! - **Anywhere**: work that a member has somebody else do: a service manager (`systemd-run`), a container
//!   daemon, `at`, an already running `tmux` server, another machine.
//! - Processes that `/proc` does not show, when it is mounted with `hidepid`, or not at all.
//! - **On Unix systems other than Linux** only the child's process group is known: what left it is not found.
//!
//! ```no_run
//! # async fn example(run: tenure::RunId) -> std::io::Result<()> {
//! use std::{process::Command, time::Duration};
//! use tenure::process::{ProcessTree, prepare};
//!
//! let mut command = Command::new("make");
//! prepare(&mut command, run);
//! let mut child = command.spawn()?;
//! let tree = ProcessTree::of(run).with_root(child.id());
//! // … and when the run ends:
//! let end = tree.end(Duration::from_secs(5)).await;
//! assert!(end.is_verified(), "still alive: {:?}", end.survivors().collect::<Vec<_>>());
//! let status = child.wait()?;
//! # Ok(()) }
//! ```

#[cfg(any(target_os = "linux", target_os = "android"))]
mod census;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[path = "process/group.rs"]
mod census;
mod child;
mod ending;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod leave;
mod patience;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod reading;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod table;

use std::{future::Future, os::unix::process::CommandExt, process::Command, thread, time::Duration};

use futures::channel::oneshot;

pub use child::{ChildEnd, ChildError, ChildTree};
pub use ending::{Ending, Progress};

use crate::session::RunId;
use census::Census;
use patience::Patience;

/// How the name of every marker begins.
const MARKER_PREFIX: &str = "TENURE_";

/// The name of the environment variable that marks the processes of a run.
pub fn marker_name(run: RunId) -> String {
    format!("{MARKER_PREFIX}RUN_{}", run.as_uuid().simple())
}

/// Makes a command start the root of a tree: in a process group of its own, its environment marked.
///
/// For a tokio command, pass its `as_std_mut()`. Clear the environment before this, not after.
pub fn prepare(command: &mut Command, run: RunId) {
    command.process_group(0).env(marker_name(run), "1");
}

/// From now on, processes below this one whose parents end become its children, instead of init's.
///
/// For a process whose only purpose is to run one tree: whoever becomes a sub-reaper must reap such children,
/// and must not reap those that other code waits for. Threads share it, later children do not inherit it.
///
/// # Errors
/// The kernel's; Linux before 3.4 does not know it.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn become_subreaper() -> std::io::Result<()> {
    // Any process id means "yes" here.
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// The processes of one run: a way to find them, and a memory of those found.
///
/// This process itself is never part of it. A clone takes along what is known so far; several values of the same
/// tree may look and end at the same time.
#[derive(Debug, Clone)]
pub struct ProcessTree {
    census: Census,
}

impl ProcessTree {
    /// Whatever carries the run's marker, and what belongs to that.
    ///
    /// Off Linux this alone finds nothing; name the root.
    pub fn of(run: RunId) -> Self {
        Self { census: Census::of(marker_name(run)) }
    }

    /// Whatever carries a marker of this name, which begins as all do, and what belongs to that.
    pub(crate) fn marked(name: String) -> Self {
        debug_assert!(name.starts_with(MARKER_PREFIX), "{name}");
        Self { census: Census::of(name) }
    }

    /// Also this child and what belongs to it.
    ///
    /// The child must have been started by this process and not have been waited for, so that its id is still its
    /// own.
    pub fn with_root(mut self, pid: u32) -> Self {
        self.census.set_root(pid);
        self
    }

    /// Also all that descends from this process.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn with_all_below_this_process(mut self) -> Self {
        self.census.add_all_below();
        self
    }

    /// Lets processes of these names, and what descends from them, live on: helpers that are meant to be shared, such
    /// as a build daemon. They are no members; a [`TreeEnd`] tells those of these names.
    ///
    /// A name is what the kernel keeps (`ps -o comm`), cut to 15 bytes. The root is never left.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn leaving(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.census.leave(names);
        self
    }

    /// Looks, and answers who is alive, stopped ones included.
    ///
    /// Reads the process table, which takes milliseconds; all who look at the same time share a reading. Who leaves its
    /// parents *and* hides later is still known as a member if it was seen by a look of this value before.
    pub fn members(&mut self) -> Vec<Member> {
        self.census.scan(&Patience::default()).map_or_else(Vec::new, |look| look.members)
    }

    /// Starts to end the tree, step by step on the caller's own schedule.
    pub fn ending(self, grace: Duration) -> Ending {
        Ending::new(self.census, grace)
    }

    /// Ends the tree and waits until it is gone, or until the rest of it cannot be killed.
    pub fn end_blocking(self, grace: Duration) -> TreeEnd {
        let mut ending = self.ending(grace);
        while let Progress::Wait(pause) = ending.step() {
            ending.pause(pause);
        }
        ending.finish()
    }

    /// The same without blocking the caller's thread, on any async runtime. It begins when this is called.
    ///
    /// To cut the grace short, end a clone with a grace of zero meanwhile.
    ///
    /// # Cancel safety
    /// Dropping the future only stops waiting.
    pub fn end(self, grace: Duration) -> impl Future<Output = TreeEnd> + Send + 'static {
        let (sender, receiver) = oneshot::channel();
        let tree = self.clone();
        // A thread of its own: the runtime's pool may be full of the very work that is to end.
        let thread = thread::Builder::new().name("tenure-process-end".into()).spawn(move || {
            // Nobody may be waiting any more.
            let _ = sender.send(tree.end_blocking(grace));
        });
        async move {
            match thread {
                Ok(_) => receiver.await.expect("ending processes does not panic"),
                // The machine is out of threads, perhaps by this tree's doing: rather block than let it live.
                Err(_) => self.end_blocking(grace),
            }
        }
    }
}

/// A live process of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    id: ProcessIdentity,
    group: i32,
    name: String,
    is_stopped: bool,
}

impl Member {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.id.pid.unsigned_abs()
    }

    /// The name of its program, as the kernel keeps it (cut to 15 bytes); empty off Linux.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it stands still, by a signal or under a debugger.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }
}

/// A process, whatever becomes of its id: `start` is when it started, in ticks since the machine did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ProcessIdentity {
    pid: i32,
    start: u64,
}

/// What one look found.
#[derive(Debug)]
struct TreeSnapshot {
    /// Those alive.
    members: Vec<Member>,
    /// Whether nobody can have started unseen while the table was read.
    is_complete: bool,
}

/// What ending a tree came to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a tree may have survivors"]
pub struct TreeEnd {
    processes: Vec<ProcessEnd>,
}

impl TreeEnd {
    /// Whether nothing is left: the last two looks found nobody alive.
    pub fn is_verified(&self) -> bool {
        self.survivors().next().is_none()
    }

    /// Every process that was found, in the order of their ids.
    pub fn processes(&self) -> &[ProcessEnd] {
        &self.processes
    }

    /// Those that had to be killed, and are gone.
    pub fn killed(&self) -> impl Iterator<Item = &ProcessEnd> {
        self.processes.iter().filter(|process| process.how == ProcessOutcome::Killed)
    }

    /// Those that were to live on: see [`ProcessTree::leaving`].
    pub fn left(&self) -> impl Iterator<Item = &ProcessEnd> {
        self.processes.iter().filter(|process| process.how == ProcessOutcome::Left)
    }

    /// Those that are still alive.
    pub fn survivors(&self) -> impl Iterator<Item = &ProcessEnd> {
        self.processes.iter().filter(|process| process.how == ProcessOutcome::Survived)
    }
}

/// How one process of a tree ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessEnd {
    /// Its process id.
    pub pid: u32,
    /// The name of its program when it was last seen.
    pub name: String,
    /// How it ended.
    pub how: ProcessOutcome,
}

/// How a process ended that was to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProcessOutcome {
    /// Within the grace: SIGTERM sufficed, or it ended by itself.
    Terminated,
    /// It was sent SIGKILL.
    Killed,
    /// It was sent SIGKILL, or may not be, and is still alive.
    Survived,
    /// It was to live on, and was sent nothing.
    Left,
}
