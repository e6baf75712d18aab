//! How many connections a supervisor has, and which statements share them.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    actor::{
        call::caught,
        pool::{Pool, PoolPlan, Urgency},
    },
    backoff::backoff,
    config::Timing,
    error::StartError,
    pulse::Pulses,
    store::{Bounds, SharedStore, StoreError, VerbKind},
    trace,
};

/// How many connections a supervisor opens for its statements; see
/// [`LeaseSupervisorBuilder::connections`](crate::LeaseSupervisorBuilder::connections).
///
/// | while … | `PerVerb` | `RenewalsApart` | `Shared` |
/// |---|---|---|---|
/// | there is a session, or was within the last minute | 4 | 2 | 1 |
/// | there has been none for a minute | 1 | 1 | 1 |
/// | connecting takes longer than twice `renew_timeout` | 8 | 4 | 2 |
/// | connecting takes that long, and there has been no session for a minute | 2 | 2 | 2 |
/// | a statement is silent, a row locked, or a connection lost, or queries overlap | up to 11 | up to 5 | up to 3 |
///
/// On PostgreSQL, [hints](crate::LeaseSupervisorBuilder::hints) take one more connection while there is a session, and
/// [watching](crate::LeaseSupervisor::watch) takes one more once somebody has begun to watch. The application's pool is
/// never used, because an exhausted pool would stop renewals, and so would a transaction that the application keeps open,
/// or a time-out that it sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Connections {
    /// One connection each for acquires, renewals, releases and queries. For servers with many runs.
    ///
    /// No statement waits for a statement of another kind. A renewal waits only for an earlier batch of renewals.
    #[default]
    PerVerb,
    /// One connection for renewals, and one for all other statements. For many processes on one database, each with many
    /// runs: this is the least with which no renewal ever waits for a statement of another kind (invariant I10).
    ///
    /// Acquires, releases and queries may share a connection, because no run ends when one of them is late. An acquire
    /// is repeated within its time. A release that is due, and meets a connection that is busy or silent for longer than
    /// a quarter of `renew_timeout` (250 ms at most), gets another one, as with [`Shared`](Self::Shared). Renewals
    /// cannot share theirs: a batch of acquires may take as long as the server lets it, and then all runs are late.
    RenewalsApart,
    /// One connection for all statements. For a process with one run or a few, where there are many such processes.
    ///
    /// Renewals are still not starved. If a renewal or a release is due, and the connection is busy or silent for
    /// longer than a quarter of `renew_timeout` (250 ms at most), a second connection is opened. That is early enough
    /// for three attempts. The second connection is closed after 30 s without use.
    ///
    /// On PostgreSQL, requests to stop are listened for once there has been a session for 0.1 s.
    Shared,
}

/// The pools of a supervisor. Clones share the connections. With [`Connections::Shared`] they are all the same pool.
#[derive(Clone)]
pub(super) struct Pools {
    pub(super) queries: Pool,
    pub(super) acquires: Pool,
    pub(super) renewals: Pool,
    pub(super) releases: Pool,
    /// For items that are sent one by one. No connection is kept open.
    pub(super) acquires_alone: Pool,
    pub(super) renewals_alone: Pool,
    pub(super) releases_alone: Pool,
}

/// What all pools of a supervisor have in common.
pub(super) struct Common {
    pub(super) store: SharedStore,
    pub(super) timing: Timing,
    pub(super) connect_timeout: Duration,
    /// Tells all pools to check their idle connections.
    pub(super) check: Arc<Notify>,
    pub(super) goodbyes: TaskTracker,
}

/// How long after the last session the connections are closed.
pub(super) const REST_AFTER: Duration = Duration::from_secs(60);
/// `renew_timeout` must be this many times the round trip. The rest is for the database's own work and for delays.
const MARGIN: f64 = 1.15;
/// How many round trips are measured. One alone may be slow for another reason than the line.
const TRIPS: usize = 5;

impl Connections {
    /// How long a session must have lasted before a connection is opened to listen for requests to stop it.
    pub(super) fn listen_after(self) -> Duration {
        match self {
            Self::PerVerb | Self::RenewalsApart => Duration::ZERO,
            // A short command is spared a connection.
            Self::Shared => Duration::from_millis(100),
        }
    }

    pub(super) fn pools(self, common: &Common) -> Pools {
        match self {
            Self::PerVerb => {
                let renewing = common.timing.renew_timeout();
                let acquiring = common.timing.acquire_attempt_timeout();
                let one = |statement, verbs| common.pool(statement, verbs, 1, 2);
                let alone = |statement, verbs| common.pool(statement, verbs, 0, 1);
                Pools {
                    queries: common.pool_of_queries(common.store.clone()),
                    acquires: one(acquiring, &[VerbKind::Acquire]),
                    renewals: one(renewing, &[VerbKind::Renew]),
                    releases: one(renewing, &[VerbKind::Release]),
                    acquires_alone: alone(acquiring, &[VerbKind::Acquire]),
                    renewals_alone: alone(renewing, &[VerbKind::Renew]),
                    releases_alone: alone(renewing, &[VerbKind::Release]),
                }
            }
            Self::RenewalsApart => {
                let renewals = common.pool(common.timing.renew_timeout(), &[VerbKind::Renew], 1, 2);
                let others = common.pool(common.longest(), &[VerbKind::Acquire, VerbKind::Release], 1, 3);
                Pools {
                    queries: others.clone(),
                    acquires: others.clone(),
                    renewals: renewals.clone(),
                    releases: others.clone(),
                    acquires_alone: others.clone(),
                    renewals_alone: renewals,
                    releases_alone: others,
                }
            }
            Self::Shared => {
                let all = &[VerbKind::Acquire, VerbKind::Renew, VerbKind::Release];
                // What comes before a short program counts most, and it renews nothing.
                let first_verbs = &[VerbKind::Acquire];
                let plan = common.plan(common.store.clone(), common.longest());
                let all = Pool::new(PoolPlan { verbs: all, first_verbs, most: 3, ..plan });
                Pools {
                    queries: all.clone(),
                    acquires: all.clone(),
                    renewals: all.clone(),
                    releases: all.clone(),
                    acquires_alone: all.clone(),
                    renewals_alone: all.clone(),
                    releases_alone: all,
                }
            }
        }
    }
}

impl Common {
    /// Tells the pools when to check their idle connections, until the supervisor ends. It is one instant for all
    /// pools, so that the thread wakes once.
    pub(super) fn checks(timing: &Timing, pulses: Pulses, over: CancellationToken) -> Arc<Notify> {
        // About twice between two renewals.
        let interval = (timing.renew_interval() * 2 / 5).clamp(SHORTEST_CHECK, LONGEST_CHECK);
        let (check, mut pulse) = (Arc::new(Notify::new()), pulses(interval));
        let checks = check.clone();
        actix_rt::spawn(over.run_until_cancelled_owned(async move {
            loop {
                pulse.next().await;
                checks.notify_waiters();
            }
        }));
        check
    }

    /// For a supervisor that only looks. Connections that write are opened only when they are needed.
    pub(super) fn pools_to_look(&self, looked_at: SharedStore) -> Pools {
        let statement = self.timing.acquire_attempt_timeout();
        let writes = || self.pool(statement, &[], 0, 2);
        let (acquires, renewals, releases) = (writes(), writes(), writes());
        Pools {
            queries: self.pool_of_queries(looked_at),
            acquires_alone: acquires.clone(),
            renewals_alone: renewals.clone(),
            releases_alone: releases.clone(),
            acquires,
            renewals,
            releases,
        }
    }

    /// The bound on the server for statements that share a connection. Each verb also has its own time-out on the
    /// client.
    fn longest(&self) -> Duration {
        self.timing.query_timeout().max(self.timing.acquire_attempt_timeout())
    }

    fn pool(&self, statement: Duration, verbs: &'static [VerbKind], kept: usize, most: usize) -> Pool {
        let plan = self.plan(self.store.clone(), statement);
        Pool::new(PoolPlan { verbs, first_verbs: verbs, kept, most, ..plan })
    }

    /// For queries. There may be two connections, so that a short query does not wait for a long one.
    fn pool_of_queries(&self, store: SharedStore) -> Pool {
        let plan = self.plan(store, self.timing.query_timeout());
        Pool::new(PoolPlan { most: 2, time_to_spare: Duration::ZERO, linger: LINGER_OF_QUERIES, ..plan })
    }

    fn plan(&self, store: SharedStore, statement: Duration) -> PoolPlan {
        let patience = self.timing.renew_timeout();
        PoolPlan {
            store,
            bounds: bounds(&self.timing, statement),
            verbs: &[],
            first_verbs: &[],
            kept: 1,
            most: 1,
            connect_timeout: self.connect_timeout,
            patience,
            longest_backoff: self.timing.longest_backoff(),
            time_to_spare: (patience / 4).min(LONGEST_TIME_TO_SPARE),
            linger: LINGER,
            check: self.check.clone(),
            goodbyes: self.goodbyes.clone(),
        }
    }
}

/// How long a spare connection is kept after its last use. Longer than the time between two renewals, so that a slow
/// database does not cost one new connection per renewal.
const LINGER: Duration = Duration::from_secs(30);
const LINGER_OF_QUERIES: Duration = Duration::from_secs(5);
/// The longest wait before a spare connection is opened. It leaves a waiting statement most of its time.
const LONGEST_TIME_TO_SPARE: Duration = Duration::from_millis(250);
/// Bounds on the time between two pings of an idle connection.
const SHORTEST_CHECK: Duration = Duration::from_millis(200);
const LONGEST_CHECK: Duration = Duration::from_secs(5);

impl Pools {
    /// Opens the connections. A panic of the driver is an error.
    pub(super) async fn open(&self, timing: &Timing, within: Duration) -> Result<(), StartError> {
        caught(self.queries.location(), async { Ok(self.try_open(timing, within).await) }).await?
    }

    /// Opens one connection first, and then the others together, so that a database that has to be created is created
    /// once.
    async fn try_open(&self, timing: &Timing, within: Duration) -> Result<(), StartError> {
        opened(&self.queries, within).await?;
        check_line(&self.queries, timing).await?;
        let others =
            [&self.acquires, &self.renewals, &self.releases].into_iter().filter(|pool| pool.is_kept());
        let others: Vec<_> = others.collect();
        futures::future::try_join_all(others.iter().map(|pool| opened(pool, within))).await?;
        // Runs can do without spare connections as long as none is lost.
        let spare = others.iter().map(|pool| timeout(within, pool.ready_with_spare()));
        futures::future::join_all(spare).await;
        Ok(())
    }

    /// Opens the connections for as long as it takes. Each failure is told, and the success.
    pub(super) async fn open_in_time(
        self,
        timing: Timing,
        within: Duration,
        outcome: watch::Sender<Option<Result<(), StoreError>>>,
    ) {
        let mut failures = 0_u32;
        while let Err(error) = self.open(&timing, within).await {
            match failures {
                0 => tracing::warn!(
                    target: trace::STORE,
                    %error,
                    "started without the database; connecting in the background"
                ),
                _ => tracing::debug!(target: trace::STORE, %error, "still without the database"),
            }
            failures = failures.saturating_add(1);
            let error = match error {
                StartError::Store(error) => error,
                other => {
                    let location = self.queries.location().to_owned();
                    StoreError::Unavailable { location, detail: other.to_string() }
                }
            };
            outcome.send_replace(Some(Err(error)));
            sleep(backoff(failures, timing.longest_backoff()).max(SHORTEST_PAUSE)).await;
        }
        if failures > 0 {
            tracing::info!(target: trace::STORE, "connected to the database");
        }
        outcome.send_replace(Some(Ok(())));
    }

    /// The connections without which no session is granted.
    pub(super) fn keepers(&self) -> Vec<Pool> {
        vec![self.acquires.clone(), self.renewals.clone(), self.releases.clone()]
    }

    /// The connections that a supervisor without a session can do without.
    pub(super) fn of_sessions(&self, connections: Connections) -> Vec<Pool> {
        match connections {
            Connections::PerVerb => self.keepers(),
            Connections::RenewalsApart => vec![self.renewals.clone()],
            Connections::Shared => Vec::new(),
        }
    }

    /// Closes the connections of these pools whenever there has been no session for a while.
    pub(super) async fn rest_when_idle(
        pools: Vec<Pool>,
        mut is_busy: watch::Receiver<bool>,
        over: CancellationToken,
    ) {
        let resting = async {
            while is_busy.wait_for(|is_busy| !is_busy).await.is_ok() {
                let is_idle = timeout(REST_AFTER, is_busy.wait_for(|is_busy| *is_busy)).await.is_err();
                if is_idle {
                    pools.iter().for_each(Pool::rest);
                }
                if is_busy.wait_for(|is_busy| *is_busy).await.is_err() {
                    return;
                }
            }
        };
        over.run_until_cancelled(resting).await;
    }
}

async fn opened(pool: &Pool, within: Duration) -> Result<(), StoreError> {
    let until = Instant::now() + within;
    let began = Instant::now();
    let ready = || timeout_at(until, pool.ready());
    match ready().await {
        // A server that was frozen may first refuse what has waited too long, and then work normally: try once more.
        Ok(Err(error)) if error.is_transient() && began.elapsed() > STOOD_STILL => ready().await,
        answered => answered,
    }
    .unwrap_or_else(|_elapsed| Err(pool.late(within)))
}

/// The shortest pause between two attempts to get ready in the background.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);

/// A refusal later than this comes from a server that was frozen. A healthy server refuses sooner.
const STOOD_STILL: Duration = Duration::from_millis(500);

/// Refuses a line that is too slow for renewals: every run would be granted and then lost.
async fn check_line(pool: &Pool, timing: &Timing) -> Result<(), StartError> {
    let mut quickest = Duration::MAX;
    for _ in 0..TRIPS {
        let Ok(mut lent) = pool.take(Urgency::Patient).await else { return Ok(()) };
        let began = Instant::now();
        let answered = timeout(timing.ttl(), lent.connection().ping()).await;
        quickest = quickest.min(began.elapsed());
        match answered {
            Ok(result) => lent.give_back_after(&result),
            Err(_elapsed) => drop(lent),
        }
        if quickest.mul_f64(MARGIN) <= timing.renew_timeout() {
            return Ok(());
        }
        sleep(Duration::from_millis(1)).await;
    }
    Err(StartError::SlowLine {
        location: pool.location().to_owned(),
        round_trip: quickest,
        renew_timeout: timing.renew_timeout(),
        needed: quickest.mul_f64(MARGIN),
    })
}

/// How long the server may take for one statement. The client also has its own time-outs.
pub(super) fn bounds(timing: &Timing, statement: Duration) -> Bounds {
    Bounds { statement, lock: timing.lock_timeout().min(statement / 2) }
}
