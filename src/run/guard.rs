//! Methods of the guard that pass the call on to its context.

use std::{
    fmt,
    future::Future,
    time::{Duration, SystemTime},
};

use futures::stream::Stream;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::Run;
use crate::{
    clock::BootInstant,
    end::EndReason,
    session::{FencingToken, InvalidText, RunId, SessionKey},
};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::{
    host::HostConnection,
    pin::{PinError, Pinned},
};

impl Run {
    /// The session.
    pub fn key(&self) -> &SessionKey {
        self.context.key()
    }

    /// The run's id.
    pub fn run_id(&self) -> RunId {
        self.context.run_id()
    }

    /// See [`RunContext::fence`](super::RunContext::fence).
    pub fn fence(&self) -> FencingToken {
        self.context.fence()
    }

    /// When the session was acquired, by the database's clock.
    pub fn acquired_at(&self) -> SystemTime {
        self.context.acquired_at()
    }

    /// See [`RunContext::span`](super::RunContext::span).
    pub fn span(&self) -> Span {
        self.context.span()
    }

    /// See [`RunContext::token`](super::RunContext::token).
    pub fn token(&self) -> CancellationToken {
        self.context.token()
    }

    /// See [`RunContext::is_held`](super::RunContext::is_held).
    pub fn is_held(&self) -> bool {
        self.context.is_held()
    }

    /// See [`RunContext::trusted_for`](super::RunContext::trusted_for).
    pub fn trusted_for(&self) -> Duration {
        self.context.trusted_for()
    }

    /// See [`RunContext::stop`](super::RunContext::stop).
    pub fn stop(&self, why: impl Into<String>) {
        self.context.stop(why);
    }

    /// See [`RunContext::fail`](super::RunContext::fail).
    pub fn fail(&self, reason: impl fmt::Display) {
        self.context.fail(reason);
    }

    /// See [`RunContext::beat`](super::RunContext::beat).
    pub fn beat(&self) {
        self.context.beat();
    }

    /// See [`RunContext::cancelled`](super::RunContext::cancelled).
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn cancelled(&self) -> impl Future<Output = EndReason> + Send + 'static + use<> {
        self.context.cancelled()
    }

    /// See [`RunContext::overtaken`](super::RunContext::overtaken).
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn overtaken(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        self.context.overtaken()
    }

    /// See [`RunContext::trust`](super::RunContext::trust).
    pub fn trust(&self) -> impl Stream<Item = BootInstant> + Send + Unpin + 'static + use<> {
        self.context.trust()
    }

    /// See [`RunContext::set_phase`](super::RunContext::set_phase).
    ///
    /// # Errors
    /// [`InvalidText`] when the text cannot be stored. Nothing has changed.
    pub fn set_phase(&self, phase: impl AsRef<str>) -> Result<(), InvalidText> {
        self.context.set_phase(phase)
    }

    /// See [`RunContext::pin`](super::RunContext::pin).
    ///
    /// # Errors
    /// [`PinError`]: roll the transaction back.
    ///
    /// # Cancel safety
    /// As with every query of sqlx: if you drop the future, drop the transaction too.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub async fn pin<C: HostConnection + ?Sized>(&self, connection: &mut C) -> Result<Pinned, PinError> {
        self.context.pin(connection).await
    }
}
