//! The guard of one granted run, and the work done under it.

use std::{
    fmt,
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use futures::{
    StreamExt,
    future::{Either, select},
    stream::{self, Stream},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    actor::run::{RunActor, SetPhase, Stop, WorkEnded},
    clock::{BootInstant, SharedClock},
    error::ScopeError,
    lease::EndReason,
    session::{FencingToken, InvalidText, Phase, RunId, SessionKey},
};

/// A session, held by this run: the guard of a granted lease.
///
/// Dropping it cancels the run at once and releases the session: for work that was wired to the
/// [`token`](Self::token) by hand, dropping the guard is the statement that the work has ended (invariant I6).
/// Use [`scope`](Self::scope) where that cannot be promised.
#[must_use = "dropping a run ends it and releases its session"]
pub struct Run {
    shared: Arc<Shared>,
    actor: actix::Addr<RunActor>,
}

impl Run {
    pub(crate) fn new(shared: Arc<Shared>, actor: actix::Addr<RunActor>) -> Self {
        Self { shared, actor }
    }

    /// The session.
    pub fn key(&self) -> &SessionKey {
        &self.shared.key
    }

    /// This run's id.
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
    /// listens to this very token; to end the run, drop or [`release`](Self::release) it.
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
        set_phase(&self.shared, &self.actor, phase.as_ref())
    }

    /// What work under this run sees of it, for work that is not in a [`scope`](Self::scope).
    pub fn context(&self) -> RunContext {
        RunContext { shared: self.shared.clone(), actor: self.actor.clone() }
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
    /// yields cannot be dropped: then the lease is kept, and shown as stuck, until it does or trust ends.
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
        let value = {
            // Made within the block, so that a panic or a drop ends the work before the guard says so.
            let work = pin!(work(self.context()));
            let killed = pin!(shared.killed.cancelled());
            match select(killed, work).await {
                Either::Right((value, _)) => Some(value),
                Either::Left(_) => None,
            }
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
    #[must_use = "the session is given back only when this is awaited or dropped"]
    pub fn release(self) -> impl Future<Output = Ended> + Send + 'static {
        let shared = self.shared.clone();
        self.say_ended(EndReason::Completed);
        async move {
            shared.finished.cancelled().await;
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
        let in_time = self.shared.trust.holds(self.shared.clock.now());
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

    /// See [`Run::token`].
    pub fn token(&self) -> CancellationToken {
        self.shared.token.child_token()
    }

    /// See [`Run::is_held`].
    pub fn is_held(&self) -> bool {
        self.shared.is_held()
    }

    /// See [`Run::trusted_for`].
    pub fn trusted_for(&self) -> Duration {
        self.shared.trusted_for()
    }

    /// See [`Run::set_phase`].
    ///
    /// # Errors
    /// As there.
    pub fn set_phase(&self, phase: impl AsRef<str>) -> Result<(), InvalidText> {
        set_phase(&self.shared, &self.actor, phase.as_ref())
    }

    /// See [`Run::cancelled`].
    pub fn cancelled(&self) -> impl Future<Output = EndReason> + Send + 'static {
        self.shared.clone().cancelled()
    }
}

impl fmt::Debug for RunContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

fn set_phase(shared: &Shared, actor: &actix::Addr<RunActor>, phase: &str) -> Result<(), InvalidText> {
    let phase = Phase::new(phase)?;
    shared.set_phase(phase.clone());
    actor.do_send(SetPhase(phase));
    Ok(())
}

/// Microseconds since 1970, as a value of the standard library.
pub(crate) fn instant(micros: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros.try_into().unwrap_or(0))
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// The first reason.
    pub reason: EndReason,
    /// Whether the database confirmed that this run no longer holds the session. If not, the row expires
    /// within one ttl.
    pub released: bool,
}

/// What the guard, the work and the actor of one run share.
pub(crate) struct Shared {
    pub(crate) key: SessionKey,
    pub(crate) run_id: RunId,
    pub(crate) fence: FencingToken,
    pub(crate) acquired_at_micros: i64,
    clock: SharedClock,
    trust: Trust,
    /// Microseconds since 1970 by the database's clock, for the answer `Busy` from memory.
    expires_at_micros: AtomicI64,
    /// The end of trust for those who wait for it to move.
    moved: watch::Sender<BootInstant>,
    phase: Mutex<Phase>,
    /// Child of the supervisor's root token.
    pub(crate) token: CancellationToken,
    reason: OnceLock<EndReason>,
    /// The work has had its time.
    pub(crate) killed: CancellationToken,
    /// The guard was dropped, or said that the work has ended.
    pub(crate) work_ended: CancellationToken,
    /// The row is dealt with, or the caller has waited for it long enough.
    pub(crate) released_or_given_up: CancellationToken,
    released: OnceLock<bool>,
    /// The run's actor has nothing left to do, or is gone.
    pub(crate) finished: CancellationToken,
}

/// How a run starts.
pub(crate) struct Start {
    pub(crate) key: SessionKey,
    pub(crate) run_id: RunId,
    pub(crate) fence: FencingToken,
    pub(crate) acquired_at_micros: i64,
    pub(crate) trusted_until: BootInstant,
    pub(crate) expires_at_micros: i64,
    pub(crate) phase: Phase,
}

impl Shared {
    pub(crate) fn new(start: Start, clock: SharedClock, token: CancellationToken) -> Self {
        let Start { key, run_id, fence, acquired_at_micros, trusted_until, expires_at_micros, phase } = start;
        Self {
            key,
            run_id,
            fence,
            acquired_at_micros,
            clock,
            trust: Trust::until(trusted_until),
            expires_at_micros: AtomicI64::new(expires_at_micros),
            moved: watch::Sender::new(trusted_until),
            phase: Mutex::new(phase),
            token,
            reason: OnceLock::new(),
            killed: CancellationToken::new(),
            work_ended: CancellationToken::new(),
            released_or_given_up: CancellationToken::new(),
            released: OnceLock::new(),
            finished: CancellationToken::new(),
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.trust.holds(self.clock.now()) && !self.token.is_cancelled()
    }

    pub(crate) fn trusted_for(&self) -> Duration {
        if self.token.is_cancelled() {
            return Duration::ZERO;
        }
        self.trust.end().map_or(Duration::ZERO, |until| until.saturating_since(self.clock.now()))
    }

    pub(crate) fn expires_at_micros(&self) -> i64 {
        self.expires_at_micros.load(Ordering::Relaxed)
    }

    /// Moves the end of trust after a confirmed renewal; `false` when it has been seen to be over already.
    pub(crate) fn extend(&self, trusted_until: BootInstant, expires_at_micros: i64) -> bool {
        self.expires_at_micros.store(expires_at_micros, Ordering::Relaxed);
        let extended = self.trust.extend(trusted_until);
        let is_stopping = self.reason.get().is_some_and(|reason| !reason.is_loss());
        if extended || is_stopping {
            self.moved.send_replace(trusted_until);
        }
        extended
    }

    fn trust_changes(self: Arc<Self>) -> impl Stream<Item = BootInstant> + Send + 'static {
        let moves = self.moved.subscribe();
        let ended = async move {
            if !self.clone().cancelled().await.is_loss() {
                self.finished.cancelled().await;
            }
        };
        let changes = stream::unfold((moves, true), async |(mut moves, first)| {
            if !first {
                moves.changed().await.ok()?;
            }
            let until = *moves.borrow_and_update();
            Some((until, (moves, false)))
        });
        changes.take_until(Box::pin(ended))
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_phase(&self, phase: Phase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    /// Ends the run for everybody at once; answers the reason that was first (invariant I3).
    pub(crate) fn end(&self, reason: EndReason) -> EndReason {
        let first = self.reason.get_or_init(|| reason).clone();
        self.trust.revoke();
        self.token.cancel();
        first
    }

    pub(crate) fn reason(&self) -> Option<&EndReason> {
        self.reason.get()
    }

    pub(crate) fn tell_released(&self, released: bool) {
        // A release that is confirmed after the run was given up changes nothing for those who were told.
        let _ = self.released.set(released);
        self.released_or_given_up.cancel();
    }

    async fn cancelled(self: Arc<Self>) -> EndReason {
        self.token.cancelled().await;
        self.first_reason()
    }

    fn ended(&self) -> Ended {
        Ended { reason: self.first_reason(), released: self.released.get().copied().unwrap_or(false) }
    }

    /// A token that was cancelled without a reason is one whose supervisor died with it.
    fn first_reason(&self) -> EndReason {
        self.reason.get_or_init(|| EndReason::Panicked).clone()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("key", &self.key)
            .field("run_id", &self.run_id)
            .field("fence", &self.fence)
            .field("reason", &self.reason.get())
            .finish_non_exhaustive()
    }
}

/// The end of trust, readable from any thread without a lock.
///
/// Whoever sees it pass closes it for good: a renewal that was confirmed just before, and is published just
/// after, must not let `is_held` go from `false` back to `true` (invariant I3).
struct Trust(AtomicU64);

impl Trust {
    const OVER: u64 = 0;

    fn until(instant: BootInstant) -> Self {
        Self(AtomicU64::new(instant.as_nanos()))
    }

    fn holds(&self, now: BootInstant) -> bool {
        let until = self.0.load(Ordering::Acquire);
        if now.as_nanos() < until {
            return true;
        }
        // Fails when it was extended in between: then it had not passed.
        let closed = self.0.compare_exchange(until, Self::OVER, Ordering::AcqRel, Ordering::Acquire);
        closed.is_err_and(|extended| now.as_nanos() < extended)
    }

    fn extend(&self, instant: BootInstant) -> bool {
        let extend = |until| (until != Self::OVER).then_some(instant.as_nanos());
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, extend).is_ok()
    }

    fn revoke(&self) {
        self.0.store(Self::OVER, Ordering::Release);
    }

    fn end(&self) -> Option<BootInstant> {
        let until = self.0.load(Ordering::Acquire);
        (until != Self::OVER).then(|| BootInstant::from_nanos(until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> BootInstant {
        BootInstant::from_nanos(nanos)
    }

    #[test]
    fn i3_trust_that_was_seen_to_pass_is_never_extended() {
        let trust = Trust::until(at(10));
        assert!(trust.holds(at(9)));
        assert!(trust.extend(at(20)));
        assert!(trust.holds(at(19)));
        assert!(!trust.holds(at(20)));
        assert!(!trust.extend(at(40)));
        assert!(!trust.holds(at(5)));
        assert_eq!(trust.end(), None);
    }
}
