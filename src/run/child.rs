//! Child processes of a run, each with all that descends from it.

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
    /// Starts a child process as a part of the run: the run lasts until the child, and all that descends from it,
    /// has ended.
    ///
    /// The child gets a process group of its own and a marked environment, by which its
    /// [tree](crate::process) is found. When the run ends early, the tree gets SIGTERM, `stop_grace`, SIGKILL;
    /// when trust has run out, SIGKILL at `trusted_until + safety_margin/2` at the latest; when another run may hold the
    /// session, SIGKILL at once. When the child ends by itself, what it
    /// has left behind is ended the same way. Threads of its own see to that, whatever blocks the caller's runtime.
    /// No child is started after the run was told to end.
    ///
    /// A host process that is killed, or exits without waiting for its runs, cannot end anything: its children live
    /// on. One that is frozen (SIGSTOP, a paused container) ends them only when it goes on, which may be after another
    /// run has entered. The command `tenure run` has a guardian for that.
    ///
    /// Dropping the [`ChildTree`] changes nothing: the child goes on, and the run waits for it.
    ///
    /// # Errors
    /// [`ChildError`]; no process was started.
    ///
    /// ```no_run
    /// # async fn example(run: tenure::Run) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::process::Command;
    ///
    /// let end = run
    ///     .scope(async |ctx| {
    ///         let tool = ctx.child(Command::new("make").arg("test"))?;
    ///         Ok::<_, tenure::ChildError>(tool.wait().await)
    ///     })
    ///     .await??;
    /// println!("{:?}; had to be killed: {}", end.status, end.tree.killed().count());
    /// # Ok(()) }
    /// ```
    pub fn child(&self, command: &mut Command) -> Result<ChildTree, ChildError> {
        let refused = || ChildError::Ended(self.shared.reason_so_far());
        let entry = WorkEntry::of_child(self.clone()).ok_or_else(refused)?;
        let asked_to_end = CancellationToken::new();
        // Besides the run's own: of several children, each is ended alone.
        let marker = format!("TENURE_CHILD_{}", RunId::random().as_uuid().simple());
        let (context, asked) = (self.clone(), asked_to_end.clone());
        let warden = Warden { context, asked_to_end: asked, marker: marker.clone() };
        // The thread first: a child that nobody looks after must never be.
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
        // A child that the same command starts next is no part of this one.
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
            // What survives SIGKILL may still act, and keeps the session (invariant I6).
            if end.is_verified() || shared.gave_up() {
                break end;
            }
            thread::sleep(LOOK_AGAIN);
        };
        // Not before: until it is waited for, its id and its group's are its own.
        let status = child.try_wait().ok().flatten();
        ChildEnd { status, tree: end }
    }

    /// Until the child has exited or is to end; answers how much time its tree has from then on.
    fn wait_for_a_reason(&self, exited: oneshot::Receiver<()>) -> Duration {
        let shared = &self.context.shared;
        let (run_ends, asked) =
            (Box::pin(shared.told_to_end().cancelled()), Box::pin(self.asked_to_end.cancelled()));
        match block_on(select(select(exited, asked), run_ends)) {
            Either::Left(_) => shared.timing.stop_grace(),
            // The machine says when its grace is over.
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

/// How often what survives SIGKILL is killed again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Tells when the child has exited, and leaves it to be waited for. Where no thread can be had it tells so at once,
/// and the child is ended: nobody could look after it.
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
