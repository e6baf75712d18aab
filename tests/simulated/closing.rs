//! How a supervisor ends: drained, shut down, or dropped.

use tenure::{AcquireError, EndReason, EndedRun, store::memory::Fault, testing::simulate};
use tokio::{task::spawn_local, time::Instant};

use super::*;

#[test]
fn shutdown_refuses_new_runs_tells_the_old_ones_and_leaves_nothing_behind() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let mut work = Vec::new();
        for n in 0..100 {
            let run = held(&supervisor, &format!("chat-{n}")).await;
            work.push(spawn_local(run.scope(async move |ctx| {
                let reason = ctx.cancelled().await;
                tokio::time::sleep(millis(n * 10)).await;
                reason
            })));
        }
        let handle = supervisor.clone();
        let shutdown = spawn_local(async move { handle.shutdown(handle.timing().stop_grace()).await });
        sim.sleep(millis(1)).await;
        let refused = supervisor.acquire(&key("late")).await.unwrap_err();
        assert!(matches!(refused, AcquireError::Draining), "{refused:?}");
        let report = shutdown.await.unwrap();
        assert!(report.left.is_empty() && !report.failed);
        assert_eq!(report.ended.len(), 100);
        for EndedRun { ended, .. } in &report.ended {
            assert_eq!((&ended.reason, ended.released), (&EndReason::Shutdown, true));
        }
        assert!(sim.store.is_empty());
        for work in work {
            assert_eq!(work.await.unwrap().unwrap_err().into_value(), Some(EndReason::Shutdown));
        }
        let closed = supervisor.acquire(&key("later")).await.unwrap_err();
        assert!(matches!(closed, AcquireError::Closed(_)), "{closed:?}");
        let restarted = sim.supervisor().start_here().await.unwrap();
        drop(held(&restarted, "chat-0").await);
    });
}

#[test]
fn shutdown_does_not_wait_for_ever_for_work_that_does_not_end() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let report = supervisor.shutdown(supervisor.timing().stop_grace()).await;
        assert_eq!(report.left, [key("chat")]);
        assert!(!run.is_held());
        assert_eq!(run.cancelled().await, EndReason::Shutdown);
        assert!(!sim.store.is_empty(), "its lease is left to expire, since it may still act");
    });
}

#[test]
fn a_second_shutdown_answers_as_the_first_and_events_end_with_the_supervisor() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let mut events = supervisor.events();
        let run = held(&supervisor, "chat").await;
        let first = supervisor.shutdown(supervisor.timing().stop_grace()).await;
        assert_eq!(first.left, [key("chat")]);
        assert_eq!(supervisor.shutdown(supervisor.timing().stop_grace()).await, first);
        drop(run);
        let told = async { while events.next().await.is_some() {} };
        tokio::time::timeout(seconds(1), told).await.expect("although a handle is still there");
        assert!(supervisor.events().next().await.is_none());
    });
}

#[test]
fn a_grant_that_comes_during_a_shutdown_is_given_back_and_not_called_certain() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        sim.store.set_delay(millis(50));
        let request = spawn_local(supervisor.acquire(&key("chat")).into_future());
        sim.sleep(millis(60)).await;
        assert!(supervisor.shutdown(supervisor.timing().stop_grace()).await.left.is_empty());
        assert!(!request.await.unwrap().unwrap_err().is_certain());
        assert!(sim.store.is_empty(), "the next process need not wait for a ttl");
    });
}

#[test]
fn dropping_the_last_handle_ends_every_run() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        drop(supervisor);
        assert_eq!(run.cancelled().await, EndReason::Shutdown);
        drop(run);
        sim.sleep(seconds(1)).await;
        assert!(sim.store.is_empty());
    });
}

#[test]
fn a_drain_refuses_new_runs_and_lets_the_old_ones_finish() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        assert!(supervisor.is_ready().await && !supervisor.is_draining());
        let run = held(&supervisor, "chat").await;
        let work = spawn_local(run.scope(async |ctx| {
            tokio::time::sleep(3 * TTL).await;
            ctx.is_held()
        }));
        let (handle, began) = (supervisor.clone(), Instant::now());
        let drained = spawn_local(async move { handle.drain().await });
        sim.sleep(millis(1)).await;
        assert!(supervisor.is_draining() && !supervisor.is_ready().await);
        for session in ["chat", "another"] {
            match supervisor.acquire(&key(session)).await {
                Err(error @ AcquireError::Draining) => assert!(error.is_certain()),
                other => panic!("{other:?}"),
            }
        }
        sim.sleep(TTL).await;
        assert!(!drained.is_finished());
        drained.await.unwrap();
        assert!(began.elapsed() >= 3 * TTL && sim.store.is_empty());
        assert!(work.await.unwrap().unwrap(), "nobody told it to end");
        supervisor.drain().await;
        assert!(supervisor.shutdown(Duration::ZERO).await.ended.is_empty());
    });
}

#[test]
fn a_request_that_was_on_its_way_when_the_drain_began_is_answered() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        sim.store.set_delay(millis(50));
        let first = spawn_local(supervisor.acquire(&key("chat")).into_future());
        sim.sleep(millis(10)).await;
        let handle = supervisor.clone();
        let drained = spawn_local(async move { handle.drain().await });
        let run = first.await.unwrap().unwrap();
        assert!(run.is_held() && !drained.is_finished());
        assert!(run.release().await.released);
        drained.await.unwrap();
    });
}

#[test]
fn shutdown_after_a_drain_tells_the_runs_and_a_user_is_never_taken_for_it() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let (stopped, told) = (held(&supervisor, "stopped").await, held(&supervisor, "told").await);
        stopped.stop("tea");
        stopped.cancelled().await;
        let handle = supervisor.clone();
        let drained = spawn_local(async move { handle.drain().await });
        sim.sleep(seconds(1)).await;
        assert!(told.is_held());
        let handle = supervisor.clone();
        let shutdown = spawn_local(async move { handle.shutdown(seconds(60)).await });
        assert_eq!(told.cancelled().await, EndReason::Shutdown);
        assert!(matches!(stopped.release().await.reason, EndReason::Stopped { .. }));
        sim.sleep(seconds(30)).await;
        drop(told);
        let report = shutdown.await.unwrap();
        drained.await.unwrap();
        let ended: Vec<_> = report
            .ended
            .iter()
            .map(|EndedRun { run, ended, .. }| (run.key.session(), &ended.reason))
            .collect();
        let tea = EndReason::stopped(None, Some("tea".into()));
        assert_eq!(ended, [("stopped", &tea), ("told", &EndReason::Shutdown)]);
        assert!(report.left.is_empty());
    });
}

#[test]
fn work_has_the_grace_that_the_shutdown_was_given_and_a_second_one_can_only_shorten_it() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        for (graces, until) in [(&[20][..], 20), (&[20, 2], 3), (&[2, 20], 2)] {
            let supervisor = match until {
                20 => supervisor.clone(),
                _ => super::supervisor(&sim).await,
            };
            let run = held(&supervisor, "chat").await;
            let scope = spawn_local(run.scope(async |_| std::future::pending::<()>().await));
            sim.sleep(millis(1)).await;
            let began = Instant::now();
            for grace in graces {
                let handle = supervisor.clone();
                let grace = seconds(*grace);
                spawn_local(async move { handle.shutdown(grace).await });
                sim.sleep(seconds(1)).await;
            }
            let error = scope.await.unwrap().unwrap_err();
            assert_eq!(error.reason(), &EndReason::Shutdown);
            let took = began.elapsed();
            assert!(took >= seconds(until) && took < seconds(until) + millis(100), "{graces:?}: {took:?}");
            sim.sleep(seconds(1)).await;
            assert!(sim.store.is_empty());
        }
    });
}

#[test]
fn a_shutdown_tells_of_ends_that_the_database_has_not_confirmed() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let mut work = Vec::new();
        for n in 0..5 {
            let run = held(&supervisor, &format!("chat-{n}")).await;
            work.push(spawn_local(run.scope(async |_| std::future::pending::<()>().await)));
        }
        let kept = held(&supervisor, "kept").await;
        sim.sleep(millis(1)).await;
        sim.store.set_fault(Fault::Frozen);
        let report = supervisor.shutdown(millis(500)).await;
        assert_eq!((report.ended.len(), report.left.len()), (5, 6), "{report:?}");
        for EndedRun { ended, .. } in &report.ended {
            assert_eq!((&ended.reason, ended.released), (&EndReason::Shutdown, false));
        }
        drop(kept);
    });
}

#[test]
fn a_shutdown_after_one_that_nobody_awaited_to_its_end_tells_the_same() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let _ = tokio::time::timeout(millis(1), supervisor.shutdown(seconds(5))).await.unwrap_err();
        assert!(run.release().await.released);
        sim.sleep(TTL).await;
        for _ in 0..2 {
            let report = supervisor.shutdown(Duration::ZERO).await;
            assert_eq!((report.failed, report.ended.len(), report.left.len()), (false, 1, 0), "{report:?}");
        }
    });
}

/// What an acquire may have taken is no run: it is given back while the drained supervisor goes on.
#[test]
fn a_drain_does_not_wait_for_what_an_acquire_without_an_answer_may_have_taken() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        assert!(held(&supervisor, "chat").await.release().await.released);
        sim.store.set_fault(Fault::Frozen);
        let unanswered = supervisor.acquire(&key("chat")).await.unwrap_err();
        assert!(!unanswered.is_certain(), "{unanswered}");
        let began = Instant::now();
        supervisor.drain().await;
        assert!(began.elapsed() <= seconds(1), "{:?}", began.elapsed());
        sim.store.set_fault(Fault::None);
        sim.sleep(seconds(5)).await;
        assert!(sim.store.is_empty(), "the row that came late was given back");
        assert_eq!(supervisor.shutdown(Duration::ZERO).await.left, []);
    });
}

#[test]
fn a_supervisor_is_not_ready_while_its_database_is_away() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        for fault in [Fault::Unreachable, Fault::Frozen] {
            sim.store.set_fault(fault);
            let asked = Instant::now();
            assert!(!supervisor.is_ready().await);
            assert!(asked.elapsed() <= seconds(5));
            sim.store.set_fault(Fault::None);
            assert!(supervisor.is_ready().await);
        }
        supervisor.shutdown(Duration::ZERO).await;
        assert!(!supervisor.is_ready().await);
    });
}
