//! What work under a run sees of it, and may ask of it.

use std::{
    fmt,
    future::Future,
    sync::Arc,
    time::{Duration, SystemTime},
};

use actix::Recipient;
use futures::stream::Stream;
use tokio_util::sync::CancellationToken;

use super::{RunMessage, Shared};
use crate::{
    clock::{BootInstant, instant},
    end::EndReason,
    session::{FencingToken, InvalidText, RunId, RunPhase, SessionKey},
};

/// What work under a run sees of it. Cheap to clone; does not keep the run.
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

    /// The number by which resources tell this run from earlier ones.
    pub fn fence(&self) -> FencingToken {
        self.shared.fence
    }

    /// When the session was acquired, by the database's clock.
    pub fn acquired_at(&self) -> SystemTime {
        instant(self.shared.acquired_at_micros)
    }

    /// A token that is cancelled when the run ends, for whatever reason. Cancelling it yourself stops only who
    /// listens to this very token; to end the run, drop or [`release`](super::Run::release) its guard.
    pub fn token(&self) -> CancellationToken {
        self.shared.told_to_end().child_token()
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

    /// Tells the work to end, as a request from elsewhere would: the token is cancelled, and the lease is renewed
    /// until the work has ended. The first reason for an end stays.
    pub fn stop(&self, reason: impl Into<String>) {
        if self.shared.ask_to_stop() {
            self.tell_to_end(EndReason::Stopped { by: None, reason: Some(reason.into()) });
        }
    }

    /// Says that the work has failed, and why: ends the run as [`Failed`](EndReason::Failed), with the beginning of that
    /// text, unless it has ended before. The token is cancelled at once, and the lease is renewed until the work has ended.
    ///
    /// Work that returns its error has [`try_scope`](super::Run::try_scope).
    pub fn fail(&self, reason: impl fmt::Display) {
        if self.shared.is_of_this_process() && self.shared.reason().is_none() {
            self.tell_to_end(self.shared.end_in_time(EndReason::failed(reason)));
        }
    }

    /// Says that the work advances: `max_silence` counts anew from now.
    ///
    /// Costs nanoseconds. Renewals prove that the process lives; only this proves that its work gets anywhere.
    pub fn beat(&self) {
        self.shared.beat();
    }

    pub(super) fn tell_to_end(&self, reason: EndReason) {
        self.actor.do_send(RunMessage::Stop { reason, grace: None });
    }

    /// Waits until the run ends, and says why. The future borrows nothing and does not keep the run.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn cancelled(&self) -> impl Future<Output = EndReason> + Send + 'static + use<> {
        self.shared.clone().cancelled()
    }

    /// Waits until it is certain that another run may hold the session: its row is another run's, is gone, or has
    /// expired. Never completes otherwise. What still acts must be ended by force now, whatever grace it was given.
    ///
    /// [`cancelled`](Self::cancelled) comes before, or has come when the run was told to stop. Work in a scope is
    /// dropped by itself; this is for what has to be ended by hand. The future borrows nothing and does not keep the run.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn overtaken(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let shared = self.shared.clone();
        async move { shared.until_overtaken().await }
    }

    /// The boot-clock instant at which trust ends, now and after each confirmed renewal; ends with the run.
    ///
    /// A run that was told to stop is renewed until its work has ended, and this goes on meanwhile: the work may not
    /// begin anything new, but has its grace. It ends at once with a loss.
    ///
    /// For what has to stop by itself when this process cannot tell it to, like a guard of a child process.
    pub fn trust(&self) -> impl Stream<Item = BootInstant> + Send + Unpin + 'static + use<> {
        Box::pin(self.shared.clone().trust_changes())
    }

    /// Says what the run is doing, for people: at most 64 bytes without NUL. Others see it with the next renewal,
    /// which comes at once if it is far.
    ///
    /// # Errors
    /// [`InvalidText`] when it cannot be stored; nothing has changed.
    pub fn set_phase(&self, phase: impl AsRef<str>) -> Result<(), InvalidText> {
        if self.shared.set_phase(RunPhase::new(phase)?) {
            self.actor.do_send(RunMessage::PhaseChanged);
        }
        Ok(())
    }

    /// Waits until others can see the phase that was [set](Self::set_phase) last. Never completes where they never will:
    /// the run has ended before, or the database does not accept that phase.
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
