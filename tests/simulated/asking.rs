//! What is asked of the database besides: it is answered from whatever connection answers, and one question does not
//! wait for another.

use std::pin::pin;

use futures::future::{Either, select};
use tenure::{
    Label, NodeId, QueryError, RunId, RunPhase, StopAnswer,
    request::ListBuilder,
    store::{Acquire, LeaseConnection, memory::Fault},
    testing::{Simulation, simulate},
};
use tokio::{task::spawn_local, time::Instant};

use super::*;

#[test]
fn a_long_list_or_sweep_delays_neither_a_stop_nor_readiness() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        for _ in 0..3 {
            sim.store.set_delay(seconds(4));
            let (lister, sweeper) = (supervisor.clone(), supervisor.clone());
            let listing = spawn_local(async move { lister.list().await });
            let sweeping = spawn_local(async move { sweeper.sweep().await });
            sim.sleep(millis(1)).await;
            sim.store.set_delay(Duration::ZERO);
            let asked_at = Instant::now();
            assert!(supervisor.is_ready().await);
            supervisor.inspect(&key("chat")).await.unwrap();
            assert!(matches!(supervisor.stop(&key("chat")).await.unwrap(), StopAnswer::Asked(_)));
            assert!(asked_at.elapsed() <= millis(10) && !listing.is_finished() && !sweeping.is_finished());
            assert_eq!((listing.await.unwrap().unwrap().len(), sweeping.await.unwrap().unwrap()), (1, 0));
        }
        drop(run);
    });
}

async fn many(sim: &Simulation, sessions: usize) {
    let item = |n: usize| Acquire {
        key: key(&format!("{n:05}")),
        run_id: RunId::random(),
        node: NodeId::random(),
        label: Label::new("a test").unwrap(),
        phase: RunPhase::default(),
        ttl: TTL,
        limit_per_account: None,
    };
    let items: Vec<_> = (0..sessions).map(item).collect();
    sim.store.clone().acquire(&items).await.unwrap();
}

#[test]
fn a_stream_of_sessions_reads_a_page_only_when_the_one_before_is_used_up() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        many(&sim, 2_500).await;
        let mut sessions = supervisor.list().stream();
        let mut seen = Vec::new();
        for _ in 0..1_000 {
            seen.push(sessions.next().await.unwrap().unwrap().key);
        }
        // No page has been read ahead.
        sim.store.delete(&key("01000"));
        sim.store.set_delay(seconds(1));
        assert!(sessions.next().now_or_never().is_none(), "it asks now");
        sim.store.set_delay(Duration::ZERO);
        while let Some(status) = sessions.next().await {
            seen.push(status.unwrap().key);
        }
        let all: Vec<_> = (0..2_500).filter(|n| *n != 1_000).map(|n| key(&format!("{n:05}"))).collect();
        assert_eq!(seen, all, "in order, each once");
        assert!(sessions.next().await.is_none() && sessions.next().await.is_none());

        let after = key("00999");
        let keys = async |list: ListBuilder| list.stream().map(|status| status.unwrap().key).collect().await;
        let some: Vec<SessionKey> = keys(supervisor.list().after(&after).limit(1_200)).await;
        assert_eq!(some, all[1_000..2_200]);
        assert_eq!(supervisor.list().limit(1_200).await.unwrap().len(), 1_200);
        assert_eq!(supervisor.list().limit(0).await.unwrap(), []);
    });
}

#[test]
fn a_stream_of_sessions_ends_with_the_error_that_it_met() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        many(&sim, 1_001).await;
        let mut sessions = supervisor.list().stream();
        for _ in 0..1_000 {
            sessions.next().await.unwrap().unwrap();
        }
        sim.store.set_fault(Fault::Unreachable);
        assert!(matches!(sessions.next().await, Some(Err(QueryError::Store(_)))));
        sim.store.set_fault(Fault::None);
        assert!(sessions.next().await.is_none() && sessions.next().await.is_none());
        supervisor.shutdown(Duration::ZERO).await;
        let mut sessions = supervisor.list().stream();
        assert!(matches!(sessions.next().await, Some(Err(QueryError::Closed(_)))));
        assert!(sessions.next().await.is_none());
    });
}

async fn long_expired(sim: &Simulation, sessions: usize) {
    many(sim, sessions).await;
    for n in 0..sessions {
        sim.store.set_remaining_millis(&key(&format!("{n:05}")), -3_600_000);
    }
}

#[test]
fn a_supervisor_removes_what_expired_long_ago_by_itself() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        for _ in 0..2 {
            long_expired(&sim, 2_500).await;
            sim.sleep(seconds(5_410)).await;
            assert_eq!(sim.store.len(), 1, "within an hour and a half, and the time of three statements");
        }
        assert!(run.is_held());
    });
}

#[test]
fn sweeping_can_be_turned_off_and_supervisors_that_look_do_not_sweep() {
    simulate(async |sim| {
        let _off = sim.supervisor().sweeping(false).start_here().await.unwrap();
        let _looking = sim.supervisor().looking_only().start_here().await.unwrap();
        long_expired(&sim, 3).await;
        sim.sleep(seconds(4 * 3_600)).await;
        assert_eq!(sim.store.len(), 3);
    });
}

/// I10, I12: it is said once, and costs no run anything.
#[test]
fn a_sweep_that_fails_is_logged_once_and_disturbs_nothing() {
    simulate(async |sim| {
        let log = Log::default();
        let _listening = log.listen();
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        long_expired(&sim, 1).await;
        sim.store.set_sweeps_rejected(true);
        sim.sleep(seconds(4 * 3_600)).await;
        assert!(run.is_held() && supervisor.is_ready().await);
        assert_eq!(log.lines("could not remove").len(), 1);
        sim.store.set_sweeps_rejected(false);
        sim.sleep(seconds(2 * 3_600)).await;
        assert_eq!(sim.store.len(), 1);
    });
}

/// As behind a router that has forgotten the connection: nothing comes back, not even an error.
#[test]
fn a_question_on_a_connection_that_died_in_silence_is_asked_once_more_in_time() {
    simulate(async |sim| {
        let (supervisor, key) = (supervisor(&sim).await, key("chat"));
        sim.sleep(seconds(60)).await;
        sim.store.set_fault(Fault::Swallowed);
        {
            let mut inspecting = pin!(supervisor.inspect(&key));
            let sent = pin!(sim.sleep(seconds(1)));
            assert!(matches!(select(inspecting.as_mut(), sent).await, Either::Right(_)));
            sim.store.set_fault(Fault::None);
            inspecting.await.unwrap();
        }
        // And no more than once, within the same time.
        sim.sleep(seconds(60)).await;
        sim.store.set_fault(Fault::Swallowed);
        let asked_at = Instant::now();
        supervisor.inspect(&key).await.unwrap_err();
        assert!(asked_at.elapsed() <= seconds(5), "{:?}", asked_at.elapsed());
    });
}

#[test]
fn a_holder_without_a_label_is_the_user_at_the_host() {
    simulate(async |sim| {
        let supervisor = sim.supervisor().start_here().await.unwrap();
        let run = held(&supervisor, "chat").await;
        let holder = supervisor.inspect(run.key()).await.unwrap().holder.unwrap();
        assert_eq!(holder.label, tenure::Label::user_at_host());
        #[cfg(unix)]
        assert!(
            holder
                .label
                .as_str()
                .split_once('@')
                .is_some_and(|(user, host)| !user.is_empty() && !host.is_empty()),
            "{holder:?}"
        );
    });
}
