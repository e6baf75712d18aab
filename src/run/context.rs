//! The handle through which the work under a run reads the run's state and makes requests of it.

use std::{
    fmt,
    future::Future,
    sync::Arc,
    time::{Duration, SystemTime},
};

use actix::Recipient;
use futures::stream::Stream;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::{RunMessage, Shared};
use crate::{
    clock::{BootInstant, instant},
    end::EndReason,
    session::{FencingToken, InvalidText, RunId, RunPhase, SessionKey},
};

/// A run as its work sees it. A context is cheap to clone and does not keep the run alive.
#[derive(Clone)]
pub struct RunContext {
    pub(super) shared: Arc<Shared>,
    pub(super) actor: Recipient<RunMessage>,
}

impl RunContext {
    pub(crate) fn new(shared: Arc<Shared>, actor: Recipient<RunMessage>) -> Self {
        Self { shared, actor }
    }

    /// The session.
    pub fn key(&self) -> &SessionKey {
        &self.shared.key
    }

    /// The run's id.
    pub fn run_id(&self) -> RunId {
        self.shared.run_id
    }

    /// The fencing token: the number by which a resource tells this run from earlier runs.
    pub fn fence(&self) -> FencingToken {
        self.shared.fence
    }

    /// When the session was acquired, by the database's clock.
    pub fn acquired_at(&self) -> SystemTime {
        instant(self.shared.acquired_at_micros)
    }

    /// The run's span, for code that is to log as a part of the run: its fields are `account`, `session`, `run_id` and
    /// `fence`. Disabled when the run is over, or when no subscriber wants it.
    ///
    /// Work in a [scope](super::Run::scope), and what it starts through its context, is in this span already. The span
    /// [follows from](tracing::Span::follows_from) the one in which the session was asked for.
    ///
    /// ```
    /// # fn example(ctx: tenure::RunContext) {
    /// std::thread::spawn(move || {
    ///     ctx.span().in_scope(|| tracing::info!("a thread of my own, as a part of the run"));
    /// });
    /// # }
    /// ```
    pub fn span(&self) -> Span {
        self.shared.span()
    }

    /// A token that is cancelled when the run ends, for whatever reason.
    ///
    /// Each call returns a new child token. Cancelling it yourself stops only the work that listens to it. To end the
    /// run, drop its guard or [`release`](super::Run::release) it.
    pub fn token(&self) -> CancellationToken {
        self.shared.told_to_end().child_token()
    }

    /// Whether the run may act *now*, by the local boot clock. Check this right before every side effect.
    ///
    /// Costs nanoseconds and does no I/O. Once it has returned `false`, it never returns `true` again.
    pub fn is_held(&self) -> bool {
        self.shared.is_held()
    }

    /// How long the run may still act if no further renewal is confirmed. Zero once the run has ended.
    pub fn trusted_for(&self) -> Duration {
        self.shared.trusted_for()
    }

    /// Tells the work to end, as a request from another process would. The token is cancelled, and the lease is renewed
    /// until the work has ended. If the run already has a reason to end, that reason stays.
    pub fn stop(&self, reason: impl Into<String>) {
        if self.shared.ask_to_stop() {
            self.tell_to_end(EndReason::Stopped { by: None, reason: Some(reason.into()) });
        }
    }

    /// Ends the run as [`Failed`](EndReason::Failed), with the beginning of the reason's text, unless the run has already
    /// ended. The token is cancelled at once. The lease is renewed until the work has ended.
    ///
    /// For work that returns its error there is [`try_scope`](super::Run::try_scope).
    pub fn fail(&self, reason: impl fmt::Display) {
        if self.shared.is_of_this_process() && self.shared.reason().is_none() {
            self.tell_to_end(self.shared.end_in_time(EndReason::failed(reason)));
        }
    }

    /// Says that the work advances: `max_silence` counts again from now.
    ///
    /// Costs nanoseconds. A renewal proves only that the process lives. A beat proves that its work advances.
    pub fn beat(&self) {
        self.shared.beat();
    }

    pub(super) fn tell_to_end(&self, reason: EndReason) {
        self.actor.do_send(RunMessage::Stop { reason, grace: None });
    }

    /// Waits until the run ends, and returns why. The future borrows nothing and does not keep the run alive.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn cancelled(&self) -> impl Future<Output = EndReason> + Send + 'static + use<> {
        self.shared.clone().cancelled()
    }

    /// Waits until another run may hold the session: the row belongs to another run, is gone, or is too near its expiry
    /// to be renewed again. Otherwise the future never completes. Work that still acts must then be ended by force,
    /// whatever grace it was given.
    ///
    /// [`cancelled`](Self::cancelled) completes first. Work in a scope is dropped without your help; this is for work
    /// that you have to end by hand. The future borrows nothing and does not keep the run alive.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn overtaken(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let shared = self.shared.clone();
        async move { shared.until_overtaken().await }
    }

    /// The boot-clock instant at which trust ends: its present value, and its new value after each confirmed renewal.
    ///
    /// A run that was told to stop is renewed until its work has ended, and the stream goes on until then. Such work
    /// has its grace, but may not begin anything new. On a loss the stream ends at once.
    ///
    /// Use it for a program that must stop by itself when this process cannot tell it to, such as a guardian of a child
    /// process.
    pub fn trust(&self) -> impl Stream<Item = BootInstant> + Send + Unpin + 'static + use<> {
        Box::pin(self.shared.clone().trust_changes())
    }

    /// Says what the run is doing, for people: at most 64 bytes without NUL. Others see it with the next renewal. If
    /// that is far off, it is sent early.
    ///
    /// # Errors
    /// [`InvalidText`] when the text cannot be stored. Nothing has changed.
    pub fn set_phase(&self, phase: impl AsRef<str>) -> Result<(), InvalidText> {
        if self.shared.set_phase(RunPhase::new(phase)?) {
            self.actor.do_send(RunMessage::PhaseChanged);
        }
        Ok(())
    }

    /// Waits until others can see the phase that was [set](Self::set_phase) last. Never completes if they never will,
    /// because the run has ended first or the database does not accept the phase.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn phase_shown(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let shared = self.shared.clone();
        async move { shared.until_phase_shown().await }
    }
}

impl fmt::Debug for RunContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}
