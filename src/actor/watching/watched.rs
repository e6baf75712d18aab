//! One session, and who watches it.

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
    /// It is among those that the next look is at.
    pub(super) is_urgent: bool,
    /// When it is to be looked at because of what a run of this process has done.
    pub(super) again_at: Option<BootInstant>,
    /// When it is next seen to, whether or not anything has become of it by then.
    pub(super) deadline: Option<BootInstant>,
}

/// Somebody waits until a run does not hold the session any more, as the database says later than `since`.
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

    /// Shows what is known now; answers whether that is a change.
    pub(super) fn show(&self, reading: &Reading) -> bool {
        let Some(observed) = self.knowledge.observed(reading.boot, reading.wall) else { return false };
        self.shown.send_if_modified(|shown| {
            let is_new = !shown.as_ref().is_some_and(|shown| shown.shows_the_same_as(&observed));
            // What has not changed is kept up to date for whoever comes later.
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
            // Whoever does not wait any more has dropped the receiver.
            let _ = reply.send(());
        }
    }

    /// When something may have become of it that no look has shown.
    pub(super) fn next_after(&self, now: BootInstant) -> Option<BootInstant> {
        let instants = self.knowledge.instants().chain(self.again_at);
        instants.filter(|at| *at > now).min()
    }
}
