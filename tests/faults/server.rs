//! The server turns read-only, ends its sessions or is restarted.

use std::{collections::BTreeSet, sync::Mutex};

use futures::future::BoxFuture;
use sqlx::Row as _;
use tenure::store::{Bounds, LeaseConnection, LeaseStore, Migrated, SharedStore, StoreError};

use super::{
    support::{
        backend::Backend as _,
        history::{self, Record},
        postgres::{Database, Server},
        postgres_backend::PostgresBackend,
    },
    *,
};

const TTL: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread")]
async fn i9_a_server_that_is_read_only_for_a_while_costs_a_connection_and_no_run() {
    let server = Server::start();
    let backend = PostgresBackend::start(&server, "").await;
    let supervisor = supervisor(&backend.database().url(), TTL).await;
    let runs = held_all(&supervisor, 20).await;
    let mut events = supervisor.events();
    background::sleep(supervisor.timing().renew_interval().mul_f64(1.2)).await;

    let before = sessions(backend.database()).await;
    server.make_read_only().await;
    told(&mut events, |event| matches!(event, RunEvent::AtRisk { .. })).await;
    server.make_writable().await;
    told(&mut events, |event| matches!(event, RunEvent::Recovered { .. })).await;
    background::sleep(TTL).await;
    for run in &runs {
        assert!(run.is_held(), "{run:?}");
    }
    let after = sessions(backend.database()).await;
    assert!(
        !before.is_subset(&after),
        "the connection that had met 25006 was used again: {before:?} {after:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_a_server_that_stays_read_only_ends_every_run_by_its_trusted_time() {
    let server = Server::start();
    let backend = PostgresBackend::start(&server, "").await;
    let supervisor = supervisor(&backend.database().url(), TTL / 3).await;
    let timing = supervisor.timing();
    let watch = Watch::over(held_all(&supervisor, 20).await);
    background::sleep(timing.renew_interval()).await;
    server.make_read_only().await;
    let (runs, _) = watch.all_ended_on_time(timing).await;
    let unknown = supervisor.acquire(&key("new")).await.unwrap_err();
    assert!(unknown.to_string().contains("read-only"), "{unknown}");
    drop(runs);

    server.make_writable().await;
    drop(held_at_last(&supervisor, "chat-0").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_is_ready_only_while_its_server_answers_and_takes_writes() {
    let server = Server::start();
    let backend = PostgresBackend::start(&server, "").await;
    let supervisor = supervisor(&backend.database().url(), TTL).await;
    let ready_at_last = async |wanted: bool| {
        at_last("readiness", async || match supervisor.is_ready().await == wanted {
            true => Ok(()),
            false => Err(format!("{}", !wanted)),
        })
        .await;
    };
    ready_at_last(true).await;
    server.make_read_only().await;
    ready_at_last(false).await;
    server.make_writable().await;
    ready_at_last(true).await;
    server.stop().await;
    ready_at_last(false).await;
    server.start_again().await;
    ready_at_last(true).await;
    let frozen = server.freeze();
    assert!(!supervisor.is_ready().await);
    frozen.thaw();
    ready_at_last(true).await;
}

/// As after a restart in a quiet hour.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_asked_first_after_all_connections_were_ended_is_answered() {
    let backend = PostgresBackend::start(Server::shared(), "").await;
    let (asking, holding) = (
        supervisor(&backend.database().url(), 10 * TTL).await,
        supervisor(&backend.database().url(), TTL).await,
    );
    let run = held(&holding, "chat").await;
    let key = key("chat");
    for question in ["inspect", "list", "stop", "ready", "sweep"] {
        asking.inspect(&key).await.unwrap();
        asking.list().await.unwrap();
        while backend.database().terminate_backends().await > 0 {}
        let answer = match question {
            "inspect" => asking.inspect(&key).await.map(drop).map_err(|error| error.to_string()),
            "list" => asking.list().await.map(drop).map_err(|error| error.to_string()),
            "stop" => asking.stop(&key).await.map(drop).map_err(|error| error.to_string()),
            "ready" => asking.is_ready().await.then_some(()).ok_or_else(|| "not ready".to_owned()),
            _ => asking.sweep().await.map(drop).map_err(|error| error.to_string()),
        };
        assert_eq!(answer, Ok(()), "{question}");
    }
    drop(run);
}

/// At rest one connection is for questions; while a list is under way, another.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_connection_for_questions_is_closed_when_nobody_needs_it() {
    let backend = PostgresBackend::start(Server::shared(), "").await;
    let supervisor = supervisor(&backend.database().url(), TTL).await;
    let at_rest = sessions(backend.database()).await.len();
    let lists = join_all((0..20).map(|_| supervisor.list().into_future()));
    let looks = join_all((0..20).map(|n| {
        let supervisor = supervisor.clone();
        async move { supervisor.inspect(&key(&format!("chat-{n}"))).await }
    }));
    let (lists, looks) = futures::join!(lists, looks);
    assert!(lists.iter().all(Result::is_ok) && looks.iter().all(Result::is_ok));
    at_last("one connection", async || match sessions(backend.database()).await.len() {
        now if now == at_rest => Ok(()),
        now => Err(format!("{now} of {at_rest}")),
    })
    .await;
    assert!(supervisor.is_ready().await);
}

/// The resolver of the operating system cannot be interrupted, and takes as long as it likes.
#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_is_over_in_time_while_a_name_is_being_looked_up() {
    const LOOK_UP: Duration = Duration::from_secs(60);
    let backend = PostgresBackend::start(Server::shared(), "").await;
    let hangs = Arc::new(AtomicBool::new(false));
    let store = Hanging { store: backend.store(), hangs: hangs.clone(), look_up: LOOK_UP };
    let supervisor = LeaseSupervisor::builder_on(Arc::new(store)).ttl(TTL / 6).start().await.unwrap();
    drop(held(&supervisor, "chat").await);
    hangs.store(true, Ordering::Relaxed);
    while backend.database().terminate_backends().await > 0 {}
    supervisor.acquire(&key("chat")).await.unwrap_err();
    let began = SystemClock.now();
    supervisor.shutdown(Duration::ZERO).await;
    let took = SystemClock.now().saturating_since(began);
    assert!(took < LOOK_UP / 4, "{took:?}");
}

/// A database whose name is not resolved from some time on.
struct Hanging {
    store: SharedStore,
    hangs: Arc<AtomicBool>,
    look_up: Duration,
}

impl tenure::store::sealed::Sealed for Hanging {}

impl LeaseStore for Hanging {
    fn connect(&self, bounds: Bounds) -> BoxFuture<'static, Result<Box<dyn LeaseConnection>, StoreError>> {
        let (connecting, look_up) = (self.store.connect(bounds), self.look_up);
        match self.hangs.load(Ordering::Relaxed) {
            false => connecting,
            true => Box::pin(async move {
                tokio::task::spawn_blocking(move || thread::sleep(look_up)).await.expect("it only sleeps");
                connecting.await
            }),
        }
    }

    fn migrate(&self) -> BoxFuture<'static, Result<Migrated, StoreError>> {
        self.store.migrate()
    }

    fn schema(&self) -> String {
        self.store.schema()
    }

    fn location(&self) -> &str {
        self.store.location()
    }
}

/// A hundred times at random instants, under load.
#[tokio::test(flavor = "multi_thread")]
async fn i9_sessions_terminated_at_random_cost_no_lease_and_make_no_second_holder() {
    let backend = PostgresBackend::start(Server::shared(), "").await;
    let url = backend.database().url();
    let steady = supervisor(&url, TTL).await;
    let runs = held_all(&steady, 20).await;
    let traffic = Traffic::start(&url).await;
    let mut terminated = 0;
    for _ in 0..100 {
        background::sleep(Duration::from_millis(fastrand::u64(20..120))).await;
        terminated += backend.database().terminate_backends().await;
    }
    for run in &runs {
        assert!(run.is_held(), "{run:?}");
    }
    let summary = traffic.end().await;
    println!("{terminated} sessions terminated: {summary:?}");
    assert!(terminated >= 100, "too few: {terminated}");
    assert!(summary.runs > 100, "too little has happened: {summary:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_a_restart_of_the_server_costs_no_lease_and_makes_no_second_holder() {
    let server = Server::start();
    let backend = PostgresBackend::start(&server, "").await;
    let url = backend.database().url();
    let steady = supervisor(&url, 2 * TTL).await;
    let runs = held_all(&steady, 20).await;
    let traffic = Traffic::start(&url).await;
    let mut longest = Duration::ZERO;
    for _ in 0..3 {
        background::sleep(Duration::from_millis(fastrand::u64(500..1_500))).await;
        let before = SystemClock.now();
        server.restart_immediate().await;
        longest = longest.max(SystemClock.now().saturating_since(before));
    }
    background::sleep(TTL).await;
    let tolerated = steady.timing().tolerated_outage();
    println!("the longest of 3 restarts took {longest:?} of {tolerated:?}");
    if longest < tolerated {
        for run in &runs {
            assert!(run.is_held(), "{run:?}");
        }
    }
    let summary = traffic.end().await;
    println!("{summary:?}");
    assert!(summary.runs > 100, "too little has happened: {summary:?}");
}

/// Two supervisors and many callers, all after the same few sessions, each for moments.
struct Traffic {
    supervisors: [LeaseSupervisor; 2],
    over: Arc<AtomicBool>,
    callers: Vec<tokio::task::JoinHandle<()>>,
    seen: Arc<Mutex<Vec<Record>>>,
}

impl Traffic {
    async fn start(url: &str) -> Self {
        let supervisors = [supervisor(url, TTL / 6).await, supervisor(url, TTL / 6).await];
        let (over, seen) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let mut traffic = Self { supervisors, over, callers: Vec::new(), seen };
        for caller in 0..8 {
            let supervisor = traffic.supervisors[caller % 2].clone();
            let (over, seen) = (traffic.over.clone(), traffic.seen.clone());
            traffic.callers.push(tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let session = format!("busy-{}", fastrand::u8(0..3));
                    match supervisor.acquire(&key(&session)).await {
                        Ok(run) => hold(run, &session, &seen).await,
                        Err(_) => background::sleep(Duration::from_millis(fastrand::u64(1..5))).await,
                    }
                }
            }));
        }
        traffic
    }

    /// Lets the callers come to an end, and judges what they have seen.
    async fn end(self) -> history::Summary {
        self.over.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.await.expect("no caller panics");
        }
        for supervisor in &self.supervisors {
            supervisor.shutdown(supervisor.timing().stop_grace()).await;
        }
        history::assert_sound(&self.seen.lock().expect("no caller panics"))
    }
}

/// Holds a run for a moment, and records what is seen of it.
pub(super) async fn hold(run: Run, session: &str, seen: &Mutex<Vec<Record>>) {
    for _ in 0..fastrand::u8(5..40) {
        let observed =
            Record::observe(session, run.run_id().as_uuid(), run.fence().as_i64(), || run.is_held());
        let Some(record) = observed else { return };
        seen.lock().expect("no caller panics").push(record);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The library's sessions on the server.
async fn sessions(database: &Database) -> BTreeSet<i32> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE datname = $1 AND application_name = 'tenure'";
    let rows = sqlx::query(sql).bind(database.name()).fetch_all(&mut database.admin().await).await;
    rows.expect("the superuser may look").iter().map(|row| row.get(0)).collect()
}
