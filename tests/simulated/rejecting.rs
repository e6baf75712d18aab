//! The database rejects the statements of some sessions, as by a trigger that raises an error for them: no other one
//! notices.

use futures::future::join_all;
use tenure::{AcquireError, EndReason, testing::simulate};

use super::*;

const NEIGHBOURS: usize = 500;

/// With their sessions, and a database that takes long enough for batches to gather.
async fn crowd(sim: &Simulation, supervisor: &LeaseSupervisor) -> Vec<Run> {
    let names: Vec<_> = (0..NEIGHBOURS).map(|n| format!("chat-{n}")).collect();
    let runs = join_all(names.iter().map(|name| held(supervisor, name))).await;
    sim.store.set_delay(millis(100));
    runs
}

fn at_risk(events: &mut (impl Stream<Item = RunEvent> + Unpin)) -> Vec<String> {
    let mut sessions = Vec::new();
    while let Some(Some(event)) = events.next().now_or_never() {
        if let RunEvent::AtRisk { run, .. } = event {
            sessions.push(run.key.session().to_owned());
        }
    }
    sessions
}

#[test]
fn i10_a_run_whose_renewals_are_rejected_is_at_risk_alone_and_heals() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let bad = held(&supervisor, "bad").await;
        let neighbours = crowd(&sim, &supervisor).await;
        let mut events = supervisor.events();
        sim.sleep(bad.trusted_for() - seconds(17)).await;
        sim.store.set_rejected(&key("bad"), true);
        sim.sleep(seconds(2)).await;
        while at_risk(&mut events).is_empty() {
            sim.sleep(millis(100)).await;
        }
        let found = sim.store.statements().rejected_items;
        sim.sleep(seconds(10)).await;
        // Its own attempts, twice a second at most, and nobody with it.
        let rejected = sim.store.statements().rejected_items - found;
        assert!((5..=20).contains(&rejected), "{rejected}");
        sim.store.set_rejected(&key("bad"), false);
        sim.sleep(2 * TTL).await;
        assert_eq!(at_risk(&mut events), [] as [&str; 0]);
        assert!(bad.is_held() && neighbours.iter().all(|run| run.is_held()));
    });
}

#[test]
fn i10_several_runs_whose_renewals_are_rejected_are_lost_alone() {
    for (bad, takes) in [(5, millis(50)), (40, millis(20))] {
        simulate(async move |sim| {
            let supervisor = supervisor(&sim).await;
            let runs = crowd(&sim, &supervisor).await;
            sim.sleep(TTL).await;
            sim.store.set_delay(takes);
            let mut events = supervisor.events();
            let (bad, neighbours) = runs.split_at(bad);
            bad.iter().for_each(|run| sim.store.set_rejected(run.key(), true));
            sim.sleep(TTL).await;
            for run in bad {
                assert_eq!(run.cancelled().await, EndReason::Unconfirmed);
            }
            let noticed = at_risk(&mut events);
            for run in neighbours {
                let name = run.key().session();
                assert!(run.is_held() && !noticed.iter().any(|noticed| noticed == name), "{run:?}");
            }
        });
    }
}

#[test]
fn i10_a_session_that_may_not_be_acquired_is_asked_for_apart_from_others() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        sim.store.set_delay(millis(100));
        sim.store.set_rejected(&key("bad"), true);
        let (mut rejected, names) = (Vec::new(), ["a", "b", "c", "d"]);
        for _ in 0..4 {
            let before = sim.store.statements().rejected_items;
            // While its statement is under way the others gather, and the bad one with them.
            let first = held(&supervisor, "first");
            let others = join_all(names.map(|name| held(&supervisor, name)));
            let bad = supervisor.acquire(&key("bad")).into_future();
            let (first, bad, others) = futures::join!(first, bad, others);
            match bad {
                Err(AcquireError::Refused(error)) => assert!(error.to_string().contains("bad"), "{error}"),
                other => panic!("{other:?}"),
            }
            join_all(others.into_iter().chain([first]).map(Run::release)).await;
            rejected.push(sim.store.statements().rejected_items - before);
        }
        // It is found once, and then rejected by itself.
        assert!(rejected[0] > 1 && rejected[1..] == [1, 1, 1], "{rejected:?}");
    });
}

#[test]
fn i10_a_release_that_is_rejected_is_in_nobodys_way_and_ends_with_its_trust() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let bad = held(&supervisor, "bad").await;
        let neighbours = crowd(&sim, &supervisor).await;
        sim.store.set_rejected(&key("bad"), true);
        let began = tokio::time::Instant::now();
        let (others, bad) = futures::join!(join_all(neighbours.into_iter().map(Run::release)), bad.release());
        assert!(others.iter().all(|ended| ended.released));
        assert!(!bad.released && began.elapsed() <= TTL);
        assert!(sim.store.len() == 1);
    });
}
