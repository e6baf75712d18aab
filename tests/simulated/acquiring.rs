//! Who gets a session, who does not, and what becomes of requests that nobody waits for.

use futures::{FutureExt, future::join_all};
use tenure::{
    AcquireError, EndReason, LeaseSupervisorBuilder, RunStage, SessionState, StoreError,
    store::memory::Fault, testing::simulate,
};

use super::*;

#[test]
fn one_device_runs_and_the_other_is_told_who_holds_it() {
    simulate(async |sim| {
        let desktop = supervisor(&sim).await;
        let browser = sim.supervisor().holder_label("browser").ttl(TTL).start_here().await.unwrap();
        let run = held(&desktop, "chat").await;
        match browser.acquire(&key("chat")).await {
            Err(AcquireError::Busy(busy)) => {
                assert_eq!(busy.holder().run_id, run.run_id());
                assert_eq!(busy.holder().label.as_str(), "desktop");
                assert!(busy.to_string().contains("desktop"), "{busy}");
                assert!(busy.retry_after() <= seconds(5));
            }
            other => panic!("{other:?}"),
        }
        held(&browser, "another chat").await.release().await;
    });
}

#[test]
fn i1_a_session_of_this_process_is_refused_from_memory_without_a_statement() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let before = sim.store.statements();
        for _ in 0..10 {
            match supervisor.acquire(&key("chat")).await {
                Err(AcquireError::Busy(busy)) => assert_eq!(busy.holder().run_id, run.run_id()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(sim.store.statements(), before);
    });
}

#[test]
fn i1_memory_never_grants_what_the_database_has_given_to_another() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        held(&supervisor, "chat").await.release().await;
        let other = sim.store.take_away(&key("chat"), TTL);
        match supervisor.acquire(&key("chat")).await {
            Err(AcquireError::Busy(busy)) => assert_eq!(busy.holder().run_id, other),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_session_lost_by_this_process_stays_refused_until_its_own_work_has_ended() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        sim.store.delete(&key("chat"));
        assert_eq!(run.cancelled().await, EndReason::Superseded);
        match supervisor.acquire(&key("chat")).await {
            Err(AcquireError::Busy(busy)) => assert_eq!(busy.holder().stage, RunStage::Stopping),
            other => panic!("the work may still act: {other:?}"),
        }
        drop(run);
        drop(held(&supervisor, "chat").await);
    });
}

#[test]
fn many_requests_at_once_for_one_session_make_one_run() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let chat = key("chat");
        let requests = (0..20).map(|_| supervisor.acquire(&chat).into_future());
        let answers = join_all(requests).await;
        let (granted, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        let run = match &granted[..] {
            [Ok(run)] => run,
            other => panic!("{} grants", other.len()),
        };
        for refusal in refused {
            match refusal {
                Err(AcquireError::Busy(busy)) => assert_eq!(busy.holder().run_id, run.run_id()),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn requests_that_gather_behind_a_slow_statement_go_out_together() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        sim.store.set_delay(millis(200));
        let keys: Vec<_> = (0..100).map(|n| key(&format!("chat-{n}"))).collect();
        let runs = join_all(keys.iter().map(|key| supervisor.acquire(key).into_future())).await;
        assert!(runs.iter().all(Result::is_ok));
        assert!(sim.store.statements().acquires <= 2, "{:?}", sim.store.statements());
    });
}

/// I7: at every point where a caller can give up, the session is free again soon.
#[test]
fn i7_an_acquire_dropped_at_any_point_leaves_the_session_free() {
    for polls in 0..12 {
        simulate(async move |sim| {
            let supervisor = supervisor(&sim).await;
            sim.store.set_delay(millis(5));
            let mut request = supervisor.acquire(&key("chat")).into_future();
            for _ in 0..polls {
                if let Some(run) = (&mut request).now_or_never() {
                    drop(run.unwrap());
                    return;
                }
                sim.sleep(millis(1)).await;
            }
            drop(request);
            sim.sleep(millis(900)).await;
            assert!(sim.store.is_empty(), "after {polls} polls: {:?}", sim.store.row(&key("chat")));
            let renewals = sim.store.statements().renewals;
            sim.sleep(seconds(60)).await;
            assert_eq!(sim.store.statements().renewals, renewals, "renewed for nobody");
            drop(held(&supervisor, "chat").await);
        });
    }
}

#[test]
fn i7_an_acquire_whose_reply_was_lost_is_repeated_as_the_same_run() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        // The connection is there before the fault, so that it is a reply that gets lost.
        held(&supervisor, "another chat").await.release().await;
        sim.store.set_fault(Fault::RepliesLost);
        let request = tokio::task::spawn_local(supervisor.acquire(&key("chat")).into_future());
        sim.sleep(millis(50)).await;
        let first = sim.store.row(&key("chat")).expect("it was committed");
        sim.store.set_fault(Fault::None);
        let run = request.await.unwrap().unwrap();
        assert_eq!((run.run_id(), run.fence()), (first.run_id, first.fence));
        assert_eq!(sim.store.row(&key("chat")).unwrap().since, first.since);
    });
}

#[test]
fn i7_an_acquire_of_unknown_outcome_is_undone_within_a_second_of_the_databases_return() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        held(&supervisor, "another chat").await.release().await;
        sim.store.set_fault(Fault::RepliesLost);
        match supervisor.acquire(&key("chat")).await {
            Err(error @ AcquireError::Unavailable(_)) => assert!(!error.is_certain()),
            other => panic!("{other:?}"),
        }
        sim.store.set_fault(Fault::None);
        sim.sleep(seconds(1)).await;
        assert!(sim.store.is_empty());
    });
}

#[test]
fn i7_a_compensation_that_overtakes_its_acquire_is_repeated() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        held(&supervisor, "another chat").await.release().await;
        sim.store.set_fault(Fault::Frozen);
        let error = supervisor.acquire(&key("chat")).await.unwrap_err();
        assert!(matches!(error, AcquireError::Unavailable(_)), "{error:?}");
        // The server thaws: the acquire of a caller that has given up happens now.
        sim.store.set_fault(Fault::None);
        sim.sleep(seconds(2)).await;
        assert!(sim.store.is_empty(), "an orphan is left: {:?}", sim.store.row(&key("chat")));
    });
}

/// I1, I2: a grant that took longer than it is trusted for is given back.
#[test]
fn i1_a_grant_later_than_its_own_trust_is_never_handed_out() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        sim.store.set_delay(millis(100));
        let request = tokio::task::spawn_local(supervisor.acquire(&key("chat")).into_future());
        // While the statement is under way, the machine sleeps for longer than the lease is trusted.
        sim.sleep(millis(150)).await;
        sim.clock.suspend(TTL - MARGIN);
        let error = request.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("trusted time had passed"), "{error}");
        sim.sleep(seconds(1)).await;
        assert!(sim.store.is_empty());
    });
}

#[test]
fn requests_for_one_session_share_the_time_of_the_first_when_the_database_is_silent() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        drop(held(&supervisor, "another chat").await);
        sim.store.set_fault(Fault::Frozen);
        let asked = tokio::time::Instant::now();
        let chat = key("chat");
        let answers = join_all((0..10).map(|_| supervisor.acquire(&chat).into_future())).await;
        assert!(
            answers.iter().all(|answer| matches!(answer, Err(AcquireError::Unavailable(_)))),
            "{answers:?}"
        );
        assert!(
            asked.elapsed() <= supervisor.timing().acquire_timeout() + millis(10),
            "{:?}",
            asked.elapsed()
        );
    });
}

/// A browser that reloads asks again before the server has noticed that the first request is gone.
#[test]
fn a_request_behind_one_that_was_abandoned_gets_the_session() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        sim.store.set_delay(millis(50));
        for abandon_after in (0..120).step_by(10) {
            let chat = key(&format!("chat-{abandon_after}"));
            let first = tokio::task::spawn_local(supervisor.acquire(&chat).into_future());
            sim.sleep(millis(1)).await;
            let second = tokio::task::spawn_local(supervisor.acquire(&chat).into_future());
            sim.sleep(millis(abandon_after)).await;
            first.abort();
            match second.await.unwrap() {
                Ok(run) => drop(run),
                Err(error) => assert!(abandon_after >= 40, "after {abandon_after} ms: {error}"),
            }
        }
    });
}

#[test]
fn each_refusal_says_what_may_be_concluded_from_it() {
    simulate(async |sim| {
        let (first, second) = (supervisor(&sim).await, supervisor(&sim).await);
        let run = held(&first, "busy").await;
        sim.store.set_locked(&key("locked"), true);
        sim.store.set_rejected(&key("rejected"), true);
        let refused = async |session: &str| second.acquire(&key(session)).await.unwrap_err();
        let concluded =
            |error: &AcquireError| (error.is_certain(), error.is_transient(), error.retry_after());
        let nameless = |error: &AcquireError| error.busy().is_none();

        let error = refused("busy").await;
        assert!(matches!(error, AcquireError::Busy(_)), "{error:?}");
        assert_eq!(concluded(&error), (true, true, Some(seconds(5))));
        assert_eq!(error.busy().unwrap().holder().run_id, run.run_id());

        let error = refused("locked").await;
        assert!(matches!(error, AcquireError::NotAcquired(_)) && nameless(&error), "{error:?}");
        assert_eq!(concluded(&error), (true, true, Some(seconds(1))));

        let error = refused("rejected").await;
        assert!(matches!(error, AcquireError::Refused(_)) && nameless(&error), "{error:?}");
        assert_eq!(concluded(&error), (true, false, None));

        let error = second.acquire(&key("chat")).phase("nul\0").await.unwrap_err();
        assert!(matches!(error, AcquireError::Invalid(_)) && nameless(&error), "{error:?}");
        assert_eq!(concluded(&error), (true, false, None));

        sim.store.set_fault(Fault::RepliesLost);
        let error = refused("chat").await;
        assert!(matches!(error, AcquireError::Unavailable(_)) && nameless(&error), "{error:?}");
        assert_eq!(concluded(&error), (false, true, Some(seconds(1))));
        sim.store.set_fault(Fault::None);

        second.drain().await;
        let error = refused("chat").await;
        assert!(matches!(error, AcquireError::Draining) && nameless(&error), "{error:?}");
        assert_eq!(concluded(&error), (true, false, None));

        second.shutdown(seconds(1)).await;
        let error = refused("chat").await;
        assert!(matches!(error, AcquireError::Closed(_)) && nameless(&error), "{error:?}");
        assert_eq!(concluded(&error), (false, false, None));
    });
}

#[test]
fn an_unreachable_database_is_a_certain_no_that_leaves_nothing_to_undo() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        sim.store.set_fault(Fault::Unreachable);
        // Until its connections have been missed, an acquire may go out over one of them.
        sim.sleep(supervisor.timing().renew_interval()).await;
        let error = supervisor.acquire(&key("chat")).await.unwrap_err();
        assert!(matches!(error, AcquireError::NotAcquired(_)) && error.is_certain(), "{error:?}");
        sim.store.set_fault(Fault::None);
        sim.sleep(TTL).await;
        assert_eq!(sim.store.statements().releases, 0, "nothing had been sent");
    });
}

#[test]
fn what_may_have_been_acquired_is_asked_for_rarely_once_the_database_answers() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        drop(held(&supervisor, "another chat").await);
        sim.store.set_fault(Fault::Swallowed);
        supervisor.acquire(&key("chat")).await.unwrap_err();
        sim.store.set_fault(Fault::None);
        sim.sleep(2 * TTL).await;
        let releases = sim.store.statements().releases;
        assert!((4..30).contains(&releases), "{releases}");
    });
}

#[test]
fn a_locked_row_is_a_certain_no_when_the_time_is_up() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        sim.store.set_locked(&key("chat"), true);
        let error = supervisor.acquire(&key("chat")).await.unwrap_err();
        assert!(matches!(error, AcquireError::NotAcquired(_)), "{error:?}");
        assert!(error.to_string().contains("locked"), "{error}");
    });
}

#[test]
fn looks_that_gather_behind_a_silent_database_fail_together() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        sim.store.set_fault(Fault::Frozen);
        let asked = tokio::time::Instant::now();
        let lists = join_all((0..8).map(|_| supervisor.list().into_future())).await;
        assert!(lists.iter().all(Result::is_err));
        assert!(asked.elapsed() <= seconds(10), "{:?}", asked.elapsed());
        sim.store.set_fault(Fault::None);
        assert!(supervisor.list().await.is_ok());
    });
}

#[test]
fn a_locked_row_is_waited_for_alone_while_other_sessions_go_on() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        sim.store.set_locked(&key("locked"), true);
        let request = tokio::task::spawn_local(supervisor.acquire(&key("locked")).into_future());
        for n in 0..50 {
            held(&supervisor, &format!("chat-{n}")).await.release().await;
        }
        sim.store.set_locked(&key("locked"), false);
        assert!(request.await.unwrap().is_ok());
    });
}

#[test]
fn a_session_that_was_just_dropped_can_be_acquired_at_once() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        sim.store.set_delay(millis(20));
        for _ in 0..20 {
            drop(held(&supervisor, "chat").await);
        }
    });
}

#[test]
fn i8_fences_rise_from_run_to_run_whatever_the_clocks_do() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let mut last = 0;
        for round in 0..50 {
            let run = held(&supervisor, "chat").await;
            assert!(run.fence().as_i64() > last, "round {round}");
            last = run.fence().as_i64();
            if round % 2 == 0 {
                sim.store.step_clock_back(seconds(60));
            }
            run.release().await;
        }
    });
}

#[test]
fn looking_acquires_nothing_and_issues_no_fence() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        assert_eq!(supervisor.inspect(&key("chat")).await.unwrap().state, SessionState::Idle);
        assert!(supervisor.list().await.unwrap().is_empty());
        assert!(sim.store.is_empty());
        assert_eq!(sim.store.statements().acquires, 0);

        let run = held(&supervisor, "chat").await;
        let status = supervisor.inspect(&key("chat")).await.unwrap();
        assert_eq!(status.state, SessionState::Running);
        assert_eq!(status.holder.unwrap().run_id, run.run_id());
        assert_eq!(supervisor.list().account("acct-1").await.unwrap().len(), 1);
        assert!(supervisor.list().account("acct-2").await.unwrap().is_empty());
    });
}

#[test]
fn a_label_or_phase_that_cannot_be_stored_is_refused_before_anything_is_asked() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let too_long = "x".repeat(256);
        for request in [
            supervisor.acquire(&key("chat")).holder_label(""),
            supervisor.acquire(&key("chat")).holder_label(too_long.as_str()),
            supervisor.acquire(&key("chat")).phase("nul\0"),
        ] {
            let error = request.await.unwrap_err();
            assert!(matches!(error, AcquireError::Invalid(_)) && error.is_certain(), "{error:?}");
        }
        assert_eq!(sim.store.statements().acquires, 0);
        let run = supervisor.acquire(&key("chat")).holder_label("quo'te").phase("thinking").await.unwrap();
        let row = sim.store.row(&key("chat")).unwrap();
        assert_eq!((row.label.as_str(), row.phase.as_str()), ("quo'te", "thinking"));
        drop(run);
    });
}

#[test]
fn a_database_that_is_not_there_is_named_at_start() {
    simulate(async |sim| {
        sim.store.set_fault(Fault::Swallowed);
        let start = |builder: LeaseSupervisorBuilder| builder.start_here();
        let error = start(sim.supervisor()).await.unwrap_err();
        assert!(error.to_string().contains("no answer within 5s"), "{error}");
        sim.store.set_fault(Fault::Unreachable);
        let error = start(sim.supervisor()).await.unwrap_err();
        assert!(error.to_string().contains("connection refused"), "{error}");
    });
}

#[test]
fn an_unknown_scheme_is_refused_with_the_ones_there_are_and_without_the_password() {
    let unknown = tenure::store::open("mysql://user:secret@host/db").unwrap_err();
    assert!(matches!(unknown, StoreError::Url { .. }));
    assert!(!unknown.is_transient() && !unknown.to_string().contains("secret"), "{unknown}");
}

#[test]
fn an_acquire_right_after_a_drop_names_what_keeps_the_release() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "unreachable").await;
        sim.store.set_fault(Fault::Unreachable);
        drop(run);
        let error = supervisor.acquire(&key("unreachable")).await.unwrap_err().to_string();
        assert!(
            error.contains("the release of the run before") && error.contains("connection refused"),
            "{error}"
        );
        sim.store.set_fault(Fault::None);

        let run = held(&supervisor, "locked").await;
        sim.store.set_locked(run.key(), true);
        drop(run);
        let error = supervisor.acquire(&key("locked")).await.unwrap_err().to_string();
        assert!(error.contains("the release of the run before") && error.contains("locked by"), "{error}");
    });
}
