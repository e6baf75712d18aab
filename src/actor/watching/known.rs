//! What may be shown of a session at an instant, given the database's last answer.
//!
//! Pure: no I/O, no clock. A lease is shown as held no longer than it is certain to last. Once the database has been
//! silent for too long, the session is unknown until the database has answered about this very session again.

use std::time::Duration;

use crate::{
    clock::{BootInstant, instant, micros},
    session::{SessionState, SessionStatus},
    watch::Observed,
};

/// A lease with less time left than this is never renewed again, because no safety margin is shorter.
const CERTAIN: Duration = Duration::from_millis(50);
/// A lease that nobody renews is polled this long before its expiry, so that its expiry becomes certain.
const BEFORE_EXPIRY: Duration = Duration::from_millis(40);
/// How long after its possible expiry a lease may still be polled out of turn.
const AFTER_EXPIRY: Duration = Duration::from_millis(500);

/// What is known of one session.
pub(super) struct Knowledge {
    last: Option<LastAnswer>,
    began: BootInstant,
    /// The database has been silent for too long since then.
    is_outdated: bool,
}

/// The database's last answer.
struct LastAnswer {
    status: SessionStatus,
    /// Just before the statement was sent.
    sent_at: BootInstant,
    received_at: BootInstant,
}

/// What is known of the end of a lease, by the local clock.
enum LeaseEnd {
    /// The lease may have been renewed since. Nothing is known of it after this instant.
    MayEnd { at: BootInstant },
    /// The lease was too near its end for a renewal, and is over by this instant.
    Ends { by: BootInstant },
}

impl Knowledge {
    /// No knowledge yet. Watching began at this instant.
    pub(super) fn none(began: BootInstant) -> Self {
        Self { last: None, began, is_outdated: false }
    }

    /// Takes an answer of the database. An answer to a statement that was sent before the last one's is ignored.
    pub(super) fn learn(&mut self, status: SessionStatus, sent_at: BootInstant, received_at: BootInstant) {
        if self.last.as_ref().is_none_or(|last| last.sent_at <= sent_at) {
            self.last = Some(LastAnswer { status, sent_at, received_at });
            self.is_outdated = false;
        }
    }

    /// The database has been silent for too long: its last answer no longer holds.
    pub(super) fn outdate(&mut self) {
        self.is_outdated = true;
    }

    /// Whether the session was held when the database answered last.
    pub(super) fn is_held(&self) -> bool {
        self.last.as_ref().is_some_and(|last| last.status.is_held())
    }

    /// What may be shown at this instant. `wall` is the same instant by the wall clock, since 1970. `None` before the
    /// first answer, unless the database has been silent for too long.
    pub(super) fn observed(&self, now: BootInstant, wall: Duration) -> Option<Observed> {
        let unknown = |last_known, since: BootInstant| {
            let since = wall.saturating_sub(now.saturating_since(since));
            let since = instant(micros(since));
            Some(Observed::Unknown { last_known, since })
        };
        let Some(last) = &self.last else {
            return self.is_outdated.then(|| unknown(None, self.began)).flatten();
        };
        let not_any_more = || unknown(Some(last.status.clone()), last.received_at);
        match last.lease_end() {
            _ if self.is_outdated => not_any_more(),
            Some(LeaseEnd::MayEnd { at }) if now >= at => not_any_more(),
            Some(LeaseEnd::Ends { by }) if now >= by => Some(Observed::Known(last.expired())),
            _ => Some(Observed::Known(last.status.clone())),
        }
    }

    /// The instants at which something may change by the passing of time alone.
    pub(super) fn instants(&self) -> impl Iterator<Item = BootInstant> {
        let (at, before) = match self.last.as_ref().and_then(LastAnswer::lease_end) {
            Some(LeaseEnd::Ends { by }) => (Some(by), None),
            Some(LeaseEnd::MayEnd { at }) => (Some(at), Some(at.saturating_sub(BEFORE_EXPIRY))),
            None => (None, None),
        };
        [at, before].into_iter().flatten()
    }

    /// Whether the session is worth a poll out of turn: its lease is about to end, or may just have ended.
    pub(super) fn is_near_expiry(&self, now: BootInstant) -> bool {
        match self.last.as_ref().and_then(LastAnswer::lease_end) {
            Some(LeaseEnd::MayEnd { at }) => {
                now >= at.saturating_sub(BEFORE_EXPIRY) && now < at + AFTER_EXPIRY
            }
            _ => false,
        }
    }
}

impl LastAnswer {
    fn lease_end(&self) -> Option<LeaseEnd> {
        let holder = self.status.holder.as_ref().filter(|_| self.status.is_held())?;
        let left = holder.expires_in;
        Some(match left < CERTAIN {
            true => LeaseEnd::Ends { by: self.received_at + left },
            false => LeaseEnd::MayEnd { at: self.sent_at + left },
        })
    }

    fn expired(&self) -> SessionStatus {
        let mut status = self.status.clone();
        status.state = SessionState::Expired;
        if let Some(holder) = &mut status.holder {
            holder.expires_in = Duration::ZERO;
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::session::{FencingToken, Holder, Label, NodeId, RunId, RunPhase, RunStage, SessionKey};

    fn at(millis: u64) -> BootInstant {
        BootInstant::from_nanos(millis * 1_000_000)
    }

    fn held(left_millis: u64) -> SessionStatus {
        let holder = Holder {
            run_id: RunId::random(),
            node: NodeId::random(),
            label: Label::new("ann").unwrap(),
            fence: FencingToken::LEAST,
            stage: RunStage::Running,
            phase: RunPhase::default(),
            since: SystemTime::UNIX_EPOCH,
            expires_at: SystemTime::UNIX_EPOCH,
            expires_in: Duration::from_millis(left_millis),
            stop: None,
        };
        SessionStatus::held(SessionKey::new("acct", "chat").unwrap(), holder)
    }

    fn state(knowledge: &Knowledge, millis: u64) -> Option<SessionState> {
        let observed = knowledge.observed(at(millis), Duration::from_millis(millis))?;
        observed.known().map(|status| status.state)
    }

    fn said(status: SessionStatus, sent: u64, received: u64) -> Knowledge {
        let mut knowledge = Knowledge::none(at(0));
        knowledge.learn(status, at(sent), at(received));
        knowledge
    }

    #[test]
    fn a_lease_is_known_from_before_the_question_was_sent() {
        let knowledge = said(held(300), 1_000, 1_200);
        assert_eq!(state(&knowledge, 1_299), Some(SessionState::Running));
        assert_eq!(state(&knowledge, 1_300), None);
        let instants: Vec<_> = knowledge.instants().collect();
        assert_eq!(instants, [at(1_300), at(1_260)]);
    }

    /// The lease is certain to end, but it counts as held until all of the time that it had left has passed.
    #[test]
    fn a_lease_too_short_to_be_renewed_is_over_when_its_answer_is_that_old() {
        let knowledge = said(held(49), 1_000, 1_200);
        assert_eq!(state(&knowledge, 1_248), Some(SessionState::Running));
        assert_eq!(state(&knowledge, 1_249), Some(SessionState::Expired));
    }

    #[test]
    fn silence_makes_everything_unknown_whatever_the_lease() {
        for status in [held(60_000), held(0), SessionStatus::idle(SessionKey::new("acct", "chat").unwrap())] {
            let mut knowledge = said(status.clone(), 1_000, 1_010);
            assert_eq!(state(&knowledge, 2_899), Some(status.state));
            knowledge.outdate();
            let observed = knowledge.observed(at(2_900), Duration::from_millis(10_000)).unwrap();
            let Observed::Unknown { last_known, since } = observed else { panic!("{observed:?}") };
            assert_eq!(last_known.as_ref(), Some(&status));
            assert_eq!(since, SystemTime::UNIX_EPOCH + Duration::from_millis(8_110));
            knowledge.learn(status.clone(), at(2_950), at(2_960));
            assert_eq!(state(&knowledge, 2_970), Some(status.state));
        }
    }

    #[test]
    fn before_the_first_answer_there_is_nothing_to_show_but_silence() {
        let mut knowledge = Knowledge::none(at(1_000));
        assert_eq!(knowledge.observed(at(2_899), Duration::ZERO), None);
        knowledge.outdate();
        let observed = knowledge.observed(at(2_900), Duration::ZERO);
        assert!(matches!(observed, Some(Observed::Unknown { last_known: None, .. })), "{observed:?}");
    }

    #[test]
    fn an_answer_to_an_earlier_question_changes_nothing() {
        let mut knowledge = said(held(0), 1_000, 1_010);
        knowledge.learn(held(60_000), at(900), at(1_100));
        assert_eq!(state(&knowledge, 1_200), Some(SessionState::Expired));
        knowledge.learn(held(60_000), at(1_000), at(1_150));
        assert_eq!(state(&knowledge, 1_200), Some(SessionState::Running));
    }
}
