//! Commands → faults → what their programs wrote → judge.
//!
//! One session after the other is held by `tenure run` around a program that writes to the session's file all the
//! time, and that does its best to stay. The command, its guardian or the database is killed or frozen; somebody
//! else takes over when it can, and writes to the same file. No line of the program may come after that.
//!
//! The faults follow from a seed that is printed; `TENURE_TEST_SEED` replays their plan (not the scheduling).

#![cfg(all(target_os = "linux", any(feature = "postgres", feature = "sqlite")))]

mod support;

#[path = "command/scene.rs"]
#[allow(dead_code, unreachable_pub, reason = "a private module of two test binaries, written like a library")]
mod scene;

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::future::join_all;
use rustix::process::Signal;
use scene::{ACCOUNT, AT_LAST, Running, Scene};
use support::{
    background,
    history::{self, Record, Writer},
    process::{self, Commands},
    process_table,
};
use tenure::{
    AcquireError, LeaseSupervisor,
    clock::{Clock as _, SystemClock},
};

/// Short, and yet a guardian on a machine at many times its cores in load has time to kill: 0.2 s.
const TTL: Duration = Duration::from_secs(2);
/// As many as keep two cores busy.
const LANES: usize = 6;
/// How long whoever takes over writes, so that a program that is still there would be caught beside it.
const SECOND_WORKS: Duration = Duration::from_millis(100);
/// Between two lines.
const PAUSE: Duration = Duration::from_millis(2);
/// Says to a program which file is the session's.
const FILE: &str = "TENURE_TEST_FILE";

#[test]
fn worker_entry() {
    process::enter(|role, commands| match role {
        "program" => program(commands),
        _ => panic!("no role {role}"),
    });
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn no_program_writes_beside_the_next_run_on_postgresql_whatever_breaks() {
    use support::{backend::Reachable as _, postgres::Server, postgres_backend::PostgresBackend};

    let server = Server::start();
    let backend = PostgresBackend::start(&server, "").await;
    let database = Database { url: backend.url(), postgres: Some(backend) };
    all_lanes(&database, 120).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn no_program_writes_beside_the_next_run_on_sqlite_whatever_breaks() {
    use support::{backend::Reachable as _, sqlite_backend::SqliteBackend};

    let backend = SqliteBackend::start().await;
    let database = Database {
        url: backend.url(),
        #[cfg(feature = "postgres")]
        postgres: None,
    };
    all_lanes(&database, 84).await;
}

/// Where the leases are, and what can be done to it.
struct Database {
    url: String,
    #[cfg(feature = "postgres")]
    postgres: Option<support::postgres_backend::PostgresBackend>,
}

#[cfg(feature = "postgres")]
impl Database {
    async fn terminate(&self) {
        if let Some(backend) = &self.postgres {
            backend.database().terminate_backends().await;
        }
    }

    async fn freeze(&self, duration: Duration) {
        // One at a time: a second freeze would be thawed by the first.
        static FROZEN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let Some(backend) = &self.postgres else { return };
        let _alone = FROZEN.lock().await;
        let server = backend.database().server().clone();
        let frozen = background::run_blocking(move || server.freeze()).await;
        background::sleep(duration).await;
        background::run_blocking(move || frozen.thaw()).await;
    }
}

#[cfg(not(feature = "postgres"))]
impl Database {
    async fn terminate(&self) {}
    async fn freeze(&self, _: Duration) {}
}

/// What is done to a run, some time after its program has begun.
#[derive(Debug, Clone, Copy)]
enum Fault {
    KillCommand,
    /// For so many ttls.
    FreezeCommand(f64),
    KillGuardian,
    FreezeGuardian(f64),
    /// With PostgreSQL.
    TerminateBackends,
    FreezeServer(f64),
}

impl Fault {
    fn random(random: &mut fastrand::Rng) -> Self {
        // Around the lease's end, on both sides of it.
        let ttls = 0.5 + 1.5 * random.f64();
        match random.u8(0..12) {
            0..=2 => Self::KillCommand,
            3..=5 => Self::FreezeCommand(ttls),
            6 | 7 => Self::KillGuardian,
            8 | 9 => Self::FreezeGuardian(ttls),
            10 => Self::TerminateBackends,
            _ => Self::FreezeServer(ttls),
        }
    }
}

/// How a program tries to stay.
const PROGRAMS: [&str; 4] = [
    r#"exec "$program" worker_entry --exact --nocapture"#,
    r#"trap '' TERM; exec "$program" worker_entry --exact --nocapture"#,
    r#"trap '' TERM; exec 3<&0; setsid "$program" worker_entry --exact --nocapture <&3 & sleep 6000"#,
    r#"exec 3<&0; (trap '' TERM; setsid "$program" worker_entry --exact --nocapture <&3 &); exec sleep 6000"#,
];

/// What has happened, so that a test can tell whether it was enough.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    rounds: usize,
    killed: usize,
    /// By the command's own word.
    lost: usize,
    /// With a program that has written. A machine at full load, or a server frozen for another lane, can end a run
    /// of a second before that.
    began: usize,
    /// By somebody who has written.
    taken_over: usize,
}

async fn all_lanes(database: &Database, rounds: usize) {
    let seed = env::var("TENURE_TEST_SEED").ok().map(|seed| seed.parse().expect("a seed is a number"));
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("TENURE_TEST_SEED={seed}");
    let histories = tempfile::tempdir().expect("there is room for a directory");
    let lanes = (0..LANES).map(|number| {
        let lane = Lane::new(database, number, seed, histories.path());
        lane.rounds(rounds / LANES)
    });
    let mut counts = Counts::default();
    let mut records = Vec::new();
    for (number, (of_lane, story)) in join_all(lanes).await.into_iter().enumerate() {
        let of_one = history::read(&file_of(histories.path(), number)).expect("the file is whole");
        assert_runs_are_apart_in_the_file(&of_one, &story);
        counts = counts.plus(of_lane);
        records.extend(of_one);
    }
    let summary = history::assert_sound(&records);
    println!("{counts:?}, {summary:?}");

    assert_eq!((counts.rounds, summary.sessions), (rounds / LANES * LANES, LANES));
    assert!(counts.killed >= rounds / 8, "{counts:?}");
    assert!(counts.lost >= rounds / 20, "{counts:?}");
    assert!(counts.began >= rounds * 3 / 4 && counts.taken_over >= rounds * 3 / 4, "{counts:?}");
    assert!(summary.runs >= counts.began + counts.taken_over, "{counts:?} {summary:?}");
}

/// Lines are in the file in the order in which they were written, whatever their clocks say.
fn assert_runs_are_apart_in_the_file(records: &[Record], story: &[String]) {
    for pair in records.windows(2) {
        if pair[1].fence < pair[0].fence {
            let late = records.iter().skip_while(|record| record.fence != pair[0].fence);
            let late: Vec<_> = late.filter(|record| record.fence == pair[1].fence).collect();
            panic!(
                "{} lines were written after another run's: {late:#?} after {:?}\n{story:#?}",
                late.len(),
                pair[0]
            );
        }
    }
}

fn file_of(histories: &Path, lane: usize) -> PathBuf {
    histories.join(lane.to_string())
}

impl Counts {
    fn plus(self, other: Self) -> Self {
        Self {
            rounds: self.rounds + other.rounds,
            killed: self.killed + other.killed,
            lost: self.lost + other.lost,
            began: self.began + other.began,
            taken_over: self.taken_over + other.taken_over,
        }
    }
}

/// One session, run after run.
struct Lane<'a> {
    database: &'a Database,
    session: String,
    file: PathBuf,
    random: fastrand::Rng,
    scene: Scene,
    counts: Counts,
    /// For the message of a panic.
    story: Vec<String>,
}

impl<'a> Lane<'a> {
    fn new(database: &'a Database, number: usize, seed: u64, histories: &Path) -> Self {
        let random = fastrand::Rng::with_seed(seed.wrapping_add(number as u64));
        let session = format!("lane-{number}");
        let file = file_of(histories, number);
        Self {
            database,
            session,
            file,
            random,
            scene: Scene::new(),
            counts: Counts::default(),
            story: Vec::new(),
        }
    }

    async fn rounds(mut self, rounds: usize) -> (Counts, Vec<String>) {
        let next = start(&self.database.url).await;
        for round in 0..rounds {
            self.round(round, &next).await;
        }
        next.shutdown(next.timing().stop_grace()).await;
        (self.counts, self.story)
    }

    async fn round(&mut self, round: usize, next: &LeaseSupervisor) {
        // Drawn at once, so that the plan of a seed does not depend on what happens.
        let fault = Fault::random(&mut self.random);
        let after = Duration::from_millis(self.random.u64(0..400));
        let program = PROGRAMS[self.random.usize(0..PROGRAMS.len())];
        self.counts.rounds += 1;
        self.story.push(format!("round {round}: {fault:?} after {after:?} of {program}"));

        let began = format!("began-{round}");
        let mut run = self.start(program, &began);
        let mut has_begun = false;
        while !has_begun && !run.has_ended() {
            has_begun = self.scene.has(&began);
            background::sleep(Duration::from_millis(2)).await;
        }
        // It may have begun before it ended: then it has written.
        self.counts.began += usize::from(self.scene.has(&began));
        if has_begun {
            background::sleep(after).await;
            self.counts.taken_over += usize::from(self.break_and_take_over(fault, &run, next).await);
        } else {
            self.counts.taken_over += usize::from(self.take_over(next).await);
        }
        let deadline = background::sleep(AT_LAST);
        tokio::pin!(deadline);
        while !run.has_ended() {
            tokio::select! {
                () = background::sleep(Duration::from_millis(5)) => {}
                () = &mut deadline => panic!("round {round}, {fault:?}: the command does not end"),
            }
        }
        let code = run.exit();
        self.story.push(format!("exit code {code}"));
        match code {
            -9 => self.counts.killed += 1,
            76 => self.counts.lost += 1,
            // Told to end, without its guardian, or without an answer from the database.
            143 | 70 | 69 | -15 => {}
            // The run before it was not released for certain, and its lease expires while others ask.
            75 if !has_begun => {}
            code => panic!("round {round}, {fault:?}: exit code {code}: {:#?}", self.story),
        }
    }

    fn start(&self, program: &str, began: &str) -> Running {
        let mut command = self.scene.tenure(["-q", "run", "-a", ACCOUNT, "-s", &self.session]);
        command.args(["--ttl", "2s", "--stop-grace", "200ms", "--", "sh", "-c", program]);
        command.env("TENURE_DATABASE_URL", &self.database.url).env(process::ROLE, "program");
        command.env("program", env::current_exe().expect("a process has an executable"));
        command.env(FILE, &self.file).env("began", self.scene.path(began));
        // A program ends with its input, too: so none outlives a test that was killed.
        command.stdin(std::process::Stdio::piped());
        Running::start(command)
    }

    async fn break_and_take_over(&mut self, fault: Fault, run: &Running, next: &LeaseSupervisor) -> bool {
        let frozen = match fault {
            Fault::KillCommand => {
                run.signal(Signal::KILL);
                None
            }
            Fault::KillGuardian => {
                run.children().into_iter().for_each(|child| process_table::signal(child, Signal::KILL));
                None
            }
            Fault::FreezeCommand(ttls) => Some((run.pid(), ttls)),
            Fault::FreezeGuardian(ttls) => run.children().first().map(|guardian| (*guardian, ttls)),
            Fault::TerminateBackends => {
                self.database.terminate().await;
                None
            }
            Fault::FreezeServer(ttls) => {
                self.database.freeze(TTL.mul_f64(ttls)).await;
                None
            }
        };
        if let Some((pid, _)) = frozen {
            process_table::signal(pid, Signal::STOP);
            self.story.push(format!("frozen at {} ns", SystemClock.now().as_nanos()));
        }
        let thaw = async {
            if let Some((pid, ttls)) = frozen {
                background::sleep(TTL.mul_f64(ttls)).await;
                process_table::signal(pid, Signal::CONT);
            }
            // A run that came through it all is told to end.
            run.signal(Signal::TERM);
        };
        tokio::join!(thaw, self.take_over(next)).1
    }

    /// Writes from the grant on, for a while; answers whether it could.
    async fn take_over(&mut self, next: &LeaseSupervisor) -> bool {
        let history = Writer::open(&self.file).expect("the directory is ours");
        let session = tenure::SessionKey::new(ACCOUNT, &self.session).expect("short");
        let deadline = std::time::Instant::now() + AT_LAST;
        let run = loop {
            match next.acquire(&session).await {
                Ok(run) => break run,
                // Busy, or not known: the library clears up behind itself.
                Err(AcquireError::Busy(_) | AcquireError::NotAcquired(_) | AcquireError::Unavailable(_)) => {}
                Err(error) => panic!("{error}"),
            }
            assert!(std::time::Instant::now() < deadline, "{session} does not get free");
            background::sleep(Duration::from_millis(8)).await;
        };
        let (id, fence) = (run.run_id().as_uuid(), run.fence().as_i64());
        self.story.push(format!("taken over with fence {fence} at {} ns", SystemClock.now().as_nanos()));
        let over = std::time::Instant::now() + SECOND_WORKS;
        let mut has_written = false;
        while let Some(record) = Record::observe(&self.session, id, fence, || run.is_held()) {
            history.write(&record).expect("the disk has room");
            has_written = true;
            if std::time::Instant::now() > over {
                break;
            }
            background::sleep(PAUSE).await;
        }
        let ended = run.release().await;
        self.story.push(format!("{ended:?}"));
        has_written
    }
}

/// A connection that is terminated while it is being opened is an error like any other.
async fn start(url: &str) -> LeaseSupervisor {
    loop {
        match LeaseSupervisor::builder(url).ttl(TTL).start().await {
            Ok(supervisor) => return supervisor,
            Err(error) => eprintln!("{error}"),
        }
    }
}

/// The program: writes as long as it lives, and asks nobody.
fn program(_commands: Commands) {
    let env = |name| env::var(name).expect("the command sets it");
    let history = Writer::open(Path::new(&env(FILE))).expect("the directory is ours");
    let (session, run) = (env("TENURE_SESSION"), env("TENURE_RUN_ID").parse().expect("a run id"));
    let fence = env("TENURE_FENCE").parse().expect("a number");
    let mut began = Some(env("began"));
    loop {
        let record = Record::observe(&session, run, fence, || true).expect("it is always so");
        history.write(&record).expect("the disk has room");
        if let Some(began) = began.take() {
            std::fs::write(began, "").expect("the directory is ours");
        }
        std::thread::sleep(PAUSE);
    }
}
