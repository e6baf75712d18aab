//! The handle of a child process that [`RunContext::child`](crate::RunContext::child) has started.

use std::{
    future::Future,
    io,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, ExitStatus},
};

use futures::{FutureExt, channel::oneshot, future::Shared};
use tokio_util::sync::CancellationToken;

use super::TreeEnd;
use crate::end::EndReason;

/// A child process of a run, and its descendants. Dropping this handle changes nothing.
#[derive(Debug)]
pub struct ChildTree {
    pid: u32,
    /// The child's standard input, if the command asked for a pipe. `tokio::process::ChildStdin::from_std` makes an
    /// async pipe of it. The types of the other two pipes have a function of the same name.
    pub stdin: Option<ChildStdin>,
    /// The child's standard output, if the command asked for a pipe.
    pub stdout: Option<ChildStdout>,
    /// The child's standard error, if the command asked for a pipe.
    pub stderr: Option<ChildStderr>,
    asked_to_end: CancellationToken,
    end: Shared<oneshot::Receiver<ChildEnd>>,
}

impl ChildTree {
    /// Takes the child's pipes. Cancelling the token ends the tree, and the channel then receives how it ended.
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

    /// Ends the child and its descendants, and nothing else of the run. They get SIGTERM, and after `stop_grace`
    /// SIGKILL.
    pub fn end(&self) {
        self.asked_to_end.cancel();
    }

    /// Waits until the child and all its descendants have ended.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn wait(&self) -> impl Future<Output = ChildEnd> + Send + 'static + use<> {
        let end = self.end.clone();
        async move { end.await.expect("the thread that sees to a child tells its end") }
    }
}

/// How a child process and its tree ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChildEnd {
    /// The child's own exit status. `None` if other code has taken it: the host ignores SIGCHLD, or waits for any
    /// child.
    pub status: Option<ExitStatus>,
    /// The processes of its tree that were found after it ended or was told to end, and how they ended.
    pub tree: TreeEnd,
}

/// Why no child process was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChildError {
    /// The operating system did not start it.
    #[error("the child process could not be started: {0}")]
    NotStarted(#[source] io::Error),
    /// The run has ended, or was told to end.
    #[error("the run ended before the child process was started: {0}")]
    Ended(EndReason),
}
