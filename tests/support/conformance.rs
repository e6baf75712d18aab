//! What every store promises. I1 to I10 are the invariants of the crate's documentation.

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use tenure::{
    EndReason, Ending, FencingToken, Holder, Label, PastRun, RunId, RunPhase, RunStage, SessionKey,
    store::{
        Acquire, AcquireOutcome, BreakLease, BreakOutcome, HistoryPage, MAX_BATCH, Page, Reason, Release,
        ReleaseOutcome, Renew, RenewOutcome, Requester, SWEEP_AFTER, StopOutcome, StopRun,
    },
};

use super::support::{
    backend::Backend,
    client::{Client, MARGIN, TTL, acquire, key, renew, stop},
};

/// Makes one test per promise, each on a backend of its own.
macro_rules! conformance {
    ($backend:expr) => {
        conformance! { $backend =>
            a_free_session_is_granted
            a_refusal_names_the_holder_and_writes_nothing
            a_repeated_acquire_gets_the_same_lease
            a_repeated_acquire_never_shortens_the_lease
            a_run_that_comes_back_after_expiry_keeps_its_fence
            a_takeover_takes_nothing_over_but_the_session
            fences_grow_over_release
            fences_grow_over_takeover
            fences_grow_over_sweep
            fences_grow_over_a_step_back_of_the_clock
            fences_grow_over_quick_cycles
            a_renewal_extends_the_lease_and_reports_how_the_run_stands
            a_renewal_never_shortens_the_lease
            a_renewal_never_revives_an_expired_lease
            a_renewal_never_extends_a_lease_inside_its_margin
            a_renewal_of_a_lost_session_says_how_it_was_lost
            every_loss_comes_with_the_databases_clock
            a_stop_request_reaches_the_holder_with_its_renewals
            a_stop_request_never_reaches_the_next_run
            a_stop_is_recorded_with_who_and_why_and_the_first_is_kept
            a_stop_says_no_more_than_it_was_told
            a_stop_of_a_session_that_nobody_holds_asks_nobody
            a_stop_that_names_a_run_asks_no_other
            a_release_frees_the_session_of_its_run_only
            an_expired_lease_can_be_released
            a_sweep_deletes_only_what_expired_long_ago
            a_sweep_is_bounded
            an_inspection_shows_expired_rows_and_none_where_there_is_none
            a_list_pages_in_byte_order
            a_list_is_filtered_by_account_and_expiry
            keys_are_compared_byte_for_byte
            texts_come_back_as_they_were_given
            a_lease_may_last_a_day
            a_batch_answers_each_item_in_its_place
            a_limit_refuses_a_run_too_many_of_an_account
            a_limit_refuses_no_run_that_is_there_already
            a_limited_batch_grants_no_more_than_the_limit
            a_limited_acquire_of_a_held_session_names_the_holder
            a_full_batch_is_granted_renewed_and_released
            nothing_asked_is_nothing_answered
            a_second_migration_finds_nothing_to_do
            the_history_says_how_each_run_ended
            the_history_has_pages_and_is_swept
            a_break_ends_the_lease_of_a_run_that_does_not_renew
        }
    };
    ($backend:expr => $($promise:ident)*) => {
        $(
            #[tokio::test]
            async fn $promise() {
                let backend = $backend.await;
                crate::suite::$promise(&backend).await
            }
        )*
    };
}

/// I1, I2: the row exists, and `remaining` is the time to `expires_at` by the database's own clock.
pub(crate) async fn a_free_session_is_granted(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let key = key("s");
    let item = acquire(&key, RunId::random());
    let grant = client.granted(item.clone()).await;

    assert!(grant.fence.as_i64() > 0);
    assert!(grant.remaining <= TTL && grant.remaining > TTL / 2, "{:?}", grant.remaining);
    assert_eq!(grant.expires_at_micros - grant.acquired_at_micros, TTL.as_micros() as i64);
    assert_eq!(grant.stop, None);

    let holder = client.holder(&key).await.expect("it is held");
    assert_eq!((holder.run_id, holder.node, holder.fence), (item.run_id, item.node, grant.fence));
    assert_eq!((&holder.label, &holder.phase), (&item.label, &item.phase));
    assert_eq!((holder.stage, holder.stop), (RunStage::Running, None));
    assert_eq!(micros(holder.since), grant.acquired_at_micros);
    assert_eq!(micros(holder.expires_at), grant.expires_at_micros);
    assert!(holder.expires_in <= grant.remaining);
}

/// I4, I9.
pub(crate) async fn a_refusal_names_the_holder_and_writes_nothing(backend: &impl Backend) {
    let (mut client, mut other) = (connect(backend).await, connect(backend).await);
    let (key, run) = (key("s"), RunId::random());
    let grant = client.granted(acquire(&key, run)).await;
    let before = backend.image(&key).await.expect("it is held");
    for _ in 0..3 {
        let holder = other.refused(acquire(&key, RunId::random())).await;
        assert_eq!((holder.run_id, holder.fence), (run, grant.fence));
        assert!(holder.expires_in > Duration::ZERO && holder.expires_in <= grant.remaining);
    }
    assert_eq!(backend.image(&key).await, Some(before));
}

/// I7: a caller that lost the reply asks again and finds the lease it has.
pub(crate) async fn a_repeated_acquire_gets_the_same_lease(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let key = key("s");
    let item = acquire(&key, RunId::random());
    let first = client.granted(item.clone()).await;
    let phase = RunPhase::new("thinking").unwrap();
    let renewal = renew(&key, item.run_id);
    client.renewed(Renew { stage: RunStage::Stopping, phase: Some(phase.clone()), ..renewal }).await;
    backend.request_stop(&key, "ops", "deploy").await;

    let second = client.granted(item.clone()).await;
    assert_eq!(second.fence, first.fence);
    assert_eq!(second.acquired_at_micros, first.acquired_at_micros);
    assert!(second.expires_at_micros > first.expires_at_micros);
    assert_eq!(second.stop.as_ref().and_then(|stop| stop.by.as_deref()), Some("ops"));

    let holder = client.holder(&key).await.expect("it is held");
    assert_eq!((holder.phase, holder.stage), (phase, RunStage::Stopping));
    assert_eq!(holder.stop, second.stop);
}

/// A late first attempt must not take back what a renewal has gained.
pub(crate) async fn a_repeated_acquire_never_shortens_the_lease(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let item = acquire(&key("s"), RunId::random());
    let first = client.granted(item.clone()).await;
    let second = client.granted(Acquire { ttl: TTL / 2, ..item.clone() }).await;
    assert_eq!(second.expires_at_micros, first.expires_at_micros);
    assert!(second.remaining > TTL / 2);
}

/// I8: one run, one fence.
pub(crate) async fn a_run_that_comes_back_after_expiry_keeps_its_fence(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let key = key("s");
    let item = acquire(&key, RunId::random());
    let first = client.granted(item.clone()).await;
    backend.set_remaining(&key, -1).await;
    let second = client.granted(item.clone()).await;
    assert_eq!((second.fence, second.acquired_at_micros), (first.fence, first.acquired_at_micros));
    assert!(second.remaining > TTL / 2);
}

pub(crate) async fn a_takeover_takes_nothing_over_but_the_session(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (key, old) = (key("s"), RunId::random());
    let new = acquire(&key, RunId::random());
    let before = client.granted(acquire(&key, old)).await;
    let phase = Some(RunPhase::new("thinking").unwrap());
    client.renewed(Renew { stage: RunStage::Stuck, phase, ..renew(&key, old) }).await;
    backend.request_stop(&key, "ops", "deploy").await;
    backend.set_remaining(&key, -1).await;

    let grant = client.granted(new.clone()).await;
    assert!(grant.fence > before.fence);
    assert!(grant.acquired_at_micros > before.acquired_at_micros);
    assert!(grant.remaining > TTL / 2);
    assert_eq!(grant.stop, None);
    let holder = client.holder(&key).await.expect("it is held");
    assert_eq!((holder.run_id, holder.node, holder.label), (new.run_id, new.node, new.label));
    assert_eq!((holder.phase, holder.stage, holder.stop), (new.phase, RunStage::Running, None));
}

/// I8.
pub(crate) async fn fences_grow_over_release(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let first = take_and_release(&mut client, &key("s")).await;
    assert!(take_and_release(&mut client, &key("s")).await > first);
}

/// I8.
pub(crate) async fn fences_grow_over_takeover(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let key = key("s");
    let mut last = None;
    for _ in 0..5 {
        let fence = client.granted(acquire(&key, RunId::random())).await.fence;
        assert!(last < Some(fence), "{last:?} {fence}");
        last = Some(fence);
        backend.set_remaining(&key, -1).await;
    }
}

/// I8.
pub(crate) async fn fences_grow_over_sweep(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let key = key("s");
    let first = client.granted(acquire(&key, RunId::random())).await.fence;
    backend.set_remaining(&key, -millis(SWEEP_AFTER) - 1).await;
    assert_eq!(client.raw().sweep(10).await, Ok(1));
    assert!(client.granted(acquire(&key, RunId::random())).await.fence > first);
}

/// I8: over a row that stays and over rows that are deleted before or after the step.
pub(crate) async fn fences_grow_over_a_step_back_of_the_clock(backend: &impl Backend) {
    const STEP: u32 = 60;
    let mut client = connect(backend).await;
    let [released, deleted_after, kept, swept] = ["released", "deleted", "kept", "swept"].map(key);
    let run = RunId::random();
    let mut before = Vec::new();
    for key in [&released, &deleted_after, &kept, &swept] {
        before.push(client.granted(acquire(key, run)).await.fence);
    }
    assert_eq!(client.release(&released, run).await, ReleaseOutcome::Released);
    let shifted = backend.step_clock_back(STEP).await;
    assert_eq!(client.release(&deleted_after, run).await, ReleaseOutcome::Released);
    backend.set_remaining(&kept, -1).await;
    backend.set_remaining(&swept, -millis(SWEEP_AFTER) - 1).await;
    client.raw().sweep(10).await.expect("it sweeps");

    for (key, before) in [&released, &deleted_after, &kept, &swept].into_iter().zip(before) {
        let after = client.granted(acquire(key, RunId::random())).await.fence;
        assert!(after.as_i64() > before.as_i64() + shifted, "{key}: {before} and {STEP} s, then {after}");
    }
}

/// I8: more cycles than a clock has ticks.
pub(crate) async fn fences_grow_over_quick_cycles(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let key = key("s");
    let mut last = take_and_release(&mut client, &key).await;
    for _ in 0..5_000 {
        let fence = take_and_release(&mut client, &key).await;
        assert!(fence > last, "{last} then {fence}");
        last = fence;
    }
}

/// I2.
pub(crate) async fn a_renewal_extends_the_lease_and_reports_how_the_run_stands(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (key, run) = (key("s"), RunId::random());
    let grant = client.granted(acquire(&key, run)).await;
    backend.set_remaining(&key, 10_000).await;

    let phase = RunPhase::new("using a tool").unwrap();
    let item = Renew { phase: Some(phase.clone()), stage: RunStage::Stopping, ..renew(&key, run) };
    let renewed = client.renewed(item).await;
    assert_eq!(renewed.remaining, TTL);
    assert!(renewed.clock_micros > grant.acquired_at_micros);
    assert_eq!(renewed.stop, None);
    let holder = client.holder(&key).await.expect("it is held");
    assert_eq!((holder.phase, holder.stage), (phase.clone(), RunStage::Stopping));
    assert_eq!(micros(holder.expires_at), renewed.clock_micros + TTL.as_micros() as i64);
    assert_eq!((holder.fence, micros(holder.since)), (grant.fence, grant.acquired_at_micros));

    client.renewed(renew(&key, run)).await;
    let holder = client.holder(&key).await.expect("it is held");
    assert_eq!((holder.phase, holder.stage), (phase, RunStage::Running), "no new phase leaves the old one");
}

pub(crate) async fn a_renewal_never_shortens_the_lease(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (key, run) = (key("s"), RunId::random());
    let grant = client.granted(acquire(&key, run)).await;
    let renewed = client.renewed(Renew { ttl: TTL / 2, ..renew(&key, run) }).await;
    assert!(renewed.remaining > TTL / 2 && renewed.remaining < TTL);
    let holder = client.holder(&key).await.expect("it is held");
    assert_eq!(micros(holder.expires_at), grant.expires_at_micros);
}

/// I5.
pub(crate) async fn a_renewal_never_revives_an_expired_lease(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (key, run) = (key("s"), RunId::random());
    client.granted(acquire(&key, run)).await;
    backend.set_remaining(&key, 0).await;
    let before = client.holder(&key).await;
    for safety_margin in [MARGIN, Duration::ZERO] {
        let item = Renew { safety_margin, ..renew(&key, run) };
        assert!(matches!(client.renew(item).await, RenewOutcome::Expired { .. }));
    }
    assert_eq!(client.holder(&key).await, before);
}

/// I5: on this side of the margin it is renewed, on the other side never.
pub(crate) async fn a_renewal_never_extends_a_lease_inside_its_margin(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (key, run) = (key("s"), RunId::random());
    client.granted(acquire(&key, run)).await;
    backend.set_remaining(&key, millis(MARGIN)).await;
    assert!(matches!(client.renew(renew(&key, run)).await, RenewOutcome::Expired { .. }));
    // An hour of margin, so that no delay of the machine moves the lease over the edge.
    let (ttl, safety_margin) = (Duration::from_secs(7200), Duration::from_secs(3600));
    let item = Renew { ttl, safety_margin, ..renew(&key, run) };
    backend.set_remaining(&key, millis(safety_margin) - 1).await;
    assert!(matches!(client.renew(item.clone()).await, RenewOutcome::Expired { .. }));
    backend.set_remaining(&key, millis(safety_margin) + 60_000).await;
    assert_eq!(client.renewed(item).await.remaining, ttl);
}

/// I4, I9: both are certain.
pub(crate) async fn a_renewal_of_a_lost_session_says_how_it_was_lost(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (key, old, new) = (key("s"), RunId::random(), RunId::random());
    assert!(matches!(client.renew(renew(&key, old)).await, RenewOutcome::Gone { .. }));
    client.granted(acquire(&key, new)).await;
    let before = backend.image(&key).await;
    assert!(matches!(client.renew(renew(&key, old)).await, RenewOutcome::Superseded { .. }));
    assert_eq!(backend.image(&key).await, before);
    client.release(&key, new).await;
    assert!(matches!(client.renew(renew(&key, new)).await, RenewOutcome::Gone { .. }));
}

/// A step of that clock may be the cause, and is to be reported.
pub(crate) async fn every_loss_comes_with_the_databases_clock(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (stranger, mine) = (RunId::random(), RunId::random());
    let [held, expired, gone, later] = ["held", "expired", "gone", "later"].map(key);
    let before = client.granted(acquire(&held, stranger)).await.acquired_at_micros;
    client.granted(acquire(&expired, mine)).await;
    backend.set_remaining(&expired, -1).await;
    let items = [&held, &expired, &gone].map(|key| renew(key, mine));
    let outcomes = client.raw().renew(&items).await.expect("it answers");
    let after = client.granted(acquire(&later, mine)).await.acquired_at_micros;
    for outcome in &outcomes {
        let clock = outcome.clock_micros().unwrap_or_else(|| panic!("{outcome:?}"));
        assert!((before..=after).contains(&clock), "{before} {clock} {after}");
    }
    assert!(
        matches!(
            &outcomes[..],
            [RenewOutcome::Superseded { .. }, RenewOutcome::Expired { .. }, RenewOutcome::Gone { .. }]
        ),
        "{outcomes:?}"
    );
}

pub(crate) async fn a_stop_request_reaches_the_holder_with_its_renewals(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (key, run) = (key("s"), RunId::random());
    client.granted(acquire(&key, run)).await;
    backend.request_stop(&key, "ops", "it's \"late\"").await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(client.renewed(renew(&key, run)).await.stop.expect("it was asked to stop"));
    }
    assert_eq!((seen[0].by.as_deref(), seen[0].reason.as_deref()), (Some("ops"), Some("it's \"late\"")));
    assert!(seen.iter().all(|stop| *stop == seen[0]));
    assert_eq!(client.holder(&key).await.expect("it is held").stop.as_ref(), Some(&seen[0]));
}

pub(crate) async fn a_stop_request_never_reaches_the_next_run(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (key, old, new) = (key("s"), RunId::random(), RunId::random());
    client.granted(acquire(&key, old)).await;
    backend.request_stop(&key, "ops", "deploy").await;
    backend.set_remaining(&key, -1).await;
    assert_eq!(client.granted(acquire(&key, new)).await.stop, None);
    assert_eq!(client.renewed(renew(&key, new)).await.stop, None);
    backend.request_stop(&key, "ops", "deploy").await;
    client.release(&key, new).await;
    assert_eq!(client.granted(acquire(&key, old)).await.stop, None);
}

pub(crate) async fn a_stop_is_recorded_with_who_and_why_and_the_first_is_kept(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (key, run) = (key("s"), RunId::random());
    let grant = client.granted(acquire(&key, run)).await;
    let long = "x".repeat(900) + " it's \"late\" \\ \n🦀";
    let (holder, first) = client.asked(stop(&key, None, "ops", &long)).await;
    assert!(first);
    assert_eq!((holder.run_id, holder.fence), (run, grant.fence));
    assert!(holder.expires_in > Duration::ZERO && holder.expires_in <= TTL);
    let request = holder.stop.clone().expect("it was asked");
    assert_eq!((request.by.as_deref(), request.reason.as_deref()), (Some("ops"), Some(long.as_str())));
    assert!(micros(request.at) >= grant.acquired_at_micros && micros(request.at) < grant.expires_at_micros);
    let neighbour = key_of_another(&mut client).await;

    let (again, first) = client.asked(stop(&key, Some(run), "somebody else", "no reason")).await;
    assert!(!first);
    assert_eq!((again.run_id, again.stop), (run, Some(request.clone())));
    assert_eq!(client.renewed(renew(&key, run)).await.stop, Some(request.clone()));
    assert_eq!(client.holder(&key).await.expect("it is held").stop, Some(request));
    assert_eq!(client.holder(&neighbour).await.expect("it is held").stop, None);
}

pub(crate) async fn a_stop_says_no_more_than_it_was_told(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (key, run) = (key("s"), RunId::random());
    client.granted(acquire(&key, run)).await;
    let (holder, first) =
        client.asked(StopRun { by: None, reason: None, ..stop(&key, None, "-", "-") }).await;
    let request = holder.stop.expect("it was asked");
    assert_eq!((first, request.by, request.reason), (true, None, None));
    let (holder, first) = client.asked(stop(&key, None, "ops", "deploy")).await;
    let request = holder.stop.expect("it was asked");
    assert_eq!((first, request.by, request.reason), (false, None, None));
}

/// I4: neither free nor expired rows are written.
pub(crate) async fn a_stop_of_a_session_that_nobody_holds_asks_nobody(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (key, run) = (key("s"), RunId::random());
    assert_eq!(client.stop(stop(&key, None, "ops", "deploy")).await, StopOutcome::Idle);
    client.granted(acquire(&key, run)).await;
    backend.set_remaining(&key, -1).await;
    let before = backend.image(&key).await.expect("the row stays");
    for run in [None, Some(run)] {
        assert_eq!(client.stop(stop(&key, run, "ops", "deploy")).await, StopOutcome::Idle);
    }
    assert_eq!(backend.image(&key).await, Some(before));
}

/// I4: a late stop never hits the next run.
pub(crate) async fn a_stop_that_names_a_run_asks_no_other(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (key, old, new) = (key("s"), RunId::random(), RunId::random());
    client.granted(acquire(&key, old)).await;
    client.release(&key, old).await;
    client.granted(acquire(&key, new)).await;
    let before = backend.image(&key).await.expect("it is held");
    assert_eq!(client.stop(stop(&key, Some(old), "ops", "deploy")).await, StopOutcome::Idle);
    assert_eq!(backend.image(&key).await, Some(before));
    assert_eq!(client.renewed(renew(&key, new)).await.stop, None);
    let (holder, first) = client.asked(stop(&key, Some(new), "ops", "deploy")).await;
    assert_eq!((holder.run_id, first), (new, true));
}

/// I4: a late release never frees the next run.
pub(crate) async fn a_release_frees_the_session_of_its_run_only(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (key, run) = (key("s"), RunId::random());
    assert_eq!(client.release(&key, run).await, ReleaseOutcome::NotFound);
    client.granted(acquire(&key, run)).await;
    let before = backend.image(&key).await;
    assert_eq!(client.release(&key, RunId::random()).await, ReleaseOutcome::NotFound);
    assert_eq!(backend.image(&key).await, before);
    assert_eq!(client.release(&key, run).await, ReleaseOutcome::Released);
    assert_eq!(backend.image(&key).await, None);
    assert_eq!(client.release(&key, run).await, ReleaseOutcome::NotFound);
}

pub(crate) async fn an_expired_lease_can_be_released(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (key, run) = (key("s"), RunId::random());
    client.granted(acquire(&key, run)).await;
    backend.set_remaining(&key, -1).await;
    assert_eq!(client.release(&key, run).await, ReleaseOutcome::Released);
}

pub(crate) async fn a_sweep_deletes_only_what_expired_long_ago(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (old, young, live) = (key("old"), key("young"), key("live"));
    for key in [&old, &young, &live] {
        client.granted(acquire(key, RunId::random())).await;
    }
    backend.set_remaining(&old, -millis(SWEEP_AFTER) - 1).await;
    backend.set_remaining(&young, -millis(SWEEP_AFTER) + 60_000).await;
    assert_eq!(client.raw().sweep(100).await, Ok(1));
    assert_eq!(client.raw().sweep(100).await, Ok(0));
    assert_eq!(client.holder(&old).await, None);
    assert!(client.holder(&young).await.is_some() && client.holder(&live).await.is_some());
}

pub(crate) async fn a_sweep_is_bounded(backend: &impl Backend) {
    let mut client = connect(backend).await;
    for n in 0..5 {
        let key = key(n.to_string());
        client.granted(acquire(&key, RunId::random())).await;
        backend.set_remaining(&key, -2 * millis(SWEEP_AFTER)).await;
    }
    let mut swept = Vec::new();
    for limit in [2, 0, 2, 2] {
        swept.push(client.raw().sweep(limit).await.expect("it sweeps"));
    }
    assert_eq!(swept, [2, 0, 2, 1]);
}

pub(crate) async fn an_inspection_shows_expired_rows_and_none_where_there_is_none(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (live, expired, idle) = (key("live"), key("expired"), key("idle"));
    let (first, second) = (RunId::random(), RunId::random());
    client.granted(acquire(&live, first)).await;
    client.granted(acquire(&expired, second)).await;
    backend.set_remaining(&expired, -1).await;
    let keys = [idle, expired, live];
    let found = client.raw().inspect(&keys).await.expect("it reads");
    let seen: Vec<_> =
        found.iter().map(|holder| holder.as_ref().map(|it| (it.run_id, it.expires_in.is_zero()))).collect();
    assert_eq!(seen, [None, Some((second, true)), Some((first, false))]);
}

pub(crate) async fn a_list_pages_in_byte_order(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let mut keys: Vec<_> =
        [("b", "1"), ("B", "2"), ("ä", "3"), ("a", "é"), ("a", "Z"), ("a", "a"), ("a-", "0")]
            .map(|(account, session)| SessionKey::new(account, session).unwrap())
            .into();
    for key in &keys {
        client.granted(acquire(key, RunId::random())).await;
    }
    keys.sort_by(|a, b| (a.account(), a.session()).cmp(&(b.account(), b.session())));
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = Page { account: None, expired: false, after: after.take(), limit: 3 };
        let rows = client.raw().list(&page).await.expect("it reads");
        assert!(rows.len() <= 3);
        let Some((last, _)) = rows.last() else { break };
        after = Some(last.clone());
        listed.extend(rows.into_iter().map(|(key, _)| key));
    }
    assert_eq!(listed, keys);
}

pub(crate) async fn a_list_is_filtered_by_account_and_expiry(backend: &impl Backend) {
    let mut client = connect(backend).await;
    for (account, session) in [("a", "1"), ("a", "2"), ("a", "3"), ("aa", "1"), ("b", "1")] {
        let key = SessionKey::new(account, session).unwrap();
        client.granted(acquire(&key, RunId::random())).await;
    }
    backend.set_remaining(&SessionKey::new("a", "2").unwrap(), -1).await;
    for (account, expired, after, expected) in [
        (Some("a"), false, None, &["a/1", "a/3"][..]),
        (Some("a"), true, None, &["a/1", "a/2", "a/3"]),
        (Some("a"), true, Some(("a", "1")), &["a/2", "a/3"]),
        (Some("a"), true, Some(("a", "3")), &[]),
        (Some("b"), true, Some(("a", "3")), &["b/1"]),
        (Some("a"), true, Some(("b", "1")), &[]),
        (Some("none"), true, None, &[]),
        (None, false, Some(("a", "2")), &["a/3", "aa/1", "b/1"]),
    ] {
        let after = after.map(|(account, session)| SessionKey::new(account, session).unwrap());
        let page = Page { account: account.map(str::to_owned), expired, after, limit: 10 };
        let rows = client.raw().list(&page).await.expect("it reads");
        let listed: Vec<_> = rows.iter().map(|(key, _)| key.to_string()).collect();
        assert_eq!(listed, expected, "{page:?}");
    }
}

pub(crate) async fn keys_are_compared_byte_for_byte(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let texts = ["a", "A", " a", "a ", "á", "a\u{301}", "ａ", "a\n", "%", "_"];
    let runs: Vec<_> = texts.iter().map(|text| (key(text), RunId::random())).collect();
    for (key, run) in &runs {
        client.granted(acquire(key, *run)).await;
    }
    for (key, run) in &runs {
        assert_eq!(client.holder(key).await.map(|holder| holder.run_id), Some(*run), "{key:?}");
    }
}

pub(crate) async fn texts_come_back_as_they_were_given(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let long = "é".repeat(127) + "x";
    for text in [
        "🦀",
        "quo'te",
        "dou\"ble",
        "back\\slash",
        "\\'; DROP TABLE x; --",
        "new\nline",
        "\r\t\u{1b}[2J",
        "{a,b}",
        "NULL",
        "null",
        "$1",
        "$$",
        " ",
        ",",
        "\u{feff}",
        "\u{202e}",
        "%s",
        "[\"json\"]",
        &long,
    ] {
        let (key, run) = (SessionKey::new(text, text).unwrap(), RunId::random());
        let phase = if text.len() <= 64 { text } else { "" };
        let item = Acquire {
            label: Label::new(text).unwrap(),
            phase: RunPhase::new(phase).unwrap(),
            ..acquire(&key, run)
        };
        client.granted(item).await;
        let refusal = client.refused(acquire(&key, RunId::random())).await;
        assert_eq!((refusal.label.as_str(), refusal.phase.as_str()), (text, phase));
        let phase = Some(RunPhase::new(phase.to_uppercase()).unwrap_or_default());
        client.renewed(Renew { phase: phase.clone(), ..renew(&key, run) }).await;
        let page = Page { account: Some(text.to_owned()), expired: true, after: None, limit: 2 };
        let rows = client.raw().list(&page).await.expect("it reads");
        assert_eq!(rows.len(), 1);
        assert_eq!((&rows[0].0, Some(&rows[0].1.phase)), (&key, phase.as_ref()));
        assert_eq!(client.release(&key, run).await, ReleaseOutcome::Released);
    }
}

pub(crate) async fn a_lease_may_last_a_day(backend: &impl Backend) {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let mut client = connect(backend).await;
    let (key, run) = (key("s"), RunId::random());
    let grant = client.granted(Acquire { ttl: DAY, ..acquire(&key, run) }).await;
    assert_eq!(grant.expires_at_micros - grant.acquired_at_micros, DAY.as_micros() as i64);
    let renewed = client.renewed(Renew { ttl: DAY, safety_margin: DAY / 5, ..renew(&key, run) });
    assert_eq!(renewed.await.remaining, DAY);
    backend.set_remaining(&key, -1).await;
    let run = RunId::random();
    let grant = client.granted(Acquire { ttl: DAY, ..acquire(&key, run) }).await;
    assert!(grant.remaining <= DAY && grant.remaining > DAY / 2);
}

/// An item's outcome never depends on its neighbours.
pub(crate) async fn a_batch_answers_each_item_in_its_place(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (mine, stranger) = (RunId::random(), RunId::random());
    let [free, held, own, expired, own_expired, gone] = ["z", "y", "x", "w", "v", "u"].map(key);
    for (key, run) in [(&held, stranger), (&own, mine), (&expired, stranger), (&own_expired, mine)] {
        client.granted(acquire(key, run)).await;
    }
    backend.set_remaining(&expired, -1).await;
    backend.set_remaining(&own_expired, -1).await;

    let items = [&own_expired, &free, &held, &own].map(|key| renew(key, mine));
    let outcomes = client.raw().renew(&items).await.expect("it renews");
    assert!(
        matches!(
            &outcomes[..],
            [
                RenewOutcome::Expired { .. },
                RenewOutcome::Gone { .. },
                RenewOutcome::Superseded { .. },
                RenewOutcome::Renewed(_)
            ]
        ),
        "{outcomes:?}"
    );

    let items = [&free, &held, &own, &expired].map(|key| acquire(key, mine));
    let outcomes = client.raw().acquire(&items).await.expect("it acquires");
    let [
        AcquireOutcome::Granted(_),
        AcquireOutcome::Busy(holder),
        AcquireOutcome::Granted(_),
        AcquireOutcome::Granted(_),
    ] = &outcomes[..]
    else {
        panic!("{outcomes:?}")
    };
    assert_eq!(holder.run_id, stranger);

    let items =
        [&gone, &expired, &held, &free].map(|key| Release { key: key.clone(), run_id: mine, reason: None });
    assert_eq!(
        client.raw().release(&items).await.expect("it releases"),
        [
            ReleaseOutcome::NotFound,
            ReleaseOutcome::Released,
            ReleaseOutcome::NotFound,
            ReleaseOutcome::Released
        ]
    );
}

pub(crate) async fn a_full_batch_is_granted_renewed_and_released(backend: &impl Backend) {
    let mut client = connect(backend).await;
    // Neither in the order of their bytes nor in that of their numbers.
    let keys: Vec<_> = (0..MAX_BATCH).map(|n| key(format!("{}", n * 7919 % MAX_BATCH))).collect();
    let runs: Vec<_> = keys.iter().map(|key| (key, RunId::random())).collect();

    let items: Vec<_> = runs.iter().map(|(key, run)| acquire(key, *run)).collect();
    let outcomes = client.raw().acquire(&items).await.expect("it acquires");
    let fences: HashSet<_> = outcomes
        .iter()
        .map(|outcome| match outcome {
            AcquireOutcome::Granted(grant) => grant.fence,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(outcomes.len(), MAX_BATCH);
    assert!(fences.len() > MAX_BATCH / 2, "the clock was read per row");
    let holders = client.raw().inspect(&keys).await.expect("it reads");
    for (outcome, (holder, (_, run))) in outcomes.iter().zip(holders.iter().zip(&runs)) {
        let (AcquireOutcome::Granted(grant), Some(holder)) = (outcome, holder) else { panic!("{outcome:?}") };
        assert_eq!((holder.run_id, holder.fence), (*run, grant.fence));
    }

    let items: Vec<_> = runs.iter().map(|(key, run)| renew(key, *run)).collect();
    let outcomes = client.raw().renew(&items).await.expect("it renews");
    assert!(outcomes.len() == MAX_BATCH && outcomes.iter().all(|it| matches!(it, RenewOutcome::Renewed(_))));

    let items: Vec<_> =
        runs.iter().map(|(key, run)| Release { key: (*key).clone(), run_id: *run, reason: None }).collect();
    let outcomes = client.raw().release(&items).await.expect("it releases");
    assert_eq!(outcomes, vec![ReleaseOutcome::Released; MAX_BATCH]);
}

pub(crate) async fn nothing_asked_is_nothing_answered(backend: &impl Backend) {
    let mut client = connect(backend).await;
    assert_eq!(client.raw().acquire(&[]).await, Ok(Vec::new()));
    assert_eq!(client.raw().renew(&[]).await, Ok(Vec::new()));
    assert_eq!(client.raw().release(&[]).await, Ok(Vec::new()));
    assert_eq!(client.raw().inspect(&[]).await, Ok(Vec::new()));
    let page = Page { account: None, expired: true, after: None, limit: 0 };
    assert_eq!(client.raw().list(&page).await, Ok(Vec::new()));
}

pub(crate) async fn a_second_migration_finds_nothing_to_do(backend: &impl Backend) {
    let (key, run) = (key("s"), RunId::random());
    connect(backend).await.granted(acquire(&key, run)).await;
    let migrated = backend.store().migrate().await.expect("it may migrate");
    assert_eq!(migrated.from, migrated.to);
    assert!(connect(backend).await.holder(&key).await.is_some());
}

pub(crate) async fn the_history_says_how_each_run_ended(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let key = key("s");
    let runs: Vec<_> = (0..5).map(|_| RunId::random()).collect();
    let first = client.granted(acquire(&key, runs[0])).await;
    backend.request_stop(&key, "ann", "wrong branch").await;
    let why = EndReason::stopped(Some("ann".to_owned()), Some("it's \"wrong\"\n日".to_owned()));
    let item = Release { key: key.clone(), run_id: runs[0], reason: Some(why.clone()) };
    assert_eq!(client.raw().release(&[item]).await, Ok(vec![ReleaseOutcome::Released]));

    client.granted(acquire(&key, runs[1])).await;
    backend.set_remaining(&key, 20).await;
    tokio::time::sleep(Duration::from_millis(60)).await;
    let third = client.granted(acquire(&key, runs[2])).await;
    let seen = client.holder(&key).await;
    assert!(matches!(client.break_lease(breaking(&seen)).await, BreakOutcome::Broken { .. }));
    client.granted(acquire(&key, runs[3])).await;
    backend.set_remaining(&key, -1).await;
    client.granted(acquire(&key, runs[4])).await;
    for _ in 0..3 {
        client.renewed(renew(&key, runs[4])).await;
    }
    assert_eq!(client.history(&key).await.len(), 4, "a run that is not over, and renewals, are not in it");
    assert_eq!(client.release(&key, runs[4]).await, ReleaseOutcome::Released);

    let past = client.history(&key).await;
    let ids: Vec<_> = past.iter().rev().map(|run| run.run_id).collect();
    assert_eq!(ids, runs);
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(past[4].ending, Ending::released(Some(why)));
    assert_eq!(past[3].ending, Ending::TakenOver);
    assert_eq!(past[2].ending, Ending::broken(text("ops"), text("burnt")));
    assert!(matches!(past[1].ending, Ending::Changed { .. }), "{:?}", past[1]);
    assert_eq!(past[0].ending, Ending::released(None));
    let PastRun { label, fence, phase, since, until, stop, .. } = &past[4];
    assert_eq!((label.as_str(), phase.as_str(), *fence), ("api-3", "starting", first.fence));
    assert_eq!(micros(*since), first.acquired_at_micros);
    assert!(until >= since && *until < SystemTime::now() + Duration::from_secs(60));
    let stop = stop.as_ref().expect("it was asked to stop");
    assert_eq!((stop.by.as_deref(), stop.reason.as_deref()), (Some("ann"), Some("wrong branch")));
    assert_eq!((past[2].fence, &past[3].stop), (third.fence, &None));
}

pub(crate) async fn the_history_has_pages_and_is_swept(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (key, other) = (key("s"), key("other"));
    for _ in 0..5 {
        take_and_release(&mut client, &key).await;
    }
    take_and_release(&mut client, &other).await;
    let all = client.history(&key).await;
    let mut page = HistoryPage { key: key.clone(), before: None, limit: 2 };
    let mut paged = Vec::new();
    while let Some(last) = client.raw().history(&page).await.expect("it reads").expect("it is kept").last() {
        page.before = Some(last.fence);
        paged.push(last.fence);
    }
    assert_eq!(paged, [1, 3, 4].map(|place: usize| all[place].fence));

    let hour = Duration::from_secs(3600);
    assert_eq!(client.raw().sweep_history(hour, 100).await, Ok(0));
    assert_eq!(client.raw().sweep_history(Duration::ZERO, 4).await, Ok(4));
    assert_eq!(client.raw().sweep_history(Duration::ZERO, 4).await, Ok(2));
    assert!(client.history(&key).await.is_empty());
}

/// I5, I8, I13: it is the only way in which an expiry moves back.
pub(crate) async fn a_break_ends_the_lease_of_a_run_that_does_not_renew(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let (key, run) = (key("s"), RunId::random());
    let grant = client.granted(acquire(&key, run)).await;
    let seen = client.holder(&key).await;
    let of_another = BreakLease { run_id: RunId::random(), ..breaking(&seen) };
    assert_eq!(client.break_lease(of_another).await, BreakOutcome::NotHeld);

    tokio::time::sleep(Duration::from_millis(5)).await;
    client.renewed(renew(&key, run)).await;
    assert_eq!(client.break_lease(breaking(&seen)).await, BreakOutcome::Renewed);
    assert_eq!(client.refused(acquire(&key, RunId::random())).await.run_id, run);

    let seen = client.holder(&key).await;
    match client.break_lease(breaking(&seen)).await {
        BreakOutcome::Broken { remaining } => {
            assert!(remaining <= TTL && remaining > TTL / 2, "{remaining:?}");
        }
        other => panic!("not broken: {other:?}"),
    }
    assert_eq!(client.break_lease(breaking(&seen)).await, BreakOutcome::NotHeld, "it has expired");
    assert!(matches!(client.renew(renew(&key, run)).await, RenewOutcome::Expired { .. }));
    let next = client.granted(acquire(&key, RunId::random())).await;
    assert!(next.fence > grant.fence);
    assert!(matches!(client.renew(renew(&key, run)).await, RenewOutcome::Superseded { .. }));
    assert_eq!(client.break_lease(breaking(&seen)).await, BreakOutcome::NotHeld, "it is another's");
    assert_eq!(client.history(&key).await.len(), 1, "the first end stays");
}

/// A break of the lease that was seen.
fn breaking(seen: &Option<Holder>) -> BreakLease {
    let holder = seen.as_ref().expect("it is held");
    BreakLease {
        key: key("s"),
        run_id: holder.run_id,
        expires_at: holder.expires_at,
        by: Some(Requester::new("ops").expect("short")),
        reason: Some(Reason::new("burnt").expect("short")),
    }
}

async fn connect(backend: &impl Backend) -> Client {
    Client::connect(&*backend.store()).await
}

async fn key_of_another(client: &mut Client) -> SessionKey {
    let key = key("another");
    client.granted(acquire(&key, RunId::random())).await;
    key
}

async fn take_and_release(client: &mut Client, key: &SessionKey) -> FencingToken {
    let run = RunId::random();
    let grant = client.granted(acquire(key, run)).await;
    assert_eq!(client.release(key, run).await, ReleaseOutcome::Released);
    grant.fence
}

fn micros(instant: SystemTime) -> i64 {
    let since = instant.duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970");
    since.as_micros().try_into().expect("it is before 294000")
}

fn millis(duration: Duration) -> i64 {
    duration.as_millis().try_into().expect("it is short")
}

fn limited(key: &SessionKey, run_id: RunId, limit: u32) -> Acquire {
    Acquire { limit_per_account: Some(limit), ..acquire(key, run_id) }
}

fn of(account: &str, session: &str) -> SessionKey {
    SessionKey::new(account, session).unwrap()
}

/// What counts are live leases of the same account, whatever their own acquires allowed.
pub(crate) async fn a_limit_refuses_a_run_too_many_of_an_account(backend: &impl Backend) {
    let (mut client, mut other) = (connect(backend).await, connect(backend).await);
    let first = RunId::random();
    client.granted(limited(&of("a", "1"), first, 2)).await;
    other.granted(acquire(&of("a", "2"), RunId::random())).await;
    client.granted(acquire(&of("b", "1"), RunId::random())).await;

    for limit in [2, 1, 0] {
        let outcome = client.acquire(limited(&of("a", "3"), RunId::random(), limit)).await;
        assert_eq!(outcome, AcquireOutcome::Full { running: 2 });
    }
    assert_eq!(client.holder(&of("a", "3")).await, None, "a refusal writes nothing");
    client.granted(limited(&of("b", "2"), RunId::random(), 2)).await;
    client.granted(limited(&of("a", "3"), RunId::random(), 3)).await;
    client.granted(acquire(&of("a", "4"), RunId::random())).await;

    backend.set_remaining(&of("a", "2"), -1).await;
    assert_eq!(client.release(&of("a", "1"), first).await, ReleaseOutcome::Released);
    client.granted(limited(&of("a", "2"), RunId::random(), 3)).await;
    let outcome = client.acquire(limited(&of("a", "1"), RunId::random(), 3)).await;
    assert_eq!(outcome, AcquireOutcome::Full { running: 3 });
}

/// I7: a repeated acquire is the same acquire.
pub(crate) async fn a_limit_refuses_no_run_that_is_there_already(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let item = limited(&of("a", "1"), RunId::random(), 1);
    let first = client.granted(item.clone()).await;
    assert_eq!(client.granted(item.clone()).await.fence, first.fence);
    client.granted(acquire(&of("a", "2"), RunId::random())).await;
    assert_eq!(client.granted(item).await.fence, first.fence);
}

pub(crate) async fn a_limited_batch_grants_no_more_than_the_limit(backend: &impl Backend) {
    let mut client = connect(backend).await;
    client.granted(acquire(&of("a", "0"), RunId::random())).await;
    let (old, run) = (of("a", "old"), RunId::random());
    client.granted(acquire(&old, run)).await;
    backend.set_remaining(&old, -1).await;

    let mut items: Vec<_> = (1..8).map(|n| limited(&of("a", &n.to_string()), RunId::random(), 4)).collect();
    items.push(limited(&old, RunId::random(), 4));
    items.push(acquire(&of("a", "free"), RunId::random()));
    items.push(limited(&of("a", "more"), RunId::random(), 5));
    items.push(limited(&of("b", "1"), RunId::random(), 1));
    let outcomes = client.raw().acquire(&items).await.unwrap();
    let granted = |outcome: &&AcquireOutcome| matches!(outcome, AcquireOutcome::Granted(_));
    // Whoever allows more comes first. Then one more makes four.
    assert_eq!(outcomes[..8].iter().filter(granted).count(), 1, "{outcomes:?}");
    assert!(outcomes[8..].iter().all(|outcome| granted(&outcome)), "{outcomes:?}");
    for refused in outcomes.iter().filter(|outcome| !granted(outcome)) {
        assert!(matches!(refused, AcquireOutcome::Full { running: 4.. }), "{refused:?}");
    }
}

/// I9: a session that is held is a certain answer of its own.
pub(crate) async fn a_limited_acquire_of_a_held_session_names_the_holder(backend: &impl Backend) {
    let mut client = connect(backend).await;
    let run = RunId::random();
    client.granted(limited(&of("a", "1"), run, 1)).await;
    let before = backend.image(&of("a", "1")).await;
    for limit in [1, 2] {
        assert_eq!(client.refused(limited(&of("a", "1"), RunId::random(), limit)).await.run_id, run);
    }
    assert_eq!(backend.image(&of("a", "1")).await, before);
}
