//! The state of one run that its guard, its work and its actor share: whether it may act, why it ended, and whether it
//! was released.

use std::{
    any::Any,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{
    StreamExt,
    stream::{self, Stream},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::{end::End, trust::Trust, works::Works};
use crate::{
    clock::{BootInstant, SharedClock},
    config::Timing,
    end::{EndReason, Ended},
    event::RunRef,
    origin::{Deserted, Origin},
    session::{FencingToken, RunId, RunPhase, RunStage, SessionKey, StopRequest},
};

mod notes;

/// The shared state of one run.
pub(crate) struct Shared {
    pub(crate) key: SessionKey,
    pub(crate) run_id: RunId,
    pub(crate) fence: FencingToken,
    pub(crate) acquired_at_micros: i64,
    /// The schema that holds the leases, for pins in transactions of the host.
    #[cfg_attr(
        not(any(feature = "postgres", feature = "sqlite")),
        allow(dead_code, reason = "nothing can be pinned")
    )]
    pub(super) schema: Arc<str>,
    is_deserted: Deserted,
    clock: SharedClock,
    pub(crate) timing: Timing,
    trust: Trust,
    /// Microseconds since 1970 by the database's clock, for a `Busy` from memory.
    expires_at_micros: AtomicI64,
    /// The end of trust, for code that waits for it to move. It goes on moving after a stop, while the work has its
    /// grace.
    renewed_until: watch::Sender<BootInstant>,
    phase: Mutex<RunPhase>,
    /// The newest phase that others can see.
    shown_phase: watch::Sender<RunPhase>,
    /// The actor has not yet read the newest phase.
    phase_is_new: AtomicBool,
    /// The run's own work has asked for the run's end.
    stop_was_asked: AtomicBool,
    /// When the work last called `beat`, in nanoseconds of the boot clock.
    last_beat: AtomicU64,
    /// The work has outlived its grace.
    pub(crate) is_stuck: AtomicBool,
    /// The work under this run: the guard, and everything that was started through its context.
    pub(super) works: Works,
    end: End,
    /// The outcome of work in a task of its own, for those who attach to it. Weak, because nothing of the work may be
    /// dropped on the supervisor's thread (invariant I10), and because a value may hold its own run.
    pub(super) outcome: OnceLock<Weak<dyn Any + Send + Sync>>,
    /// The request to stop that counts, as far as this process knows.
    stop_request: Mutex<Option<StopRequest>>,
    /// Why the last attempt to release was not confirmed.
    release_refusal: Mutex<Option<String>>,
    /// Disabled once the actor has ended, so that a context that somebody keeps does not keep the span open.
    span: Mutex<Span>,
    origin: Origin,
}

/// The values that a run starts with.
pub(crate) struct Start {
    pub(crate) key: SessionKey,
    pub(crate) run_id: RunId,
    pub(crate) fence: FencingToken,
    pub(crate) acquired_at_micros: i64,
    pub(crate) trusted_until: BootInstant,
    pub(crate) expires_at_micros: i64,
    pub(crate) phase: RunPhase,
    pub(crate) schema: Arc<str>,
    pub(crate) is_deserted: Deserted,
    pub(crate) span: Span,
}

impl Shared {
    pub(crate) fn new(start: Start, clock: SharedClock, timing: Timing, token: CancellationToken) -> Self {
        let Start {
            key,
            run_id,
            fence,
            acquired_at_micros,
            trusted_until,
            expires_at_micros,
            phase,
            schema,
            is_deserted,
            span,
        } = start;
        Self {
            key,
            run_id,
            fence,
            acquired_at_micros,
            schema,
            is_deserted,
            clock,
            timing,
            trust: Trust::until(trusted_until),
            expires_at_micros: AtomicI64::new(expires_at_micros),
            renewed_until: watch::Sender::new(trusted_until),
            shown_phase: watch::Sender::new(phase.clone()),
            phase: Mutex::new(phase),
            phase_is_new: AtomicBool::new(false),
            stop_was_asked: AtomicBool::new(false),
            last_beat: AtomicU64::new(0),
            is_stuck: AtomicBool::new(false),
            works: Works::of_guard(),
            end: End::new(token),
            outcome: OnceLock::new(),
            stop_request: Mutex::default(),
            release_refusal: Mutex::default(),
            span: Mutex::new(span),
            origin: Origin::here(),
        }
    }

    pub(crate) fn to_ref(&self) -> RunRef {
        RunRef { key: self.key.clone(), run_id: self.run_id, fence: self.fence }
    }

    pub(crate) fn span(&self) -> Span {
        self.lock_span().clone()
    }

    pub(crate) fn close_span(&self) {
        *self.lock_span() = Span::none();
    }

    fn lock_span(&self) -> MutexGuard<'_, Span> {
        self.span.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.is_trusted() && !self.end.is_told()
    }

    /// Whether trust lasts, even if the run was told to end.
    pub(super) fn is_trusted(&self) -> bool {
        self.is_of_this_process() && self.trust.holds(self.clock.now())
    }

    pub(crate) fn trusted_for(&self) -> Duration {
        if self.end.is_told() || !self.is_of_this_process() {
            return Duration::ZERO;
        }
        self.trust.end().map_or(Duration::ZERO, |until| until.saturating_since(self.clock.now()))
    }

    pub(crate) fn expires_at_micros(&self) -> i64 {
        self.expires_at_micros.load(Ordering::Relaxed)
    }

    /// Moves the end of trust after a confirmed renewal. Returns `false` if trust is over for the work: somebody has
    /// seen it end, or the run was told to end.
    pub(crate) fn extend(&self, trusted_until: BootInstant, expires_at_micros: i64) -> bool {
        self.expires_at_micros.store(expires_at_micros, Ordering::Relaxed);
        let extended = self.trust.extend(trusted_until);
        // A stop has revoked trust for the work, but the lease is still renewed until the work has ended.
        let is_stopping = self.reason().is_some_and(|reason| !reason.is_loss());
        if extended || is_stopping {
            self.renewed_until.send_replace(trusted_until);
        }
        extended
    }

    /// The end of trust after the last renewal, renewals after a stop included. No other run gets in before it.
    pub(crate) fn renewed_until(&self) -> BootInstant {
        *self.renewed_until.borrow()
    }

    /// How long the lease is trusted without another renewal, even after a stop. Zero once it is lost.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(super) fn renewed_for(&self) -> Duration {
        match self.reason() {
            Some(reason) if reason.is_loss() => Duration::ZERO,
            _ if !self.is_of_this_process() => Duration::ZERO,
            _ => self.renewed_until().saturating_since(self.clock.now()),
        }
    }

    /// Whether the lease still keeps every other run out of the session. May also be true after a stop.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(super) fn is_renewed(&self) -> bool {
        !self.renewed_for().is_zero()
    }

    pub(super) fn trust_changes(self: Arc<Self>) -> impl Stream<Item = BootInstant> + Send + 'static {
        let moves = self.renewed_until.subscribe();
        let ended = async move {
            if !self.clone().cancelled().await.is_loss() {
                self.end.until_row_known().await;
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

    /// Whether this process is the one that looks after the run, and not a fork of it.
    pub(super) fn is_deserted(&self) -> bool {
        self.is_deserted.get()
    }

    pub(super) fn is_of_this_process(&self) -> bool {
        self.origin.is_this_process()
    }

    /// Ends the run for everybody at once. Returns the first reason (invariant I3).
    pub(crate) fn end(&self, reason: EndReason) -> EndReason {
        let first = self.end.set_reason(reason);
        // After the reason is set, so that code which sees that trust is gone can read why.
        self.trust.revoke();
        self.end.cancel();
        first
    }

    /// Like [`end`](Self::end), for work that has ended. If trust ended before the work did, the reason is
    /// `Unconfirmed`, even if nobody has noticed the end of trust yet.
    pub(super) fn end_in_time(&self, reason: EndReason) -> EndReason {
        self.end(if self.is_trusted() { reason } else { EndReason::Unconfirmed })
    }

    /// Says that the work's grace has passed.
    pub(crate) fn kill(&self) {
        self.end.kill();
    }

    /// Says that another run may already hold the session.
    pub(crate) fn say_overtaken(&self) {
        self.end.overtaken();
    }

    /// Says that nobody waits for the work any more, though it has not ended.
    pub(crate) fn give_up(&self) {
        self.end.give_up();
    }

    /// Says that the guard's work, and everything that it started, has ended.
    pub(super) fn say_work_ended(&self) {
        self.end.work_ended();
    }

    /// Lets callers that wait for the release go on without it.
    pub(crate) fn await_release_no_longer(&self) {
        self.end.await_row_no_longer();
    }

    /// Says whether the session was released. Only the first call counts.
    pub(crate) fn tell_released(&self, released: bool) {
        self.end.row_known(released);
    }

    pub(crate) fn reason(&self) -> Option<&EndReason> {
        self.end.reason()
    }

    /// The reason, for work that comes too late to begin. Sets no reason.
    pub(super) fn reason_so_far(&self) -> EndReason {
        let unset = || if self.is_trusted() { EndReason::Completed } else { EndReason::Unconfirmed };
        self.reason().cloned().unwrap_or_else(unset)
    }

    /// The reason of a run that is over.
    pub(crate) fn first_reason(&self) -> EndReason {
        self.end.first_reason()
    }

    /// The run's stage, for a refusal from memory.
    pub(crate) fn stage(&self) -> RunStage {
        match self.reason() {
            None => RunStage::Running,
            Some(_) if self.is_stuck.load(Ordering::Relaxed) => RunStage::Stuck,
            Some(_) => RunStage::Stopping,
        }
    }

    pub(crate) fn is_told_to_end(&self) -> bool {
        self.end.is_told()
    }

    pub(super) fn has_work_ended(&self) -> bool {
        self.end.has_work_ended()
    }

    /// Whether the work has ended or was given up, so that only the release is still waited for.
    pub(crate) fn is_work_over(&self) -> bool {
        self.end.is_work_over()
    }

    /// Whether the session was given up while the work may still act.
    pub(crate) fn gave_up(&self) -> bool {
        self.end.gave_up()
    }

    /// Cancelled when the run ends, for whatever reason. A child of the supervisor's root token.
    pub(crate) fn told_to_end(&self) -> &CancellationToken {
        self.end.told_to_end()
    }

    /// Cancelled when the work's grace has passed.
    pub(super) fn killed(&self) -> &CancellationToken {
        self.end.killed()
    }

    /// Waits until it is known whether the session was released.
    pub(crate) async fn until_release_known(&self) {
        // In a fork there is no supervisor that would ever say so.
        if self.is_of_this_process() {
            self.end.until_row_known().await;
        }
    }

    /// Waits until another run may already hold the session. Never completes otherwise.
    pub(super) async fn until_overtaken(&self) {
        self.end.until_overtaken().await;
    }

    /// Waits until all work under the run has ended or was given up, and the release is confirmed or no longer waited
    /// for.
    pub(super) async fn until_over(&self) {
        if self.is_of_this_process() {
            self.end.until_over().await;
        }
    }

    pub(super) async fn cancelled(self: Arc<Self>) -> EndReason {
        if !self.is_of_this_process() {
            return EndReason::Unconfirmed;
        }
        self.told_to_end().cancelled().await;
        self.first_reason()
    }

    pub(crate) fn ended(&self) -> Ended {
        Ended { reason: self.first_reason(), released: self.end.was_released(), gave_up: self.gave_up() }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("key", &self.key)
            .field("run_id", &self.run_id)
            .field("fence", &self.fence)
            .field("reason", &self.reason())
            .finish_non_exhaustive()
    }
}
