//! The runs of this process, found by their sessions.

use tenure::{EndReason, RunContext, ScopeHandle, testing::simulate};

use super::*;

async fn sessions(supervisor: &LeaseSupervisor) -> Vec<String> {
    supervisor.runs().await.iter().map(|run| run.key().session().to_owned()).collect()
}

#[test]
fn a_client_that_comes_back_finds_its_work_by_session_and_gets_its_value() {
    simulate(async |sim| {
        let (supervisor, other) = (supervisor(&sim).await, supervisor(&sim).await);
        let run = held(&supervisor, "chat").await;
        let run_id = run.run_id();
        drop(run.spawn_scope(|ctx| async move {
            tokio::time::sleep(3 * TTL).await;
            ctx.fence().to_string()
        }));
        sim.sleep(TTL).await;
        let acquires = sim.store.statements().acquires;
        let found = supervisor.local(&key("chat")).await.unwrap();
        assert_eq!((found.run_id(), found.is_held()), (run_id, true));
        assert!(other.local(&key("chat")).await.is_none() && supervisor.local(&key("other")).await.is_none());
        assert_eq!(sim.store.statements().acquires, acquires, "no database was asked");
        assert!(found.scope_handle::<u64>().is_none(), "it is of another type");
        let (one, another): (ScopeHandle<String>, ScopeHandle<String>) =
            (found.scope_handle().unwrap(), found.scope_handle().unwrap());
        let (attached, joined) = futures::join!(one.attach(), async {
            another.attach().await.unwrap();
            another.join().await
        });
        assert_eq!(attached.unwrap(), found.fence().to_string());
        assert_eq!(joined.unwrap(), found.fence().to_string());
        drop(one);
        assert!(found.scope_handle::<String>().is_none(), "its value has gone with its last handle");
        sim.sleep(seconds(1)).await;
        assert!(supervisor.local(&key("chat")).await.is_none());
    });
}

#[test]
fn whoever_finds_a_run_can_stop_it() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let found: RunContext = supervisor.local(&key("chat")).await.unwrap();
        assert!(found.scope_handle::<()>().is_none(), "it is not in a task of its own");
        found.stop("tea");
        assert_eq!(run.cancelled().await, EndReason::stopped(None, Some("tea".into())));
        assert!(supervisor.local(&key("chat")).await.is_some(), "until its session was given back");
        assert!(run.release().await.released);
        sim.sleep(seconds(1)).await;
        assert!(supervisor.local(&key("chat")).await.is_none());
    });
}

#[test]
fn the_runs_of_this_process_are_those_that_have_not_given_back_their_sessions() {
    simulate(async |sim| {
        let (supervisor, other) = (supervisor(&sim).await, supervisor(&sim).await);
        assert!(supervisor.runs().await.is_empty());
        let runs = [held(&supervisor, "c").await, held(&supervisor, "a").await, held(&supervisor, "b").await];
        let _elsewhere = held(&other, "d").await;
        assert_eq!(sessions(&supervisor).await, ["a", "b", "c"]);
        let [c, _a, _b] = runs;
        // Lost, but not yet ended.
        sim.store.take_away(&key("c"), TTL);
        assert_eq!(c.cancelled().await, EndReason::Superseded);
        assert_eq!(sessions(&supervisor).await, ["a", "b", "c"]);
        drop(c);
        sim.sleep(seconds(1)).await;
        assert_eq!(sessions(&supervisor).await, ["a", "b"]);
        supervisor.shutdown(seconds(1)).await;
        assert!(supervisor.runs().await.is_empty() && supervisor.local(&key("a")).await.is_none());
    });
}
