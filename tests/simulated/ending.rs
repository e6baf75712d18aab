//! Every way a run ends, and that it ends once, in time, and for one reason.

use std::rc::Rc;

use tenure::{AcquireError, EndReason, RunStage, SessionState, store::memory::Fault, testing::simulate};
use tokio::task::spawn_local;

use super::*;

#[test]
fn work_that_returns_releases_its_session_and_gives_its_value() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let mut events = supervisor.events();
        let run = held(&supervisor, "chat").await;
        let value = run.scope(async |ctx| (ctx.is_held(), ctx.fence())).await.unwrap();
        assert!(value.0);
        assert!(sim.store.is_empty(), "released when the scope returns");
        assert_eq!(names(&mut events), ["acquired", "ended"]);
    });
}

#[test]
fn work_may_borrow_and_need_not_be_send() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let mut counter = 0;
        let local = Rc::new(7);
        let run = held(&supervisor, "chat").await;
        run.scope(async |_| counter += *local).await.unwrap();
        assert_eq!(counter, 7);
    });
}

#[test]
fn a_healthy_run_is_never_cancelled_in_twenty_ttls() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let mut events = supervisor.events();
        let run = held(&supervisor, "chat").await;
        for _ in 0..600 {
            sim.sleep(seconds(1)).await;
            assert!(run.is_held() && run.trusted_for() > seconds(15), "{:?}", run.trusted_for());
        }
        assert_eq!(names(&mut events), ["acquired"]);
        assert_eq!(run.release().await.reason, EndReason::Completed);
    });
}

/// I3: nothing is trusted at `trusted_until`, to the nanosecond of the boot clock.
#[test]
fn i3_is_held_ends_with_trust_before_any_timer_fires() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let left = run.trusted_for();
        sim.clock.suspend(left - Duration::from_nanos(1));
        assert!(run.is_held());
        sim.clock.suspend(Duration::from_nanos(1));
        assert!(!run.is_held());
        assert_eq!(run.trusted_for(), Duration::ZERO);
    });
}

#[test]
fn a_suspended_machine_finds_its_runs_over_within_about_a_second() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        sim.clock.suspend(2 * TTL);
        assert!(!run.is_held(), "at the next check, before any I/O");
        let reason = tokio::time::timeout(millis(1_100), run.cancelled()).await.expect("without a check");
        assert_eq!(reason, EndReason::Unconfirmed);
    });
}

#[test]
fn a_short_sleep_of_the_machine_loses_nothing() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        for _ in 0..20 {
            sim.clock.suspend(seconds(12));
            sim.sleep(seconds(3)).await;
            assert!(run.is_held());
        }
    });
}

#[test]
fn a_paused_virtual_machine_confirms_its_leases_at_once() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let mut events = supervisor.events();
        let run = held(&supervisor, "chat").await;
        sim.clock.pause(seconds(10));
        sim.sleep(millis(1_100)).await;
        assert_eq!(names(&mut events), ["acquired", "at risk", "recovered"]);
        assert!(run.is_held());
        // The database's clock went on as well: longer than the lease, and it says so.
        sim.clock.pause(2 * TTL);
        sim.sleep(millis(1_100)).await;
        assert_eq!(run.cancelled().await, EndReason::Expired);
    });
}

#[test]
fn a_lease_taken_away_ends_the_run_and_its_late_release_changes_nothing() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let other = sim.store.take_away(&key("chat"), TTL);
        assert_eq!(run.cancelled().await, EndReason::Superseded);
        let before = sim.store.row(&key("chat")).unwrap();
        let ended = run.release().await;
        assert_eq!((ended.reason, ended.released), (EndReason::Superseded, false));
        let after = sim.store.row(&key("chat")).unwrap();
        assert_eq!((before.run_id, before.fence, before.expires_at), (other, after.fence, after.expires_at));
    });
}

#[test]
fn work_that_listens_ends_when_trust_does_and_its_value_is_in_the_error() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        sim.store.set_fault(Fault::Unreachable);
        let error = run
            .scope(async |ctx| {
                let reason = ctx.cancelled().await;
                assert!(!ctx.is_held() && ctx.token().is_cancelled());
                reason
            })
            .await
            .unwrap_err();
        assert_eq!(error.reason(), &EndReason::Unconfirmed);
        assert_eq!(error.into_value(), Some(EndReason::Unconfirmed));
    });
}

#[test]
fn work_that_ignores_the_end_of_trust_is_dropped_half_a_margin_later() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        sim.store.set_fault(Fault::Unreachable);
        let (lost, overtaken) = (run.token(), run.overtaken());
        let scope = spawn_local(run.scope(async |_| std::future::pending::<()>().await));
        lost.cancelled().await;
        let told = tokio::time::Instant::now();
        let error = scope.await.unwrap().unwrap_err();
        let took = told.elapsed();
        assert!(took >= MARGIN / 2 && took <= MARGIN / 2 + millis(5), "{took:?}");
        assert_eq!((error.into_value(), overtaken.now_or_never()), (None, None));
    });
}

/// However the session was lost, and however long the grace is that the work has or was given before.
#[test]
fn i13_work_beside_which_another_run_may_be_is_dropped_at_once() {
    let taken = |sim: &Simulation| _ = sim.store.take_away(&key("chat"), TTL);
    let deleted = |sim: &Simulation| sim.store.delete(&key("chat"));
    let stepped = |sim: &Simulation| sim.store.step_clock_forward(2 * TTL);
    let losses: [fn(&Simulation); 3] = [taken, deleted, stepped];
    for (lose, is_told) in losses.into_iter().flat_map(|lose| [(lose, false), (lose, true)]) {
        simulate(async move |sim| {
            let supervisor = sim.supervisor().ttl(TTL).stop_grace(20 * TTL).start_here().await.unwrap();
            let run = held(&supervisor, "chat").await;
            let context = run.context();
            let dropped = context.clone();
            let scope = spawn_local(run.scope(async move |ctx| {
                let task = ctx.spawn_local(std::future::pending::<()>());
                dropped.overtaken().await;
                _ = task.await;
            }));
            sim.sleep(millis(1)).await;
            if is_told {
                context.stop("tea");
                sim.sleep(millis(200)).await;
            }
            lose(&sim);
            context.overtaken().await;
            let told = tokio::time::Instant::now();
            let error = scope.await.unwrap().unwrap_err();
            assert!(told.elapsed() <= millis(5), "{:?}", told.elapsed());
            let reason = error.reason();
            assert_eq!(matches!(reason, EndReason::Stopped { .. }), is_told, "{reason:?}");
            assert_eq!(error.into_value(), None);
        });
    }
}

#[test]
fn i6_work_that_outlives_its_grace_keeps_the_lease_and_is_shown_stuck_to_others() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let other = sim.supervisor().holder_label("other").ttl(TTL).start_here().await.unwrap();
        let mut events = supervisor.events();
        let run = held(&supervisor, "chat").await;
        sim.store.request_stop(&key("chat"), "ops", "tea");
        let reason = EndReason::stopped(Some("ops".into()), Some("tea".into()));
        assert_eq!(run.cancelled().await, reason);
        sim.sleep(millis(200)).await;
        assert_eq!(other.inspect(&key("chat")).await.unwrap().state, SessionState::Stopping);
        sim.sleep(10 * TTL).await;
        assert_eq!(other.inspect(&key("chat")).await.unwrap().state, SessionState::Stuck);
        match other.acquire(&key("chat")).await {
            Err(AcquireError::Busy(busy)) => assert_eq!(busy.holder().stage, RunStage::Stuck),
            other => panic!("granted while the work may act: {other:?}"),
        }
        assert_eq!(names(&mut events), ["acquired", "stopping", "stuck"]);
        let ended = run.release().await;
        assert_eq!((ended.reason, ended.released), (reason, true));
        drop(held(&other, "chat").await);
    });
}

#[test]
fn work_in_a_scope_that_ignores_a_stop_is_dropped_after_its_grace_and_then_released() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        sim.store.request_stop(&key("chat"), "ops", "tea");
        let told = run.token();
        let scope = spawn_local(run.scope(async |_| std::future::pending::<()>().await));
        told.cancelled().await;
        let at = tokio::time::Instant::now();
        let _ = scope.await.unwrap().unwrap_err();
        assert!(at.elapsed() >= seconds(5) && at.elapsed() < seconds(6), "{:?}", at.elapsed());
        assert!(sim.store.is_empty());
    });
}

#[test]
fn i7_a_dropped_guard_frees_the_session_within_a_second_and_renews_no_more() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let token = run.token();
        drop(run);
        assert!(token.is_cancelled(), "at once");
        sim.sleep(seconds(1)).await;
        assert!(sim.store.is_empty());
        let renewals = sim.store.statements().renewals;
        sim.sleep(5 * TTL).await;
        assert_eq!(sim.store.statements().renewals, renewals);
    });
}

#[test]
fn i7_a_dropped_scope_ends_like_a_dropped_guard() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let mut events = supervisor.events();
        let scope = spawn_local(run.scope(async |_| std::future::pending::<()>().await));
        sim.sleep(millis(10)).await;
        scope.abort();
        sim.sleep(seconds(1)).await;
        assert!(sim.store.is_empty());
        match events.next().now_or_never() {
            Some(Some(RunEvent::Ended { reason: EndReason::Dropped, released: true, .. })) => {}
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn i7_work_that_panics_frees_the_session_within_a_second() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let mut events = supervisor.events();
        let run = held(&supervisor, "chat").await;
        let scope = spawn_local(run.scope(async |_| panic!("the work failed")));
        assert!(scope.await.unwrap_err().is_panic());
        sim.sleep(seconds(1)).await;
        assert!(sim.store.is_empty());
        assert_eq!(names(&mut events), ["acquired", "ended"]);
        drop(held(&supervisor, "chat").await);
    });
}

/// Scenario: completion and loss at the same instant, in both orders: everybody sees one reason.
#[test]
fn i3_two_ends_at_the_same_instant_are_one_reason_for_everybody() {
    for loss_first in [false, true] {
        simulate(async move |sim| {
            let supervisor = supervisor(&sim).await;
            let mut events = supervisor.events();
            let run = held(&supervisor, "chat").await;
            let token = run.token();
            sim.store.take_away(&key("chat"), TTL);
            if loss_first {
                token.cancelled().await;
            }
            let result = run.scope(async |_| ()).await;
            sim.sleep(TTL).await;
            let told = first_end(&mut events);
            match loss_first {
                true => assert_eq!(
                    (result.unwrap_err().reason(), told),
                    (&EndReason::Superseded, EndReason::Superseded)
                ),
                false => assert_eq!((result.is_ok(), told), (true, EndReason::Completed)),
            }
        });
    }
}

#[test]
fn i3_work_that_returns_after_trust_is_never_a_success() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let clock = sim.clock.clone();
        // Nobody has noticed yet that the machine slept; the work returns first.
        let error = run.scope(async |_| clock.suspend(2 * TTL)).await.unwrap_err();
        assert_eq!(error.reason(), &EndReason::Unconfirmed);
        assert_eq!(error.into_value(), Some(()));
    });
}

#[test]
fn a_process_that_stops_a_run_still_tells_how_long_its_lease_lasts() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        run.stop("tea");
        run.cancelled().await;
        sim.sleep(seconds(60)).await;
        match supervisor.acquire(&key("chat")).await {
            Err(AcquireError::Busy(busy)) => {
                assert!(busy.holder().expires_in > seconds(20), "{:?}", busy.holder());
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn lost_runs_do_not_wait_for_each_other_when_the_database_is_silent() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let mut runs = Vec::new();
        for n in 0..40 {
            runs.push(held(&supervisor, &format!("chat-{n}")).await);
        }
        sim.store.set_fault(Fault::Frozen);
        for run in &runs {
            assert_eq!(run.cancelled().await, EndReason::Unconfirmed);
        }
        let given_up = tokio::time::Instant::now();
        for run in runs {
            assert!(!run.release().await.released);
        }
        assert!(given_up.elapsed() < seconds(1), "{:?}", given_up.elapsed());
    });
}

#[test]
fn a_phase_is_seen_by_others_soon_and_by_this_process_at_once() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        assert!(run.set_phase("x".repeat(65)).is_err());
        run.set_phase("waiting for approval").unwrap();
        sim.sleep(millis(200)).await;
        assert_eq!(sim.store.row(&key("chat")).unwrap().phase.as_str(), "waiting for approval");
        match supervisor.acquire(&key("chat")).await {
            Err(AcquireError::Busy(busy)) => assert_eq!(busy.holder().phase.as_str(), "waiting for approval"),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn trust_can_be_followed_from_renewal_to_renewal_until_the_run_ends() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let mut trust = run.trust();
        let mut last = trust.next().await.unwrap();
        for _ in 0..5 {
            let next = trust.next().await.unwrap();
            assert!(next > last);
            last = next;
        }
        drop(run);
        while trust.next().await.is_some() {}
    });
}
