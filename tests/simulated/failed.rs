//! Work that fails by its own account: its run does not end as completed.

use std::io;

use tenure::{EndReason, RunContext, ScopeError, testing::simulate};
use tokio::{task::spawn_local, time::Instant};

use super::*;

fn failed(reason: &str) -> EndReason {
    EndReason::failed(reason.to_owned())
}

fn no_model() -> io::Error {
    io::Error::other("no such model")
}

#[test]
fn an_error_that_the_work_returns_is_why_its_run_ended() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let mut events = supervisor.events();
        let run = held(&supervisor, "chat").await;
        let context = run.context();
        let returned = run.try_scope(async |_| Err::<(), _>(no_model())).await.unwrap();
        assert_eq!(returned.unwrap_err().to_string(), "no such model");
        assert_eq!(context.cancelled().await, failed("no such model"));
        assert!(sim.store.is_empty());
        sim.sleep(seconds(1)).await;
        assert_eq!(first_end(&mut events), failed("no such model"));

        let run = held(&supervisor, "chat").await;
        let context = run.context();
        assert_eq!(run.try_scope(async |_| Ok::<_, io::Error>(7)).await.unwrap().unwrap(), 7);
        assert_eq!(context.cancelled().await, EndReason::Completed);
    });
}

/// I6: what the work has started is told to end, and only then the session is free.
#[test]
fn i6_an_error_tells_sub_tasks_to_end_and_the_session_is_kept_until_they_have() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let (context, store, began) = (run.context(), sim.store.clone(), Instant::now());
        let sub_task = context.spawn_local({
            let context = context.clone();
            async move {
                let reason = context.cancelled().await;
                tokio::time::sleep(seconds(2)).await;
                (reason, context.is_held(), store.is_empty())
            }
        });
        let returned = run.try_scope(async |_| Err::<(), _>(no_model())).await;
        assert!(returned.unwrap().is_err());
        assert_eq!(sub_task.await, Ok((failed("no such model"), false, false)));
        assert!(began.elapsed() >= seconds(2) && began.elapsed() < seconds(3), "{:?}", began.elapsed());
        assert!(sim.store.is_empty());
    });
}

#[test]
fn i3_an_error_of_work_that_was_told_to_stop_changes_no_reason() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let context = run.context();
        let scope = spawn_local(run.try_scope(async |ctx| {
            ctx.cancelled().await;
            Err::<(), _>("cut short")
        }));
        sim.sleep(seconds(1)).await;
        context.stop("tea");
        let error = scope.await.unwrap().unwrap_err();
        assert_eq!(error.reason(), &EndReason::stopped(None, Some("tea".into())));
        assert_eq!(error.value(), Some(&Err("cut short")));
        context.fail("too late");
        assert_eq!(context.cancelled().await, *error.reason());
    });
}

#[test]
fn i3_an_error_after_the_end_of_trust_is_no_failure_of_the_work() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        // A scope that blocks its thread: nobody has noticed yet that the time is up.
        let clock = sim.clock.clone();
        let error = run
            .try_scope(async |_| {
                clock.suspend(TTL);
                Err::<(), _>("late")
            })
            .await
            .unwrap_err();
        assert_eq!(error.reason(), &EndReason::Unconfirmed);
    });
}

#[test]
fn work_that_says_it_has_failed_is_told_to_end_and_the_first_failure_stays() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let mut events = supervisor.events();
        let run = held(&supervisor, "chat").await;
        let error = run
            .scope(async |ctx| {
                ctx.fail(no_model());
                assert!(!ctx.is_held() && ctx.token().is_cancelled());
                ctx.fail("another");
                ctx.stop("tea");
                7
            })
            .await
            .unwrap_err();
        assert_eq!((error.reason(), error.ended().released), (&failed("no such model"), true));
        assert_eq!(error.to_string(), "the run ended before its work did: failed: no such model");
        assert_eq!(error.into_value(), Some(7));
        sim.sleep(seconds(1)).await;
        assert_eq!(first_end(&mut events), failed("no such model"));
    });
}

#[test]
fn work_gets_its_error_back_in_whatever_words_it_has_said_that_it_failed() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        for said in ["no such model", "in other words"] {
            let run = held(&supervisor, "chat").await;
            let failing = run.try_scope(async |ctx| {
                ctx.fail(said);
                Err::<(), _>(no_model())
            });
            assert_eq!(failing.await.unwrap().unwrap_err().to_string(), "no such model", "{said}");
        }
    });
}

#[test]
fn work_that_ignores_its_own_failure_is_dropped_after_the_grace() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let mut events = supervisor.events();
        let run = held(&supervisor, "chat").await;
        let began = Instant::now();
        let error: ScopeError<()> = run
            .scope(async |ctx| {
                ctx.fail("no such model");
                std::future::pending().await
            })
            .await
            .unwrap_err();
        assert!(began.elapsed() >= seconds(5) && began.elapsed() < millis(5_100), "{:?}", began.elapsed());
        assert_eq!((error.reason(), error.value()), (&failed("no such model"), None));
        sim.sleep(seconds(1)).await;
        assert_eq!(names(&mut events), ["acquired", "stopping", "ended"]);
    });
}

#[test]
fn a_guard_can_say_that_its_work_has_failed_before_it_gives_the_session_back() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        run.fail("no such model");
        let ended = run.release().await;
        assert_eq!((ended.reason, ended.released), (failed("no such model"), true));
        assert!(sim.store.is_empty());
    });
}

#[test]
fn those_who_attach_to_work_that_failed_get_its_error() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let handle = run.spawn_try_scope(async |_: RunContext| Err::<(), _>("no such model"));
        assert_eq!(handle.attach().await.unwrap(), Err("no such model"));
        assert_eq!(handle.context().cancelled().await, failed("no such model"));
    });
}

#[test]
fn a_failure_is_told_in_a_short_text_in_which_nothing_is_hidden() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        for (said, kept) in [
            ("line 1\nline 2\0\n".to_owned(), "line 1\\nline 2\\u{0}".to_owned()),
            ("x".repeat(1_001), "x".repeat(997) + "…"),
            (String::new(), String::new()),
        ] {
            let run = held(&supervisor, "chat").await;
            run.fail(&said);
            assert_eq!(run.release().await.reason, failed(&kept));
        }
        assert_eq!(failed("").to_string(), "failed");
    });
}
