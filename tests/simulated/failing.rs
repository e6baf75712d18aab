//! The library's own actors dying: what must hold even then.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures::future::join_all;
use tenure::{
    AcquireError, EndReason,
    clock::{BootInstant, Clock, Reading},
    testing::{SimClock, simulate},
};

use super::*;

/// A clock by which a test makes the next actor that looks at it panic.
#[derive(Debug, Clone)]
struct Trap {
    clock: SimClock,
    now: Arc<AtomicBool>,
    reading: Arc<AtomicBool>,
}

impl Trap {
    fn around(clock: &SimClock) -> Self {
        Self { clock: clock.clone(), now: Arc::default(), reading: Arc::default() }
    }

    fn spring(trap: &AtomicBool) {
        assert!(!trap.swap(false, Ordering::Relaxed), "sprung by the test");
    }
}

impl Clock for Trap {
    fn now(&self) -> BootInstant {
        Self::spring(&self.now);
        self.clock.now()
    }

    fn reading(&self) -> Reading {
        Self::spring(&self.reading);
        self.clock.reading()
    }
}

#[test]
fn i7_a_run_actor_that_panics_ends_its_run_and_its_session_is_free_within_a_ttl() {
    simulate(async |sim| {
        let trap = Trap::around(&sim.clock);
        let builder = sim.supervisor().ttl(TTL).clock(Arc::new(trap.clone()));
        let supervisor = builder.start_here().await.unwrap();
        let other = sim.supervisor().holder_label("other").ttl(TTL).start_here().await.unwrap();
        let run = held(&supervisor, "chat").await;
        let neighbour = held(&supervisor, "neighbour").await;
        let (token, neighbours_token) = (run.token(), neighbour.token());
        // Whichever run's timer fires first finds the trap.
        trap.now.store(true, Ordering::Relaxed);
        let (ended, lives) = tokio::select! {
            () = token.cancelled() => (run, neighbour),
            () = neighbours_token.cancelled() => (neighbour, run),
        };
        assert_eq!(ended.cancelled().await, EndReason::Panicked);
        let session = ended.key().session().to_owned();
        let renewals = |sim: &Simulation| sim.store.row(ended.key()).map(|row| row.expires_at);
        let before = renewals(&sim);
        assert!(matches!(other.acquire(ended.key()).await, Err(AcquireError::Busy(_))), "it may still act");
        assert!(
            matches!(supervisor.acquire(ended.key()).await, Err(AcquireError::Busy(_))),
            "it may still act"
        );
        sim.sleep(seconds(10)).await;
        assert_eq!(renewals(&sim), before, "nobody renews it");
        sim.sleep(TTL).await;
        assert!(held(&other, &session).await.release().await.released);
        assert!(held(&supervisor, &session).await.release().await.released);
        assert!(lives.is_held(), "a neighbour is not concerned");
    });
}

#[test]
fn a_registry_that_panics_takes_every_run_with_it_and_answers_at_once() {
    simulate(async |sim| {
        let trap = Trap::around(&sim.clock);
        let builder = sim.supervisor().ttl(TTL).clock(Arc::new(trap.clone()));
        let supervisor = builder.start_here().await.unwrap();
        let runs = [held(&supervisor, "chat-1").await, held(&supervisor, "chat-2").await];
        trap.reading.store(true, Ordering::Relaxed);
        for run in &runs {
            assert_eq!(run.cancelled().await, EndReason::Panicked);
            assert!(!run.is_held());
        }
        let error = supervisor.acquire(&key("chat-3")).await.unwrap_err();
        assert!(matches!(error, AcquireError::Closed(_)), "{error:?}");
        drop(runs);
        sim.sleep(TTL).await;
        let restarted = sim.supervisor().start_here().await.unwrap();
        drop(held(&restarted, "chat-1").await);
    });
}

/// actix starts even an actor that its runtime drops before it has run once. `panics` ends this process if that panics.
#[test]
fn a_runtime_that_ends_while_runs_begin_panics_nowhere() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        sim.store.set_delay(millis(200));
        let keys: Vec<_> = (0..100).map(|number| key(&format!("chat-{number}"))).collect();
        join_all(keys.iter().map(|key| supervisor.acquire(key).into_future())).await
    });
}
