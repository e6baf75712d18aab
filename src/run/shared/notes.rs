//! What is noted about a run besides its trust and its end: what its work says, and what others have asked of it.

use std::sync::{PoisonError, atomic::Ordering};

use super::Shared;
use crate::{
    clock::BootInstant,
    session::{RunPhase, StopRequest},
};

impl Shared {
    pub(crate) fn phase(&self) -> RunPhase {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether the actor has to be told. The actor reads the newest phase when the message reaches it, so one
    /// message is on its way however often this is called (invariant I10).
    pub(in crate::run) fn set_phase(&self, phase: RunPhase) -> bool {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
        !self.phase_is_new.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn say_phase_shown(&self, phase: RunPhase) {
        self.shown_phase.send_replace(phase);
    }

    /// Waits until others can see the newest phase. Never completes if they never will.
    pub(in crate::run) async fn until_phase_shown(&self) {
        // `self` holds the sender, so the channel stays open.
        let _ = self.shown_phase.subscribe().wait_for(|shown| *shown == self.phase()).await;
    }

    pub(crate) fn take_new_phase(&self) -> RunPhase {
        self.phase_is_new.swap(false, Ordering::AcqRel);
        self.phase()
    }

    /// Returns whether the actor has to be told. Only the first request counts.
    pub(in crate::run) fn ask_to_stop(&self) -> bool {
        !self.stop_was_asked.swap(true, Ordering::Relaxed)
    }

    /// Keeps the first request to stop that this process has heard of. Returns whether it is this one.
    pub(crate) fn note_stop(&self, request: &StopRequest) -> bool {
        let mut stands = self.stop_request.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = stands.is_none();
        stands.get_or_insert_with(|| request.clone());
        is_first
    }

    /// Keeps the request that the row holds: it is the one that everybody else sees.
    pub(crate) fn note_recorded_stop(&self, request: &StopRequest) {
        *self.stop_request.lock().unwrap_or_else(PoisonError::into_inner) = Some(request.clone());
    }

    pub(crate) fn stop_request(&self) -> Option<StopRequest> {
        self.stop_request.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn note_release_refusal(&self, refusal: String) {
        *self.release_refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
    }

    /// Why the last attempt to release was not confirmed, if it was not.
    pub(crate) fn release_refusal(&self) -> Option<String> {
        self.release_refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(in crate::run) fn beat(&self) {
        self.last_beat.fetch_max(self.clock.now().as_nanos(), Ordering::Relaxed);
    }

    pub(crate) fn last_beat(&self) -> BootInstant {
        BootInstant::from_nanos(self.last_beat.load(Ordering::Relaxed))
    }
}
