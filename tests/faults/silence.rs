//! The database is there and says nothing, or is not reached at all.

use super::{
    support::{
        postgres::{Database, Server},
        postgres_backend::PostgresBackend,
        proxy::Proxy,
    },
    *,
};

const TTL: Duration = Duration::from_secs(3);

/// I3, I9: fifty runs, each on time, while their calls still hang.
#[tokio::test(flavor = "multi_thread")]
async fn i3_a_frozen_server_cancels_every_run_by_its_trusted_time() {
    let server = Server::start();
    let backend = PostgresBackend::start(&server, "").await;
    let url = backend.database().url();
    let (frozen_out, patient) = (supervisor(&url, TTL).await, supervisor(&url, 20 * TTL).await);
    let timing = frozen_out.timing();
    let kept = held(&patient, "kept").await;
    let watch = Watch::over(held_all(&frozen_out, 50).await);
    background::sleep(timing.renew_interval()).await;

    let frozen = server.freeze();
    let unanswered = frozen_out.acquire(&key("new")).await.unwrap_err();
    assert!(!unanswered.is_certain(), "{unanswered}");
    let (runs, ends) = watch.all_ended_on_time(timing).await;
    frozen.thaw();

    // What the thawed server still finds in its sockets must not prolong what was given up.
    had_time_to_stop(&patient, &runs, &ends, timing).await;
    let fences: Vec<_> = runs.iter().map(|run| run.fence()).collect();
    drop(runs);
    for (index, fence) in fences.into_iter().enumerate() {
        let again = held_at_last(&frozen_out, &format!("chat-{index}")).await;
        assert!(again.fence() > fence);
    }
    assert!(kept.is_held(), "its outage was short");
    seen_at_last(&patient, "new", is_idle).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i3_a_network_that_loses_everything_cancels_every_run_by_its_trusted_time() {
    gone_for_good(Proxy::swallow).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i3_a_network_that_is_cut_cancels_every_run_by_its_trusted_time() {
    gone_for_good(Proxy::cut).await;
}

/// The fault begins in the middle of a renewal.
async fn gone_for_good(fault: fn(&Proxy)) {
    let (backend, proxy) = behind_a_proxy().await;
    let supervisor = supervisor(&proxy.url_for(backend.database()), TTL).await;
    let timing = supervisor.timing();
    let watch = Watch::over(held_all(&supervisor, 50).await);
    proxy.next_request().await;
    fault(&proxy);
    let (runs, _) = watch.all_ended_on_time(timing).await;
    let fences: Vec<_> = runs.iter().map(|run| run.fence()).collect();
    drop(runs);

    proxy.pass();
    for (index, fence) in fences.into_iter().enumerate() {
        let again = held_at_last(&supervisor, &format!("chat-{index}")).await;
        assert!(again.fence() > fence);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_an_outage_shorter_than_the_tolerated_one_loses_nothing() {
    for fault in [Proxy::swallow, Proxy::cut, Proxy::swallow_replies] {
        let (backend, proxy) = behind_a_proxy().await;
        let supervisor = supervisor(&proxy.url_for(backend.database()), TTL).await;
        let runs = held_all(&supervisor, 20).await;
        proxy.next_request().await;
        fault(&proxy);
        // The rest is for the machine, which may be busy.
        background::sleep(supervisor.timing().tolerated_outage() / 2).await;
        proxy.pass();
        background::sleep(TTL).await;
        for run in &runs {
            assert!(run.is_held(), "{run:?}");
        }
        supervisor.shutdown(supervisor.timing().stop_grace()).await;
    }
}

/// The commit happened: whoever repeats it under the same run gets the same lease.
#[tokio::test(flavor = "multi_thread")]
async fn i7_an_acquire_whose_reply_was_lost_gets_the_same_fence_again() {
    let (backend, proxy) = behind_a_proxy().await;
    let observer = supervisor(&backend.database().url(), TTL).await;
    let supervisor = supervisor(&proxy.url_for(backend.database()), 2 * TTL).await;
    warm_up(&supervisor).await;

    proxy.swallow_replies();
    let lost = proxy.next_lost_reply();
    let acquiring = tokio::spawn(supervisor.acquire(&key("chat")).into_future());
    lost.await;
    let granted = seen_at_last(&observer, "chat", SessionStatus::is_held).await.holder.unwrap();
    proxy.pass();
    let run = acquiring.await.unwrap().unwrap();
    assert_eq!((run.run_id(), run.fence()), (granted.run_id, granted.fence));
    assert!(run.release().await.released);
    seen_at_last(&observer, "chat", is_idle).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i7_an_acquire_whose_reply_was_lost_and_whose_caller_has_gone_is_undone_within_a_second() {
    let (backend, proxy) = behind_a_proxy().await;
    let observer = supervisor(&backend.database().url(), TTL).await;
    // The default, whose attempts last longer than the second that is promised.
    let supervisor = supervisor(&proxy.url_for(backend.database()), Duration::from_secs(30)).await;
    warm_up(&supervisor).await;

    proxy.swallow_replies();
    let lost = proxy.next_lost_reply();
    let acquiring = tokio::spawn(supervisor.acquire(&key("chat")).into_future());
    lost.await;
    seen_at_last(&observer, "chat", SessionStatus::is_held).await;
    acquiring.abort();
    proxy.pass();
    undone_within_a_second(&observer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i7_an_acquire_that_timed_out_is_undone_within_a_second_of_the_databases_return() {
    let (backend, proxy) = behind_a_proxy().await;
    let observer = supervisor(&backend.database().url(), TTL).await;
    let supervisor = supervisor(&proxy.url_for(backend.database()), 4 * TTL).await;
    warm_up(&supervisor).await;

    proxy.swallow_replies();
    let unknown = supervisor.acquire(&key("chat")).await.unwrap_err();
    assert!(!unknown.is_certain(), "{unknown}");
    proxy.pass();
    undone_within_a_second(&observer).await;
}

/// Acquires under way when the shutdown begins: what they are granted is given back, not left to expire.
#[tokio::test(flavor = "multi_thread")]
async fn i7_what_is_granted_during_a_shutdown_is_given_back() {
    let (backend, proxy) = behind_a_proxy().await;
    let observer = supervisor(&backend.database().url(), TTL).await;
    let supervisor = supervisor(&proxy.url_for(backend.database()), 4 * TTL).await;
    warm_up(&supervisor).await;

    proxy.delay(Duration::from_millis(50));
    let under_way = proxy.next_request();
    let acquiring = tokio::spawn(supervisor.acquire(&key("chat")).into_future());
    under_way.await;
    supervisor.shutdown(supervisor.timing().stop_grace()).await;
    acquiring.await.unwrap().expect_err("the supervisor is shutting down");
    assert!(is_idle(&observer.inspect(&key("chat")).await.unwrap()), "left to expire");
}

/// Every lane has its connection, and none a statement under way that a fault to come could hold.
async fn warm_up(supervisor: &LeaseSupervisor) {
    assert!(held(supervisor, "warm").await.release().await.released);
}

async fn undone_within_a_second(observer: &LeaseSupervisor) {
    let healed_at = SystemClock.now();
    seen_at_last(observer, "chat", is_idle).await;
    let waited = SystemClock.now().saturating_since(healed_at);
    assert!(waited <= Duration::from_secs(1), "undone only {waited:?} after the database was back");
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_a_renewal_whose_reply_was_lost_changes_nothing() {
    let (backend, proxy) = behind_a_proxy().await;
    let observer = supervisor(&backend.database().url(), TTL).await;
    // Without a connection that listens, which has requests of its own.
    let builder = LeaseSupervisor::builder(proxy.url_for(backend.database())).ttl(TTL).hints(false);
    let supervisor = builder.start().await.unwrap();
    let run = held(&supervisor, "chat").await;
    let (mut events, mut lost) = (supervisor.events(), 0);
    let expiry = async || observer.inspect(&key("chat")).await.unwrap().holder.unwrap().expires_at;
    for _ in 0..20 {
        // The next request on its connection is the renewal, unless the machine is busy.
        background::sleep(supervisor.timing().renew_interval().mul_f64(0.85)).await;
        let before = expiry().await;
        proxy.swallow_replies();
        told(&mut events, |event| matches!(event, RunEvent::AtRisk { .. })).await;
        lost += u32::from(expiry().await > before);
        proxy.pass();
        told(&mut events, |event| matches!(event, RunEvent::Recovered { .. })).await;
        if lost == 3 {
            break;
        }
    }
    assert_eq!(lost, 3, "too few renewals were executed without an answer");
    background::sleep(TTL).await;
    assert!(run.is_held());
    let row = seen_at_last(&observer, "chat", SessionStatus::is_held).await.holder.unwrap();
    assert_eq!((row.run_id, row.fence), (run.run_id(), run.fence()));
}

async fn behind_a_proxy() -> (PostgresBackend, Proxy) {
    let backend = PostgresBackend::start(Server::shared(), "").await;
    let database: &Database = backend.database();
    let proxy = Proxy::start(database.server().address());
    (backend, proxy)
}
