//! Fences of one session never fall: many processes acquire, renew, release, forget, take over and sweep, while databases
//! restart, clocks are stepped and standbys are promoted.
//!
//! Who was granted before whom is judged by the boot clock, which all processes of a machine share: a grant that had been
//! answered before another was asked for must have the smaller fence. That holds even while the clock's steps let two
//! runs of one session overlap.

#![cfg(any(feature = "postgres", feature = "sqlite"))]

mod support;

// Not part of `support`: a macro that a test binary does not use is a warning.
#[macro_use]
#[path = "support/every_backend.rs"]
mod every_backend;

use std::{
    collections::BTreeMap,
    env, fs,
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use support::{
    backend::Reachable,
    background,
    client::{acquire, key, renew},
    faketime,
    process::{Worker, enter},
};
use tempfile::TempDir;
use tenure::{
    RunId, SessionKey,
    clock::{Clock as _, SystemClock},
    store::{self, AcquireOutcome, Bounds, LeaseConnection, Release, RenewOutcome, StoreError},
};

const PROCESSES: usize = 5;
/// Fewer than processes, so that they meet.
const SESSIONS: usize = 3;
const HOUR: i64 = 3_600;

#[test]
fn worker_entry() {
    enter(|_, commands| {
        std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a thread can have one").block_on(Hammer::of_env().work());
        });
        commands.stay();
    });
}

on_every_backend! {
    i8_fences_rise_over_all_that_processes_do_and_their_deaths
}

async fn i8_fences_rise_over_all_that_processes_do_and_their_deaths(backend: impl Reachable) {
    let mut hammers = Hammers::start(&backend.url(), &[]);
    for _ in 0..3 {
        hammers.strike().await;
        hammers.kill_one_and_start_another();
    }
    hammers.judge();
}

#[cfg(feature = "postgres")]
mod on_a_server_of_its_own {
    use support::{
        postgres::{Database, Options, REPLICATION, Server},
        postgres_backend::PostgresBackend,
    };

    use super::*;

    #[tokio::test]
    async fn i8_fences_rise_over_an_unclean_restart() {
        let (server, backend) = start(Options::default()).await;
        let mut hammers = Hammers::start(&backend.url(), &[]);
        for _ in 0..2 {
            hammers.strike().await;
            server.restart_immediate().await;
        }
        hammers.strike().await;
        hammers.judge();
    }

    #[tokio::test]
    async fn i8_fences_rise_over_the_promotion_of_a_synchronous_standby() {
        let primary = start_server(Options { hba: REPLICATION.to_owned(), ..Options::default() }).await;
        let standby = primary.synchronous_standby().await;
        let database: Database = primary.database().await;
        let url = database.url_at(format_args!("{},{}", primary.address(), standby.address()));
        tenure::migrate(&url).await.expect("the primary takes writes");
        let mut hammers = Hammers::start(&url, &[]);
        hammers.strike().await;
        primary.crash().await;
        standby.promote().await;
        hammers.strike().await;
        hammers.judge();
    }

    /// Back, and far forward: what expired long ago in between is swept.
    #[tokio::test]
    async fn i8_fences_rise_over_steps_of_the_databases_clock() {
        let Some(clock) = faketime::Clock::start() else { return };
        let (_server, backend) = start(Options { env: clock.env(), ..Options::default() }).await;
        let mut hammers = Hammers::start(&backend.url(), &[]);
        for ahead in [0, -HOUR, 2 * HOUR, 0] {
            clock.set(ahead);
            let server_says = "SELECT extract(epoch FROM clock_timestamp())::float8";
            let seen: f64 =
                sqlx::query_scalar(server_says).fetch_one(&mut backend.admin().await).await.unwrap();
            assert!((seen - wall() - ahead as f64).abs() < 60.0, "the server's clock is not faked");
            hammers.strike().await;
        }
        hammers.judge();
    }

    async fn start(options: Options) -> (Server, PostgresBackend) {
        let server = start_server(options).await;
        let backend = PostgresBackend::start(&server, "").await;
        (server, backend)
    }

    async fn start_server(options: Options) -> Server {
        background::run_blocking(move || Server::start_with(&options)).await
    }

    fn wall() -> f64 {
        std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64()
    }
}

/// There the clock is that of every process.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn i8_fences_rise_over_steps_of_the_machines_clock_on_sqlite() {
    let Some(clock) = faketime::Clock::start() else { return };
    let backend = support::sqlite_backend::SqliteBackend::start().await;
    let env = clock.env();
    let env: Vec<_> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut hammers = Hammers::start(&backend.url(), &env);
    for ahead in [0, -HOUR, 2 * HOUR, 0] {
        clock.set(ahead);
        hammers.strike().await;
    }
    hammers.judge();
}

/// Processes that all want the same few sessions.
struct Hammers {
    url: String,
    env: Vec<(String, String)>,
    histories: TempDir,
    workers: Vec<Worker>,
    started: usize,
    grants: usize,
}

impl Hammers {
    fn start(url: &str, env: &[(&str, &str)]) -> Self {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let histories = tempfile::tempdir().expect("there is room for a directory");
        let (workers, started, grants) = (Vec::new(), 0, 0);
        let mut hammers = Self { url: url.to_owned(), env, histories, workers, started, grants };
        (0..PROCESSES).for_each(|_| hammers.start_one());
        hammers
    }

    fn start_one(&mut self) {
        let history = self.histories.path().join(self.started.to_string());
        self.started += 1;
        let history = history.to_str().expect("its name is a text");
        let mut env = vec![("URL", self.url.as_str()), ("HISTORY", history)];
        env.extend(self.env.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        self.workers.push(Worker::spawn("hammer", &env));
    }

    fn kill_one_and_start_another(&mut self) {
        self.workers.remove(0).kill();
        self.start_one();
    }

    /// Lets them go on until enough has happened since the last time.
    async fn strike(&mut self) {
        let (enough, until) =
            (self.grants + 150 * soak(), Instant::now() + Duration::from_secs(120) * soak() as u32);
        while self.grants < enough {
            assert!(Instant::now() < until, "{} grants, and no more come", self.grants);
            background::sleep(Duration::from_millis(50)).await;
            self.grants = read(self.histories.path()).len();
        }
    }

    fn judge(mut self) {
        self.workers.clear();
        let mut sessions: BTreeMap<String, Vec<Grant>> = BTreeMap::new();
        for grant in read(self.histories.path()) {
            sessions.entry(grant.session.clone()).or_default().push(grant);
        }
        for (session, grants) in &sessions {
            judge(session, grants);
        }
        println!("{} grants of {} sessions", sessions.values().map(Vec::len).sum::<usize>(), sessions.len());
    }
}

/// More of it in `scripts/soak`.
fn soak() -> usize {
    env::var("TENURE_SOAK").map_or(1, |times| times.parse().expect("TENURE_SOAK is a number"))
}

/// In the order in which grants were asked for, each has a greater fence than all that had been answered before.
fn judge(session: &str, grants: &[Grant]) {
    let (mut asked, mut answered): (Vec<_>, Vec<_>) = (grants.iter().collect(), grants.iter().collect());
    asked.sort_by_key(|grant| grant.sent);
    answered.sort_by_key(|grant| grant.received);
    let mut answered = answered.into_iter().peekable();
    let mut greatest: Option<&Grant> = None;
    for grant in asked {
        while let Some(earlier) = answered.next_if(|earlier| earlier.received < grant.sent) {
            greatest = greatest.filter(|greatest| greatest.fence > earlier.fence).or(Some(earlier));
        }
        if let Some(earlier) = greatest {
            assert!(grant.fence > earlier.fence, "{session}: {grant:?} was granted after {earlier:?}");
        }
    }
}

#[derive(Debug)]
struct Grant {
    session: String,
    fence: i64,
    /// Nanoseconds of the boot clock.
    sent: u64,
    received: u64,
}

fn read(histories: &Path) -> Vec<Grant> {
    let mut grants = Vec::new();
    for file in fs::read_dir(histories).expect("the directory is ours") {
        let text = fs::read_to_string(file.expect("it is read").path()).expect("it is a text");
        // A last line without its end was torn by a kill.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        grants.extend(whole.lines().map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            let number = |n: usize| words[n].parse().expect("it is a number");
            Grant {
                session: words[0].to_owned(),
                fence: words[1].parse().unwrap(),
                sent: number(2),
                received: number(3),
            }
        }));
    }
    grants
}

/// In a worker: one process that wants sessions all the time.
struct Hammer {
    store: store::SharedStore,
    history: fs::File,
    /// Runs that nobody renews or releases. After a step back they hold their sessions for as long.
    forgotten: Vec<Release>,
}

impl Hammer {
    fn of_env() -> Self {
        let env = |name| env::var(name).expect("the test says it");
        let history = fs::File::create(env("HISTORY")).expect("the directory is there");
        Self { store: store::open(&env("URL")).expect("the URL is good"), history, forgotten: Vec::new() }
    }

    async fn work(mut self) {
        let bounds = Bounds { statement: Duration::from_secs(5), lock: Duration::from_secs(1) };
        loop {
            if let Ok(mut connection) = self.store.connect(bounds).await {
                while self.round(&mut *connection).await.is_ok() {}
            }
            // The server is away, or on its way back.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn round(&mut self, connection: &mut dyn LeaseConnection) -> Result<(), StoreError> {
        if fastrand::u8(0..50) == 0 {
            connection.sweep(100).await?;
        }
        if fastrand::u8(0..4) == 0 {
            for forgotten in self.forgotten.drain(..) {
                connection.release(&[forgotten]).await?;
            }
        }
        let key = key(format!("s{}", fastrand::usize(0..SESSIONS)));
        let run_id = RunId::random();
        let mut item = acquire(&key, run_id);
        item.ttl = Duration::from_millis(fastrand::u64(1..30));
        let sent = SystemClock.now().as_nanos();
        // Of one that fails, too, nobody knows whether it was granted.
        self.forgotten.push(Release { key: key.clone(), run_id, reason: None });
        if let [AcquireOutcome::Granted(grant)] = &connection.acquire(&[item]).await?[..] {
            let received = SystemClock.now().as_nanos();
            let line = format!("{} {} {sent} {received}\n", key.session(), grant.fence);
            self.history.write_all(line.as_bytes()).expect("there is room");
            self.live(connection, key, run_id).await?;
        }
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..3_000))).await;
        Ok(())
    }

    async fn live(
        &mut self,
        connection: &mut dyn LeaseConnection,
        key: SessionKey,
        run_id: RunId,
    ) -> Result<(), StoreError> {
        let mut item = renew(&key, run_id);
        (item.ttl, item.safety_margin) = (Duration::from_millis(fastrand::u64(1..30)), Duration::ZERO);
        while fastrand::bool() {
            if !matches!(connection.renew(&[item.clone()]).await?[..], [RenewOutcome::Renewed(_)]) {
                break;
            }
        }
        if fastrand::bool() {
            connection.release(&[Release { key, run_id, reason: None }]).await?;
        }
        Ok(())
    }
}
