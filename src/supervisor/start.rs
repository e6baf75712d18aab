//! Starts a supervisor: its thread, its connections, and its actors.

use std::{
    sync::{Arc, Mutex, OnceLock, atomic::AtomicBool},
    time::Duration,
};

use actix::{Actor, Addr, AsyncContext, Context, Recipient};
use futures::channel::oneshot;
use tokio::{runtime, sync::watch, task::LocalSet, time::timeout};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::{
    Inner,
    connections::{Common, Connections, Pools, REST_AFTER, bounds},
    looking::OnlyLooking,
};
use crate::{
    actor::{
        hints::Hints,
        lane::{Lane, LaneSettings},
        means::{Means, Preparation},
        pool::Pool,
        query::{Queries, QueryWorkers},
        registry::{Links, Registry, ShutdownReport, TICK},
        run::RunLinks,
        sweeping::sweep_now_and_then,
        watching::{Watcher, Watching},
    },
    clock::SharedClock,
    config::Timing,
    end::Limit,
    error::StartError,
    event::{EventSender, RunEvent, forward},
    limits,
    origin::{Deserted, Origin},
    pulse::{Pulse, Pulses},
    session::{Label, NodeId},
    store::SharedStore,
};

/// The checked settings of a supervisor, on their way to the thread that it will live on.
pub(super) struct Plan {
    pub(super) timing: Timing,
    /// Of each run.
    pub(super) limits: Vec<Limit>,
    pub(super) limit_per_account: Option<u32>,
    /// `user@host` unless given.
    pub(super) label: Option<Label>,
    pub(super) store: SharedStore,
    pub(super) clock: SharedClock,
    pub(super) connect_timeout: Duration,
    pub(super) connections: Connections,
    pub(super) listeners: Vec<Recipient<RunEvent>>,
    pub(super) hints: bool,
    pub(super) looking_only: bool,
    pub(super) lazy: bool,
    pub(super) sweeping: bool,
    pub(super) history_kept: Duration,
}

/// A supervisor that has started. Its actors already run; the caller has to run the watcher.
pub(super) struct Started {
    pub(super) inner: Inner,
    pub(super) watcher: Watcher,
    pub(super) over: CancellationToken,
    goodbyes: TaskTracker,
}

/// The main function of the supervisor's thread.
pub(super) fn live(plan: Plan, ready: oneshot::Sender<Result<Arc<Inner>, StartError>>) {
    let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = ready.send(Err(StartError::Thread(limits::with_remedy(&error))));
            return;
        }
    };
    let actors = LocalSet::new();
    actors.block_on(&runtime, host(plan, ready));
    {
        let _entered = runtime.enter();
        drop(actors);
    }
    // Do not wait for a DNS lookup: it blocks a thread of the runtime for as long as the resolver takes.
    runtime.shutdown_background();
}

/// Starts the supervisor, reports that it is ready, and drives the actors until the registry has ended.
async fn host(plan: Plan, ready: oneshot::Sender<Result<Arc<Inner>, StartError>>) {
    match plan.start(Pulse::of_kernel).await {
        Ok(Started { inner, watcher, over, goodbyes }) => {
            let watcher = actix_rt::spawn(watcher.serve_apart(over.clone()));
            // If the caller has gone, the only handle is dropped here, and that shuts the registry down.
            let _ = ready.send(Ok(Arc::new(inner)));
            over.cancelled().await;
            goodbyes.close();
            let _ = timeout(GOODBYE, goodbyes.wait()).await;
            // The watcher's thread bounds the time that it takes to close its connection.
            let _ = watcher.await;
        }
        Err(error) => {
            let _ = ready.send(Err(error));
        }
    }
}

/// How long closing the connections may take at the end.
const GOODBYE: Duration = Duration::from_millis(500);

impl Plan {
    pub(super) async fn start(self, pulses: Pulses) -> Result<Started, StartError> {
        let base = Base::of(&self);
        // A start that fails, or whose future is dropped, leaves nothing running.
        let unless_started = base.over.clone().drop_guard();
        let pools = self.pools(&base, pulses);
        let preparation = self.prepare(&base, &pools).await?;
        // On the supervisor's own thread, because looking up the user may ask a slow directory on the network.
        let label = self.label.clone().unwrap_or_else(Label::user_at_host);
        base.tell(self.listeners.clone());
        let queries = base.answer_queries(&pools);
        if self.sweeping {
            let sweeping = sweep_now_and_then(queries.clone(), self.history_kept);
            let over = base.over.clone();
            actix_rt::spawn(async move { over.run_until_cancelled(sweeping).await });
        }
        let (watching, watcher) = self.watch(&base);
        let (is_busy, busy) = watch::channel(false);
        let of_sessions = pools.of_sessions(self.connections);
        if !of_sessions.is_empty() {
            actix_rt::spawn(Pools::rest_when_idle(of_sessions, busy.clone(), base.over.clone()));
        }
        let means = Means { keepers: pools.keepers(), preparation: preparation.clone() };
        let tick = pulses(TICK);
        let registry = base.registry(&pools, means, &queries, is_busy, tick, unless_started);
        if self.hints {
            base.hear_hints(registry.clone(), busy, self.connections.listen_after());
        }
        let Base { timing, clock, over, goodbyes, events, node, location, report, is_deserted, .. } = base;
        let inner = Inner {
            registry,
            queries,
            preparation,
            watching,
            clock,
            events: events.source(),
            timing,
            limits: self.limits,
            limit_per_account: self.limit_per_account,
            label,
            node,
            location,
            host: Mutex::new(None),
            is_closing: AtomicBool::new(false),
            report,
            history_kept: self.history_kept,
            is_deserted,
            origin: Origin::here(),
        };
        Ok(Started { inner, watcher, over, goodbyes })
    }

    /// Opens the connections, or has them opened in the background.
    async fn prepare(&self, base: &Base, pools: &Pools) -> Result<Preparation, StartError> {
        let (outcome, preparation) = watch::channel(None);
        if self.lazy {
            let opening = pools.clone().open_in_time(base.timing, base.connect_timeout, outcome);
            let over = base.over.clone();
            actix_rt::spawn(async move { over.run_until_cancelled(opening).await });
        } else {
            pools.open(&base.timing, base.connect_timeout).await?;
            outcome.send_replace(Some(Ok(())));
        }
        Ok(preparation)
    }

    fn pools(&self, base: &Base, pulses: Pulses) -> Pools {
        let common = Common {
            store: base.store.clone(),
            timing: base.timing,
            connect_timeout: base.connect_timeout,
            check: Common::checks(&base.timing, pulses, base.over.clone()),
            goodbyes: base.goodbyes.clone(),
        };
        match self.looking_only {
            true => common.pools_to_look(self.looked_at(base)),
            false => self.connections.pools(&common),
        }
    }

    fn looked_at(&self, base: &Base) -> SharedStore {
        match self.looking_only {
            true => Arc::new(OnlyLooking(base.store.clone())),
            false => base.store.clone(),
        }
    }

    fn watch(&self, base: &Base) -> (Watching, Watcher) {
        let longest =
            base.timing.query_timeout().max(base.connect_timeout).clamp(SHORTEST_LOOK, LONGEST_LOOK);
        let looking = bounds(&base.timing, longest);
        Watcher::new(self.looked_at(base), base.clock.clone(), looking, base.events.source())
    }
}

/// What the parts of a supervisor share while they are put together.
struct Base {
    store: SharedStore,
    timing: Timing,
    clock: SharedClock,
    connect_timeout: Duration,
    node: NodeId,
    location: String,
    events: EventSender,
    /// Cancelled when the registry has ended.
    over: CancellationToken,
    goodbyes: TaskTracker,
    /// Where the report of a shutdown is left.
    report: Arc<OnceLock<ShutdownReport>>,
    is_deserted: Deserted,
}

impl Base {
    fn of(plan: &Plan) -> Self {
        Self {
            store: plan.store.clone(),
            timing: plan.timing,
            clock: plan.clock.clone(),
            connect_timeout: plan.connect_timeout,
            node: NodeId::random(),
            location: plan.store.location().to_owned(),
            events: EventSender::new(),
            over: CancellationToken::new(),
            goodbyes: TaskTracker::new(),
            report: Arc::default(),
            is_deserted: Deserted::default(),
        }
    }

    fn tell(&self, listeners: Vec<Recipient<RunEvent>>) {
        for listener in listeners {
            let telling = forward(self.events.source().subscribe(), listener, self.over.clone());
            actix_rt::spawn(self.goodbyes.track_future(telling));
        }
    }

    fn answer_queries(&self, pools: &Pools) -> Queries {
        let (queries, workers) = QueryWorkers::new(pools.queries.clone(), self.timing.query_timeout());
        actix_rt::spawn(self.goodbyes.track_future(workers.serve(self.over.clone())));
        queries
    }

    fn lane(&self, attempt_timeout: Duration, main: &Pool, side: &Pool) -> LaneSettings {
        LaneSettings {
            clock: self.clock.clone(),
            attempt_timeout,
            longest_backoff: self.timing.longest_backoff(),
            step_tolerance: self.timing.safety_margin() / 4,
            goodbyes: self.goodbyes.clone(),
            main: main.clone(),
            side: side.clone(),
        }
    }

    fn registry(
        &self,
        pools: &Pools,
        means: Means,
        queries: &Queries,
        is_busy: watch::Sender<bool>,
        tick: Pulse,
        unless_started: DropGuard,
    ) -> Addr<Registry> {
        let timing = self.timing;
        let acquiring = self.lane(timing.acquire_attempt_timeout(), &pools.acquires, &pools.acquires_alone);
        let renewing = self.lane(timing.renew_timeout(), &pools.renewals, &pools.renewals_alone);
        let releasing = self.lane(timing.renew_timeout(), &pools.releases, &pools.releases_alone);
        Registry::create(|ctx: &mut Context<Registry>| {
            let run = RunLinks {
                timing,
                clock: self.clock.clone(),
                renewals: Lane::start_with(renewing),
                releases: Lane::start_with(releasing),
                events: self.events.clone(),
                registry: ctx.address().recipient(),
                schema: self.store.schema_name().into(),
                is_deserted: self.is_deserted.clone(),
            };
            let links = Links {
                node: self.node,
                location: self.location.clone(),
                acquires: Lane::start_with(acquiring),
                means,
                run,
                over: self.over.clone(),
                goodbyes: self.goodbyes.clone(),
                queries: queries.clone(),
                is_busy,
                report: self.report.clone(),
            };
            Registry::new(links, tick, CancellationToken::new(), unless_started)
        })
    }

    fn hear_hints(&self, registry: Addr<Registry>, is_busy: watch::Receiver<bool>, listen_after: Duration) {
        let patience = self.timing.query_timeout();
        let hints = Hints {
            store: self.store.clone(),
            node: self.node,
            bounds: bounds(&self.timing, patience),
            connect_timeout: self.connect_timeout,
            patience,
            silence: self.timing.renew_interval().clamp(SHORTEST_SILENCE, LONGEST_SILENCE),
            listen_after,
            rest_after: REST_AFTER,
            registry,
            is_busy,
        };
        actix_rt::spawn(self.goodbyes.track_future(hints.serve(self.over.clone())));
    }
}

/// Bounds on how long the connection for hints may be silent before it is checked.
const SHORTEST_SILENCE: Duration = Duration::from_secs(1);
const LONGEST_SILENCE: Duration = Duration::from_secs(10);

/// Bounds on how long the slowest poll of the watcher may take.
const SHORTEST_LOOK: Duration = Duration::from_secs(2);
const LONGEST_LOOK: Duration = Duration::from_secs(30);
