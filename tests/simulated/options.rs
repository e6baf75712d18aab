//! Options of one request, and of all requests of a supervisor.

use tenure::{AcquireError, ConfigError, EndReason, Limit, store::memory::Fault, testing::simulate};

use super::*;

/// The account's runs, or the limit that refused one more.
async fn refused(request: tenure::request::AcquireBuilder) -> (u32, u32) {
    let error = request.await.unwrap_err();
    assert!(error.is_certain() && error.is_transient() && error.busy().is_none(), "{error:?}");
    assert_eq!(error.retry_after(), Some(seconds(1)));
    match error {
        AcquireError::AccountLimit { account, limit, running, .. } => {
            assert_eq!(account, "acct-1");
            (limit, running)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_account_has_no_more_runs_than_its_limit_in_all_processes_together() {
    simulate(async |sim| {
        let limited = || sim.supervisor().ttl(TTL).limit_per_account(2).start_here();
        let (one, other) = (limited().await.unwrap(), limited().await.unwrap());
        let first = held(&one, "a").await;
        let _second = held(&other, "b").await;
        assert_eq!(refused(one.acquire(&key("c"))).await, (2, 2));
        assert_eq!(refused(other.acquire(&key("c"))).await, (2, 2));
        let elsewhere = SessionKey::new("acct-2", "a").unwrap();
        let _elsewhere = one.acquire(&elsewhere).await.unwrap();

        let third = one.acquire(&key("c")).limit_per_account(3).await.unwrap();
        assert_eq!(refused(one.acquire(&key("d")).limit_per_account(1)).await, (1, 3));
        let error = other.acquire(&key("a")).await.unwrap_err();
        assert!(matches!(error, AcquireError::Busy(_)), "whoever holds the session is named: {error:?}");

        first.release().await;
        third.release().await;
        held(&one, "d").await.release().await;
    });
}

#[test]
fn of_many_that_ask_at_once_no_more_than_the_limit_get_a_run() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let keys: Vec<_> = (0..10).map(|n| key(&n.to_string())).collect();
        let asked = keys.iter().map(|key| supervisor.acquire(key).limit_per_account(3).into_future());
        let runs: Vec<_> = futures::future::join_all(asked).await.into_iter().flatten().collect();
        assert_eq!((runs.len(), sim.store.len()), (3, 3));
    });
}

#[test]
fn a_run_with_a_longer_ttl_is_trusted_renewed_and_lost_on_its_own_budget() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let ordinary = held(&supervisor, "ordinary").await;
        let long = supervisor.acquire(&key("long")).ttl(10 * TTL).await.unwrap();
        assert!(long.trusted_for() > 8 * TTL - seconds(1), "{:?}", long.trusted_for());
        assert_eq!(sim.store.row(&key("long")).unwrap().expires_in, 10 * TTL);

        sim.sleep(seconds(3600)).await;
        assert!(long.is_held() && ordinary.is_held());
        let expires_in = sim.store.row(&key("long")).unwrap().expires_in;
        assert!(expires_in >= 10 * TTL - seconds(22), "renewed every 20 s or so: {expires_in:?}");
        let busy = supervisor.acquire(&key("long")).await.unwrap_err();
        let known = busy.busy().unwrap().holder().expires_in;
        assert!(known.abs_diff(expires_in) < seconds(1), "{known:?}, in the row {expires_in:?}");

        sim.store.set_fault(Fault::Unreachable);
        assert_eq!(ordinary.cancelled().await, EndReason::Unconfirmed);
        sim.sleep(seconds(190)).await;
        assert!(long.is_held(), "as long an outage as its own ttl tolerates");
        assert_eq!(long.cancelled().await, EndReason::Unconfirmed);
        let left = sim.store.row(&key("long")).unwrap().expires_in;
        assert!(left >= 10 * MARGIN - seconds(1) && left <= 10 * MARGIN, "{left:?} before it expires");
    });
}

#[test]
fn a_run_with_a_longer_ttl_hears_a_request_to_stop_with_its_own_renewal() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = supervisor.acquire(&key("chat")).ttl(100 * TTL).await.unwrap();
        sim.store.set_hints_lost(true);
        sim.store.request_stop(&key("chat"), "ann", "tea");
        let asked = tokio::time::Instant::now();
        assert!(matches!(run.cancelled().await, EndReason::Stopped { .. }));
        assert!(asked.elapsed() <= seconds(22), "{:?}", asked.elapsed());
    });
}

/// I7: the row of an acquire of unknown outcome lasts for the ttl that was asked for.
#[test]
fn an_acquire_of_unknown_outcome_is_undone_for_as_long_as_its_own_lease_lasts() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        sim.store.set_fault(Fault::RepliesLost);
        let error = supervisor.acquire(&key("chat")).ttl(10 * TTL).await.unwrap_err();
        assert!(!error.is_certain() && sim.store.len() == 1, "{error:?}");
        sim.store.set_fault(Fault::Unreachable);
        sim.sleep(5 * TTL).await;
        assert_eq!(sim.store.len(), 1);
        sim.store.set_fault(Fault::None);
        sim.sleep(seconds(1)).await;
        assert!(sim.store.is_empty());
    });
}

#[test]
fn a_shorter_ttl_than_the_supervisors_is_refused_by_name_and_remedy() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let error = supervisor.acquire(&key("chat")).ttl(TTL - seconds(1)).await.unwrap_err();
        assert!(matches!(error, AcquireError::Config(ConfigError::ShorterTtl { .. })), "{error:?}");
        let text = error.to_string();
        assert!(
            ["29s", "30s", "give the supervisor the shortest ttl"].iter().all(|part| text.contains(part))
        );
        let error = supervisor.acquire(&key("chat")).ttl(seconds(90_000)).await.unwrap_err();
        assert!(matches!(error, AcquireError::Config(ConfigError::OutOfBounds { setting: "ttl", .. })));
        assert_eq!(sim.store.statements().acquires, 0);
        assert!(supervisor.acquire(&key("chat")).ttl(TTL).await.is_ok());
    });
}

#[test]
fn a_request_overrides_the_limits_of_its_supervisor() {
    simulate(async |sim| {
        let builder = sim.supervisor().ttl(TTL).max_duration(seconds(100)).max_silence(seconds(60));
        let supervisor = builder.start_here().await.unwrap();
        let (long, silent) = (Limit::MaxDuration(seconds(100)), Limit::MaxSilence(seconds(60)));
        let run = held(&supervisor, "both").await;
        assert_eq!(run.cancelled().await, EndReason::timed_out(silent));
        let run = supervisor.acquire(&key("loud")).max_silence(seconds(500)).await.unwrap();
        assert_eq!(run.cancelled().await, EndReason::timed_out(long));
        let run = supervisor.acquire(&key("long")).max_duration(seconds(500)).await.unwrap();
        sim.sleep(seconds(59)).await;
        run.beat();
        sim.sleep(seconds(50)).await;
        assert!(run.is_held(), "after 109 s");
        assert_eq!(run.cancelled().await, EndReason::timed_out(silent));
    });
}
