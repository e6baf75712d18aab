//! The work that was started under a run. All of it has to end before the session is released (invariant I6).

use std::{
    fmt,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::{Either, select};
use tokio::task::{JoinError, JoinHandle};
use tracing::Instrument as _;

use super::{RunContext, RunMessage, Shared};
use crate::end::EndReason;

impl RunContext {
    /// Starts a sub-task on the current tokio runtime. The run lasts until the sub-task has ended too.
    ///
    /// When the run ends early, [`token`](Self::token) tells the sub-task. If it does not return within `stop_grace`,
    /// it is dropped, like the work itself. A panic of the sub-task ends the run as `Panicked`. If all work under this
    /// run has already ended, the sub-task does not begin.
    ///
    /// Dropping the [`Task`] changes nothing: the sub-task goes on, and the run waits for it.
    ///
    /// # Panics
    /// Outside a tokio runtime; use [`track`](Self::track) with another executor.
    pub fn spawn<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        Task { context: self.clone(), handle: tokio::spawn(self.track(future)) }
    }

    /// Like [`spawn`](Self::spawn), for a sub-task that is not `Send`, on the current
    /// [`LocalSet`](tokio::task::LocalSet) or actix system.
    ///
    /// # Panics
    /// Outside a `LocalSet` and an actix system.
    pub fn spawn_local<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        Task { context: self.clone(), handle: tokio::task::spawn_local(self.track(future)) }
    }

    /// Like [`spawn`](Self::spawn), for work that blocks its thread. The work runs on the runtime's pool for blocking
    /// work.
    ///
    /// Such work cannot be ended from outside, so it should check [`is_held`](Self::is_held) now and then. Until it
    /// returns it keeps the session, which is shown as stuck when the grace is over.
    ///
    /// Do not use a bare [`spawn_blocking`](tokio::task::spawn_blocking) in a scope or a sub-task: the run does not
    /// know of it. Its `await` is dropped in time, but the work goes on.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn spawn_blocking<T, F>(&self, work: F) -> Task<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let tracked = Tracked { work, entry: WorkEntry::of_task(self.clone()), shared: self.shared.clone() };
        Task { context: self.clone(), handle: tokio::task::spawn_blocking(move || tracked.call()) }
    }

    /// Makes a future a part of the run, for an executor of your own. The run lasts until the returned future has ended
    /// or was dropped. Its output is like that of a [`Task`].
    ///
    /// # Cancel safety
    /// Dropping the returned future before it has ended ends the run as `Dropped`, because a part of its work is
    /// missing.
    pub fn track<F: Future>(&self, future: F) -> impl Future<Output = Result<F::Output, EndReason>> + use<F> {
        let entry = WorkEntry::of_task(self.clone());
        Tracked { work: future, entry, shared: self.shared.clone() }.run()
    }
}

/// Work with its entry. Dropping this drops the work first.
struct Tracked<W> {
    work: W,
    entry: Option<WorkEntry>,
    shared: Arc<Shared>,
}

impl<F: Future> Tracked<F> {
    async fn run(self) -> Result<F::Output, EndReason> {
        let Self { work, entry, shared } = self;
        let Some(entry) = entry else { return Err(shared.reason_so_far()) };
        let value = {
            // The work's future lives in this block only, so it is gone before `leave` says so.
            let work = pin!(work.instrument(shared.span()));
            match select(pin!(shared.killed().cancelled()), work).await {
                Either::Right((value, _)) => Ok(value),
                Either::Left(_) => Err(shared.first_reason()),
            }
        };
        entry.leave();
        value
    }
}

impl<W> Tracked<W> {
    fn call<T>(self) -> Result<T, EndReason>
    where
        W: FnOnce() -> T,
    {
        let Self { work, entry, shared } = self;
        let Some(entry) = entry else { return Err(shared.reason_so_far()) };
        // The run may have ended while the work waited for a thread of the pool.
        let value = match shared.is_told_to_end() {
            false => Ok(shared.span().in_scope(work)),
            true => {
                drop(work);
                Err(shared.first_reason())
            }
        };
        entry.leave();
        value
    }
}

/// A sub-task of a run. As a future it returns the sub-task's value, or why the run ended without it.
///
/// Dropping a task changes nothing: the sub-task goes on.
pub struct Task<T> {
    context: RunContext,
    handle: JoinHandle<Result<T, EndReason>>,
}

impl<T> Future for Task<T> {
    type Output = Result<T, EndReason>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let joined = Pin::new(&mut self.handle).poll(cx);
        joined.map(|joined| joined.unwrap_or_else(|error| Err(self.failed(&error))))
    }
}

impl<T> Task<T> {
    fn failed(&self, error: &JoinError) -> EndReason {
        match error.is_panic() {
            true => EndReason::Panicked,
            // Its runtime was shut down.
            false => self.context.shared.reason().cloned().unwrap_or(EndReason::Dropped),
        }
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("run", &self.context).finish_non_exhaustive()
    }
}

/// An entry for one piece of work under a run. The last entry to leave says that the work has ended.
///
/// If the entry of the guard or of a task is dropped without leaving, the run ends: a part of its work was cut off.
pub(super) struct WorkEntry {
    context: RunContext,
    if_dropped: IfDropped,
}

/// What the drop of an entry says about its work.
enum IfDropped {
    /// The work has ended, because the entry has left.
    Ended,
    /// The work has ended or never begun, unless its thread panics.
    #[cfg(all(unix, feature = "process"))]
    EndedUnlessPanicking,
    CutOff,
}

impl WorkEntry {
    /// The entry that the run begins with.
    pub(super) fn of_guard(context: RunContext) -> Self {
        Self { context, if_dropped: IfDropped::CutOff }
    }

    /// A further entry. `None` if all entries have left.
    pub(super) fn of_task(context: RunContext) -> Option<Self> {
        context.shared.works.enter().then(|| Self { context, if_dropped: IfDropped::CutOff })
    }

    #[cfg(all(unix, feature = "process"))]
    pub(super) fn of_child(context: RunContext) -> Option<Self> {
        context.shared.works.enter().then(|| Self { context, if_dropped: IfDropped::EndedUnlessPanicking })
    }

    pub(super) fn leave(mut self) {
        self.if_dropped = IfDropped::Ended;
    }
}

/// Also runs while unwinding, so it does nothing that can panic.
impl Drop for WorkEntry {
    fn drop(&mut self) {
        let RunContext { shared, actor } = &self.context;
        // A fork drops only its copy. The run belongs to the parent.
        if !shared.is_of_this_process() {
            return;
        }
        let cut_off = match (&self.if_dropped, std::thread::panicking()) {
            (IfDropped::Ended, _) => None,
            (_, true) => Some(EndReason::Panicked),
            (IfDropped::CutOff, false) => Some(EndReason::Dropped),
            #[cfg(all(unix, feature = "process"))]
            (IfDropped::EndedUnlessPanicking, false) => None,
        };
        if let Some(reason) = cut_off {
            self.context.tell_to_end(shared.end(reason));
        }
        if shared.works.leave() {
            let reason = shared.end_in_time(EndReason::Completed);
            shared.say_work_ended();
            // If the actor is gone, its drop has already cancelled the run.
            actor.do_send(RunMessage::WorkEnded(reason));
        }
    }
}
