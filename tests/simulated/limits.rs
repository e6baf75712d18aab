//! Limits of a run: clocks of their own, which no renewal restarts.

use tenure::{AcquireError, EndReason, Limit, testing::simulate};
use tokio::time::Instant;

use super::*;

fn silent(limit: Duration) -> EndReason {
    EndReason::timed_out(Limit::MaxSilence(limit))
}

#[test]
fn a_request_may_give_its_run_a_grace_of_its_own() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        for (grace, expected) in
            [(Some(seconds(40)), seconds(40)), (Some(seconds(0)), seconds(0)), (None, seconds(5))]
        {
            let request = supervisor.acquire(&key("chat"));
            let run = match grace {
                Some(grace) => request.stop_grace(grace).await.unwrap(),
                None => request.await.unwrap(),
            };
            let began = Instant::now();
            let scope = run.scope(async |ctx| {
                ctx.stop("tea");
                std::future::pending::<()>().await
            });
            assert!(matches!(scope.await.unwrap_err().reason(), EndReason::Stopped { .. }));
            let took = began.elapsed();
            assert!(took >= expected && took < expected + millis(100), "{took:?} for {grace:?}");
        }
        let acquires = sim.store.statements().acquires;
        let error = supervisor.acquire(&key("chat")).stop_grace(Duration::MAX).await.unwrap_err();
        assert!(matches!(error, AcquireError::Config(_)), "{error:?}");
        assert!(error.to_string().contains("stop_grace"), "{error}");
        assert_eq!((error.is_certain(), error.is_transient(), error.retry_after()), (true, false, None));
        assert_eq!(sim.store.statements().acquires, acquires, "nothing was asked");
    });
}

#[test]
fn a_limited_run_is_told_to_stop_in_time_even_if_the_machine_sleeps() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = supervisor.acquire(&key("chat")).max_duration(seconds(100)).await.unwrap();
        sim.sleep(seconds(90)).await;
        assert!(run.is_held());
        sim.clock.suspend(seconds(12));
        sim.sleep(millis(1_100)).await;
        let limit = Limit::MaxDuration(seconds(100));
        assert_eq!(run.cancelled().await, EndReason::timed_out(limit));
        assert!(run.release().await.released);
    });
}

#[test]
fn a_run_whose_work_is_silent_is_told_to_stop_although_it_is_renewed() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = supervisor.acquire(&key("chat")).max_silence(seconds(100)).await.unwrap();
        let renewals = sim.store.statements().renewals;
        sim.sleep(seconds(99)).await;
        assert!(run.is_held() && sim.store.statements().renewals > renewals);
        sim.sleep(seconds(2)).await;
        assert_eq!(run.cancelled().await, silent(seconds(100)));
    });
}

#[test]
fn beats_keep_a_run_for_as_long_as_they_come() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = supervisor.acquire(&key("chat")).max_silence(seconds(10)).await.unwrap();
        let silent_for = run
            .scope(async |ctx| {
                for _ in 0..100 {
                    sim.sleep(seconds(9)).await;
                    assert!(ctx.is_held());
                    ctx.beat();
                }
                let silent_since = tokio::time::Instant::now();
                assert_eq!(ctx.cancelled().await, silent(seconds(10)));
                silent_since.elapsed()
            })
            .await
            .unwrap_err();
        assert_eq!(silent_for.reason(), &silent(seconds(10)));
        let silent_for = silent_for.into_value().unwrap();
        assert!(silent_for >= seconds(10) && silent_for < millis(10_100), "{silent_for:?}");
    });
}

#[test]
fn the_end_names_the_limit_that_was_reached_first() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let limited = supervisor.acquire(&key("chat")).max_silence(seconds(50)).max_duration(seconds(60));
        let run = limited.await.unwrap();
        sim.sleep(seconds(40)).await;
        run.beat();
        let limit = Limit::MaxDuration(seconds(60));
        assert_eq!(run.cancelled().await, EndReason::timed_out(limit));
    });
}
