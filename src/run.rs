//! The guard of one granted run, and the work done under it.

use std::{
    fmt,
    future::Future,
    ops::Deref,
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::{
    future::{Either, select},
    stream::Stream,
};
use tokio_util::sync::CancellationToken;

use crate::{
    actor::run::{RunActor, SetPhase, Stop, WorkEnded},
    clock::BootInstant,
    end::EndReason,
    error::ScopeError,
    session::{FencingToken, InvalidText, Phase, RunId, SessionKey},
};

mod shared;

pub(crate) use shared::{Shared, Start, instant};

/// A session, held by this run: the guard of a granted lease.
///
/// Dropping it cancels the run at once and releases the session: for work that was wired to the
/// [`token`](RunContext::token) by hand, dropping the guard is the statement that the work has ended (invariant I6).
/// Use [`scope`](Self::scope) where that cannot be promised.
#[must_use = "dropping a run ends it and releases its session"]
pub struct Run {
    context: RunContext,
}

/// What the run's work sees of it is what its guard sees.
impl Deref for Run {
    type Target = RunContext;

    fn deref(&self) -> &RunContext {
        &self.context
    }
}

impl Run {
    pub(crate) fn new(shared: Arc<Shared>, actor: actix::Addr<RunActor>) -> Self {
        Self { context: RunContext { shared, actor } }
    }

    /// What work under this run sees of it, for work that is not in a [`scope`](Self::scope).
    pub fn context(&self) -> RunContext {
        self.context.clone()
    }

    /// Tells the work to end, as a request from elsewhere would: the token is cancelled, and the lease is renewed
    /// until the work has ended. The first reason for an end stays.
    pub fn stop(&self, why: impl Into<String>) {
        self.actor.do_send(Stop(EndReason::Stopped { by: None, why: Some(why.into()) }));
    }

    /// Runs work under this run and releases the session when the work has ended.
    ///
    /// The work is polled in place, on the caller's task: it may borrow, and need not be `Send`. When the run
    /// ends early, the work's token is cancelled; work that does not return is dropped after `stop_grace`, or,
    /// when the session was lost, at `trusted_until + safety_margin/2` at the latest. A future that never
    /// yields cannot be dropped: then the lease is kept, and shown as stuck, until it does or trust ends. Work under a
    /// run that has ended already does not begin.
    ///
    /// After the work has ended this waits for the release, but no longer than `renew_timeout`; it goes on in
    /// the background.
    ///
    /// # Errors
    /// [`ScopeError`] when the run ended before the work did. A value that the work returned all the same is
    /// in the error.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work, then ends the run as `Dropped`.
    ///
    /// ```no_run
    /// # async fn agent(fence: tenure::FencingToken) -> String { String::new() }
    /// # async fn example(run: tenure::Run) -> Result<(), Box<dyn std::error::Error>> {
    /// let reply = run.scope(async |ctx| agent(ctx.fence()).await).await?;
    /// # Ok(()) }
    /// ```
    pub async fn scope<F, T>(self, work: F) -> Result<T, ScopeError<T>>
    where
        F: AsyncFnOnce(RunContext) -> T,
    {
        let shared = self.shared.clone();
        // A run that was told to end before its work began does not begin it.
        let value = if shared.is_held() {
            // Made within the block, so that a panic or a drop ends the work before the guard says so.
            let work = pin!(work(self.context()));
            let killed = pin!(shared.killed.cancelled());
            match select(killed, work).await {
                Either::Right((value, _)) => Some(value),
                Either::Left(_) => None,
            }
        } else {
            None
        };
        // The guard decides the reason: first to set it wins, and everybody sees the same one.
        let ended = self.finish(EndReason::Completed).await;
        match (ended, value) {
            (EndReason::Completed, Some(value)) => Ok(value),
            (reason, value) => Err(ScopeError::new(reason, value)),
        }
    }

    /// Ends the run as completed and gives the session back: the statement that its work has ended.
    ///
    /// Returns when the database has confirmed it, or when trust ended first.
    ///
    /// # Cancel safety
    /// The run ends when this is called; dropping the future only stops waiting.
    #[must_use = "only awaiting it tells whether the session was given back"]
    pub fn release(self) -> impl Future<Output = Ended> + Send + 'static {
        let shared = self.shared.clone();
        self.say_ended(EndReason::Completed);
        async move {
            shared.told.cancelled().await;
            shared.ended()
        }
    }

    /// Says that the work has ended, and waits a little for the release.
    async fn finish(self, reason: EndReason) -> EndReason {
        let reason = self.say_ended(reason);
        self.shared.released_or_given_up.cancelled().await;
        reason
    }

    fn say_ended(&self, reason: EndReason) -> EndReason {
        // Work that ends after its trust did has not ended in time, even if nobody has noticed yet.
        let in_time = self.shared.is_trusted();
        let first = self.shared.end(if in_time { reason } else { EndReason::Unconfirmed });
        self.shared.work_ended.cancel();
        // A run whose actor is gone was cancelled by the actor's own end.
        self.actor.do_send(WorkEnded(first.clone()));
        first
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.shared.work_ended.is_cancelled() {
            return;
        }
        let reason = if std::thread::panicking() { EndReason::Panicked } else { EndReason::Dropped };
        self.say_ended(reason);
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

/// What work under a run sees of it. Cheap to clone; does not keep the run.
#[derive(Clone)]
pub struct RunContext {
    shared: Arc<Shared>,
    actor: actix::Addr<RunActor>,
}

impl RunContext {
    /// The session.
    pub fn key(&self) -> &SessionKey {
        &self.shared.key
    }

    /// The run's id.
    pub fn run_id(&self) -> RunId {
        self.shared.run_id
    }

    /// The number by which resources tell this run from earlier ones.
    pub fn fence(&self) -> FencingToken {
        self.shared.fence
    }

    /// When the session was acquired, by the database's clock.
    pub fn acquired_at(&self) -> SystemTime {
        instant(self.shared.acquired_at_micros)
    }

    /// A token that is cancelled when the run ends, for whatever reason. Cancelling it yourself stops only who
    /// listens to this very token; to end the run, drop or [`release`](Run::release) its guard.
    pub fn token(&self) -> CancellationToken {
        self.shared.token.child_token()
    }

    /// Whether the run may act *now*, by the local boot clock: for use right before every side effect.
    ///
    /// Costs nanoseconds, asks nobody. Once it has answered `false` it never answers `true` again.
    pub fn is_held(&self) -> bool {
        self.shared.is_held()
    }

    /// How long the run may still act if no renewal is confirmed from now on; zero once it has ended.
    pub fn trusted_for(&self) -> Duration {
        self.shared.trusted_for()
    }

    /// Waits until the run ends, and says why. The future borrows nothing and does not keep the run.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn cancelled(&self) -> impl Future<Output = EndReason> + Send + 'static {
        self.shared.clone().cancelled()
    }

    /// The boot-clock instant at which trust ends, now and after each confirmed renewal; ends with the run.
    ///
    /// A run that was told to stop is renewed until its work has ended, and this goes on meanwhile: the work may not
    /// begin anything new, but has its grace. It ends at once with a loss.
    ///
    /// For what has to stop by itself when this process cannot tell it to, like a guard of a child process.
    pub fn trust(&self) -> impl Stream<Item = BootInstant> + Send + Unpin + 'static {
        Box::pin(self.shared.clone().trust_changes())
    }

    /// Says what the run is doing, for people: at most 64 bytes without NUL. Others see it with the next renewal,
    /// which comes at once if it is far.
    ///
    /// # Errors
    /// [`InvalidText`] when it cannot be stored; nothing has changed.
    pub fn set_phase(&self, phase: impl AsRef<str>) -> Result<(), InvalidText> {
        let phase = Phase::new(phase)?;
        self.shared.set_phase(phase.clone());
        self.actor.do_send(SetPhase(phase));
        Ok(())
    }
}

impl fmt::Debug for RunContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Ended {
    /// The first reason.
    pub reason: EndReason,
    /// Whether the database confirmed that this run no longer holds the session. If not, the row expires
    /// within one ttl.
    pub released: bool,
}
