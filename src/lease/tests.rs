//! The machine against its invariants: single stories first, then random ones.

use proptest::prelude::*;

use super::*;
use crate::{config::Settings, session::StopRequest};

const TTL: Duration = Duration::from_secs(30);

fn timing() -> Timing {
    Timing::for_ttl(TTL).unwrap()
}

fn at(millis: u64) -> BootInstant {
    BootInstant::from_nanos((1_000_000 + millis) * 1_000_000)
}

fn granted() -> Lease {
    Lease::granted(timing(), at(0), TTL, at(1), 7).unwrap()
}

fn drain(lease: &mut Lease) -> Vec<Action> {
    std::iter::from_fn(|| lease.poll_action()).collect()
}

/// Runs the machine to the moment when its first renewal is in flight.
fn renewing() -> (Lease, u64) {
    let mut lease = granted();
    lease.on_timeout(at(8_250));
    match drain(&mut lease)[..] {
        [Action::Renew { attempt, stage: RunStage::Running, phase: None, alone: false }] => (lease, attempt),
        ref other => panic!("{other:?}"),
    }
}

fn confirmed(sent_at: BootInstant) -> Renewal {
    Renewal::Confirmed { sent_at, remaining: TTL, stop: None }
}

#[test]
fn i2_trust_counts_from_before_the_statement_was_sent() {
    assert_eq!(granted().trusted_until(), at(24_000));
    let slow = Lease::granted(timing(), at(0), TTL, at(20_000), 7).unwrap();
    assert_eq!(slow.trusted_until(), at(24_000), "a slow reply must not lengthen trust");
}

#[test]
fn i2_more_than_a_ttl_is_never_trusted() {
    let stepped_back = Lease::granted(timing(), at(0), TTL + Duration::from_secs(60), at(1), 7).unwrap();
    assert_eq!(stepped_back.trusted_until(), at(24_000));
}

#[test]
fn i1_a_grant_that_comes_after_its_own_trust_is_not_handed_out() {
    assert!(Lease::granted(timing(), at(0), TTL, at(24_000), 7).is_none());
    assert!(Lease::granted(timing(), at(0), Duration::from_secs(6), at(0), 7).is_none());
}

#[test]
fn the_first_renewals_of_runs_granted_together_are_spread() {
    let due = |seed| Lease::granted(timing(), at(0), TTL, at(1), seed).unwrap().poll_timeout().unwrap();
    let dues: Vec<_> = (0..100).map(due).collect();
    let (first, last) = (dues.iter().min().unwrap(), dues.iter().max().unwrap());
    assert!(last.saturating_since(*first) > Duration::from_secs(2), "{first:?}..{last:?}");
    assert!(*last <= at(8_250), "no later than 1.1 renew intervals");
}

#[test]
fn a_confirmed_renewal_moves_trust_from_its_own_sending() {
    let (mut lease, attempt) = renewing();
    lease.on_renewal(attempt, confirmed(at(8_250)), at(8_300));
    assert_eq!(lease.trusted_until(), at(32_250));
    assert!(lease.is_held(at(32_249)));
}

#[test]
fn i3_a_reply_at_or_after_the_end_of_trust_revives_nothing() {
    let (mut lease, attempt) = renewing();
    lease.on_renewal(attempt, confirmed(at(8_250)), at(24_000));
    let actions = drain(&mut lease);
    assert!(actions.contains(&Action::Cancel(EndReason::Unconfirmed)), "{actions:?}");
    assert!(!lease.is_held(at(24_000)));
}

#[test]
fn a_confirmation_older_than_its_own_trust_ends_the_run() {
    let (mut lease, attempt) = renewing();
    let ancient = Renewal::Confirmed { sent_at: at(8_250), remaining: Duration::from_secs(7), stop: None };
    lease.on_renewal(attempt, ancient, at(9_500));
    assert!(drain(&mut lease).contains(&Action::Cancel(EndReason::Unconfirmed)));
}

#[test]
fn i9_an_unanswered_renewal_is_a_risk_and_is_retried_until_trust_ends() {
    let (mut lease, mut attempt) = renewing();
    let mut told = Vec::new();
    let mut now = at(8_250);
    while now < at(24_000) {
        lease.on_renewal(attempt, Renewal::Unanswered { locked: false }, now);
        told.extend(drain(&mut lease));
        let next = lease.poll_timeout().unwrap();
        assert!(next > now && next.saturating_since(now) <= timing().longest_backoff(), "{next:?}");
        now = next;
        lease.on_timeout(now);
        for action in drain(&mut lease) {
            match action {
                Action::Renew { attempt: next, .. } => attempt = next,
                other => told.push(other),
            }
        }
    }
    let risks = told.iter().filter(|action| matches!(action, Action::Tell(News::AtRisk { .. }))).count();
    assert_eq!(risks, 1, "an episode is told once: {told:?}");
    assert!(told.contains(&Action::Cancel(EndReason::Unconfirmed)));
    assert_eq!(now, at(24_000), "cancelled on time, not at some retry after it");
}

#[test]
fn a_silent_renewal_is_told_as_a_risk_before_it_is_answered() {
    let (mut lease, attempt) = renewing();
    assert_eq!(lease.poll_timeout(), Some(at(11_250)), "renew_timeout after sending");
    lease.on_timeout(at(11_250));
    assert!(matches!(drain(&mut lease)[..], [Action::Tell(News::AtRisk { .. })]));
    lease.on_renewal(attempt, confirmed(at(8_250)), at(12_000));
    assert!(drain(&mut lease).contains(&Action::Tell(News::Recovered)));
}

#[test]
fn a_locked_row_is_retried_alone() {
    let (mut lease, attempt) = renewing();
    lease.on_renewal(attempt, Renewal::Unanswered { locked: true }, at(8_300));
    lease.on_timeout(lease.poll_timeout().unwrap());
    assert!(drain(&mut lease).iter().any(|action| matches!(action, Action::Renew { alone: true, .. })));
}

#[test]
fn i13_a_certain_loss_leaves_no_grace() {
    for reason in [EndReason::Superseded, EndReason::Expired] {
        let (mut lease, attempt) = renewing();
        lease.on_renewal(attempt, Renewal::Lost(reason.clone()), at(8_300));
        let ended = Action::Tell(News::Ended { released: false });
        assert_eq!(drain(&mut lease), [Action::Cancel(reason), ended, Action::Overtaken, Action::Kill]);
    }
}

#[test]
fn i13_a_loss_that_becomes_certain_after_trust_ends_the_grace() {
    let (mut lease, attempt) = renewing();
    lease.on_timeout(at(24_000));
    let ended = Action::Tell(News::Ended { released: false });
    assert!(drain(&mut lease).ends_with(&[Action::Cancel(EndReason::Unconfirmed), ended]));
    lease.on_renewal(attempt, Renewal::Lost(EndReason::Superseded), at(24_500));
    assert_eq!(drain(&mut lease), [Action::Overtaken, Action::Kill]);
    lease.on_timeout(at(27_000));
    assert_eq!(drain(&mut lease), [], "killed once");
}

#[test]
fn a_superseded_run_has_nothing_to_release() {
    let (mut lease, attempt) = renewing();
    lease.on_renewal(attempt, Renewal::Lost(EndReason::Superseded), at(8_300));
    drain(&mut lease);
    lease.on_work_ended(EndReason::Dropped, at(8_301));
    assert_eq!(drain(&mut lease), [Action::Finish]);
}

#[test]
fn work_is_killed_no_later_than_half_a_margin_after_trust() {
    let mut lease = granted();
    lease.on_timeout(at(24_000));
    drain(&mut lease);
    assert_eq!(lease.poll_timeout(), Some(at(27_000)));
}

#[test]
fn after_an_unconfirmed_end_one_release_is_sent_when_the_work_has_ended() {
    let mut lease = granted();
    lease.on_timeout(at(24_000));
    assert!(drain(&mut lease).iter().all(|action| !matches!(action, Action::Release { .. })));
    lease.on_work_ended(EndReason::Dropped, at(24_500));
    let attempt = match drain(&mut lease)[..] {
        [Action::Release { attempt, .. }] => attempt,
        ref other => panic!("{other:?}"),
    };
    lease.on_release(attempt, Released::Unanswered { locked: false }, at(25_000));
    assert_eq!(drain(&mut lease), [Action::Finish]);
    assert_eq!(lease.poll_timeout(), None);
}

#[test]
fn i6_a_stop_keeps_renewing_until_the_work_has_ended_and_only_then_releases() {
    let mut lease = granted();
    lease.on_stop(EndReason::Shutdown, None, at(1_000));
    assert_eq!(drain(&mut lease), [Action::Cancel(EndReason::Shutdown), Action::Tell(News::Stopping)]);
    lease.on_timeout(at(1_075));
    let attempt = match drain(&mut lease)[..] {
        [Action::Renew { attempt, stage: RunStage::Stopping, .. }] => attempt,
        ref other => panic!("others must see it stopping: {other:?}"),
    };
    lease.on_renewal(attempt, confirmed(at(1_075)), at(1_085));
    drain(&mut lease);
    lease.on_work_ended(EndReason::Completed, at(2_000));
    assert!(matches!(drain(&mut lease)[..], [Action::Release { .. }]));
}

#[test]
fn i6_work_that_outlives_its_grace_keeps_the_lease_and_is_shown_as_stuck() {
    let mut lease = granted();
    lease.on_stop(EndReason::Shutdown, None, at(1_000));
    let mut now = at(1_000);
    let (mut stuck_shown, mut killed) = (false, false);
    while now < at(120_000) {
        now = lease.poll_timeout().unwrap();
        lease.on_timeout(now);
        for action in drain(&mut lease) {
            match action {
                Action::Renew { attempt, stage, .. } => {
                    stuck_shown |= stage == RunStage::Stuck;
                    lease.on_renewal(attempt, confirmed(now), now);
                }
                Action::Kill => killed = true,
                Action::Release { .. } => panic!("released while the work may act"),
                _ => {}
            }
        }
    }
    assert!(killed && stuck_shown);
    assert!(now < lease.trusted_until(), "the lease is still renewed");
}

#[test]
fn i6_a_stuck_limit_gives_the_work_up_and_frees_the_session() {
    let stuck_limit = Some(Duration::from_secs(60));
    let timing = Settings { ttl: Some(TTL), stuck_limit, ..Settings::default() }.check().unwrap();
    let mut lease = Lease::granted(timing, at(0), TTL, at(0), 1).unwrap();
    lease.on_stop(EndReason::Shutdown, None, at(1_000));
    let mut given_up_at = None;
    let (release, now) = loop {
        let now = lease.poll_timeout().unwrap();
        lease.on_timeout(now);
        let mut release = None;
        for action in drain(&mut lease) {
            match action {
                Action::Renew { attempt, .. } => lease.on_renewal(attempt, confirmed(now), now),
                Action::GiveUp => given_up_at = Some(now),
                Action::Release { attempt, .. } => release = Some(attempt),
                _ => {}
            }
        }
        if let Some(attempt) = release {
            break (attempt, now);
        }
    };
    // Stop, grace, what a kill may take, and then the limit.
    assert_eq!(given_up_at, Some(at(1_000 + 5_000 + 3_000 + 60_000)));
    lease.on_release(release, Released::Gone, now);
    assert_eq!(drain(&mut lease), [Action::Tell(News::Ended { released: true }), Action::Finish]);
    lease.on_work_ended(EndReason::Completed, at(200_000));
    assert_eq!(drain(&mut lease), []);
}

#[test]
fn i6_lost_work_that_cannot_be_killed_is_given_up_as_well() {
    let stuck_limit = Some(Duration::from_secs(60));
    let timing = Settings { ttl: Some(TTL), stuck_limit, ..Settings::default() }.check().unwrap();
    let mut lease = Lease::granted(timing, at(0), TTL, at(0), 1).unwrap();
    lease.on_timeout(at(24_000));
    drain(&mut lease);
    lease.on_timeout(at(27_000));
    assert_eq!(drain(&mut lease), [Action::Kill]);
    assert_eq!(lease.poll_timeout(), Some(at(27_000 + 3_000 + 60_000)));
    lease.on_timeout(at(90_000));
    assert_eq!(drain(&mut lease), [Action::GiveUp, Action::Finish]);
}

#[test]
fn a_later_stop_can_shorten_the_grace_and_never_lengthen_it() {
    let mut lease = granted();
    lease.on_stop(EndReason::Dropped, None, at(1_000));
    lease.on_stop(EndReason::Shutdown, Some(Duration::from_secs(60)), at(1_000));
    lease.on_stop(EndReason::Shutdown, Some(Duration::from_millis(10)), at(1_010));
    drain(&mut lease);
    assert_eq!(lease.poll_timeout(), Some(at(1_020)));
    lease.on_timeout(at(1_020));
    assert_eq!(drain(&mut lease), [Action::Kill]);
}

#[test]
fn silence_is_counted_from_the_last_beat_and_apart_from_the_whole_duration() {
    let mut lease = granted();
    let silence = Limit::MaxSilence(Duration::from_secs(2));
    lease.limit_to(silence, at(0));
    lease.limit_to(Limit::MaxDuration(Duration::from_secs(5)), at(0));
    lease.on_beat(at(1_500));
    lease.on_timeout(at(2_100));
    assert_eq!(drain(&mut lease), []);
    assert_eq!(lease.poll_timeout(), Some(at(3_500)));
    lease.on_timeout(at(3_500));
    assert!(drain(&mut lease).contains(&Action::Cancel(EndReason::TimedOut { limit: silence })));
}

#[test]
fn beats_do_not_move_the_whole_duration() {
    let mut lease = granted();
    let whole = Limit::MaxDuration(Duration::from_secs(2));
    lease.limit_to(Limit::MaxSilence(Duration::from_secs(1)), at(0));
    lease.limit_to(whole, at(0));
    for beat in [500, 1_000, 1_500, 1_990] {
        lease.on_beat(at(beat));
        lease.on_timeout(at(beat));
    }
    lease.on_timeout(at(2_000));
    assert!(drain(&mut lease).contains(&Action::Cancel(EndReason::TimedOut { limit: whole })));
}

#[test]
fn i3_the_first_reason_stays_when_draining_is_overtaken_by_loss() {
    let (mut lease, attempt) = renewing();
    lease.on_stop(EndReason::Shutdown, None, at(8_260));
    drain(&mut lease);
    lease.on_renewal(attempt, Renewal::Lost(EndReason::Superseded), at(8_300));
    let ended = Action::Tell(News::Ended { released: false });
    assert_eq!(drain(&mut lease), [ended, Action::Overtaken, Action::Kill]);
}

#[test]
fn a_locked_release_is_retried_until_trust_ends_and_then_given_up() {
    let mut lease = granted();
    let mut now = at(1_000);
    lease.on_work_ended(EndReason::Completed, now);
    let mut sent = 0;
    loop {
        let actions = drain(&mut lease);
        if actions.contains(&Action::Tell(News::Ended { released: false })) {
            break;
        }
        for action in actions {
            if let Action::Release { attempt, .. } = action {
                sent += 1;
                lease.on_release(attempt, Released::Unanswered { locked: true }, now);
            }
        }
        now = lease.poll_timeout().unwrap();
        lease.on_timeout(now);
    }
    assert!(sent > 10, "{sent}");
    assert!(now >= at(24_000));
}

#[test]
fn a_release_confirmed_just_after_trust_still_counts() {
    let mut lease = granted();
    lease.on_work_ended(EndReason::Completed, at(23_990));
    let attempt = drain(&mut lease)
        .into_iter()
        .find_map(|action| match action {
            Action::Release { attempt, .. } => Some(attempt),
            _ => None,
        })
        .unwrap();
    lease.on_release(attempt, Released::Gone, at(24_005));
    assert_eq!(drain(&mut lease), [Action::Tell(News::Ended { released: true }), Action::Finish]);
}

#[test]
fn a_stop_request_rides_on_a_renewal() {
    let (mut lease, attempt) = renewing();
    let request = StopRequest::new(std::time::SystemTime::UNIX_EPOCH, Some("ops".into()), Some("tea".into()));
    let renewal = Renewal::Confirmed { sent_at: at(8_250), remaining: TTL, stop: Some(request) };
    lease.on_renewal(attempt, renewal, at(8_260));
    let reason = EndReason::Stopped { by: Some("ops".into()), reason: Some("tea".into()) };
    assert!(drain(&mut lease).contains(&Action::Cancel(reason)));
}

#[test]
fn a_limit_is_a_clock_of_its_own_that_no_renewal_restarts() {
    let (mut lease, attempt) = renewing();
    lease.limit_to(Limit::MaxDuration(Duration::from_secs(2)), at(8_250));
    lease.on_renewal(attempt, confirmed(at(8_250)), at(10_000));
    drain(&mut lease);
    assert_eq!(lease.poll_timeout(), Some(at(10_250)));
    lease.on_timeout(at(10_250));
    let limit = Limit::MaxDuration(Duration::from_secs(2));
    assert!(drain(&mut lease).contains(&Action::Cancel(EndReason::TimedOut { limit })));
}

#[test]
fn a_limit_reached_together_with_the_end_of_trust_is_a_loss() {
    let mut lease = granted();
    lease.limit_to(Limit::MaxDuration(Duration::from_secs(20)), at(1));
    lease.on_timeout(at(60_000));
    assert!(drain(&mut lease).contains(&Action::Cancel(EndReason::Unconfirmed)));
}

#[test]
fn a_phase_rides_on_a_renewal_that_comes_soon_and_again_until_one_is_confirmed() {
    let mut lease = granted();
    let phase = RunPhase::new("waiting for approval").unwrap();
    lease.on_phase(phase.clone(), at(1_000));
    assert_eq!(lease.poll_timeout(), Some(at(1_075)));
    for confirm in [false, true] {
        lease.on_timeout(lease.poll_timeout().unwrap());
        let actions = drain(&mut lease);
        let sent = actions.iter().find_map(|action| match action {
            Action::Renew { attempt, phase, .. } => Some((*attempt, phase.clone())),
            _ => None,
        });
        let (attempt, carried) = sent.unwrap();
        assert_eq!(carried, Some(phase.clone()));
        let renewal = if confirm { confirmed(at(1_200)) } else { Renewal::Unanswered { locked: false } };
        lease.on_renewal(attempt, renewal, at(1_200));
    }
    assert!(lease.poll_timeout().unwrap() > at(7_000), "shown once, it is not sent again");
}

#[test]
fn doubt_confirms_the_lease_at_once() {
    let mut lease = granted();
    lease.on_doubt(at(100));
    assert!(matches!(drain(&mut lease)[..], [Action::Tell(News::AtRisk { .. }), Action::Renew { .. }]));
}

/// What may happen to a machine.
#[derive(Debug, Clone)]
enum Step {
    Pass(u64),
    PassToTimeout,
    AnswerRenewal(Answer),
    AnswerOldRenewal,
    AnswerRelease(bool),
    Stop,
    WorkEnds,
    Doubt,
    TrustGone,
    Phase,
    Limit(u64),
    Silence(u64),
    Beat,
    StopWithin(u64),
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    Confirmed(u64),
    WithStop,
    Superseded,
    Expired,
    Locked,
    Failed,
}

fn step() -> impl Strategy<Value = Step> {
    let answer = prop_oneof![
        6 => (0..40_000u64).prop_map(Answer::Confirmed),
        1 => Just(Answer::WithStop),
        1 => Just(Answer::Superseded),
        1 => Just(Answer::Expired),
        2 => Just(Answer::Locked),
        3 => Just(Answer::Failed),
    ];
    prop_oneof![
        4 => (0..12_000u64).prop_map(Step::Pass),
        12 => Just(Step::PassToTimeout),
        10 => answer.prop_map(Step::AnswerRenewal),
        1 => Just(Step::AnswerOldRenewal),
        3 => any::<bool>().prop_map(Step::AnswerRelease),
        1 => Just(Step::Stop),
        1 => Just(Step::WorkEnds),
        1 => Just(Step::Doubt),
        1 => Just(Step::TrustGone),
        2 => Just(Step::Phase),
        1 => (0..60_000u64).prop_map(Step::Limit),
        1 => (0..60_000u64).prop_map(Step::Silence),
        2 => Just(Step::Beat),
        1 => (0..60_000u64).prop_map(Step::StopWithin),
    ]
}

/// Drives a machine, and keeps its own record of what happened, to check the invariants against it.
struct Rig {
    lease: Lease,
    now: BootInstant,
    renewal: Option<(u64, BootInstant)>,
    release: Option<u64>,
    first_reason: Option<EndReason>,
    work_ended: bool,
    stuck_limit: Option<Duration>,
    gave_up: bool,
    cancelled: u32,
    killed: bool,
    overtaken: bool,
    ended: Option<bool>,
    row_gone: bool,
    finished: u32,
}

impl Rig {
    fn new(seed: u64, stuck_limit: Option<Duration>) -> Self {
        let timing = Settings { ttl: Some(TTL), stuck_limit, ..Settings::default() }.check().unwrap();
        Self {
            lease: Lease::granted(timing, at(0), TTL, at(0), seed).unwrap(),
            now: at(0),
            renewal: None,
            release: None,
            first_reason: None,
            work_ended: false,
            stuck_limit,
            gave_up: false,
            cancelled: 0,
            killed: false,
            overtaken: false,
            ended: None,
            row_gone: false,
            finished: 0,
        }
    }

    /// The reason counts if it is the first and trust has not ended before it.
    fn expect_reason(&mut self, reason: EndReason) {
        let over = self.now >= self.lease.trusted_until();
        self.first_reason.get_or_insert(if over { EndReason::Unconfirmed } else { reason });
    }

    fn apply(&mut self, step: &Step) {
        let now = self.now;
        match step {
            Step::Pass(millis) => {
                self.now = now + Duration::from_millis(*millis);
                self.lease.on_timeout(self.now);
            }
            Step::PassToTimeout => {
                if let Some(timeout) = self.lease.poll_timeout() {
                    self.now = now.max(timeout);
                }
                self.lease.on_timeout(self.now);
                let next = self.lease.poll_timeout();
                assert!(next.is_none_or(|next| next > self.now), "a timer that does not move on: {next:?}");
            }
            Step::AnswerRenewal(answer) => {
                let Some((attempt, sent_at)) = self.renewal.take() else { return };
                let renewal = match answer {
                    Answer::Confirmed(remaining) => Renewal::Confirmed {
                        sent_at,
                        remaining: Duration::from_millis(*remaining),
                        stop: None,
                    },
                    Answer::WithStop => {
                        let at = std::time::SystemTime::UNIX_EPOCH;
                        let stop = Some(StopRequest::new(at, None, None));
                        Renewal::Confirmed { sent_at, remaining: TTL, stop }
                    }
                    Answer::Superseded => Renewal::Lost(EndReason::Superseded),
                    Answer::Expired => Renewal::Lost(EndReason::Expired),
                    Answer::Locked => Renewal::Unanswered { locked: true },
                    Answer::Failed => Renewal::Unanswered { locked: false },
                };
                self.lease.on_renewal(attempt, renewal, now);
            }
            Step::AnswerOldRenewal => {
                let Some((attempt, sent_at)) = self.renewal else { return };
                let trusted = self.lease.trusted_until();
                self.lease.on_renewal(attempt.wrapping_sub(1), confirmed(sent_at), now);
                assert_eq!(self.lease.trusted_until(), trusted, "an answer to an earlier attempt counted");
            }
            Step::AnswerRelease(gone) => {
                let Some(attempt) = self.release.take() else { return };
                self.row_gone |= gone;
                let released = if *gone { Released::Gone } else { Released::Unanswered { locked: true } };
                self.lease.on_release(attempt, released, now);
            }
            Step::Stop => {
                self.expect_reason(EndReason::Shutdown);
                self.lease.on_stop(EndReason::Shutdown, None, now);
            }
            Step::WorkEnds => {
                self.expect_reason(EndReason::Completed);
                self.work_ended = true;
                self.lease.on_work_ended(EndReason::Completed, now);
            }
            Step::Doubt => self.lease.on_doubt(now),
            Step::TrustGone => self.lease.on_trust_gone(now),
            Step::Phase => self.lease.on_phase(RunPhase::new("busy").unwrap(), now),
            Step::Limit(millis) => {
                self.lease.limit_to(Limit::MaxDuration(Duration::from_millis(*millis)), now)
            }
            Step::Silence(millis) => {
                self.lease.limit_to(Limit::MaxSilence(Duration::from_millis(*millis)), now);
            }
            Step::Beat => self.lease.on_beat(now),
            Step::StopWithin(millis) => {
                self.expect_reason(EndReason::Shutdown);
                self.lease.on_stop(EndReason::Shutdown, Some(Duration::from_millis(*millis)), now);
            }
        }
    }

    fn check(&mut self) {
        while let Some(action) = self.lease.poll_action() {
            assert_eq!(self.finished, 0, "{action:?} after the finish");
            match action {
                Action::Renew { attempt, .. } => {
                    assert!(self.renewal.is_none(), "two renewals in flight");
                    let is_over = self.work_ended || self.gave_up;
                    assert!(self.ended.is_none() && !is_over, "a renewal after the end");
                    self.renewal = Some((attempt, self.now));
                }
                Action::PhaseShown(_) => assert!(!self.row_gone, "shown in a row that is gone"),
                Action::Cancel(reason) => {
                    self.cancelled += 1;
                    let first = self.first_reason.get_or_insert(reason.clone());
                    assert_eq!(*first, reason, "the first reason wins");
                }
                Action::Kill => {
                    assert!(
                        self.cancelled == 1 && !self.work_ended && !self.gave_up,
                        "killed without warning"
                    );
                    self.killed = true;
                }
                Action::Overtaken => {
                    assert!(self.cancelled == 1 && self.ended.is_some(), "overtaken before the end");
                    assert!(!self.overtaken && !self.work_ended, "overtaken in vain");
                    self.overtaken = true;
                }
                Action::GiveUp => {
                    assert!(self.stuck_limit.is_some() && self.cancelled == 1, "given up without warning");
                    assert!(!self.work_ended && !self.gave_up, "given up in vain");
                    self.gave_up = true;
                }
                Action::Release { attempt, .. } => {
                    assert!(self.work_ended || self.gave_up, "released while work may act");
                    assert!(self.release.is_none(), "two releases in flight");
                    self.release = Some(attempt);
                }
                Action::Tell(News::Ended { released }) => {
                    assert!(self.ended.replace(released).is_none(), "ended twice");
                    assert!(!released || self.row_gone, "told of a release that was not confirmed");
                }
                Action::Tell(_) => assert!(self.ended.is_none(), "news after the end"),
                Action::Finish => {
                    self.finished += 1;
                    let is_over = self.work_ended || self.gave_up;
                    assert!(is_over && self.ended.is_some(), "finished before the end");
                }
            }
        }
        assert!(self.cancelled <= 1, "cancelled more than once");
        let certain = self.first_reason.as_ref().is_some_and(EndReason::is_certain_loss);
        let may_act = !self.work_ended && !self.gave_up;
        assert!(!certain || self.overtaken || !may_act, "a certain loss that nobody hears of");
        assert!(!self.overtaken || self.killed, "grace beside another run");
        let held = self.lease.is_held(self.now);
        assert!(!held || self.cancelled == 0, "held after it was cancelled");
        assert!(!held || self.now < self.lease.trusted_until(), "held past its trust");
        if self.ended.is_none() {
            let next = self.lease.poll_timeout().expect("a live lease has a timer");
            assert!(next <= self.lease.trusted_until(), "sleeps past the end of trust");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    /// I1, I3, I6: in whatever order things happen.
    #[test]
    fn no_order_of_events_breaks_an_invariant(
        seed: u64,
        stuck_limit in prop::option::of((0..60_000u64).prop_map(Duration::from_millis)),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut rig = Rig::new(seed, stuck_limit);
        for step in &steps {
            rig.apply(step);
            rig.check();
        }
        // Whatever came before: the work ends, everything is answered, and the machine comes to rest.
        rig.apply(&Step::WorkEnds);
        rig.check();
        for _ in 0..200 {
            rig.apply(&Step::AnswerRenewal(Answer::Failed));
            rig.check();
            rig.apply(&Step::AnswerRelease(false));
            rig.check();
            rig.apply(&Step::PassToTimeout);
            rig.check();
        }
        prop_assert_eq!(rig.finished, 1);
        prop_assert_eq!(rig.cancelled, 1);
    }
}
