//! The guard of one granted run, and the work done under it.

use std::{fmt, future::Future, sync::Arc};

use actix::Recipient;

use crate::{
    end::{EndReason, Ended},
    origin::farewell,
};

#[cfg(all(unix, feature = "process"))]
mod child;
mod context;
mod end;
mod guard;
mod message;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod pinning;
mod scope;
mod shared;
mod tasks;
mod trust;
mod works;

pub use context::RunContext;
pub(crate) use message::RunMessage;
pub use scope::ScopeHandle;
pub(crate) use shared::{Shared, Start};
pub use tasks::Task;

use tasks::WorkEntry;

/// The guard of a granted lease. It stands for a run that holds a session.
///
/// Dropping the guard cancels the run at once. The session is released when everything that was started through the
/// [context](RunContext) has ended. If you wire work to the [`token`](RunContext::token) yourself, dropping the guard
/// states that this work has ended (invariant I6). Use [`scope`](Self::scope) if you cannot promise that.
#[must_use = "dropping a run ends it and releases its session"]
pub struct Run {
    context: RunContext,
    /// The guard's entry among the run's work, until the guard has said that its own work has ended.
    entry: Option<WorkEntry>,
}

impl Run {
    pub(crate) fn new(shared: Arc<Shared>, actor: Recipient<RunMessage>) -> Self {
        let context = RunContext::new(shared, actor);
        let entry = WorkEntry::of_guard(context.clone());
        Self { context, entry: Some(entry) }
    }

    /// The context of this run, for work that is not in a [`scope`](Self::scope). A context can be cloned, and starts
    /// sub-tasks and child processes. A guard cannot be cloned.
    ///
    /// ```compile_fail
    /// # fn example(run: tenure::Run) {
    /// let second = run.clone();
    /// # }
    /// ```
    pub fn context(&self) -> RunContext {
        self.context.clone()
    }

    /// Ends the run as completed and releases the session. The call states that the caller's work has ended.
    ///
    /// Sub-tasks and children that still work are told to end first. Returns when the database has confirmed the
    /// release, or when trust has ended before that.
    ///
    /// # Cancel safety
    /// The run ends when this is called. Dropping the future only stops waiting.
    #[must_use = "only awaiting it tells whether the session was released"]
    pub fn release(mut self) -> impl Future<Output = Ended> + Send + 'static {
        let shared = self.context.shared.clone();
        self.end(EndReason::Completed);
        async move {
            shared.until_release_known().await;
            shared.ended()
        }
    }

    /// Ends the run for everybody at once. The session is released when all work under the run has ended.
    fn end(&mut self, reason: EndReason) {
        let shared = self.context.shared.clone();
        if !shared.is_of_this_process() {
            return drop(shared.end_in_time(reason));
        }
        let reason = shared.end_in_time(reason);
        self.say_returned();
        if !shared.has_work_ended() {
            self.context.tell_to_end(reason);
        }
    }

    /// Says that the guard's own work has ended. What that work has started may go on.
    fn say_returned(&mut self) {
        if let Some(entry) = self.entry.take() {
            entry.leave();
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.context.shared.is_of_this_process() || self.context.shared.has_work_ended() {
            return;
        }
        self.end(if std::thread::panicking() { EndReason::Panicked } else { EndReason::Dropped });
        if self.context.shared.is_deserted() && self.context.shared.has_work_ended() {
            farewell(|released| self.context.actor.do_send(RunMessage::Farewell(released)));
        }
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.context.fmt(f)
    }
}
