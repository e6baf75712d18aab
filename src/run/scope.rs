//! Scopes: work that is bound to its run. The session is released only after the work, and everything that it started,
//! has ended.

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
use tracing::Instrument as _;

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
    /// The work is done in the run's [span](RunContext::span). To log in another span, instrument parts of the work.
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
        Scope { work, run: self }.run(|_| EndReason::Completed)
    }

    /// Like [`scope`](Self::scope), for work that can fail. If the work returns an error, the run ends as
    /// [`Failed`](EndReason::Failed) with the beginning of the error's text, and what the work has started is told to
    /// end. Returns what the work has returned.
    ///
    /// # Errors
    /// [`ScopeError`] when the run ended before the work did, as with `scope`. The first reason stays, and the error
    /// carries what the work returned.
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

    /// Runs work under this run in a task of its own. The work is bound to the run and not to the caller, so it goes on
    /// when the caller has gone. Otherwise this works like [`scope`](Self::scope).
    ///
    /// For hosts whose handlers are dropped when their client disconnects: the next request finds the run by
    /// [`local`](crate::LeaseSupervisor::local), and [attaches](ScopeHandle::attach) to its work.
    ///
    /// # Panics
    /// Outside a tokio runtime. A panic of the work is reported in the [`ScopeError`].
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
        // This consumes the guard, so there is no other outcome.
        let _ = shared.outcome.set(Arc::downgrade(&found_again));
        let is_known = outcome.is_known.clone().drop_guard();
        let scope = Scope { work: async move |ctx| work(ctx).await, run: self }.run(end);
        let scope = AssertUnwindSafe(scope).catch_unwind();
        tokio::spawn(async move {
            // Dropped after the work: nobody is told that the work is over while it still exists.
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
    /// A handle of the work that [`spawn_scope`](Run::spawn_scope) does under this run, for a host that has not kept one;
    /// see [`LeaseSupervisor::local`](crate::LeaseSupervisor::local). `None` if the work was not started that way, if its
    /// value is of another type, or if the work has ended and nobody has a handle any more.
    pub fn scope_handle<T: Send + 'static>(&self) -> Option<ScopeHandle<T>> {
        let outcome = self.shared.outcome.get()?.upgrade()?.downcast().ok()?;
        Some(ScopeHandle { context: self.clone(), outcome })
    }
}

/// Work and the guard that it is done under. Dropping a scope drops the work first.
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
            // The work's future lives in this arm only, so a panic or a drop ends the work before the guard reports it.
            true => {
                let work = work(run.context()).instrument(shared.span());
                match select(pin!(shared.killed().cancelled()), pin!(work)).await {
                    Either::Right((value, _)) => Some(value),
                    Either::Left(_) => None,
                }
            }
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
        // The first reason decides, so that everybody sees the same result.
        let ended = shared.ended();
        let is_own = match (&ended.reason, &own) {
            // The work had said before that it has failed, perhaps in other words.
            (EndReason::Failed { .. }, EndReason::Failed { .. }) => true,
            (reason, own) => reason == own,
        };
        match value {
            Some(value) if is_own => Ok(value),
            value => Err(ScopeError::new(ended, value)),
        }
    }
}

/// The reason with which work that can fail ends its run.
fn own_end<T, E: fmt::Display>(returned: &Result<T, E>) -> EndReason {
    returned.as_ref().err().map_or(EndReason::Completed, EndReason::failed)
}

/// A handle of work that was started by [`spawn_scope`](Run::spawn_scope). Clones are handles of the same work.
/// Dropping a handle changes nothing.
pub struct ScopeHandle<T> {
    context: RunContext,
    outcome: Arc<ScopeOutcome<T>>,
}

type ScopeResult<T> = Result<T, ScopeError<T>>;

struct ScopeOutcome<T> {
    /// Empty until the work has ended, and after its value was taken.
    result: Mutex<Option<ScopeResult<T>>>,
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

impl<T: Send + 'static> ScopeHandle<T> {
    /// Waits for the work and takes its value, which need not be `Clone`. Returns what [`scope`](Run::scope) would have
    /// returned.
    ///
    /// Of several clones of a handle, the first one to join gets the value. If others still ask for it, use
    /// [`attach`](Self::attach) instead.
    ///
    /// # Errors
    /// [`ScopeError`] when the run ended before the work did. Its reason is `Panicked` when the work panicked. It is
    /// `Completed`, without a value, when another clone has taken the value.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing: a value that it has not returned stays there for other clones.
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
            // Without a result, the value was taken, the work panicked, or its runtime was shut down. The run has ended.
            result.unwrap_or_else(|| Err(ScopeError::new(shared.ended(), None)))
        }
    }
}

impl<T: Clone + Send + 'static> ScopeHandle<T> {
    /// Waits for the work, and returns what [`scope`](Run::scope) would have returned. Every call gets a clone of the
    /// result. Wrap a value that is costly to clone in an [`Arc`].
    ///
    /// # Errors
    /// [`ScopeError`] when the run ended before the work did, or when another handle has [taken](Self::join) the value.
    /// Its reason is `Panicked` when the work panicked.
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
