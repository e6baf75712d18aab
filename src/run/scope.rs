//! Scopes: work that is bound to its run. The session is released only after the work, and everything that it started,
//! has ended.

use std::{
    fmt,
    future::Future,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Arc, OnceLock},
};

use futures::{
    FutureExt,
    future::{Either, select},
};
use tokio_util::sync::CancellationToken;

use super::{Run, RunContext};
use crate::{end::EndReason, error::ScopeError};

impl Run {
    /// Runs work under this run. Releases the session when the work, and everything that it started through its context
    /// ([`spawn`](RunContext::spawn), [`spawn_local`](RunContext::spawn_local),
    #[cfg_attr(all(unix, feature = "process"), doc = "[`child`](RunContext::child)), has ended.")]
    #[cfg_attr(not(all(unix, feature = "process")), doc = "`child`), has ended.")]
    ///
    /// The work is polled in place, on the caller's task. It may borrow, and need not be `Send`. When it returns, the
    /// scope waits for the sub-tasks and children that the work has started. It does not cancel them.
    ///
    /// When the run ends early, the token is cancelled. Work that does not return is then dropped: after `stop_grace`
    /// when the run was told to stop, at `trusted_until + safety_margin/2` at the latest when trust has run out, and at
    /// once when another run may hold the session ([`is_certain_loss`](EndReason::is_certain_loss)).
    ///
    /// A future that never yields cannot be dropped. It keeps the lease, and is shown as stuck, until it ends or trust
    /// ends. A [`stuck_limit`](crate::LeaseSupervisorBuilder::stuck_limit) gives such work up. If the run was told to
    /// stop before its work has begun, the work does not begin.
    ///
    /// After the work has ended, the scope waits for the release, but no longer than `renew_timeout`. A slower release
    /// goes on in the background.
    ///
    /// # Errors
    /// [`ScopeError`] when the run ended before the work did. A panic in a sub-task counts as such an end. If the work
    /// returned a value all the same, the error contains it.
    ///
    /// # Panics
    /// A panic of the work itself propagates to the caller, and ends the run as `Panicked`.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work, and then ends the run as `Dropped`. Everything that the work started is told
    /// to end, and the session is released when it has ended.
    ///
    /// ```no_run
    /// # async fn call_tool(name: &str, token: tokio_util::sync::CancellationToken) -> String { String::new() }
    /// # async fn example(run: tenure::Run) -> Result<(), Box<dyn std::error::Error>> {
    /// let reply = run
    ///     .scope(async |ctx| {
    ///         let search = ctx.spawn(call_tool("search", ctx.token()));
    ///         let read = ctx.spawn(call_tool("read", ctx.token()));
    ///         Ok::<_, tenure::EndReason>(search.await? + &read.await?)
    ///     })
    ///     .await??;
    /// # Ok(()) }
    /// ```
    pub fn scope<F, T>(self, work: F) -> impl Future<Output = Result<T, ScopeError<T>>>
    where
        F: AsyncFnOnce(RunContext) -> T,
    {
        Scope { work, run: self }.run()
    }

    /// Runs work under this run in a task of its own. The work is bound to the run and not to the caller, so it goes on
    /// when the caller has gone. Otherwise this works like [`scope`](Self::scope).
    ///
    /// For hosts whose handlers are dropped when their client disconnects: keep the handle in a map by session, and let
    /// the next request [attach](ScopeHandle::attach) to it.
    ///
    /// # Panics
    /// Outside a tokio runtime. A panic of the work is reported in the [`ScopeError`].
    pub fn spawn_scope<F, Fut, T>(self, work: F) -> ScopeHandle<T>
    where
        F: FnOnce(RunContext) -> Fut + Send + 'static,
        Fut: Future<Output = T> + Send + 'static,
        T: Send + Sync + 'static,
    {
        let handle = ScopeHandle { context: self.context(), outcome: Arc::default() };
        let (outcome, shared) = (handle.outcome.clone(), handle.context.shared.clone());
        let is_known = outcome.is_known.clone().drop_guard();
        let scope = AssertUnwindSafe(self.scope(async move |ctx| work(ctx).await)).catch_unwind();
        tokio::spawn(async move {
            // Dropped after the work: nobody is told that the work is over while it still exists.
            let _is_known = is_known;
            match scope.await {
                Ok(result) => drop(outcome.result.set(result)),
                Err(_panic) => shared.until_over().await,
            }
        });
        handle
    }
}

/// Work and the guard that it is done under. Dropping a scope drops the work first.
struct Scope<F> {
    work: F,
    run: Run,
}

impl<F> Scope<F> {
    async fn run<T>(self) -> Result<T, ScopeError<T>>
    where
        F: AsyncFnOnce(RunContext) -> T,
    {
        let Self { work, mut run } = self;
        let shared = run.context.shared.clone();
        let value = match shared.is_held() {
            // The work's future lives in this arm only, so a panic or a drop ends the work before the guard reports it.
            true => match select(pin!(shared.killed().cancelled()), pin!(work(run.context()))).await {
                Either::Right((value, _)) => Some(value),
                Either::Left(_) => None,
            },
            false => {
                drop(work);
                None
            }
        };
        if value.is_some() {
            run.say_returned();
        } else {
            run.end(EndReason::Dropped);
        }
        shared.until_over().await;
        // The first reason decides, so that everybody sees the same result.
        match (shared.ended(), value) {
            (ended, Some(value)) if ended.reason == EndReason::Completed => Ok(value),
            (ended, value) => Err(ScopeError::new(ended, value)),
        }
    }
}

/// A handle of work that was started by [`spawn_scope`](Run::spawn_scope). Clones are handles of the same work.
/// Dropping a handle changes nothing.
pub struct ScopeHandle<T> {
    context: RunContext,
    outcome: Arc<ScopeOutcome<T>>,
}

struct ScopeOutcome<T> {
    result: OnceLock<Result<T, ScopeError<T>>>,
    /// Cancelled when there is a result, or when none can come.
    is_known: CancellationToken,
}

impl<T> ScopeHandle<T> {
    /// The run's context: its ids, whether it is held, and [`stop`](RunContext::stop).
    pub fn context(&self) -> &RunContext {
        &self.context
    }

    /// Whether the work, and everything that it started, has ended or was given up. [`attach`](Self::attach) then
    /// returns at once.
    pub fn is_finished(&self) -> bool {
        self.outcome.is_known.is_cancelled()
    }
}

impl<T: Clone + Send + Sync + 'static> ScopeHandle<T> {
    /// Waits for the work, and returns what [`scope`](Run::scope) would have returned. Every call gets a clone of the
    /// result. Wrap a value that is costly to clone in an [`Arc`].
    ///
    /// # Errors
    /// [`ScopeError`] when the run ended before the work did. Its reason is `Panicked` when the work panicked.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn attach(&self) -> impl Future<Output = Result<T, ScopeError<T>>> + Send + 'static + use<T> {
        let (outcome, shared) = (self.outcome.clone(), self.context.shared.clone());
        async move {
            outcome.is_known.cancelled().await;
            let result = outcome.result.get().cloned();
            // If there is no result, the work panicked or its runtime was shut down. Either has ended the run.
            result.unwrap_or_else(|| Err(ScopeError::new(shared.ended(), None)))
        }
    }
}

impl<T> Clone for ScopeHandle<T> {
    fn clone(&self) -> Self {
        Self { context: self.context.clone(), outcome: self.outcome.clone() }
    }
}

impl<T> fmt::Debug for ScopeHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopeHandle").field("run", &self.context).finish_non_exhaustive()
    }
}

impl<T> Default for ScopeOutcome<T> {
    fn default() -> Self {
        Self { result: OnceLock::new(), is_known: CancellationToken::new() }
    }
}
