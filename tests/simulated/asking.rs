//! What is asked of the database besides: it is answered from whatever connection answers, and one question does not
//! wait for another.

use std::pin::pin;

use futures::future::{Either, select};
use tenure::{StopAnswer, store::memory::Fault, testing::simulate};
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
