//! Requests to stop: how they reach a run, and that they reach no other.

use std::{cell::Cell, rc::Rc};

use tenure::{
    AcquireError, Asked, EndReason, InvalidText, StopAnswer, StopError, request::StopBuilder,
    store::memory::Fault, testing::simulate,
};
use tokio::{task::spawn_local, time::timeout};

use super::*;

/// Hints take no time here; the rest is the runtime's grain.
const AT_ONCE: Duration = millis(5);

fn by_ops() -> EndReason {
    EndReason::stopped(Some("ops".into()), Some("tea".into()))
}

fn ask(supervisor: &LeaseSupervisor, session: &str) -> StopBuilder {
    supervisor.stop(&key(session)).by("ops").reason("tea")
}

async fn asked(request: StopBuilder) -> Asked {
    match request.await.unwrap() {
        StopAnswer::Asked(asked) => *asked,
        StopAnswer::Idle => panic!("nobody was asked"),
    }
}

async fn others(sim: &Simulation) -> LeaseSupervisor {
    sim.supervisor().holder_label("browser").ttl(TTL).start_here().await.unwrap()
}

#[test]
fn a_stop_reaches_a_run_of_another_process_at_once_and_touches_no_other() {
    simulate(async |sim| {
        let (supervisor, other) = (supervisor(&sim).await, others(&sim).await);
        let (run, neighbour) = (held(&supervisor, "chat").await, held(&supervisor, "another").await);
        let asked = asked(ask(&other, "chat")).await;
        assert_eq!((asked.holder().run_id, asked.is_first()), (run.run_id(), true));
        assert_eq!(timeout(AT_ONCE, run.cancelled()).await.unwrap(), by_ops());
        sim.sleep(2 * TTL).await;
        assert!(neighbour.is_held());
    });
}

#[test]
fn a_stop_reaches_a_run_of_the_same_process_even_while_the_database_is_away() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        sim.store.set_fault(Fault::Swallowed);
        let stopping = spawn_local(ask(&supervisor, "chat").into_future());
        assert_eq!(timeout(AT_ONCE, run.cancelled()).await.unwrap(), by_ops());
        match stopping.await.unwrap().unwrap() {
            StopAnswer::Asked(asked) => assert_eq!(asked.holder().run_id, run.run_id()),
            StopAnswer::Idle => panic!("it was asked"),
        }
    });
}

#[test]
fn a_stop_whose_hint_is_lost_arrives_with_the_next_renewal() {
    simulate(async |sim| {
        let (supervisor, other) = (supervisor(&sim).await, others(&sim).await);
        let run = held(&supervisor, "chat").await;
        sim.store.set_hints_lost(true);
        let _ = asked(ask(&other, "chat")).await;
        let renewal = supervisor.timing().renew_interval().mul_f64(1.1);
        assert!(timeout(AT_ONCE, run.cancelled()).await.is_err(), "without a hint?");
        assert_eq!(timeout(renewal, run.cancelled()).await.unwrap(), by_ops());
    });
}

#[test]
fn a_supervisor_without_hints_listens_to_none() {
    simulate(async |sim| {
        let silent = sim.supervisor().ttl(TTL).hints(false).start_here().await.unwrap();
        let other = others(&sim).await;
        let run = held(&silent, "chat").await;
        sim.sleep(millis(10)).await;
        assert_eq!(sim.store.listeners(), 0);
        let _ = asked(ask(&other, "chat")).await;
        assert!(timeout(AT_ONCE, run.cancelled()).await.is_err(), "without a hint?");
        assert_eq!(run.cancelled().await, by_ops());
    });
}

#[test]
fn only_who_has_sessions_listens() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        sim.sleep(seconds(10)).await;
        assert_eq!(sim.store.listeners(), 0);
        let _run = held(&supervisor, "chat").await;
        sim.sleep(millis(10)).await;
        assert_eq!(sim.store.listeners(), 1);
    });
}

#[test]
fn nobody_listens_once_there_has_been_no_session_for_a_minute() {
    simulate(async |sim| {
        let (supervisor, other) = (supervisor(&sim).await, supervisor(&sim).await);
        held(&supervisor, "chat").await.release().await;
        sim.sleep(seconds(59)).await;
        assert_eq!(sim.store.listeners(), 1, "another session may begin soon");
        // The minute begins with the next look whether there is a session.
        sim.sleep(seconds(2) + TTL / 4).await;
        assert_eq!(sim.store.listeners(), 0);
        let run = held(&supervisor, "chat").await;
        sim.sleep(millis(100)).await;
        assert_eq!(sim.store.listeners(), 1);
        let _ = asked(ask(&other, "chat")).await;
        assert_eq!(timeout(AT_ONCE, run.cancelled()).await.unwrap(), by_ops());
    });
}

/// What was asked while nobody listened is read when somebody does again.
#[test]
fn a_stop_that_comes_while_the_listener_is_broken_is_read_when_it_is_back() {
    simulate(async |sim| {
        let (supervisor, other) = (supervisor(&sim).await, others(&sim).await);
        let run = held(&supervisor, "chat").await;
        sim.sleep(millis(10)).await;
        sim.store.break_listeners();
        let _ = asked(ask(&other, "chat")).await;
        assert_eq!(timeout(seconds(1), run.cancelled()).await.expect("before the next renewal"), by_ops());
        assert_eq!(sim.store.listeners(), 1);
    });
}

/// By hints, one by one; and by reading all rows together where hints were lost.
#[test]
fn a_thousand_stops_reach_a_thousand_runs_and_cost_few_statements() {
    simulate(async |sim| {
        let (supervisor, other) = (supervisor(&sim).await, others(&sim).await);
        for heard in [true, false] {
            let mut runs = Vec::new();
            for n in 0..1_000 {
                runs.push(held(&supervisor, &format!("chat-{heard}-{n}")).await);
            }
            sim.sleep(millis(10)).await;
            let before = sim.store.statements();
            if !heard {
                sim.store.break_listeners();
            }
            for n in 0..1_000 {
                let _ = asked(ask(&other, &format!("chat-{heard}-{n}"))).await;
            }
            for run in &runs {
                assert_eq!(timeout(seconds(1), run.cancelled()).await.expect("before a renewal"), by_ops());
            }
            let looks = sim.store.statements().inspections - before.inspections;
            assert!(heard || looks == 2, "{looks} looks at a thousand rows");
        }
    });
}

/// A connection that died in silence is noticed by the lack of an answer, and replaced.
#[test]
fn a_listener_that_hears_nothing_any_more_is_replaced() {
    simulate(async |sim| {
        let supervisor = sim.supervisor().ttl(40 * TTL).start_here().await.unwrap();
        let other = others(&sim).await;
        let run = held(&supervisor, "chat").await;
        sim.sleep(millis(10)).await;
        sim.store.set_fault(Fault::Swallowed);
        sim.sleep(seconds(16)).await;
        sim.store.set_fault(Fault::None);
        sim.sleep(seconds(11)).await;
        let _ = asked(ask(&other, "chat")).await;
        assert_eq!(timeout(AT_ONCE, run.cancelled()).await.unwrap(), by_ops());
    });
}

#[test]
fn the_first_request_is_kept() {
    simulate(async |sim| {
        let (supervisor, other) = (supervisor(&sim).await, others(&sim).await);
        let run = held(&supervisor, "chat").await;
        assert!(asked(ask(&other, "chat")).await.is_first());
        let second = asked(other.stop(&key("chat")).by("ann").reason("no tea")).await;
        assert!(!second.is_first());
        assert_eq!(second.holder().stop.as_ref().and_then(|stop| stop.by.as_deref()), Some("ops"));
        assert_eq!(run.cancelled().await, by_ops());
    });
}

/// Ann's is in the row. That Bob's reaches the run before anybody here has heard of hers does not make it the first.
#[test]
fn a_stop_within_a_process_is_not_the_first_while_the_database_cannot_say_so() {
    for ann_is_heard in [false, true] {
        simulate(async move |sim| {
            let supervisor = supervisor(&sim).await;
            let run = held(&supervisor, "chat").await;
            sim.store.set_hints_lost(!ann_is_heard);
            sim.store.request_stop(&key("chat"), "ann", "no tea");
            sim.sleep(millis(10)).await;
            sim.store.set_fault(Fault::Unreachable);
            let asked = asked(supervisor.stop(&key("chat")).by("bob")).await;
            assert!(!asked.is_first());
            let stands = asked.holder().stop.as_ref().and_then(|stop| stop.by.as_deref());
            let first = if ann_is_heard { "ann" } else { "bob" };
            assert_eq!(stands, Some(first));
            let EndReason::Stopped { by, .. } = run.cancelled().await else { panic!("it was asked") };
            assert_eq!(by.as_deref(), Some(first));
        });
    }
}

#[test]
fn a_session_that_nobody_holds_is_idle_and_so_is_a_run_that_does_not_hold_it() {
    simulate(async |sim| {
        let (supervisor, other) = (supervisor(&sim).await, others(&sim).await);
        let earlier = held(&supervisor, "chat").await;
        let late = other.stop(&key("chat")).run(earlier.run_id());
        assert!(earlier.release().await.released);
        assert!(matches!(ask(&other, "chat").await.unwrap(), StopAnswer::Idle));
        let next = held(&supervisor, "chat").await;
        assert!(matches!(late.await.unwrap(), StopAnswer::Idle));
        sim.sleep(2 * TTL).await;
        assert!(next.is_held(), "a late stop has hit the next run");
    });
}

/// From the same process, too, which knows the run that is named to be over.
#[test]
fn a_late_stop_within_a_process_never_touches_the_next_run() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let earlier = held(&supervisor, "chat").await;
        let late = supervisor.stop(&key("chat")).run(earlier.run_id());
        assert!(earlier.release().await.released);
        let next = held(&supervisor, "chat").await;
        assert!(matches!(late.await.unwrap(), StopAnswer::Idle));
        sim.sleep(2 * TTL).await;
        assert!(next.is_held());
    });
}

#[test]
fn a_locked_row_is_asked_again_under_the_name_of_the_run_that_was_meant() {
    simulate(async |sim| {
        let (supervisor, other) = (supervisor(&sim).await, others(&sim).await);
        let run = held(&supervisor, "chat").await;
        sim.store.set_locked(&key("chat"), true);
        let stopping = spawn_local(ask(&other, "chat").into_future());
        sim.sleep(millis(500)).await;
        sim.store.set_locked(&key("chat"), false);
        let next = sim.store.take_away(&key("chat"), TTL);
        assert!(matches!(stopping.await.unwrap().unwrap(), StopAnswer::Idle));
        assert_eq!(sim.store.row(&key("chat")).unwrap().run_id, next);
        assert_eq!(sim.store.row(&key("chat")).unwrap().stop, None);
        drop(run);
    });
}

#[test]
fn a_row_that_stays_locked_is_a_certain_no() {
    simulate(async |sim| {
        let (supervisor, other) = (supervisor(&sim).await, others(&sim).await);
        let _run = held(&supervisor, "chat").await;
        sim.store.set_locked(&key("chat"), true);
        match ask(&other, "chat").await {
            Err(StopError::Store(error)) => assert!(!error.is_uncertain() && error.is_transient(), "{error}"),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn texts_that_cannot_be_stored_are_refused_before_anybody_is_asked() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        for request in [
            ask(&supervisor, "chat").by(""),
            ask(&supervisor, "chat").by("x".repeat(256)),
            ask(&supervisor, "chat").reason("x".repeat(1_001)),
            ask(&supervisor, "chat").reason("a\0b"),
        ] {
            match request.await {
                Err(StopError::Invalid(InvalidText::Length { .. } | InvalidText::Nul { .. })) => {}
                other => panic!("{other:?}"),
            }
        }
        sim.sleep(TTL).await;
        assert!(run.is_held());
    });
}

/// The grant has happened and its reply was lost: the stop is faster than the second reply.
#[test]
fn a_run_that_is_asked_to_stop_in_its_first_instant_never_begins_its_work() {
    for hints in [true, false] {
        simulate(async |sim| {
            let supervisor = sim.supervisor().ttl(TTL).hints(hints).start_here().await.unwrap();
            let other = others(&sim).await;
            let _kept = held(&supervisor, "kept").await;
            sim.store.set_fault(Fault::RepliesLost);
            let acquiring = spawn_local(supervisor.acquire(&key("chat")).into_future());
            while sim.store.row(&key("chat")).is_none() {
                sim.sleep(Duration::from_micros(100)).await;
            }
            sim.store.set_fault(Fault::None);
            let _ = asked(ask(&other, "chat")).await;
            let run = acquiring.await.unwrap().unwrap();
            let begun = Rc::new(Cell::new(false));
            let begins = begun.clone();
            let ended = run.scope(async |_| begins.set(true)).await.unwrap_err();
            assert_eq!(ended.reason(), &by_ops());
            assert!(!begun.get(), "its work has begun");
            assert!(sim.store.row(&key("chat")).is_none());
        });
    }
}

/// The hint is faster than the reply to the acquire: whose run it is for is not known yet.
#[test]
fn a_hint_that_overtakes_the_grant_stops_the_work_before_it_begins() {
    simulate(async |sim| {
        let (supervisor, other) = (supervisor(&sim).await, others(&sim).await);
        let _kept = held(&supervisor, "kept").await;
        sim.sleep(millis(10)).await;
        sim.store.set_reply_delay(millis(50));
        let acquiring = spawn_local(supervisor.acquire(&key("chat")).into_future());
        while sim.store.row(&key("chat")).is_none() {
            sim.sleep(millis(1)).await;
        }
        let _ = asked(ask(&other, "chat")).await;
        let run = acquiring.await.unwrap().unwrap();
        let ended = run.scope(async |_| panic!("its work has begun")).await;
        assert_eq!(ended.unwrap_err().reason(), &by_ops());
    });
}

#[test]
fn stopped_returns_when_the_session_was_given_back_and_not_before() {
    simulate(async |sim| {
        let (supervisor, other) = (supervisor(&sim).await, others(&sim).await);
        let run = held(&supervisor, "chat").await;
        let asked = asked(ask(&other, "chat")).await;
        let stopped = spawn_local(asked.stopped());
        run.cancelled().await;
        sim.sleep(3 * TTL).await;
        assert!(!stopped.is_finished(), "its work goes on");
        assert!(run.release().await.released);
        timeout(millis(1_100), stopped).await.expect("within a look").unwrap().unwrap();
        timeout(millis(100), asked.stopped()).await.expect("it is so still").unwrap();
    });
}

#[test]
fn stopped_returns_when_the_lease_has_expired_by_the_databases_clock() {
    simulate(async |sim| {
        let (supervisor, other) = (supervisor(&sim).await, others(&sim).await);
        let run = held(&supervisor, "chat").await;
        let stopped = asked(ask(&other, "chat")).await.stopped();
        // Nobody renews from now on.
        sim.store.fail_renewals(u32::MAX);
        let stopped = spawn_local(stopped);
        while !stopped.is_finished() {
            sim.sleep(millis(5)).await;
        }
        assert!(sim.store.row(&key("chat")).is_none_or(|row| row.expires_in.is_zero()), "it is held still");
        stopped.await.unwrap().unwrap();
        drop(run);
    });
}

/// A look that was under way when the run was asked proves nothing.
#[test]
fn stopped_does_not_take_an_old_look_for_the_end() {
    simulate(async |sim| {
        let (supervisor, other) = (supervisor(&sim).await, others(&sim).await);
        let mut watching = other.watch(&key("chat"));
        assert!(!watching.next().await.unwrap().known().unwrap().is_held());
        let run = held(&supervisor, "chat").await;
        let stopped = spawn_local(asked(ask(&other, "chat")).await.stopped());
        sim.sleep(TTL).await;
        assert!(!stopped.is_finished());
        assert!(run.release().await.released);
        stopped.await.unwrap().unwrap();
    });
}

#[test]
fn a_stop_and_the_end_of_the_work_in_either_order_give_one_reason() {
    simulate(async |sim| {
        let (supervisor, other) = (supervisor(&sim).await, others(&sim).await);
        // The work ends first: nobody is left to be asked, though the row may still be there.
        let run = held(&supervisor, "chat").await;
        let mut events = supervisor.events();
        sim.store.set_delay(millis(100));
        let releasing = spawn_local(run.release());
        tokio::task::yield_now().await;
        let _ = ask(&other, "chat").await.unwrap();
        sim.store.set_delay(Duration::ZERO);
        assert_eq!(releasing.await.unwrap().reason, EndReason::Completed);
        sim.sleep(seconds(1)).await;
        assert_eq!(names(&mut events), ["ended"]);

        // The stop is first: the value of the work is kept, but not as a success.
        let run = held(&supervisor, "chat").await;
        let ended = run
            .scope(async |ctx| {
                let _ = asked(ask(&other, "chat")).await;
                ctx.cancelled().await;
                7
            })
            .await
            .unwrap_err();
        assert_eq!(ended.reason(), &by_ops());
        assert_eq!(ended.into_value(), Some(7));
    });
}

#[test]
fn the_request_to_stop_is_the_same_whichever_process_refuses() {
    simulate(async |sim| {
        let (desktop, browser) = (supervisor(&sim).await, supervisor(&sim).await);
        for (session, asking) in [("asked elsewhere", &browser), ("asked here", &desktop)] {
            let run = held(&desktop, session).await;
            // The database's clock is another one than that of either process.
            sim.store.step_clock_forward(millis(1));
            let _ = asking.stop(run.key()).by("ann").reason("wrong branch").await.unwrap();
            run.cancelled().await;
            let mut seen = Vec::new();
            for device in [&desktop, &browser] {
                match device.acquire(run.key()).await {
                    Err(AcquireError::Busy(busy)) => seen.push(busy.holder().stop.clone()),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(seen[0].as_ref().and_then(|stop| stop.by.as_deref()), Some("ann"), "{session}");
            assert_eq!(seen[0], seen[1], "{session}");
        }
    });
}
