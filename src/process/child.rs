//! What a run shows of a child process that was started by [`RunContext::child`](crate::RunContext::child).

use std::{
    future::Future,
    io,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, ExitStatus},
};

use futures::{FutureExt, channel::oneshot, future::Shared};
use tokio_util::sync::CancellationToken;

use super::TreeEnd;
use crate::end::EndReason;

/// A child process of a run, and what descends from it. Dropping it changes nothing.
#[derive(Debug)]
pub struct ChildTree {
    pid: u32,
    /// Its standard input, when the command asked for a pipe. An async pipe is made of it by
    /// `tokio::process::ChildStdin::from_std`; so with the others.
    pub stdin: Option<ChildStdin>,
    /// Its standard output, when the command asked for a pipe.
    pub stdout: Option<ChildStdout>,
    /// Its standard error, when the command asked for a pipe.
    pub stderr: Option<ChildStderr>,
    asked_to_end: CancellationToken,
    end: Shared<oneshot::Receiver<ChildEnd>>,
}

impl ChildTree {
    /// Takes the child's pipes. Cancelling the token ends the tree, and the channel tells its end.
    pub(crate) fn of(
        child: &mut Child,
        asked_to_end: CancellationToken,
        end: oneshot::Receiver<ChildEnd>,
    ) -> Self {
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        Self { pid: child.id(), stdin, stdout, stderr, asked_to_end, end: end.shared() }
    }

    /// The child's process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Ends the child and what descends from it, and nothing else of the run: SIGTERM, `stop_grace`, SIGKILL.
    pub fn end(&self) {
        self.asked_to_end.cancel();
    }

    /// Waits until the child has ended, and all that descends from it.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn wait(&self) -> impl Future<Output = ChildEnd> + Send + 'static + use<> {
        let end = self.end.clone();
        async move { end.await.expect("the thread that sees to a child tells its end") }
    }
}

/// How a child process ended, and what it took.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChildEnd {
    /// The child's own exit status; `None` when somebody else has taken it, as a host does that ignores SIGCHLD or
    /// waits for any child.
    pub status: Option<ExitStatus>,
    /// What was found of its tree after it ended or was told to, and how that ended.
    pub tree: TreeEnd,
}

/// Why no child process was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChildError {
    /// The operating system did not start it.
    #[error("the child process could not be started: {0}")]
    NotStarted(#[source] io::Error),
    /// The run has ended, or was told to.
    #[error("the run ended before the child process was started: {0}")]
    Ended(EndReason),
}
