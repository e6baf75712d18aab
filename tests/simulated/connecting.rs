//! Connections that take their time, are refused or lost, and what that means for runs.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use futures::future::BoxFuture;
use tenure::{
    AcquireError, Connections, LeaseSupervisorBuilder, SessionState,
    store::{
        Acquire, AcquireOutcome, Bounds, BreakLease, BreakOutcome, HistoryPage, LeaseConnection, LeaseStore,
        Migrated, Page, Release, ReleaseOutcome, Renew, RenewOutcome, StopOutcome, StopRun, StoreError,
        memory::{Fault, MemoryStore},
    },
    testing::{Simulation, simulate, unavailable},
};

use super::*;

/// A database to which connecting takes its time, or fails, and that counts its connections.
#[derive(Clone)]
struct Door {
    store: MemoryStore,
    millis: Arc<AtomicU64>,
    is_shut: Arc<AtomicBool>,
    is_usable: Arc<AtomicBool>,
    open: Arc<AtomicUsize>,
}

struct Guest {
    inside: Box<dyn LeaseConnection>,
    open: Arc<AtomicUsize>,
}

impl Door {
    fn of(sim: &Simulation) -> Self {
        let (millis, is_shut, open) = Default::default();
        let is_usable = Arc::new(AtomicBool::new(true));
        Self { store: sim.store.clone(), millis, is_shut, is_usable, open }
    }

    fn takes(&self, duration: Duration) {
        self.millis.store(duration.as_millis() as u64, Ordering::Relaxed);
    }

    fn shut(&self, is_shut: bool) {
        self.is_shut.store(is_shut, Ordering::Relaxed);
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    async fn supervisor(&self, sim: &Simulation, connections: Connections) -> LeaseSupervisor {
        self.builder(sim).connections(connections).start_here().await.unwrap()
    }

    fn builder(&self, sim: &Simulation) -> LeaseSupervisorBuilder {
        let builder = LeaseSupervisor::builder_on(Arc::new(self.clone())).clock(Arc::new(sim.clock.clone()));
        builder.ttl(TTL).connect_timeout(seconds(20))
    }
}

/// What waiting does not mend.
fn unusable() -> StoreError {
    tenure::store::open("nonsense:").unwrap_err()
}

impl tenure::store::sealed::Sealed for Door {}

impl LeaseStore for Door {
    fn connect(&self, _: Bounds) -> BoxFuture<'static, Result<Box<dyn LeaseConnection>, StoreError>> {
        let door = self.clone();
        async move {
            tokio::time::sleep(millis(door.millis.load(Ordering::Relaxed))).await;
            if door.is_shut.load(Ordering::Relaxed) {
                let detail = "sorry, too many clients already".to_owned();
                return Err(unavailable(detail));
            }
            if !door.is_usable.load(Ordering::Relaxed) {
                return Err(unusable());
            }
            door.open.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(Guest { inside: Box::new(door.store), open: door.open }) as Box<dyn LeaseConnection>)
        }
        .boxed()
    }

    fn migrate(&self) -> BoxFuture<'static, Result<Migrated, StoreError>> {
        self.store.migrate()
    }

    fn schema(&self) -> String {
        self.store.schema()
    }

    fn location(&self) -> &str {
        "memory"
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

impl LeaseConnection for Guest {
    fn acquire<'a>(&'a mut self, items: &'a [Acquire]) -> Answer<'a, Vec<AcquireOutcome>> {
        self.inside.acquire(items)
    }

    fn renew<'a>(&'a mut self, items: &'a [Renew]) -> Answer<'a, Vec<RenewOutcome>> {
        self.inside.renew(items)
    }

    fn release<'a>(&'a mut self, items: &'a [Release]) -> Answer<'a, Vec<ReleaseOutcome>> {
        self.inside.release(items)
    }

    fn request_stop<'a>(&'a mut self, item: &'a StopRun) -> Answer<'a, StopOutcome> {
        self.inside.request_stop(item)
    }

    fn break_lease<'a>(&'a mut self, item: &'a BreakLease) -> Answer<'a, BreakOutcome> {
        self.inside.break_lease(item)
    }

    fn history<'a>(&'a mut self, page: &'a HistoryPage) -> Answer<'a, Option<Vec<tenure::PastRun>>> {
        self.inside.history(page)
    }

    fn sweep_history(&mut self, keep: std::time::Duration, limit: u32) -> Answer<'_, u64> {
        self.inside.sweep_history(keep, limit)
    }

    fn inspect<'a>(&'a mut self, keys: &'a [SessionKey]) -> Answer<'a, Vec<Option<tenure::Holder>>> {
        self.inside.inspect(keys)
    }

    fn list<'a>(&'a mut self, page: &'a Page) -> Answer<'a, Vec<(SessionKey, tenure::Holder)>> {
        self.inside.list(page)
    }

    fn sweep(&mut self, limit: u32) -> Answer<'_, u64> {
        self.inside.sweep(limit)
    }

    fn probe(&mut self) -> Answer<'_, ()> {
        self.inside.probe()
    }

    fn ping(&mut self) -> Answer<'_, ()> {
        self.inside.probe()
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        async {}.boxed()
    }
}

const MODES: [Connections; 3] = [Connections::PerVerb, Connections::RenewalsApart, Connections::Shared];

#[test]
fn i11_connecting_may_take_longer_than_a_renewal_and_costs_no_run() {
    for mode in MODES {
        simulate(async move |sim| {
            let door = Door::of(&sim);
            let supervisor = door.supervisor(&sim, mode).await;
            let run = held(&supervisor, "chat").await;
            door.takes(supervisor.timing().renew_timeout() * 2);
            for _ in 0..10 {
                sim.sleep(millis(fastrand::u64(0..10_000))).await;
                sim.store.set_fault(Fault::Unreachable);
                sim.sleep(seconds(3)).await;
                sim.store.set_fault(Fault::None);
                sim.sleep(seconds(15)).await;
                assert!(run.is_held(), "{mode:?}");
            }
            assert!(run.release().await.released, "{mode:?}");
        });
    }
}

/// Nothing is asked meanwhile: the loss is noticed at rest.
#[test]
fn i11_a_connection_lost_at_rest_is_replaced_before_a_statement_needs_it() {
    for mode in MODES {
        simulate(async move |sim| {
            let door = Door::of(&sim);
            let supervisor = door.supervisor(&sim, mode).await;
            let run = held(&supervisor, "chat").await;
            let (open, renewals) = (door.open(), sim.store.statements().renewals);
            // A first renewal comes after 4.5 s at the earliest, a look at a connection at rest after 3 s.
            door.takes(millis(500));
            sim.sleep(millis(2_600)).await;
            sim.store.set_fault(Fault::Unreachable);
            sim.sleep(millis(700)).await;
            assert_eq!(door.open(), 0, "{mode:?}");
            sim.store.set_fault(Fault::None);
            sim.sleep(millis(1_100)).await;
            assert_eq!((door.open(), sim.store.statements().renewals), (open, renewals), "{mode:?}");
            assert!(run.release().await.released);
        });
    }
}

#[test]
fn i11_nothing_is_granted_while_what_will_renew_cannot_be_connected() {
    for mode in MODES {
        simulate(async move |sim| {
            let door = Door::of(&sim);
            let supervisor = door.supervisor(&sim, mode).await;
            door.shut(true);
            sim.store.set_fault(Fault::Unreachable);
            sim.sleep(seconds(6)).await;
            assert_eq!(door.open(), 0, "{mode:?}");
            sim.store.set_fault(Fault::None);
            match supervisor.acquire(&key("chat")).await {
                Err(AcquireError::NotAcquired(error)) => {
                    assert!(error.to_string().contains("too many clients"), "{error}")
                }
                other => panic!("{mode:?}: {other:?}"),
            }
            assert_eq!(sim.store.statements().acquires, 0, "{mode:?}");
            door.shut(false);
            sim.sleep(seconds(2)).await;
            assert!(held(&supervisor, "chat").await.release().await.released);
        });
    }
}

/// The connection for acquires is there, the one for renewals is not.
#[test]
fn i11_an_acquire_waits_within_its_time_for_the_connections_of_the_others() {
    simulate(async |sim| {
        let door = Door::of(&sim);
        let supervisor = door.supervisor(&sim, Connections::PerVerb).await;
        sim.sleep(seconds(120)).await;
        assert_eq!(door.open(), 1, "one is enough for who has no session");
        door.takes(seconds(5));
        let began = tokio::time::Instant::now();
        let run = held(&supervisor, "chat").await;
        assert!(began.elapsed() >= seconds(5) && door.open() == 4, "{}", door.open());
        assert!(run.release().await.released);
        assert_eq!(supervisor.inspect(&key("chat")).await.unwrap().state, SessionState::Idle);
    });
}

#[test]
fn one_connection_carries_a_run_while_nothing_is_wrong_and_a_second_comes_when_it_is_silent() {
    simulate(async |sim| {
        let door = Door::of(&sim);
        let supervisor = door.supervisor(&sim, Connections::Shared).await;
        let run = held(&supervisor, "chat").await;
        for _ in 0..60 {
            sim.sleep(seconds(1)).await;
            supervisor.inspect(&key("chat")).await.unwrap();
            assert_eq!(door.open(), 1);
        }
        // A look hangs, for longer than a renewal can wait.
        sim.store.set_fault(Fault::Swallowed);
        let hanging = tokio::task::spawn_local({
            let supervisor = supervisor.clone();
            async move { supervisor.inspect(&key("chat")).await }
        });
        sim.sleep(millis(10)).await;
        sim.store.set_fault(Fault::None);
        sim.sleep(2 * TTL).await;
        assert!(hanging.await.unwrap().is_err());
        assert!(run.is_held());
        sim.sleep(seconds(60)).await;
        assert_eq!(door.open(), 1, "what was spare is closed");
        assert!(run.release().await.released);
    });
}

#[test]
fn a_host_that_boots_in_an_outage_gets_runs_once_it_is_over() {
    simulate(async |sim| {
        let door = Door::of(&sim);
        door.shut(true);
        let supervisor = door.builder(&sim).lazy(true).start_here().await.unwrap();
        let error = supervisor.acquire(&key("chat")).await.unwrap_err();
        assert!(matches!(error, AcquireError::NotAcquired(_)), "{error:?}");
        assert!(error.to_string().contains("too many clients"), "{error}");
        assert!(!supervisor.is_ready().await && supervisor.inspect(&key("chat")).await.is_err());

        let asking = tokio::task::spawn_local(supervisor.acquire(&key("chat")).into_future());
        sim.sleep(seconds(1)).await;
        door.shut(false);
        let run = asking.await.unwrap().expect("it waits for the database, as in any outage");
        assert!(supervisor.is_ready().await);
        door.shut(true);
        sim.sleep(10 * TTL).await;
        assert!(run.is_held() && run.release().await.released, "its connections were there before it");
    });
}

/// I11.
#[test]
fn a_lazy_start_grants_nothing_before_all_is_checked() {
    simulate(async |sim| {
        let door = Door::of(&sim);
        door.is_usable.store(false, Ordering::Relaxed);
        let supervisor = door.builder(&sim).lazy(true).start_here().await.unwrap();
        let asked = tokio::time::Instant::now();
        let error = supervisor.acquire(&key("chat")).await.unwrap_err();
        assert!(matches!(&error, AcquireError::Refused(cause) if *cause == unusable()), "{error:?}");
        assert!(error.is_certain() && asked.elapsed() < seconds(1), "{:?}", asked.elapsed());

        // The database can be used now, but a round trip takes longer than a renewal may.
        sim.store.set_delay(seconds(4));
        door.is_usable.store(true, Ordering::Relaxed);
        sim.sleep(seconds(30)).await;
        let error = supervisor.acquire(&key("chat")).await.unwrap_err();
        assert!(matches!(error, AcquireError::NotAcquired(_)), "{error:?}");
        assert!(error.to_string().contains("a round trip"), "{error}");
        assert!(!supervisor.is_ready().await);
        assert_eq!(sim.store.statements().acquires, 0, "not even asked");

        sim.store.set_delay(Duration::ZERO);
        sim.sleep(seconds(5)).await;
        assert!(supervisor.is_ready().await && held(&supervisor, "chat").await.is_held());
    });
}

#[test]
fn a_lazy_supervisor_that_never_connects_can_be_shut_down() {
    simulate(async |sim| {
        sim.store.set_fault(Fault::Swallowed);
        let supervisor = sim.supervisor().lazy(true).start_here().await.unwrap();
        let asking = tokio::task::spawn_local(supervisor.acquire(&key("chat")).into_future());
        sim.sleep(seconds(1)).await;
        assert_eq!(supervisor.shutdown(Duration::ZERO).await, tenure::ShutdownReport::default());
        assert!(asking.await.unwrap().unwrap_err().is_certain());
    });
}

/// I10.
#[test]
fn two_connections_are_enough_for_renewals_that_wait_for_nothing_else() {
    simulate(async |sim| {
        let door = Door::of(&sim);
        let supervisor = door.supervisor(&sim, Connections::RenewalsApart).await;
        let run = held(&supervisor, "chat").await;
        assert_eq!(door.open(), 2);
        // Another connection cannot be had, and the one for everything else hangs.
        door.shut(true);
        sim.store.set_fault(Fault::Swallowed);
        let hanging = tokio::task::spawn_local(supervisor.acquire(&key("other")).into_future());
        sim.sleep(millis(10)).await;
        sim.store.set_fault(Fault::None);
        let mut events = supervisor.events();
        let renewals = sim.store.statements().renewals;
        sim.sleep(seconds(5)).await;
        assert!(!hanging.is_finished());
        sim.sleep(seconds(30)).await;
        assert!(run.is_held() && sim.store.statements().renewals >= renewals + 3);
        assert!(!names(&mut events).contains(&"at risk"));
        door.shut(false);
        sim.sleep(seconds(5)).await;
        assert!(run.release().await.released);
        sim.sleep(seconds(120)).await;
        assert_eq!(door.open(), 1, "one is enough for who has no session");
    });
}
