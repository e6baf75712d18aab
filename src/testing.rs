//! Tests code that holds sessions, with a supervisor on an in-memory store, in virtual time.
//!
//! [`simulate`] runs a test in a single-threaded actix system. Its clock stands still until every task waits, and then
//! jumps to the next timer. So an hour of renewals passes in milliseconds, and always in the same order.
//!
//! ```
//! use std::time::Duration;
//! use tenure::{EndReason, SessionKey, store::memory::Fault, testing::simulate};
//!
//! simulate(async |sim| {
//!     let supervisor = sim.supervisor().ttl(Duration::from_secs(30)).start_here().await.unwrap();
//!     let key = SessionKey::new("acct-1", "chat-9").unwrap();
//!     let run = supervisor.acquire(&key).await.unwrap();
//!
//!     // An hour under a healthy database changes nothing.
//!     sim.sleep(Duration::from_secs(3600)).await;
//!     assert!(run.is_held());
//!
//!     // A database that is gone for good ends the run.
//!     sim.store.set_fault(Fault::Unreachable);
//!     assert_eq!(run.cancelled().await, EndReason::Unconfirmed);
//! });
//! ```
//!
//! A test can make these things happen:
//!
//! - *The database fails, or its answers are lost or late*: [`MemoryStore::set_fault`], [`MemoryStore::set_delay`], and
//!   for renewals alone [`MemoryStore::fail_renewals`].
//! - *Another transaction locks a row*: [`MemoryStore::set_locked`]. *The row's statements are rejected*:
//!   [`MemoryStore::set_rejected`].
//! - *The lease is taken away*: [`MemoryStore::take_away`], [`MemoryStore::delete`].
//! - *Somebody asks the run to stop*: [`MemoryStore::request_stop`]. *The run learns it only with its next renewal*:
//!   [`MemoryStore::set_hints_lost`], [`MemoryStore::break_listeners`].
//! - *The machine sleeps*: [`SimClock::suspend`]. *A virtual machine is paused*: [`SimClock::pause`].
//! - *The database's clock jumps*: [`MemoryStore::step_clock_forward`], [`MemoryStore::step_clock_back`].
//!
//! Some values are otherwise made only by a supervisor. For tests of code that handles them there are [`busy`],
//! [`holder`], [`ended`], [`run_ref`], [`unavailable`], [`closed`] and the functions in [`events`]. Their public fields can
//! be changed afterwards.
//!
//! To check the outcome, use [`MemoryStore::row`], [`MemoryStore::is_empty`], and the run's own
//! [`Ended`](crate::Ended).
//!
#![doc = include_str!("../docs/testing.md")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    clock::{BootInstant, Clock, Reading},
    store::MemoryStore,
    supervisor::{LeaseSupervisor, LeaseSupervisorBuilder},
};

mod values;

pub use values::{busy, closed, ended, events, holder, past_run, run_ref, unavailable};

/// Runs a test in virtual time, in a fresh actix system on the current thread.
///
/// # Panics
/// When the test panics, and inside another actix system or tokio runtime.
pub fn simulate<T>(test: impl AsyncFnOnce(Simulation) -> T) -> T {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().expect("a runtime without threads of its own")
    };
    actix_rt::System::with_tokio_rt(runtime).block_on(async { test(Simulation::new()).await })
}

/// The clocks and the database of a simulated test.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Simulation {
    /// The local clocks.
    pub clock: SimClock,
    /// The database. Its clock follows the local wall clock, and can be made to jump apart from it.
    pub store: MemoryStore,
}

impl Simulation {
    fn new() -> Self {
        let clock = SimClock::new();
        let store = MemoryStore::new(Arc::new(clock.clone()));
        Self { clock, store }
    }

    /// A builder for a supervisor on this database and these clocks. Start it with
    /// [`start_here`](LeaseSupervisorBuilder::start_here). Several supervisors may share them, like several processes.
    pub fn supervisor(&self) -> LeaseSupervisorBuilder {
        LeaseSupervisor::builder_on(Arc::new(self.store.clone())).clock(Arc::new(self.clock.clone()))
    }

    /// Lets virtual time pass.
    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// Local clocks that follow tokio's virtual time, and jump on request. Clones are the same clocks.
#[derive(Debug, Clone)]
pub struct SimClock {
    started: Instant,
    /// Nanoseconds that the boot clock has counted, but timers have not.
    suspended: Arc<AtomicU64>,
    /// Nanoseconds that wall time has counted, but the boot clock has not.
    paused: Arc<AtomicU64>,
}

impl SimClock {
    fn new() -> Self {
        Self { started: Instant::now(), suspended: Arc::default(), paused: Arc::default() }
    }

    /// Lets the machine sleep for this long: the boot clock and wall time go on, timers stand still.
    pub fn suspend(&self, duration: Duration) {
        self.suspended.fetch_add(nanos(duration), Ordering::Relaxed);
    }

    /// Pauses the virtual machine for this long. Afterwards its wall time is set right.
    pub fn pause(&self, duration: Duration) {
        self.paused.fetch_add(nanos(duration), Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn now(&self) -> BootInstant {
        self.reading().boot
    }

    fn reading(&self) -> Reading {
        let monotonic = self.started.elapsed();
        let boot = BOOT_AT_START + monotonic + Duration::from_nanos(self.suspended.load(Ordering::Relaxed));
        Reading {
            boot: BootInstant::from_nanos(nanos(boot)),
            monotonic,
            wall: WALL_AT_START + boot + Duration::from_nanos(self.paused.load(Ordering::Relaxed)),
        }
    }
}

/// The boot clock when a simulation starts: the machine has been up for a while.
const BOOT_AT_START: Duration = Duration::from_secs(1_000);
/// 2026-01-01T00:00:00Z.
const WALL_AT_START: Duration = Duration::from_secs(1_767_225_600);

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// One lease driven through renewals, for the benches: the machine itself is private.
#[doc(hidden)]
#[derive(Debug)]
pub struct MachineCycle {
    lease: crate::lease::Lease,
    now: BootInstant,
    ttl: Duration,
}

#[doc(hidden)]
impl MachineCycle {
    /// A lease that was just granted.
    ///
    /// # Panics
    /// Never: a ttl of 30 s is within bounds, and a lease that was just granted is in time.
    #[allow(clippy::new_without_default, reason = "not a value of any use outside the benches")]
    pub fn new() -> Self {
        let (ttl, now) = (Duration::from_secs(30), BootInstant::from_nanos(1));
        let timing = crate::config::Timing::for_ttl(ttl).expect("within bounds");
        let lease = crate::lease::Lease::granted(timing, now, ttl, now, 7).expect("in time");
        Self { lease, now, ttl }
    }

    /// One renewal: its timer fires, it is sent, and it is confirmed. Returns how many actions that took.
    pub fn renew(&mut self) -> usize {
        use crate::lease::{Action, Renewal};
        let mut actions = 0;
        self.now = self.lease.poll_timeout().unwrap_or(self.now);
        self.lease.on_timeout(self.now);
        while let Some(action) = self.lease.poll_action() {
            actions += 1;
            if let Action::Renew { attempt, .. } = action {
                let renewal = Renewal::Confirmed { sent_at: self.now, remaining: self.ttl, stop: None };
                self.lease.on_renewal(attempt, renewal, self.now);
            }
        }
        actions
    }
}
