//! Traffic → faults → recorded history → judge.
//!
//! Pairs of processes race for a fresh session each round. Whoever wins is killed, frozen, loses its connections,
//! or works on in peace; the other takes over when it can. Every process writes down at which instants it was
//! trusted, and at the end the judge looks for any two that were at once.
//!
//! The faults follow from a seed that is printed; `TENURE_TEST_SEED` replays their plan (not the scheduling).

#![cfg(any(feature = "postgres", feature = "sqlite"))]

mod support;

use std::{env, path::Path, time::Duration};

use futures::future::join_all;
use support::{
    background,
    history::{self, Record, Writer},
    process::{self, Commands, Worker, say},
};
use tenure::{
    LeaseSupervisor, Run, SessionKey,
    clock::{BootInstant, Clock as _, SystemClock},
};
use tokio::sync::RwLock;

/// The shortest there is.
const TTL: Duration = Duration::from_secs(1);
/// As many as keep two cores busy.
const PAIRS: usize = 10;
/// How long the second run of a round works, so that a thawed first one would be caught beside it.
const SECOND_WORKS: Duration = Duration::from_millis(150);
/// What a session costs to ask for again, compared with how long it is held: little.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(8);

#[test]
fn worker_entry() {
    process::enter(|role, commands| match role {
        "racer" => race(commands),
        _ => panic!("no role {role}"),
    });
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn i1_no_two_processes_are_trusted_at_once_on_postgresql_whatever_breaks() {
    use support::{
        backend::Reachable as _,
        postgres::{Options, Server},
        postgres_backend::PostgresBackend,
    };

    const ROUNDS: usize = 500;
    let conf = "max_connections = 400".to_owned();
    let server = Server::start_with(&Options { conf, ..Options::default() });
    let backend = PostgresBackend::start(&server, "").await;
    let database = backend.database();
    let terminate = async || database.terminate_backends().await;
    let counts = all_pairs(&backend.url(), ROUNDS, &terminate).await;
    assert!(counts.terminated > 100, "{counts:?}");
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn i1_no_two_processes_are_trusted_at_once_on_sqlite_whatever_breaks() {
    use support::{backend::Reachable as _, sqlite_backend::SqliteBackend};

    const ROUNDS: usize = 150;
    let backend = SqliteBackend::start().await;
    all_pairs(&backend.url(), ROUNDS, &async || 0).await;
}

/// What is done to the first winner of a round.
#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    Kill,
    /// For so many ttls.
    Freeze(f64),
    /// Where there are connections.
    Terminate,
}

impl Fault {
    fn random(random: &mut fastrand::Rng) -> Self {
        match random.u8(0..10) {
            0 => Self::None,
            1..=3 => Self::Kill,
            // Around the lease's end, on both sides of it.
            4..=7 => Self::Freeze(0.5 + 1.5 * random.f64()),
            _ => Self::Terminate,
        }
    }
}

/// What has happened, so that a test can tell whether it was enough.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    rounds: usize,
    kills: usize,
    freezes: usize,
    terminated: u64,
    /// Rounds whose second run came while the first had neither ended its work nor been told to.
    takeovers: usize,
}

async fn all_pairs(url: &str, rounds: usize, terminate: &impl AsyncFn() -> u64) -> Counts {
    let seed = env::var("TENURE_TEST_SEED").ok().map(|seed| seed.parse().expect("a seed is a number"));
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("TENURE_TEST_SEED={seed}");
    let histories = tempfile::tempdir().expect("there is room for a directory");
    let (paths, starts) = (histories.path(), &RwLock::new(()));
    let terminate = &async || {
        let _nobody_starts = starts.write().await;
        terminate().await
    };
    let pairs = (0..PAIRS).map(|number| async move {
        let mut pair = Pair::start(url, number, seed, paths, starts).await;
        for round in 0..rounds / PAIRS {
            pair.round(round, terminate).await;
        }
        pair.counts
    });
    let counts = join_all(pairs).await.into_iter().fold(Counts::default(), Counts::plus);
    let summary = history::assert_sound(&history::read_dir(paths).expect("the files are whole"));
    println!("{counts:?}, {summary:?}");

    assert_eq!((counts.rounds, summary.sessions), (rounds, rounds));
    assert!(counts.kills >= rounds / 6 && counts.freezes >= rounds / 5, "{counts:?}");
    assert!(
        counts.takeovers >= rounds / 3 && summary.runs >= rounds + counts.takeovers,
        "{counts:?} {summary:?}"
    );
    counts
}

impl Counts {
    fn plus(self, other: Self) -> Self {
        Self {
            rounds: self.rounds + other.rounds,
            kills: self.kills + other.kills,
            freezes: self.freezes + other.freezes,
            terminated: self.terminated + other.terminated,
            takeovers: self.takeovers + other.takeovers,
        }
    }
}

/// Two processes and what becomes of them.
struct Pair<'a> {
    url: &'a str,
    number: usize,
    histories: &'a Path,
    /// Held while a racer starts. On a busy machine that takes longer than the next termination of all connections lets
    /// it: no round would begin any more.
    starts: &'a RwLock<()>,
    random: fastrand::Rng,
    racers: [Worker; 2],
    counts: Counts,
}

impl<'a> Pair<'a> {
    async fn start(
        url: &'a str,
        number: usize,
        seed: u64,
        histories: &'a Path,
        starts: &'a RwLock<()>,
    ) -> Self {
        let random = fastrand::Rng::with_seed(seed.wrapping_add(number as u64));
        let _starting = starts.read().await;
        let mut racers = [racer(url, histories), racer(url, histories)];
        for racer in &mut racers {
            racer.expect("ready").await;
        }
        Self { url, number, histories, starts, random, racers, counts: Counts::default() }
    }

    async fn round(&mut self, round: usize, terminate: &impl AsyncFn() -> u64) {
        // Drawn at once, so that the plan of a seed does not depend on what happens.
        let fault = Fault::random(&mut self.random);
        let after = Duration::from_millis(self.random.u64(0..400));
        let session = format!("pair-{}-round-{round}", self.number);
        self.counts.rounds += 1;

        let at = SystemClock.now() + Duration::from_millis(2);
        for racer in &mut self.racers {
            racer.send(&format!("race {session} {}", at.as_nanos()));
        }
        let won = format!("won {session}");
        let [one, other] = &mut self.racers;
        let first_won = tokio::select! {
            _ = one.expect(&won) => true,
            _ = other.expect(&won) => false,
        };
        let (first, second) = if first_won { (one, other) } else { (other, one) };
        background::sleep(after).await;
        match fault {
            Fault::None => first.send("stop"),
            Fault::Kill => {
                first.kill();
                self.counts.kills += 1;
                self.counts.takeovers += 1;
                let _starting = self.starts.read().await;
                *first = racer(self.url, self.histories);
                first.expect("ready").await;
            }
            Fault::Freeze(ttls) => {
                first.freeze();
                self.counts.freezes += 1;
                let thaw = background::sleep(TTL.mul_f64(ttls));
                tokio::pin!(thaw);
                tokio::select! {
                    _ = second.expect(&won) => {
                        self.counts.takeovers += 1;
                        thaw.await;
                        first.thaw();
                        first.expect("done").await;
                        return self.end_second(first_won).await;
                    }
                    () = &mut thaw => first.thaw(),
                }
                first.send("stop");
            }
            Fault::Terminate => {
                self.counts.terminated += terminate().await;
                background::sleep(after).await;
                first.send("stop");
            }
        }
        if !matches!(fault, Fault::Kill) {
            first.expect("done").await;
        }
        second.expect(&won).await;
        self.end_second(first_won).await;
    }

    /// Lets the second run of a round work for a while.
    async fn end_second(&mut self, first_won: bool) {
        let second = &mut self.racers[usize::from(first_won)];
        background::sleep(SECOND_WORKS).await;
        second.send("stop");
        second.expect("done").await;
    }
}

fn racer(url: &str, histories: &Path) -> Worker {
    let histories = histories.to_str().expect("the path is text");
    Worker::spawn("racer", &[("URL", url), ("HISTORIES", histories)])
}

/// A racer's process.
fn race(mut commands: Commands) {
    let env = |name| env::var(name).expect("the test sets it");
    let file = Path::new(&env("HISTORIES")).join(std::process::id().to_string());
    let history = Writer::open(&file).expect("the directory is ours");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a thread").block_on(async {
        let supervisor = start(&env("URL")).await;
        say("ready");
        loop {
            let line = commands.next().await;
            match *line.split(' ').collect::<Vec<_>>() {
                ["race", session, at] => {
                    let run = win(&supervisor, session, at.parse().expect("nanoseconds")).await;
                    say(format_args!("won {session}"));
                    hold(&run, session, &history, &mut commands).await;
                    run.release().await;
                    say("done");
                }
                // Meant for a run that has ended by itself meanwhile.
                ["stop"] => {}
                _ => panic!("no command {line:?}"),
            }
        }
    });
}

/// A server that is too busy to answer in time is an error like any other.
async fn start(url: &str) -> LeaseSupervisor {
    loop {
        match LeaseSupervisor::builder(url).ttl(TTL).start().await {
            Ok(supervisor) => return supervisor,
            Err(error) => eprintln!("{error}"),
        }
    }
}

async fn win(supervisor: &LeaseSupervisor, session: &str, at: u64) -> Run {
    let key = SessionKey::new("acct", session).expect("short");
    tokio::time::sleep(BootInstant::from_nanos(at).saturating_since(SystemClock.now())).await;
    loop {
        match supervisor.acquire(&key).await {
            Ok(run) => return run,
            // Busy, or not known: the library clears up behind itself.
            Err(_) => tokio::time::sleep(ASK_AGAIN_AFTER).await,
        }
    }
}

/// Works until it is told to stop, or may no longer: and writes down every instant at which it might.
async fn hold(run: &Run, session: &str, history: &Writer, commands: &mut Commands) {
    let (run_id, fence) = (run.run_id().as_uuid(), run.fence().as_i64());
    while let Some(record) = Record::observe(session, run_id, fence, || run.is_held()) {
        history.write(&record).expect("the disk has room");
        tokio::select! {
            _ = commands.next() => return,
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
    }
}
