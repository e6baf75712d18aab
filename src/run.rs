//! The guard of one granted run, and the work done under it.

use std::{fmt, future::Future, sync::Arc};

use actix::Recipient;

use crate::end::{EndReason, Ended};

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

/// A session, held by this run: the guard of a granted lease.
///
/// Dropping it cancels the run at once and releases the session when all that was started through its
/// [context](RunContext) has ended. For work that was wired to the [`token`](RunContext::token) by hand, dropping
/// the guard is the statement that the work has ended (invariant I6). Use [`scope`](Self::scope) where that cannot be
/// promised.
#[must_use = "dropping a run ends it and releases its session"]
pub struct Run {
    context: RunContext,
    /// What the guard stands for, until it has said that its work has ended.
    entry: Option<WorkEntry>,
}

impl Run {
    pub(crate) fn new(shared: Arc<Shared>, actor: Recipient<RunMessage>) -> Self {
        let context = RunContext::new(shared, actor);
        let entry = WorkEntry::of_guard(context.clone());
        Self { context, entry: Some(entry) }
    }

    /// What work under this run sees of it, for work that is not in a [`scope`](Self::scope). A context can be cloned and
    /// starts sub-tasks and children; a guard cannot be cloned.
    ///
    /// ```compile_fail
    /// # fn example(run: tenure::Run) {
    /// let second = run.clone();
    /// # }
    /// ```
    pub fn context(&self) -> RunContext {
        self.context.clone()
    }

    /// Ends the run as completed and gives the session back: the statement that its work has ended.
    ///
    /// What was started through its [context](RunContext) and still works is told to end first. Returns when the
    /// database has confirmed the release, or when trust ended first.
    ///
    /// # Cancel safety
    /// The run ends when this is called; dropping the future only stops waiting.
    #[must_use = "only awaiting it tells whether the session was given back"]
    pub fn release(mut self) -> impl Future<Output = Ended> + Send + 'static {
        let shared = self.context.shared.clone();
        self.end(EndReason::Completed);
        async move {
            shared.until_release_known().await;
            shared.ended()
        }
    }

    /// Ends the run for everybody at once; the session is released when all that works under it has ended.
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

    /// The guard's own work has ended; what it has started may go on.
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
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.context.fmt(f)
    }
}
