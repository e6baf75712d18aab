//! Trees of child processes. They are started so that every member can be found again, and ended so that none is left.
//!
//! When a run is lost, the processes that it has started must not go on, and neither must the processes that these have
//! started. It is not enough to kill the child or its process group: a grandchild may have called `setsid`, and a
//! daemon forks twice. So [`prepare`] puts the child into a process group of its own and marks its environment. On
//! Linux, [`ProcessTree`] then finds, each time it looks:
//!
//! 1. the child, and every descendant of a member;
//! 2. the processes in a group or session that a member leads or has led;
//! 3. the processes that were started with the marker in their environment. The run's id is part of the marker's
//!    *name*. So a run inside another run adds its own marker and hides none;
//! 4. every process that the same `ProcessTree` has found before, and its descendants;
//! 5. every descendant of this process, if the tree was built
//!    [`with_all_below_this_process`](ProcessTree::with_all_below_this_process). In a sub-reaper ([`become_subreaper`])
//!    that is complete, because no fork can leave it.
//!
//! A process is identified by its id together with its start time. It is signalled through a pidfd, or, if the kernel
//! has none, after a last check. So a signal never reaches a stranger that has got a recycled id. Nothing in this
//! module waits for the exit status of a child. That remains the task of the code that started it
//! ([`std::process::Child`], or tokio's).
//!
//! # Ending
//!
//! All members get SIGTERM, and then SIGCONT so that stopped processes can act on it. They have up to `grace` to end.
//! Then every process that is left gets SIGKILL, again and again until two looks in a row find none. Processes that
//! fork faster than they are killed are stopped first. [`TreeEnd`] says which processes were found and how each ended.
//! Zombies do not count as alive. A pipe that a process still holds open delays nothing. All waiting is limited: a
//! process that survives SIGKILL, because the kernel does not let go of it or because it belongs to another user, is
//! reported as a survivor.
//!
//! Processes that members start *while they are ending*, such as a clean-up script, get no SIGTERM. They may run until
//! `grace` is over.
//!
//! # What is not found
//!
//! - **Outside a sub-reaper**: a process for which all three of these are true. It has lost its parents because they
//!   have ended, as when forking twice. It leads or has joined a session that no member was seen to lead. Its
//!   environment does not show the marker, because it was started with a cleared environment, has overwritten its own
//!   (as some daemons do to change their title), or may not be read (another user, set-user-id).
//! - **Anywhere**: work that a member leaves to a process outside the tree: a service manager (`systemd-run`), a
//!   container daemon, `at`, a running `tmux` server, another machine.
//! - Processes that `/proc` does not show, because it is mounted with `hidepid`, or not mounted.
//! - **On Unix systems other than Linux**, only the child's process group is known. A process that has left the group
//!   is not found.
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

/// The beginning of the name of every marker.
const MARKER_PREFIX: &str = "TENURE_";

/// The name of the environment variable that marks the processes of a run.
pub fn marker_name(run: RunId) -> String {
    format!("{MARKER_PREFIX}RUN_{}", run.as_uuid().simple())
}

/// Prepares a command to start the root of a tree, in a process group of its own and with a marked environment.
///
/// For a tokio command, pass its `as_std_mut()`. If you clear the command's environment, do it before this call.
pub fn prepare(command: &mut Command, run: RunId) {
    command.process_group(0).env(marker_name(run), "1");
}

/// Makes this process a sub-reaper: from now on, descendants whose parent ends become its children instead of init's.
///
/// This is for a process whose only purpose is to run one tree. A sub-reaper must reap such children, and must not reap
/// those that other code waits for. It applies to all threads of the process. Children do not inherit it.
///
/// # Errors
/// The kernel's error. Linux before 3.4 has no sub-reapers.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn become_subreaper() -> std::io::Result<()> {
    // Any process id means "yes" here.
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Finds the processes of one run, and remembers those that it has found.
///
/// This process itself is never a member. A clone starts with everything that the original has found, and remembers on
/// its own from then on. Several `ProcessTree`s of the same run may look for its processes, and end them, at the same
/// time.
#[derive(Debug, Clone)]
pub struct ProcessTree {
    census: Census,
}

impl ProcessTree {
    /// The processes that have the run's marker, and all that belong to them.
    ///
    /// On systems other than Linux this alone finds nothing: add the root with [`with_root`](Self::with_root).
    pub fn of(run: RunId) -> Self {
        Self { census: Census::of(marker_name(run)) }
    }

    /// The processes that have a marker of this name, and all that belong to them. The name begins with
    /// [`MARKER_PREFIX`].
    pub(crate) fn marked(name: String) -> Self {
        debug_assert!(name.starts_with(MARKER_PREFIX), "{name}");
        Self { census: Census::of(name) }
    }

    /// Adds this child, and all that belong to it.
    ///
    /// This process must have started the child and must not have waited for it, so that the id still belongs to it.
    pub fn with_root(mut self, pid: u32) -> Self {
        self.census.set_root(pid);
        self
    }

    /// Adds all descendants of this process.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn with_all_below_this_process(mut self) -> Self {
        self.census.add_all_below();
        self
    }

    /// Lets processes with these names, and the descendants of these processes, live on. This is for helpers that are
    /// meant to be shared, such as a build daemon. They are not members. [`TreeEnd::left`] lists those with one of the
    /// names.
    ///
    /// A name is the one that the kernel keeps (`ps -o comm`), cut to 15 bytes. The root is a member whatever its name
    /// is.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn leaving(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.census.leave(names);
        self
    }

    /// Looks for members, and returns those that are alive. Stopped processes are alive.
    ///
    /// This reads the process table, which takes milliseconds. Callers that look at the same time share one reading. A
    /// member that this `ProcessTree` has found once remains known, even if it leaves its parents and hides its marker
    /// later.
    pub fn members(&mut self) -> Vec<Member> {
        self.census.scan(&Patience::default()).map_or_else(Vec::new, |look| look.members)
    }

    /// Prepares to end the tree step by step, on the caller's own schedule.
    pub fn ending(self, grace: Duration) -> Ending {
        Ending::new(self.census, grace)
    }

    /// Ends the tree. Blocks until it is gone, or until the rest of it cannot be killed.
    pub fn end_blocking(self, grace: Duration) -> TreeEnd {
        let mut ending = self.ending(grace);
        while let Progress::Wait(pause) = ending.step() {
            ending.pause(pause);
        }
        ending.finish()
    }

    /// Like [`end_blocking`](Self::end_blocking), but does not block the caller's thread. Works in any async runtime.
    /// The tree begins to end when this is called, not when the future is first polled.
    ///
    /// To cut the grace short, end a clone of the tree with a grace of zero in the meantime.
    ///
    /// # Cancel safety
    /// If the future is dropped, the tree is still ended. Only the waiting stops.
    pub fn end(self, grace: Duration) -> impl Future<Output = TreeEnd> + Send + 'static {
        let (sender, receiver) = oneshot::channel();
        let tree = self.clone();
        // This has its own thread, because the runtime's pool may be full of the work that has to end.
        let thread = thread::Builder::new().name("tenure-process-end".into()).spawn(move || {
            // The caller may no longer be waiting.
            let _ = sender.send(tree.end_blocking(grace));
        });
        async move {
            match thread {
                Ok(_) => receiver.await.expect("ending processes does not panic"),
                // There are no threads left, perhaps because of this tree. It is better to block than to let it live.
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

    /// The name of its program as the kernel keeps it, cut to 15 bytes. Empty on systems other than Linux.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is stopped, by a signal or by a debugger.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }
}

/// The identity of a process, which stays unique when its id is recycled. `start` is when the process started, in ticks
/// since the machine started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ProcessIdentity {
    pid: i32,
    start: u64,
}

/// The result of one look.
#[derive(Debug)]
struct TreeSnapshot {
    /// The members that are alive.
    members: Vec<Member>,
    /// Whether no process can have started unseen while the table was read.
    is_complete: bool,
}

/// The result of ending a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a tree may have survivors"]
pub struct TreeEnd {
    processes: Vec<ProcessEnd>,
}

impl TreeEnd {
    /// Whether nothing is left: at the end, no member was found alive.
    pub fn is_verified(&self) -> bool {
        self.survivors().next().is_none()
    }

    /// Every process that was found, in the order of their ids.
    pub fn processes(&self) -> &[ProcessEnd] {
        &self.processes
    }

    /// The processes that had to be killed, and are gone.
    pub fn killed(&self) -> impl Iterator<Item = &ProcessEnd> {
        self.processes.iter().filter(|process| process.how == ProcessOutcome::Killed)
    }

    /// The processes that were allowed to live on: see [`ProcessTree::leaving`].
    pub fn left(&self) -> impl Iterator<Item = &ProcessEnd> {
        self.processes.iter().filter(|process| process.how == ProcessOutcome::Left)
    }

    /// The processes that are still alive although they had to end.
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

/// How a process of a tree ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProcessOutcome {
    /// It ended without SIGKILL: after SIGTERM, or by itself.
    Terminated,
    /// It was sent SIGKILL, and is gone.
    Killed,
    /// It is still alive. It was sent SIGKILL, or this process may not signal it.
    Survived,
    /// It was allowed to live on, and is alive.
    Left,
}
