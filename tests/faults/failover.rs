//! The primary is gone or demoted, and its standby takes its place: a URL that names both leads to whichever takes
//! writes.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::Mutex,
};

use tenure::{
    SessionKey,
    store::{Acquire, AcquireOutcome, Bounds, LeaseStore as _, PostgresStore, StoreError},
};

use super::{
    server::hold,
    support::{
        client::{BOUNDS, Client, acquire},
        free_address,
        history::{self, Record},
        postgres::{Database, Options, REPLICATION, Server},
        postgres_backend::PostgresBackend,
    },
    *,
};

/// Long, so that an outage of the tests' making, on a slow machine, is shorter than what runs tolerate.
const TTL: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
async fn i9_a_standby_that_is_promoted_for_a_dead_primary_keeps_every_run() {
    outlived(async |pair| {
        pair.primary.crash().await;
        pair.standby.promote().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_a_primary_that_is_restarted_as_a_standby_costs_no_run() {
    outlived(async |pair| {
        pair.primary.demote().await;
        pair.standby.promote().await;
    })
    .await;
}

/// Nothing but the refused write tells that the open connections lead to the wrong server.
#[tokio::test(flavor = "multi_thread")]
async fn i9_a_demoted_primary_that_keeps_its_connections_costs_no_run() {
    outlived(async |pair| {
        pair.primary.make_read_only().await;
        pair.standby.promote().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_a_standby_that_is_promoted_for_a_silent_primary_keeps_every_run() {
    let silent = Mutex::new(None);
    outlived(async |pair| {
        *silent.lock().expect("nobody panics") = Some(pair.primary.freeze());
        pair.standby.promote().await;
    })
    .await;
}

/// It goes on to accept connections and to answer what is read: only the silence after a write tells.
#[tokio::test(flavor = "multi_thread")]
async fn i9_a_primary_that_waits_for_its_promoted_standby_costs_no_run() {
    let pair = Pair::start().await;
    let supervisor = supervisor(&pair.url(), TTL).await;
    let timing = supervisor.timing();
    let runs = held_all(&supervisor, 5).await;
    let before = SystemClock.now();
    pair.standby.promote().await;
    let after = SystemClock.now();
    each_goes_on(&runs, before, after, timing).await;
    drop(held_at_last(&supervisor, "new").await);
}

/// The first to try leaves its row locked on the old primary, for as long as that lives.
#[tokio::test(flavor = "multi_thread")]
async fn i9_new_runs_turn_to_the_new_primary_though_the_old_one_lives_and_is_named_first() {
    let pair = Pair::start().await;
    let url = pair.url_with_the_primary_first();
    expired_row(&url, "expired").await;
    pair.standby.promote().await;
    for session in ["fresh", "expired"] {
        for _ in 0..3 {
            // As a process of its own, which knows nothing of those before.
            let supervisor = supervisor(&url, TTL).await;
            let acquired = supervisor.acquire(&key(session)).await;
            let run = acquired.unwrap_or_else(|error| panic!("{session}: {error}"));
            assert!(row_exists(&pair.standby, &pair.database, session).await, "{session}");
            drop(run);
            supervisor.shutdown(supervisor.timing().stop_grace()).await;
        }
    }
}

/// Whoever was connected before meets the lock itself, as an error or as an outcome.
#[tokio::test(flavor = "multi_thread")]
async fn i9_a_lock_that_a_commit_without_an_answer_holds_is_silence() {
    let pair = Pair::start().await;
    let url = pair.url_with_the_primary_first();
    expired_row(&url, "expired").await;
    let bounds = Bounds { lock: Duration::from_secs(1), ..BOUNDS };
    let store = || PostgresStore::new(&url).expect("the URL is good");
    let connect =
        async |store: &PostgresStore| store.connect(bounds).await.unwrap_or_else(|error| panic!("{error}"));
    let mut open = Vec::new();
    for session in ["fresh", "expired"] {
        let (other, store) = (store(), store());
        open.push((session, connect(&other).await, connect(&store).await, store));
    }
    pair.standby.promote().await;
    for (session, mut first, mut second, store) in open {
        let hangs = [acquire(&key(session), tenure::RunId::random())];
        let hanging = tokio::time::timeout(bounds.lock, first.acquire(&hangs)).await;
        assert!(hanging.is_err(), "{session}: a commit was answered: {hanging:?}");
        let item = [acquire(&key(session), tenure::RunId::random())];
        let error = second.acquire(&item).await.expect_err("it is locked there");
        assert!(error.is_uncertain() && error.to_string().contains("standby"), "{session}: {error}");
        let mut third = connect(&store).await;
        let granted = third.acquire(&item).await.unwrap_or_else(|error| panic!("{session}: {error}"));
        assert!(matches!(granted[..], [AcquireOutcome::Granted(_)]), "{session}: {granted:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_a_standby_alone_ends_every_run_by_its_trusted_time_and_is_named() {
    let pair = Pair::start().await;
    let supervisor = supervisor(&pair.url(), TTL / 3).await;
    let timing = supervisor.timing();
    let watch = Watch::over(held_all(&supervisor, 20).await);
    background::sleep(timing.renew_interval()).await;
    pair.primary.crash().await;
    watch.all_ended_on_time(timing).await;
    let unknown = supervisor.acquire(&key("new")).await.unwrap_err().to_string();
    let (primary, standby) = (pair.primary.address(), pair.standby.address());
    for part in [format!("{standby}: it is read-only"), format!("{primary}: "), "refused".to_owned()] {
        assert!(unknown.contains(&part), "{part}: {unknown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_leaves_time_for_the_next() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let backend = PostgresBackend::start(Server::shared(), "").await;
    let store = store_at(backend.database(), &[silent.local_addr().expect("it is bound"), address(&backend)]);
    let bounds = tenure::store::Bounds { statement: Duration::from_secs(6), ..BOUNDS };
    let connecting = tokio::time::timeout(bounds.statement, store.connect(bounds));
    let connection =
        connecting.await.expect("within the time of one statement").expect("the second is there");
    connection.close().await;
    // Silent a moment ago: asked last now, even if there is hardly any time.
    let client = Client::connect(&store).await;
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_server_refuses_another_grants_and_if_none_does_all_are_named() {
    let backend = PostgresBackend::start(Server::shared(), "").await;
    let fenced = Server::start_with(&Options {
        hba: "host all app 127.0.0.1/32 reject\n".to_owned(),
        ..Options::default()
    });
    let (fenced, closed) = (fenced.address(), free_address());
    let mut client =
        Client::connect(&store_at(backend.database(), &[fenced, closed, address(&backend)])).await;
    client.granted(acquire(&key("chat"), tenure::RunId::random())).await;
    client.close().await;

    let refused = |addresses: &[SocketAddr]| {
        let store = store_at(backend.database(), addresses);
        async move { store.connect(BOUNDS).await.err().expect("none of them will do") }
    };
    let unknown = refused(&[fenced, closed]).await;
    let text = unknown.to_string();
    assert!(unknown.is_uncertain(), "{unknown:?}");
    for part in [fenced.to_string(), format!("{closed}: "), "pg_hba.conf".to_owned()] {
        assert!(text.contains(&part), "{part}: {text}");
    }
    let certain = refused(&[fenced, fenced]).await;
    assert!(matches!(certain, StoreError::PermissionDenied { .. }), "{certain:?}");
    sqlx::raw_sql("DROP SCHEMA tenure CASCADE")
        .execute(&mut backend.admin().await)
        .await
        .expect("it is ours");
    let certain = refused(&[closed, address(&backend)]).await;
    assert!(matches!(certain, StoreError::SchemaMissing { .. }), "{certain:?}");
}

/// Runs that are held while the one server takes the other's place go on, unless that took longer than they
/// tolerate; a rival after the same sessions is never granted one meanwhile; and later runs have greater fences.
async fn outlived(fail_over: impl AsyncFnOnce(&Pair)) {
    let pair = Pair::start().await;
    let supervisor = supervisor(&pair.url(), TTL).await;
    let (timing, other) = (supervisor.timing(), super::supervisor(&pair.url(), TTL).await);
    let runs = Arc::new(held_all(&supervisor, 5).await);
    let rival = Rival::start(&pair.url(), runs.clone()).await;
    for run in &*runs {
        renewed_after(run, SystemClock.now(), timing).await;
    }

    let before = SystemClock.now();
    fail_over(&pair).await;
    let after = SystemClock.now();
    each_goes_on(&runs, before, after, timing).await;
    // Over connections that nobody has used since: neither may tell what the old primary still believes.
    let new = held_at_last(&supervisor, "new").await;
    seen_at_last(&other, "new", |status| status.is_held()).await;
    let asked =
        at_last("stop", async || other.stop(new.key()).await.map_err(|error| error.to_string())).await;
    assert!(matches!(asked, tenure::StopAnswer::Asked(_)), "{asked:?}");
    assert!(matches!(new.cancelled().await, EndReason::Stopped { .. }));
    drop(new);
    seen_at_last(&supervisor, "new", is_idle).await;

    rival.end().await;
    for run in Arc::into_inner(runs).expect("the rival has gone") {
        let (session, fence) = (run.key().session().to_owned(), run.fence());
        drop(run);
        let next = held_at_last(&supervisor, &session).await;
        assert!(next.fence() > fence, "{session}: {:?} after {fence:?}", next.fence());
    }
}

/// Unless the outage between these instants was longer than runs tolerate.
async fn each_goes_on(runs: &[Run], before: BootInstant, after: BootInstant, timing: Timing) {
    let outage = after.saturating_since(before);
    // In the last attempt a silent server may have its share before the other is asked.
    let tolerated = timing.tolerated_outage() - timing.renew_timeout();
    println!("out of {tolerated:?}, the outage took {outage:?}");
    for run in runs {
        tokio::select! {
            () = renewed_after(run, after, timing) => assert!(run.is_held()),
            reason = run.cancelled() => {
                assert!(outage > tolerated, "{run:?} ended: {reason}");
                assert!(!run.is_held());
            }
        }
    }
}

/// Waits for the answer to a renewal that was sent no earlier than that.
pub(super) async fn renewed_after(run: &Run, instant: BootInstant, timing: Timing) {
    let wanted = instant + (timing.ttl() - timing.safety_margin());
    let mut trust = run.trust();
    while let Some(until) = trust.next().await {
        if until >= wanted {
            return;
        }
    }
    // The run has ended; that is for the caller to find.
    std::future::pending().await
}

/// A primary and its synchronous standby.
struct Pair {
    primary: Server,
    standby: Server,
    database: Database,
}

impl Pair {
    async fn start() -> Self {
        let options = Options { hba: REPLICATION.to_owned(), ..Options::default() };
        let primary = background::run_blocking(move || Server::start_with(&options)).await;
        let standby = primary.synchronous_standby().await;
        let database = primary.database().await;
        let pair = Self { primary, standby, database };
        tenure::migrate(&pair.url()).await.expect("the one that takes writes is found");
        pair
    }

    /// The standby first: what is found must not depend on the order.
    fn url(&self) -> String {
        self.database.url_at(format_args!("{},{}", self.standby.address(), self.primary.address()))
    }

    fn url_with_the_primary_first(&self) -> String {
        self.database.url_at(format_args!("{},{}", self.primary.address(), self.standby.address()))
    }
}

/// Nobody releases it.
async fn expired_row(url: &str, session: &str) {
    let store = PostgresStore::new(url).expect("the URL is good");
    let mut client = Client::connect(&store).await;
    let ttl = Duration::from_millis(1);
    client.granted(Acquire { ttl, ..acquire(&key(session), tenure::RunId::random()) }).await;
    client.close().await;
}

async fn row_exists(server: &Server, database: &Database, session: &str) -> bool {
    let rows = "SELECT EXISTS (SELECT FROM tenure.session_lease \
                WHERE session_id = $1 AND expires_at > clock_timestamp())";
    let mut admin = server.admin(database.name()).await;
    sqlx::query_scalar(rows).bind(session).fetch_one(&mut admin).await.expect("the server answers")
}

/// Somebody else after the same sessions, who also keeps an eye on the runs that have them.
struct Rival {
    supervisor: LeaseSupervisor,
    over: Arc<AtomicBool>,
    tasks: [tokio::task::JoinHandle<()>; 2],
    seen: Arc<Mutex<Vec<Record>>>,
}

impl Rival {
    async fn start(url: &str, runs: Arc<Vec<Run>>) -> Self {
        let supervisor = supervisor(url, TTL).await;
        let (over, seen) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let keys = runs.iter().map(|run| run.key().clone()).collect();
        let tasks = [
            tokio::spawn(watch(runs, over.clone(), Arc::clone(&seen))),
            tokio::spawn(compete(supervisor.clone(), keys, over.clone(), Arc::clone(&seen))),
        ];
        Self { supervisor, over, tasks, seen }
    }

    /// Lets it come to an end, and judges what it has seen.
    async fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("nobody panics");
        }
        self.supervisor.shutdown(self.supervisor.timing().stop_grace()).await;
        let summary = history::assert_sound(&self.seen.lock().expect("nobody panics"));
        assert!(summary.sessions == 5 && summary.records > 500, "too little was seen: {summary:?}");
    }
}

async fn watch(runs: Arc<Vec<Run>>, over: Arc<AtomicBool>, seen: Arc<Mutex<Vec<Record>>>) {
    while !over.load(Ordering::Relaxed) {
        for run in &*runs {
            let (run_id, fence) = (run.run_id().as_uuid(), run.fence().as_i64());
            let record = Record::observe(run.key().session(), run_id, fence, || run.is_held());
            seen.lock().expect("nobody panics").extend(record);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn compete(
    supervisor: LeaseSupervisor,
    keys: Vec<SessionKey>,
    over: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<Record>>>,
) {
    while !over.load(Ordering::Relaxed) {
        for key in &keys {
            if let Ok(run) = supervisor.acquire(key).await {
                hold(run, key.session(), &seen).await;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

const PAUSE: Duration = Duration::from_millis(5);

fn address(backend: &PostgresBackend) -> SocketAddr {
    backend.database().server().address()
}

fn store_at(database: &Database, addresses: &[SocketAddr]) -> PostgresStore {
    let addresses: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
    PostgresStore::new(&database.url_at(addresses.join(","))).expect("the URL is good")
}
