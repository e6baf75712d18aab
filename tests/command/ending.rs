//! The session is given to another when nothing of the tree is alive any more, and not before; and nothing is
//! started that should not be.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use rustix::process::Signal;
use tenure::{AcquireError, LeaseSupervisor, SessionState};

use crate::{
    scene::{AT_LAST, NASTY, Running, Scene},
    support::{backend::Reachable, client::key, process_table},
};

on_every_backend! {
    after_a_stop_nothing_is_alive_when_another_can_acquire
    after_a_signal_nothing_is_alive_when_another_can_acquire
    after_cmds_own_end_nothing_is_alive_when_another_can_acquire
    after_sigkill_of_the_command_nothing_is_alive_when_another_can_acquire
    while_the_command_is_frozen_nothing_is_alive_when_another_can_acquire
    after_sigkill_of_the_guardian_nothing_is_alive_when_another_can_acquire
    a_signal_at_any_moment_leaves_nothing_behind
    a_loss_that_the_guardian_deals_with_before_the_command_has_noticed_it_is_76
    i13_a_program_beside_which_another_run_may_be_is_killed_at_once
}

/// Somebody who wants the session, all the time; and an eye on the processes that must be gone by then.
pub(crate) struct Contender {
    thread: thread::JoinHandle<SystemTime>,
    over: Arc<AtomicBool>,
    watch: thread::JoinHandle<SystemTime>,
}

impl Contender {
    pub(crate) fn start(url: &str, pids: Vec<i32>) -> Self {
        assert!(!pids.is_empty());
        let over = Arc::new(AtomicBool::new(false));
        let last_alive = Arc::new(Mutex::new(SystemTime::UNIX_EPOCH));
        let watch = {
            let (over, pids) = (over.clone(), pids.clone());
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    // The clock first: who is alive now was so a moment ago.
                    let now = SystemTime::now();
                    if pids.iter().any(|pid| process_table::is_alive(*pid)) {
                        *last_alive.lock().unwrap() = now;
                    }
                    thread::sleep(Duration::from_micros(200));
                }
                *last_alive.lock().unwrap()
            })
        };
        let url = url.to_owned();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(acquired_at_last(&url, &pids))
        });
        Self { thread, over, watch }
    }

    /// Waits until it has the session: everything was gone before.
    #[track_caller]
    pub(crate) fn assert_nothing_was_alive(self) {
        let acquired_at = self.thread.join();
        self.over.store(true, Ordering::Relaxed);
        let last_alive = self.watch.join().unwrap();
        // SQLite's clock counts in milliseconds.
        let acquired_at = acquired_at.unwrap() + Duration::from_millis(1);
        assert!(last_alive < acquired_at, "alive at {last_alive:?}, acquired at {acquired_at:?}");
    }
}

/// By the database's clock, which is that of this machine.
async fn acquired_at_last(url: &str, pids: &[i32]) -> SystemTime {
    // Longer than a server of the tests stands still.
    let started = LeaseSupervisor::builder(url).holder_label("contender").connect_timeout(AT_LAST).start();
    let supervisor = started.await.unwrap();
    let until = std::time::Instant::now() + AT_LAST;
    loop {
        match supervisor.acquire(&key("chat")).await {
            Ok(run) => {
                let alive: Vec<_> = pids.iter().filter(|pid| process_table::is_alive(**pid)).collect();
                assert!(alive.is_empty(), "{alive:?} are alive while another holds the session");
                let at = run.acquired_at();
                run.release().await;
                supervisor.shutdown(supervisor.timing().stop_grace()).await;
                return at;
            }
            Err(AcquireError::Busy(_) | AcquireError::NotAcquired(_) | AcquireError::Unavailable(_)) => {
                assert!(std::time::Instant::now() < until, "the session does not get free");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A run of what tries to stay, whose tree stands.
pub(crate) fn nasty(scene: &Scene, url: &str, options: &[&str]) -> Running {
    let run = scene.run(url, "chat", options, NASTY);
    scene.wait_for("ready");
    run
}

const OPTIONS: [&str; 4] = ["--ttl", "8s", "--stop-grace", "300ms"];

async fn after_a_stop_nothing_is_alive_when_another_can_acquire(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut run = nasty(&scene, &url, &OPTIONS);
    let contender = Contender::start(&url, scene.pids());
    backend.request_stop(&key("chat"), "alice", "enough").await;
    contender.assert_nothing_was_alive();
    assert_eq!(run.exit(), 77);
}

async fn after_a_signal_nothing_is_alive_when_another_can_acquire(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut run = nasty(&scene, &url, &OPTIONS);
    let contender = Contender::start(&url, scene.pids());
    run.signal(Signal::TERM);
    contender.assert_nothing_was_alive();
    assert_eq!(run.exit(), 143);
}

async fn after_cmds_own_end_nothing_is_alive_when_another_can_acquire(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let leaving = NASTY.replace("while :; do sleep 6000; done", "read line < $dir/fifo; exit 5");
    let script = format!("mkfifo $dir/fifo; {leaving}");
    let mut run = scene.run(&url, "chat", &OPTIONS, &script);
    scene.wait_for("ready");
    let contender = Contender::start(&url, scene.pids());
    std::fs::write(scene.path("fifo"), "end\n").unwrap();
    contender.assert_nothing_was_alive();
    assert_eq!(run.exit(), 5);
}

async fn after_sigkill_of_the_command_nothing_is_alive_when_another_can_acquire(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut run = nasty(&scene, &url, &OPTIONS);
    let contender = Contender::start(&url, scene.pids());
    run.signal(Signal::KILL);
    contender.assert_nothing_was_alive();
    assert_eq!(run.exit(), -9);
}

async fn while_the_command_is_frozen_nothing_is_alive_when_another_can_acquire(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    // Patient with CMD, which the lease is not.
    let mut run = nasty(&scene, &url, &["--ttl", "8s", "--stop-grace", "10m"]);
    let contender = Contender::start(&url, scene.pids());
    process_table::freeze(run.pid());
    contender.assert_nothing_was_alive();
    assert_eq!(process_table::process(run.pid()).unwrap().state, 'T');
    run.signal(Signal::CONT);
    let stopping = run.event("stopping");
    assert!(
        ["unconfirmed", "superseded", "expired"].contains(&stopping["reason"].as_str().unwrap()),
        "{stopping}"
    );
    assert_eq!(run.exit(), 76);
}

/// The lease has expired by the database's clock long before its holder's trust ends. A change of phase, and a stop,
/// bring the renewal forward that finds that out.
async fn i13_a_program_beside_which_another_run_may_be_is_killed_at_once(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let script = r#"
        trap ': > $dir/asked' TERM
        echo $$ >> $pids
        ready
        until [ -e $dir/lost ]; do sleep 0.02; done
        "$TENURE" phase lost
        while :; do sleep 0.1; done"#;
    for is_told in [false, true] {
        let mut run = scene.run(&url, "chat", &["--ttl", "60s", "--stop-grace", "10m"], script);
        scene.wait_for("ready");
        if is_told {
            run.signal(Signal::TERM);
            scene.wait_for("asked");
        }
        backend.set_remaining(&key("chat"), 0).await;
        let lost_at = Instant::now();
        std::fs::write(scene.path("lost"), "").unwrap();
        let code = run.exit();
        // Trust lasts for more than 30 s.
        assert!(lost_at.elapsed() < Duration::from_secs(15), "{:?}", lost_at.elapsed());
        scene.assert_gone();
        assert_eq!((code, scene.has("asked")), if is_told { (143, true) } else { (76, false) });
        for name in ["lost", "ready"] {
            std::fs::remove_file(scene.path(name)).unwrap();
        }
    }
}

async fn after_sigkill_of_the_guardian_nothing_is_alive_when_another_can_acquire(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut run = nasty(&scene, &url, &OPTIONS);
    let contender = Contender::start(&url, scene.pids());
    process_table::signal(run.guardian(), Signal::KILL);
    contender.assert_nothing_was_alive();
    run.exit();
}

async fn a_signal_at_any_moment_leaves_nothing_behind(backend: impl Reachable) {
    const ROUNDS: u64 = 60;
    let (scene, url) = (Scene::new(), backend.url());
    let script = "echo $$ >> $pids; echo started; while :; do sleep 6000; done";
    let store = backend.store();
    let mut client = crate::support::client::Client::connect(&*store).await;
    for round in 0..ROUNDS {
        let run = scene.run(&url, "chat", &["--stop-grace", "10m"], script);
        // From before `main` to after CMD's start.
        crate::support::background::sleep(Duration::from_millis(3 * round)).await;
        run.signal(Signal::TERM);
        let done = run.finish();
        let events = done.events();
        match done.code {
            -15 if events.is_empty() => {
                assert_eq!(done.text(), "", "nothing is started before the grant: {done:?}")
            }
            -15 => assert_eq!(events.last().unwrap()["released"], true, "{done:?}"),
            _ => panic!("round {round}: {done:?}"),
        }
        scene.assert_gone();
        let holder = client.holder(&key("chat")).await;
        assert!(holder.is_none(), "round {round}: {holder:?} after {done:?}");
    }
    client.close().await;
}

#[cfg(feature = "sqlite")]
mod before_the_grant_on_sqlite {
    use super::*;
    use crate::support::sqlite_backend::SqliteBackend;

    #[tokio::test]
    async fn nothing_is_started_before_the_grant_nor_after_a_signal_meanwhile() {
        let (scene, backend) = (Scene::new(), SqliteBackend::start().await);
        let mut other = backend.raw().await;
        let lock = sqlx::Connection::begin_with(&mut other, "BEGIN IMMEDIATE").await.unwrap();
        super::is_started_after_the_grant(&scene, &backend.url(), async || lock.rollback().await.unwrap())
            .await;
    }
}

#[cfg(feature = "postgres")]
mod before_the_grant_on_postgres {
    use super::*;
    use crate::support::{postgres::Server, postgres_backend::PostgresBackend};

    #[tokio::test]
    async fn nothing_is_started_before_the_grant_nor_after_a_signal_meanwhile() {
        let (scene, backend) = (Scene::new(), PostgresBackend::start(Server::shared(), "").await);
        let mut other = backend.admin().await;
        let mut lock = sqlx::Connection::begin(&mut other).await.unwrap();
        sqlx::raw_sql("LOCK TABLE tenure.session_lease IN EXCLUSIVE MODE").execute(&mut *lock).await.unwrap();
        super::is_started_after_the_grant(&scene, &backend.url(), async || lock.rollback().await.unwrap())
            .await;
    }
}

/// Two commands ask while nobody can write: one of them is told to end, and the other one is let through.
async fn is_started_after_the_grant(scene: &Scene, url: &str, unlock: impl AsyncFnOnce()) {
    let ttl = ["--ttl", "30s"];
    let script = "date +%s%N > $dir/started; exit 3";
    let mut told = scene.run(url, "told", &ttl, ": > $dir/wrongly-started");
    let mut let_through = scene.run(url, "chat", &ttl, script);
    // Long enough to ask, and to be refused once or twice by the lock.
    for run in [&mut told, &mut let_through] {
        run.wait_until_heard(Signal::TERM);
    }
    crate::support::background::sleep(Duration::from_millis(500)).await;
    told.signal(Signal::TERM);
    let done = told.finish();
    assert_eq!((done.code, done.events().len()), (-15, 0), "{done:?}");
    assert!(!scene.has("started"));
    assert!(!let_through.has_ended());
    let unlocked_at = SystemTime::now();
    unlock().await;
    let done = let_through.finish();
    assert_eq!(done.code, 3, "{done:?}");
    let started = Duration::from_nanos(scene.text("started").trim().parse().unwrap());
    let granted = crate::events::instant(&done.events()[0]["at"]);
    assert!(SystemTime::UNIX_EPOCH + started >= granted, "{done:?}");
    assert!(SystemTime::UNIX_EPOCH + started > unlocked_at);
    assert!(!scene.has("wrongly-started"));
    let supervisor = LeaseSupervisor::builder(url).start().await.unwrap();
    let status = supervisor.inspect(&key("told")).await.unwrap();
    assert_eq!(status.state, SessionState::Idle, "{status:?}");
    supervisor.shutdown(supervisor.timing().stop_grace()).await;
}

/// The command stands still until the guardian has ended the tree, and finds all of it in one moment: that trust is over,
/// and that CMD has died of a signal.
async fn a_loss_that_the_guardian_deals_with_before_the_command_has_noticed_it_is_76(
    backend: impl Reachable,
) {
    for round in 0..4 {
        let (scene, session) = (Scene::new(), format!("round {round}"));
        let script = "echo $$ > $pids; ready; exec sleep 6000";
        let run = scene.run(&backend.url(), &session, &["--ttl", "1s"], script);
        scene.wait_for("ready");
        run.signal(Signal::STOP);
        scene.wait_until_gone();
        let guardian_is_done = || run.children().iter().all(|child| !process_table::is_alive(*child));
        crate::support::wait_until("the guardian has ended", guardian_is_done);
        run.signal(Signal::CONT);
        let done = run.finish();
        let events = done.events();
        let last = events.last().unwrap();
        assert_eq!((done.code, &last["event"], &last["exit_code"]), (76, &"ended".into(), &76.into()));
        assert!(["unconfirmed", "expired"].contains(&last["reason"].as_str().unwrap()), "{done:?}");
        // One story: it is told once that CMD is stopped, and the end gives the same reason.
        let told: Vec<_> = events.iter().filter(|event| event["event"] == "stopping").collect();
        assert!(told.len() == 1 && told[0]["reason"] == last["reason"], "{done:?}");
        assert!(events.iter().all(|event| event["event"] != "failed"), "{done:?}");
    }
}

/// The process group of the command is outside, and has no number inside.
#[cfg(feature = "sqlite")]
#[test]
fn in_a_pid_namespace_a_lost_guardian_is_70_and_nothing_is_left() {
    let scene = Scene::new();
    // It leads a group and a session when it is `sleep`.
    let script =
        "setsid sleep 6000 & until grep -q sleep /proc/$!/comm; do :; done; kill -9 $PPID; sleep 6000";
    let args = [
        "-Urfp",
        "--mount-proc",
        crate::scene::TENURE,
        "--json",
        "run",
        "-s",
        "chat",
        "--",
        "sh",
        "-c",
        script,
    ];
    let done = Running::start(scene.dress(std::process::Command::new("unshare"), args)).finish();
    if done.is_said("unshare: ") {
        eprintln!("SKIPPED: this user may have no namespace: {done:?}");
        return;
    }
    assert_eq!(done.code, 70, "{done:?}");
    let ended = done.events().pop().unwrap();
    assert_eq!((&ended["event"], &ended["reason"]), (&"ended".into(), &"guardian_lost".into()), "{done:?}");
}
