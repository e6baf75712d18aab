//! Child processes of a run, each with all its descendants.

use std::{
    process::{Child, Command},
    sync::mpsc,
    thread,
    time::Duration,
};

use futures::{
    channel::oneshot,
    executor::block_on,
    future::{Either, select},
};
use rustix::{
    io::Errno,
    process::{Pid, WaitId, WaitIdOptions, waitid},
};
use tokio_util::sync::CancellationToken;

use super::{RunContext, tasks::WorkEntry};
use crate::{
    process::{ChildEnd, ChildError, ChildTree, ProcessTree, Progress, TreeEnd, marker_name, prepare},
    session::RunId,
};

impl RunContext {
    /// Starts a child process as a part of the run. The run lasts until the child and all its descendants have ended.
    ///
    /// The child gets its own process group, and a mark in its environment by which its [tree](crate::process) is
    /// found. When the run ends early, the tree gets SIGTERM, then `stop_grace`, then SIGKILL. When trust has run out,
    /// the tree gets SIGKILL at `trusted_until + safety_margin/2` at the latest. When another run may hold the session,
    /// it gets SIGKILL at once. When the child ends by itself, the processes that it has left behind are ended the same
    /// way. Separate threads do this, so a blocked runtime of the caller does not delay it. No child is started after
    /// the run was told to end.
    ///
    /// A host process that is killed, or that exits without waiting for its runs, cannot end anything: its children
    /// live on. A host process that is frozen (SIGSTOP, a paused container) ends its children only when it goes on. By
    /// then another run may have entered. The command `tenure run` has a guardian for these cases.
    ///
    /// Dropping the [`ChildTree`] changes nothing: the child goes on, and the run waits for it.
    ///
    /// # Errors
    /// [`ChildError`]. No process was started.
    ///
    /// ```no_run
    /// # async fn example(run: tenure::Run) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::process::Command;
    ///
    /// let end = run
    ///     .scope(async |ctx| {
    ///         let tool = ctx.child(Command::new("make").arg("test"))?;
    ///         Ok::<_, tenure::process::ChildError>(tool.wait().await)
    ///     })
    ///     .await??;
    /// println!("{:?}; had to be killed: {}", end.status, end.tree.killed().count());
    /// # Ok(()) }
    /// ```
    pub fn child(&self, command: &mut Command) -> Result<ChildTree, ChildError> {
        let refused = || ChildError::Ended(self.shared.reason_so_far());
        let entry = WorkEntry::of_child(self.clone()).ok_or_else(refused)?;
        let asked_to_end = CancellationToken::new();
        // The child gets this marker in addition to the run's own, so that each of several children can be ended alone.
        let marker = format!("TENURE_CHILD_{}", RunId::random().as_uuid().simple());
        let (context, asked) = (self.clone(), asked_to_end.clone());
        let warden = Warden { context, asked_to_end: asked, marker: marker.clone() };
        // The thread comes first: there must never be a child that nobody looks after.
        let (starting, started) = mpsc::sync_channel::<Child>(1);
        let (told, end) = oneshot::channel();
        let thread = thread::Builder::new().name("tenure-child".to_owned()).spawn(move || {
            let end = started.recv().map(|child| warden.see_to_its_end(child));
            entry.leave();
            end.map(|end| told.send(end))
        });
        thread.map_err(ChildError::NotStarted)?;
        if !self.is_held() {
            return Err(refused());
        }
        prepare(command, self.run_id());
        let spawned = command.env(&marker, "1").spawn();
        // The next child that this command starts must not carry this child's markers.
        command.env_remove(marker).env_remove(marker_name(self.run_id()));
        let mut child = spawned.map_err(ChildError::NotStarted)?;
        let tree = ChildTree::of(&mut child, asked_to_end, end);
        starting.send(child).expect("the thread waits for it");
        Ok(tree)
    }
}

/// Looks after one child on a thread of its own.
struct Warden {
    context: RunContext,
    asked_to_end: CancellationToken,
    marker: String,
}

impl Warden {
    fn see_to_its_end(&self, mut child: Child) -> ChildEnd {
        let tree = ProcessTree::marked(self.marker.clone()).with_root(child.id());
        let grace = self.wait_for_a_reason(exit_of(&child));
        let shared = &self.context.shared;
        let end = loop {
            let end = self.end_tree(tree.clone(), grace);
            // A process that survives SIGKILL may still act, so it keeps the session (invariant I6).
            if end.is_verified() || shared.gave_up() {
                break end;
            }
            thread::sleep(LOOK_AGAIN);
        };
        // The child is reaped only now, because reaping it frees its process id and its group's id for other processes.
        let status = child.try_wait().ok().flatten();
        ChildEnd { status, tree: end }
    }

    /// Waits until the child has exited or is to end. Returns how much time its tree has from then on.
    fn wait_for_a_reason(&self, exited: oneshot::Receiver<()>) -> Duration {
        let shared = &self.context.shared;
        let (run_ends, asked) =
            (Box::pin(shared.told_to_end().cancelled()), Box::pin(self.asked_to_end.cancelled()));
        match block_on(select(select(exited, asked), run_ends)) {
            Either::Left(_) => shared.timing.stop_grace(),
            // There is no bound here: the lease's state machine decides when the grace is over, and then `killed` is
            // cancelled.
            Either::Right(_) => Duration::MAX,
        }
    }

    fn end_tree(&self, tree: ProcessTree, grace: Duration) -> TreeEnd {
        let mut ending = tree.ending(grace).killed_by(self.context.shared.killed().clone());
        while let Progress::Wait(pause) = ending.step() {
            ending.pause(pause);
        }
        ending.finish()
    }
}

/// The pause before processes that survived SIGKILL are killed again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Resolves when the child has exited, without reaping the child. If no thread can be started, it resolves at once, and
/// the child is ended, because nobody could look after it.
fn exit_of(child: &Child) -> oneshot::Receiver<()> {
    let (exited, exit) = oneshot::channel();
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let wait = move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        if let Some(pid) = pid {
            while waitid(WaitId::Pid(pid), options).is_err_and(|error| error == Errno::INTR) {}
        }
        let _ = exited.send(());
    };
    let _ = thread::Builder::new().name("tenure-child-exit".to_owned()).spawn(wait);
    exit
}
