//! Watching a session: what is seen, how soon, and that it is never more than is known.

use tenure::{
    Label, NodeId, Observed, RunId, RunPhase, SessionState,
    clock::Clock as _,
    store::{Acquire, LeaseConnection as _, memory::Fault},
    testing::simulate,
};
use tokio::time::{Instant, timeout};

use super::*;

/// How soon a change of another process is seen, and then some for the renewal that shows it.
const SOON: Duration = millis(650);

async fn watcher(sim: &Simulation) -> LeaseSupervisor {
    sim.supervisor().holder_label("browser").ttl(TTL).start_here().await.unwrap()
}

async fn next(watching: &mut (impl Stream<Item = Observed> + Unpin), within: Duration) -> Observed {
    timeout(within, watching.next()).await.expect("a change was not seen in time").expect("it goes on")
}

async fn next_state(watching: &mut (impl Stream<Item = Observed> + Unpin), within: Duration) -> SessionState {
    next(watching, within).await.known().expect("it is known").state
}

/// A run of a process that dies at once.
async fn dead_holder(sim: &Simulation, session: &str, ttl: Duration) -> RunId {
    let item = Acquire {
        key: key(session),
        run_id: RunId::random(),
        node: NodeId::random(),
        label: Label::new("dead").unwrap(),
        phase: RunPhase::default(),
        ttl,
        limit_per_account: None,
    };
    let outcome = sim.store.clone().acquire(std::slice::from_ref(&item)).await.unwrap();
    assert!(matches!(outcome[0], tenure::store::AcquireOutcome::Granted(_)), "{outcome:?}");
    item.run_id
}

#[test]
fn every_change_of_a_session_is_seen_and_a_renewal_is_none() {
    simulate(async |sim| {
        let (supervisor, watcher) = (supervisor(&sim).await, watcher(&sim).await);
        let mut watching = watcher.watch(&key("chat"));
        assert_eq!(next_state(&mut watching, millis(5)).await, SessionState::Idle);
        sim.sleep(TTL).await;
        let run = held(&supervisor, "chat").await;
        let seen = next(&mut watching, millis(1_100)).await;
        let holder = seen.known().unwrap().holder.as_ref().unwrap();
        assert_eq!((holder.run_id, holder.label.as_str()), (run.run_id(), "desktop"));
        assert!(timeout(20 * TTL, watching.next()).await.is_err(), "nothing but renewals has happened");

        run.set_phase("thinking").unwrap();
        let seen = next(&mut watching, SOON).await;
        assert_eq!(seen.known().unwrap().holder.as_ref().unwrap().phase.as_str(), "thinking");

        sim.store.set_hints_lost(true);
        sim.store.request_stop(&key("chat"), "ops", "tea");
        let seen = next(&mut watching, SOON).await;
        let status = seen.known().unwrap();
        let stop = status.holder.as_ref().unwrap().stop.as_ref().unwrap();
        assert_eq!((status.state, stop.by.as_deref()), (SessionState::Stopping, Some("ops")));
        run.cancelled().await;
        assert_eq!(next_state(&mut watching, SOON).await, SessionState::Stopping, "its stage, too");
        assert_eq!(next_state(&mut watching, seconds(10)).await, SessionState::Stuck);

        assert!(run.release().await.released);
        assert_eq!(next_state(&mut watching, SOON).await, SessionState::Idle);
        let first = held(&supervisor, "chat").await;
        assert_eq!(next_state(&mut watching, SOON).await, SessionState::Running);
        assert!(first.release().await.released);
        let second = held(&supervisor, "chat").await;
        let seen = next(&mut watching, SOON).await;
        assert_eq!(seen.known().unwrap().holder.as_ref().unwrap().run_id, second.run_id());
    });
}

#[test]
fn a_run_of_the_same_process_is_seen_at_once() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let mut watching = supervisor.watch(&key("chat"));
        assert_eq!(next_state(&mut watching, millis(5)).await, SessionState::Idle);
        sim.sleep(TTL).await;
        let run = held(&supervisor, "chat").await;
        assert_eq!(next_state(&mut watching, millis(5)).await, SessionState::Running);
        sim.sleep(TTL).await;
        run.stop("enough");
        assert_eq!(next_state(&mut watching, millis(160)).await, SessionState::Stopping);
        sim.sleep(millis(200)).await;
        assert!(run.release().await.released);
        assert_eq!(next_state(&mut watching, millis(5)).await, SessionState::Idle);
    });
}

/// Whatever way it is lost, and whether anybody holds the session or not.
#[test]
fn a_lost_database_is_unknown_within_two_seconds_and_right_again_within_two() {
    for fault in [Fault::Unreachable, Fault::Swallowed, Fault::Frozen, Fault::RepliesLost] {
        for (holds, after) in [(true, 0), (true, 317), (false, 0), (false, 913)] {
            simulate(async |sim| {
                let (supervisor, watcher) = (supervisor(&sim).await, watcher(&sim).await);
                let run = if holds { Some(held(&supervisor, "chat").await) } else { None };
                let mut watching = watcher.watch(&key("chat"));
                let before = next(&mut watching, millis(5)).await;
                sim.sleep(seconds(20) + millis(after)).await;
                sim.store.set_fault(fault);
                let lost_at = sim.clock.reading().wall;
                let Observed::Unknown { last_known, since, .. } = next(&mut watching, seconds(2)).await
                else {
                    panic!("{fault:?}: it cannot be known");
                };
                let (last_known, before) = (last_known.unwrap(), before.known().unwrap().clone());
                assert_eq!((last_known.state, last_known.is_held()), (before.state, holds));
                let since = since.duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap();
                assert!(
                    since <= lost_at + millis(1) && since + seconds(2) > lost_at,
                    "{since:?} {lost_at:?}"
                );

                assert!(timeout(seconds(5), watching.next()).await.is_err(), "{fault:?}: said only once");
                sim.store.set_fault(Fault::None);
                assert_eq!(next_state(&mut watching, seconds(2)).await, before.state, "{fault:?}");
                drop(run);
            });
        }
    }
}

#[test]
fn a_database_that_is_away_from_the_start_is_unknown_and_nothing_was_known() {
    simulate(async |sim| {
        let watcher = watcher(&sim).await;
        sim.store.set_fault(Fault::Swallowed);
        let mut watching = watcher.watch(&key("chat"));
        let seen = next(&mut watching, seconds(2)).await;
        assert!(matches!(seen, Observed::Unknown { last_known: None, .. }), "{seen:?}");
        sim.store.set_fault(Fault::None);
        assert_eq!(next_state(&mut watching, seconds(2)).await, SessionState::Idle);
    });
}

/// A moment without an answer is not worth a word.
#[test]
fn a_short_silence_of_the_database_is_not_told() {
    simulate(async |sim| {
        let (supervisor, watcher) = (supervisor(&sim).await, watcher(&sim).await);
        let _run = held(&supervisor, "chat").await;
        let mut watching = watcher.watch(&key("chat"));
        next(&mut watching, millis(5)).await;
        for fault in [Fault::Unreachable, Fault::RepliesLost] {
            sim.sleep(seconds(3)).await;
            sim.store.set_fault(fault);
            sim.sleep(millis(900)).await;
            sim.store.set_fault(Fault::None);
        }
        assert!(timeout(seconds(5), watching.next()).await.is_err());
    });
}

/// To within the milliseconds that it takes to look.
#[test]
fn a_lease_that_nobody_renews_is_seen_to_expire_and_never_beyond_its_expiry() {
    simulate(async |sim| {
        let watcher = watcher(&sim).await;
        for ttl in [1_000, 1_499, 2_000, 3_141] {
            dead_holder(&sim, "chat", millis(ttl)).await;
            let expires = Instant::now() + millis(ttl);
            let mut watching = watcher.watch(&key("chat"));
            let mut state = next_state(&mut watching, millis(5)).await;
            if state == SessionState::Expired {
                state = next_state(&mut watching, SOON).await;
            }
            assert_eq!(state, SessionState::Running);
            assert_eq!(next_state(&mut watching, seconds(5)).await, SessionState::Expired, "{ttl} ms");
            let late = Instant::now().saturating_duration_since(expires);
            assert!(Instant::now() >= expires && late <= millis(5), "{ttl} ms: {late:?} late");
        }
    });
}

/// A lease so short that it would end before anybody could know that the database is gone.
#[test]
fn a_holder_is_never_shown_beyond_the_expiry_that_is_known_of_it() {
    simulate(async |sim| {
        let watcher = watcher(&sim).await;
        for wait in [0, 111, 499] {
            dead_holder(&sim, &format!("chat-{wait}"), millis(1_300)).await;
            let expires = Instant::now() + millis(1_300);
            let mut watching = watcher.watch(&key(&format!("chat-{wait}")));
            assert_eq!(next_state(&mut watching, millis(5)).await, SessionState::Running);
            sim.sleep(millis(wait)).await;
            sim.store.set_fault(Fault::Swallowed);
            let seen = next(&mut watching, seconds(2)).await;
            assert!(matches!(seen, Observed::Unknown { .. }), "{seen:?}");
            assert!(Instant::now() <= expires + millis(5));
            sim.store.set_fault(Fault::None);
            assert_eq!(next_state(&mut watching, seconds(3)).await, SessionState::Expired);
        }
    });
}

#[test]
fn a_suspended_machine_shows_no_holder_whose_lease_may_be_over() {
    simulate(async |sim| {
        let watcher = watcher(&sim).await;
        dead_holder(&sim, "chat", TTL).await;
        let mut watching = watcher.watch(&key("chat"));
        next(&mut watching, millis(5)).await;
        sim.clock.suspend(2 * TTL);
        let seen = next(&mut watching, seconds(1)).await;
        assert!(seen.known().is_none_or(|status| !status.is_held()), "{seen:?}");
    });
}

#[test]
fn all_watched_sessions_share_a_statement_and_whoever_stops_watching_costs_nothing() {
    simulate(async |sim| {
        let watcher = watcher(&sim).await;
        let mut watching: Vec<_> = (0..400).map(|n| watcher.watch(&key(&format!("chat-{n}")))).collect();
        let more = watcher.watch(&key("chat-0"));
        sim.sleep(millis(10)).await;
        assert_eq!(sim.store.statements().inspections, 1, "for all that have just come");
        sim.sleep(seconds(10)).await;
        for one in &mut watching {
            assert_eq!(next_state(one, millis(1)).await, SessionState::Idle);
        }
        let looks = async |over| {
            let before = sim.store.statements().inspections;
            sim.sleep(over).await;
            sim.store.statements().inspections - before
        };
        let idle = looks(seconds(10)).await;
        assert!((9..=11).contains(&idle), "{idle} for all when nobody runs");
        let _run = held(&supervisor(&sim).await, "chat-7").await;
        sim.sleep(seconds(2)).await;
        let busy = looks(seconds(10)).await;
        assert!((19..=21).contains(&busy), "{busy} for all while one runs");
        watching.clear();
        assert!(looks(seconds(10)).await >= 9, "one is watched still");
        drop(more);
        sim.sleep(seconds(2)).await;
        assert_eq!(looks(seconds(10)).await, 0);
    });
}

/// Also when all have something new at once: what comes while a statement is under way goes out in the next.
#[test]
fn ten_thousand_watchers_take_few_statements_and_see_every_run() {
    const SESSIONS: usize = 10_000;
    const RUNS: usize = 1_000;
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        sim.store.set_delay(millis(5));
        let name = |n: usize| format!("chat-{n}");
        let mut watching: Vec<_> = (0..SESSIONS).map(|n| supervisor.watch(&key(&name(n)))).collect();
        let looks = async |over| {
            let before = sim.store.statements().inspections;
            sim.sleep(over).await;
            sim.store.statements().inspections - before
        };
        let first = looks(millis(450)).await;
        assert!((20..=24).contains(&first), "{first} statements for 20 times the most that one takes");
        for one in &mut watching {
            assert_eq!(next_state(one, millis(1)).await, SessionState::Idle);
        }
        sim.sleep(seconds(2)).await;

        let names: Vec<_> = (0..RUNS).map(name).collect();
        let before = sim.store.statements().inspections;
        let runs = futures::future::join_all(names.iter().map(|name| held(&supervisor, name))).await;
        sim.sleep(millis(400)).await;
        let looks = sim.store.statements().inspections - before;
        assert!(looks < 60, "{looks} statements for {RUNS} runs that have begun, and for a look at all");
        for (n, run) in runs.iter().enumerate() {
            let seen = next(&mut watching[n], millis(1)).await;
            assert_eq!(seen.known().unwrap().holder.as_ref().unwrap().run_id, run.run_id());
        }
        sim.sleep(TTL / 3).await;
        assert!(runs.iter().all(|run| run.is_held()));
    });
}

/// A database that answers is not lost, however long it takes until it is a session's turn.
#[test]
fn a_slow_database_is_not_taken_for_a_lost_one_however_many_watch() {
    simulate(async |sim| {
        let (supervisor, watcher) = (supervisor(&sim).await, watcher(&sim).await);
        sim.store.set_delay(millis(300));
        let name = |n: usize| format!("chat-{n}");
        let mut watching: Vec<_> = (0..10_000).map(|n| watcher.watch(&key(&name(n)))).collect();
        for one in &mut watching {
            assert_eq!(next_state(one, seconds(8)).await, SessionState::Idle);
        }
        let run = held(&supervisor, "chat-7777").await;
        assert_eq!(next_state(&mut watching[7777], seconds(15)).await, SessionState::Running);
        sim.sleep(2 * TTL).await;
        let other = watching.iter_mut().find_map(|one| one.next().now_or_never());
        assert!(other.is_none(), "{other:?}");
        assert!(run.is_held());
    });
}

/// It takes longer to connect than a look may take elsewhere, and as long to look.
#[test]
fn a_line_that_is_slow_to_connect_is_watched_all_the_same() {
    for delay in [millis(900), millis(1_300), millis(2_000)] {
        simulate(async |sim| {
            let (supervisor, watcher) = (supervisor(&sim).await, watcher(&sim).await);
            let _run = held(&supervisor, "chat").await;
            sim.store.set_delay(delay);
            let mut watching = watcher.watch(&key("chat"));
            let seen = next(&mut watching, seconds(2)).await;
            let is_late = matches!(seen, Observed::Unknown { last_known: None, .. });
            assert_eq!(is_late, 2 * delay > seconds(2), "{delay:?}: {seen:?}");
            // What is two seconds old when it arrives is nothing to show.
            if is_late && delay < seconds(2) {
                assert_eq!(next_state(&mut watching, 2 * delay).await, SessionState::Running);
            }
            let answer = watcher.stop(&key("chat")).await.unwrap();
            let tenure::StopAnswer::Asked(asked) = answer else { panic!("{answer:?}") };
            let mut stopped = Box::pin(asked.stopped());
            assert!(timeout(seconds(1), &mut stopped).await.is_err());
            sim.store.delete(&key("chat"));
            timeout(2 * delay + seconds(1), stopped).await.expect("it is gone").unwrap();
        });
    }
}

#[test]
fn a_slow_watcher_gets_the_latest_and_no_queue() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let mut watching = supervisor.watch(&key("chat"));
        assert_eq!(next_state(&mut watching, millis(5)).await, SessionState::Idle);
        for _ in 0..20 {
            let run = held(&supervisor, "chat").await;
            sim.sleep(seconds(1)).await;
            assert!(run.release().await.released);
            sim.sleep(seconds(1)).await;
        }
        let run = held(&supervisor, "chat").await;
        sim.sleep(seconds(1)).await;
        let seen = next(&mut watching, millis(1)).await;
        assert_eq!(seen.known().unwrap().holder.as_ref().unwrap().run_id, run.run_id());
        assert!(watching.next().now_or_never().is_none());
    });
}

/// Looking acquires nothing and issues no fence.
#[test]
fn watching_writes_nothing() {
    simulate(async |sim| {
        let watcher = watcher(&sim).await;
        let mut watching = watcher.watch(&key("chat"));
        next(&mut watching, millis(5)).await;
        sim.sleep(TTL).await;
        assert!(sim.store.is_empty());
        let before = sim.store.statements();
        assert_eq!((before.acquires, before.renewals, before.releases), (0, 0, 0));
    });
}
