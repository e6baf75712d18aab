//! One watched session, and those who watch it.

use futures::channel::oneshot;
use tokio::sync::watch;

use super::known::Knowledge;
use crate::{
    clock::{BootInstant, Reading},
    session::{Holder, RunId},
    watch::Observed,
};

pub(super) struct Watched {
    pub(super) shown: watch::Sender<Option<Observed>>,
    pub(super) knowledge: Knowledge,
    pub(super) waiting: Vec<EndWaiter>,
    /// The session is queued for a poll out of turn.
    pub(super) is_urgent: bool,
    /// When the session is to be polled again because a run of this process has changed.
    pub(super) again_at: Option<BootInstant>,
    /// When the session is next checked for changes by time alone. Kept in the order of deadlines.
    pub(super) deadline: Option<BootInstant>,
}

/// A caller that waits until a run no longer holds the session. Only answers to statements sent from `since` on count.
pub(super) struct EndWaiter {
    pub(super) run_id: RunId,
    pub(super) since: BootInstant,
    pub(super) reply: oneshot::Sender<()>,
}

impl Watched {
    pub(super) fn new(knowledge: Knowledge) -> Self {
        Self {
            shown: watch::Sender::new(None),
            knowledge,
            waiting: Vec::new(),
            is_urgent: false,
            again_at: None,
            deadline: None,
        }
    }

    /// Shows what is known now. Returns whether that is a change.
    pub(super) fn show(&self, reading: &Reading) -> bool {
        let Some(observed) = self.knowledge.observed(reading.boot, reading.wall) else { return false };
        self.shown.send_if_modified(|shown| {
            let is_new = !shown.as_ref().is_some_and(|shown| shown.shows_the_same_as(&observed));
            // Without a change the value is still replaced, for watchers that come later.
            *shown = Some(observed);
            is_new
        })
    }

    pub(super) fn is_wanted(&mut self) -> bool {
        self.waiting.retain(|waiting| !waiting.reply.is_canceled());
        self.shown.receiver_count() > 0 || !self.waiting.is_empty()
    }

    pub(super) fn tell_waiting(&mut self, holder: Option<&Holder>, sent_at: BootInstant) {
        let holds =
            |run_id| holder.is_some_and(|holder| holder.run_id == run_id && !holder.expires_in.is_zero());
        let gone = self.waiting.extract_if(.., |waiting| waiting.since <= sent_at && !holds(waiting.run_id));
        for EndWaiter { reply, .. } in gone {
            // Fails if nobody waits any more.
            let _ = reply.send(());
        }
    }

    /// When the session is to be checked next, whether or not a poll has shown anything by then.
    pub(super) fn next_after(&self, now: BootInstant) -> Option<BootInstant> {
        let instants = self.knowledge.instants().chain(self.again_at);
        instants.filter(|at| *at > now).min()
    }
}
