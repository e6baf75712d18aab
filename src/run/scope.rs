//! Work that is bound to its run: when it ends, all that it started has ended, and only then the session is free.

use std::{
    any::Any,
    fmt,
    future::Future,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
};

use futures::{
    FutureExt,
    future::{Either, select},
};
use tokio_util::sync::CancellationToken;

use super::{Run, RunContext};
use crate::{end::EndReason, error::ScopeError};

impl Run {
    /// Runs work under this run and releases the session when the work, and all that it started through its
    /// context ([`spawn`](RunContext::spawn), [`spawn_local`](RunContext::spawn_local),
    #[cfg_attr(all(unix, feature = "process"), doc = "[`child`](RunContext::child)), has ended.")]
    #[cfg_attr(not(all(unix, feature = "process")), doc = "`child`), has ended.")]
    ///
    /// The work is polled in place, on the caller's task: it may borrow, and need not be `Send`. When it returns, what
    /// it has started is waited for, not cancelled.
    ///
    /// When the run ends early, the token is cancelled; what does not return is dropped after `stop_grace`, or, when
    /// trust has run out, at `trusted_until + safety_margin/2` at the latest, or at once when another run may hold the
    /// session ([`is_certain_loss`](EndReason::is_certain_loss)). What cannot be dropped, a future that
    /// never yields, keeps the lease, shown as stuck, until it ends or trust does; a
    /// [`stuck_limit`](crate::LeaseSupervisorBuilder::stuck_limit) gives it up. A run that was told to stop before its work began
    /// does not begin it.
    ///
    /// After the work has ended this waits for the release, but no longer than `renew_timeout`; it goes on in
    /// the background.
    ///
    /// # Errors
    /// [`ScopeError`] when the run ended before the work did, a panic in a sub-task included. A value that the work
    /// returned all the same is in the error.
    ///
    /// # Panics
    /// A panic of the work itself goes on to the caller, and ends the run as `Panicked`.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work, then ends the run as `Dropped`; what the work started is told to end,
    /// and the session is released when it has.
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
        Scope { work, run: self }.run(|_| EndReason::Completed)
    }

    /// As [`scope`](Self::scope), for work that can fail: an error that it returns ends the run as
    /// [`Failed`](EndReason::Failed), with the beginning of the error's text, and tells what the work has started to end.
    /// Returns what the work has returned.
    ///
    /// # Errors
    /// [`ScopeError`] when the run ended before the work did, as with `scope`: the first reason stays, and what the work
    /// returned is in the error.
    ///
    /// # Panics
    /// As with `scope`.
    ///
    /// # Cancel safety
    /// As with `scope`.
    ///
    /// ```no_run
    /// # async fn agent(ctx: tenure::RunContext) -> Result<String, std::io::Error> { Ok(String::new()) }
    /// # async fn example(run: tenure::Run) -> Result<(), Box<dyn std::error::Error>> {
    /// let reply = run.try_scope(agent).await??;
    /// # Ok(()) }
    /// ```
    pub fn try_scope<F, T, E>(
        self,
        work: F,
    ) -> impl Future<Output = Result<Result<T, E>, ScopeError<Result<T, E>>>>
    where
        F: AsyncFnOnce(RunContext) -> Result<T, E>,
        E: fmt::Display,
    {
        Scope { work, run: self }.run(own_end)
    }

    /// Runs work under this run in a task of its own: it is bound to the run, not to the caller, and goes on when the
    /// caller has gone. Otherwise like [`scope`](Self::scope).
    ///
    /// For hosts whose handlers are dropped when their client disconnects: keep the handle by session, and let the
    /// next request [attach](ScopeHandle::attach).
    ///
    /// # Panics
    /// Outside a tokio runtime. A panic of the work is in the [`ScopeError`].
    pub fn spawn_scope<F, Fut, T>(self, work: F) -> ScopeHandle<T>
    where
        F: FnOnce(RunContext) -> Fut + Send + 'static,
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        self.spawn_scope_ending(work, |_| EndReason::Completed)
    }

    /// The same for work that can fail, as with [`try_scope`](Self::try_scope).
    ///
    /// # Panics
    /// Outside a tokio runtime. A panic of the work is in the [`ScopeError`].
    pub fn spawn_try_scope<F, Fut, T, E>(self, work: F) -> ScopeHandle<Result<T, E>>
    where
        F: FnOnce(RunContext) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        self.spawn_scope_ending(work, own_end)
    }

    fn spawn_scope_ending<F, Fut, T>(self, work: F, end: fn(&T) -> EndReason) -> ScopeHandle<T>
    where
        F: FnOnce(RunContext) -> Fut + Send + 'static,
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let handle = ScopeHandle { context: self.context(), outcome: Arc::default() };
        let (outcome, shared) = (handle.outcome.clone(), handle.context.shared.clone());
        let found_again: Arc<dyn Any + Send + Sync> = outcome.clone();
        // The guard is used up by this: there is no other outcome.
        let _ = shared.outcome.set(Arc::downgrade(&found_again));
        let is_known = outcome.is_known.clone().drop_guard();
        let scope = Scope { work: async move |ctx| work(ctx).await, run: self }.run(end);
        let scope = AssertUnwindSafe(scope).catch_unwind();
        tokio::spawn(async move {
            // Whatever drops this drops the work before it is said that there is nothing to wait for.
            let _is_known = is_known;
            match scope.await {
                Ok(result) => outcome.set(result),
                Err(_panic) => shared.until_over().await,
            }
        });
        handle
    }
}

impl RunContext {
    /// A handle of the work that [`spawn_scope`](Run::spawn_scope) does under this run, for a host that has not kept one:
    /// see [`LeaseSupervisor::local`](crate::LeaseSupervisor::local). `None` where its value is of another type, where it was
    /// not started so, and when it has ended and nobody has a handle any more.
    pub fn scope_handle<T: Send + 'static>(&self) -> Option<ScopeHandle<T>> {
        let outcome = self.shared.outcome.get()?.upgrade()?.downcast().ok()?;
        Some(ScopeHandle { context: self.clone(), outcome })
    }
}

/// Work and the guard it is done under: whatever drops it drops the work first.
struct Scope<F> {
    work: F,
    run: Run,
}

impl<F> Scope<F> {
    /// `end` says how the run ends by what the work has returned, unless it has ended before.
    async fn run<T>(self, end: fn(&T) -> EndReason) -> Result<T, ScopeError<T>>
    where
        F: AsyncFnOnce(RunContext) -> T,
    {
        let Self { work, mut run } = self;
        let shared = run.context.shared.clone();
        let value = match shared.is_held() {
            // Made within the arm, so that a panic or a drop ends the work before the guard says so.
            true => match select(pin!(shared.killed().cancelled()), pin!(work(run.context()))).await {
                Either::Right((value, _)) => Some(value),
                Either::Left(_) => None,
            },
            false => {
                drop(work);
                None
            }
        };
        let own = value.as_ref().map_or(EndReason::Dropped, end);
        match own {
            EndReason::Completed => run.say_returned(),
            _ => run.end(own.clone()),
        }
        shared.until_over().await;
        // The first reason: everybody sees the same one.
        match (shared.ended(), value) {
            (ended, Some(value)) if ended.reason == own => Ok(value),
            (ended, value) => Err(ScopeError::new(ended, value)),
        }
    }
}

/// How work that can fail ends its run.
fn own_end<T, E: fmt::Display>(returned: &Result<T, E>) -> EndReason {
    returned.as_ref().err().map_or(EndReason::Completed, EndReason::failed)
}

/// Work that was started by [`spawn_scope`](Run::spawn_scope). Clones are handles of the same work; dropping them
/// changes nothing.
pub struct ScopeHandle<T> {
    context: RunContext,
    outcome: Arc<ScopeOutcome<T>>,
}

type ScopeResult<T> = Result<T, ScopeError<T>>;

struct ScopeOutcome<T> {
    /// Empty until the work has ended, and after its value was taken.
    result: Mutex<Option<ScopeResult<T>>>,
    /// Cancelled when there is a result, or none can come.
    is_known: CancellationToken,
}

impl<T> ScopeHandle<T> {
    /// The run, as its work sees it: its ids, whether it is held, and [`stop`](RunContext::stop).
    pub fn context(&self) -> &RunContext {
        &self.context
    }

    /// Whether the work, and all that it started, has ended or was given up, and [`attach`](Self::attach) answers at
    /// once.
    pub fn is_finished(&self) -> bool {
        self.outcome.is_known.is_cancelled()
    }
}

impl<T: Send + 'static> ScopeHandle<T> {
    /// Waits for the work and takes its value, which need not be `Clone`: answers what [`scope`](Run::scope) would have.
    ///
    /// Of several clones of a handle the first to join has the value. Where others still ask for it,
    /// [`attach`](Self::attach) instead.
    ///
    /// # Errors
    /// [`ScopeError`] when the run ended before the work did; `Panicked` when the work panicked. Without a value, and with
    /// the reason `Completed`, when another clone has taken it.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing: a value that it has not given is there for other clones.
    pub fn join(self) -> impl Future<Output = Result<T, ScopeError<T>>> + Send + 'static + use<T> {
        self.known(|result| result.take())
    }

    /// Waits until the work has ended, and looks at its result.
    fn known(
        &self,
        look: fn(&mut Option<ScopeResult<T>>) -> Option<ScopeResult<T>>,
    ) -> impl Future<Output = Result<T, ScopeError<T>>> + Send + 'static + use<T> {
        let (outcome, shared) = (self.outcome.clone(), self.context.shared.clone());
        async move {
            outcome.is_known.cancelled().await;
            let result = look(&mut outcome.result.lock().unwrap_or_else(PoisonError::into_inner));
            // Without a result, it was taken, the work panicked, or its runtime was shut down: in any case the run has ended.
            result.unwrap_or_else(|| Err(ScopeError::new(shared.ended(), None)))
        }
    }
}

impl<T: Clone + Send + 'static> ScopeHandle<T> {
    /// Waits for the work as if from the beginning: answers what [`scope`](Run::scope) would have, to each who asks.
    /// Wrap a value that is costly to clone in an [`Arc`].
    ///
    /// # Errors
    /// [`ScopeError`] when the run ended before the work did; `Panicked` when the work panicked; and when another handle
    /// has [taken](Self::join) the value.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn attach(&self) -> impl Future<Output = Result<T, ScopeError<T>>> + Send + 'static + use<T> {
        self.known(|result| result.clone())
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
        Self { result: Mutex::default(), is_known: CancellationToken::new() }
    }
}

impl<T> ScopeOutcome<T> {
    fn set(&self, result: ScopeResult<T>) {
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    }
}
