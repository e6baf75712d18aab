//! The database away: unreachable, silent, slow, locked; for a while and for good.

use tenure::{EndReason, RunEvent, store::memory::Fault, testing::simulate};
use tokio::time::Instant;

use super::*;

#[test]
fn i9_an_outage_of_a_third_of_the_ttl_loses_nothing_whenever_it_begins() {
    for fault in [Fault::Unreachable, Fault::Swallowed, Fault::RepliesLost] {
        for begin in (0..16).map(|half| millis(500 * half)) {
            simulate(async move |sim| {
                let supervisor = supervisor(&sim).await;
                let mut events = supervisor.events();
                let run = held(&supervisor, "chat").await;
                sim.sleep(begin).await;
                sim.store.set_fault(fault);
                sim.sleep(TTL / 3).await;
                sim.store.set_fault(Fault::None);
                sim.sleep(2 * TTL).await;
                assert!(run.is_held(), "{fault:?} from {begin:?}");
                let told = names(&mut events);
                let expected: &[&[&str]] = &[&["acquired"], &["acquired", "at risk", "recovered"]];
                assert!(expected.contains(&told.as_slice()), "{told:?}");
            });
        }
    }
}

#[test]
fn the_tolerated_outage_is_as_long_as_the_configuration_says() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let tolerated = supervisor.timing().tolerated_outage();
        for round in 0..40 {
            let session = format!("chat-{round}");
            let run = held(&supervisor, &session).await;
            sim.sleep(millis(fastrand::u64(0..8_000))).await;
            sim.store.set_fault(Fault::Swallowed);
            sim.sleep(tolerated).await;
            sim.store.set_fault(Fault::None);
            sim.sleep(seconds(10)).await;
            assert!(run.is_held(), "round {round}");
            run.release().await;
        }
    });
}

/// I3, I9: on time, while the call still hangs.
#[test]
fn i3_a_database_gone_for_good_cancels_every_run_by_its_trusted_time() {
    for fault in [Fault::Unreachable, Fault::Swallowed, Fault::Frozen, Fault::RepliesLost] {
        simulate(async move |sim| {
            let supervisor = supervisor(&sim).await;
            let run = held(&supervisor, "chat").await;
            sim.sleep(seconds(fastrand::u64(0..40))).await;
            sim.store.set_fault(fault);
            let trusted_for = run.trusted_for();
            let from = Instant::now();
            assert_eq!(run.cancelled().await, EndReason::Unconfirmed, "{fault:?}");
            let late = from.elapsed().saturating_sub(trusted_for);
            assert!(late <= millis(2), "{fault:?}: {late:?} after its trusted time");
            assert!(from.elapsed() + millis(2) >= trusted_for, "{fault:?}: too early");
            drop(run);

            // It needs no restart: when the database is back, so are acquires.
            sim.store.set_fault(Fault::None);
            sim.sleep(seconds(3)).await;
            drop(held(&supervisor, "chat").await);
        });
    }
}

#[test]
fn a_lost_reply_to_a_renewal_changes_nothing() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let fence = run.fence();
        sim.store.set_fault(Fault::RepliesLost);
        sim.sleep(seconds(9)).await;
        sim.store.set_fault(Fault::None);
        sim.sleep(TTL).await;
        assert!(run.is_held());
        assert_eq!((run.fence(), sim.store.row(&key("chat")).unwrap().fence), (fence, fence));
    });
}

/// I5: what a frozen server does late must not prolong what its client has given up.
#[test]
fn i5_a_renewal_that_a_thawing_server_runs_late_does_not_extend_the_lease() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        sim.store.set_fault(Fault::Frozen);
        run.cancelled().await;
        let before = sim.store.row(&key("chat")).unwrap().expires_at;
        std::mem::forget(run);
        sim.store.set_fault(Fault::None);
        assert_eq!(sim.store.row(&key("chat")).unwrap().expires_at, before);
    });
}

#[test]
fn a_few_failed_renewals_are_a_risk_and_then_forgotten() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let mut events = supervisor.events();
        let run = held(&supervisor, "chat").await;
        sim.store.fail_renewals(5);
        sim.sleep(TTL).await;
        assert!(run.is_held());
        assert_eq!(names(&mut events), ["acquired", "at risk", "recovered"]);
    });
}

#[test]
fn i10_one_locked_row_ends_by_the_rules_alone() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let locked = held(&supervisor, "locked").await;
        let mut others = Vec::new();
        for n in 0..50 {
            others.push(held(&supervisor, &format!("chat-{n}")).await);
        }
        sim.store.set_locked(&key("locked"), true);
        assert_eq!(locked.cancelled().await, EndReason::Unconfirmed);
        assert!(others.iter().all(|run| run.is_held() && run.trusted_for() > seconds(14)));
        drop(locked);
        sim.store.set_locked(&key("locked"), false);
        sim.sleep(seconds(40)).await;
        drop(held(&supervisor, "locked").await);
    });
}

#[test]
fn i10_after_an_outage_a_thousand_runs_renew_in_few_statements_and_acquires_go_on() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let keys: Vec<_> = (0..1_000).map(|n| key(&format!("chat-{n}"))).collect();
        let requests = keys.iter().map(|key| supervisor.acquire(key).into_future());
        let runs: Vec<_> =
            futures::future::join_all(requests).await.into_iter().map(Result::unwrap).collect();
        sim.store.set_fault(Fault::Swallowed);
        sim.sleep(seconds(10)).await;
        sim.store.set_fault(Fault::None);
        sim.store.set_delay(millis(5));
        let before = sim.store.statements().renewals;
        let asked = Instant::now();
        drop(held(&supervisor, "newcomer").await);
        assert!(asked.elapsed() < seconds(2), "{:?}", asked.elapsed());
        sim.sleep(seconds(6)).await;
        assert!(runs.iter().all(|run| run.is_held() && run.trusted_for() > seconds(10)));
        let statements = sim.store.statements().renewals - before;
        assert!(statements < 700, "{statements} statements for 1,000 runs");
    });
}

#[test]
fn i10_a_slow_listener_misses_events_and_delays_nothing() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let mut slow = supervisor.events();
        let kept = held(&supervisor, "kept").await;
        for n in 0..1_500 {
            held(&supervisor, &format!("chat-{n}")).await.release().await;
        }
        assert!(kept.is_held());
        assert!(matches!(slow.next().await, Some(RunEvent::Missed(missed)) if missed > 1_000));
    });
}

/// A2: steps of the database's clock in either direction.
/// Whatever the step has done to the lease by the time of the next renewal.
#[test]
fn a_stepped_database_clock_is_reported_also_when_it_costs_the_lease() {
    let forward = |sim: &Simulation| sim.store.step_clock_forward(seconds(15));
    let back = |sim: &Simulation| sim.store.step_clock_back(seconds(15));
    let expired = |sim: &Simulation| sim.store.step_clock_forward(2 * TTL);
    let taken = |sim: &Simulation| {
        sim.store.step_clock_forward(2 * TTL);
        sim.store.take_away(&key("chat"), TTL);
    };
    let taken_and_released = |sim: &Simulation| {
        sim.store.step_clock_forward(2 * TTL);
        sim.store.delete(&key("chat"));
    };
    type Step = fn(&Simulation);
    let steps: [(Step, Option<&str>); 5] = [
        (forward, None),
        (back, None),
        (expired, Some("expired")),
        (taken, Some("superseded")),
        (taken_and_released, Some("superseded")),
    ];
    for (step, end) in steps {
        let log = Log::default();
        let _listening = log.listen();
        simulate(async move |sim| {
            let supervisor = supervisor(&sim).await;
            let run = held(&supervisor, "chat").await;
            sim.sleep(TTL).await;
            step(&sim);
            sim.sleep(TTL / 3).await;
            assert_eq!(run.is_held(), end.is_none(), "{end:?}");
        });
        let warnings = log.lines("the database's clock was stepped");
        assert_eq!(warnings.len(), 1, "{end:?}: {warnings:?}");
        assert!(end.is_none_or(|end| log.lines("ended")[0].contains(end)), "{end:?}");
    }
}

#[test]
fn i5_a_database_clock_stepped_back_never_makes_two_holders() {
    simulate(async |sim| {
        let desktop = supervisor(&sim).await;
        let browser = sim.supervisor().holder_label("browser").ttl(TTL).start_here().await.unwrap();
        let run = held(&desktop, "chat").await;
        sim.store.step_clock_back(seconds(60));
        let mut taken_at = None;
        for second in 0..180 {
            sim.sleep(seconds(1)).await;
            if second == 60 {
                sim.store.set_fault(Fault::Unreachable);
            }
            if second == 70 {
                // A little forward again, while the holder cannot renew.
                sim.store.step_clock_forward(MARGIN / 4);
            }
            if second == 100 {
                sim.store.set_fault(Fault::None);
            }
            if taken_at.is_none()
                && let Ok(other) = browser.acquire(&key("chat")).await
            {
                assert!(!run.is_held(), "two holders after {second} s");
                assert!(other.fence() > run.fence());
                taken_at = Some(second);
                std::mem::forget(other);
            }
        }
        assert!(taken_at.is_some(), "it was free in the end");
    });
}
