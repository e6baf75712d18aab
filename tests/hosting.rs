//! What hosts do to the library besides calling it: other runtimes, paused clocks, a `main` that returns, a fork.

#![cfg(all(feature = "sqlite", unix))]

#[path = "support/panics.rs"]
mod panics;

use std::{env, future::IntoFuture, process, thread, time::Duration};

use futures::{StreamExt, executor::block_on};
use tempfile::TempDir;
use tenure::{AcquireError, LeaseSupervisor, Run, SessionKey, SessionState};
use tokio::runtime::{Builder, Runtime};

const SHORT: Duration = Duration::from_millis(300);

struct Database {
    _dir: TempDir,
    url: String,
}

impl Database {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", dir.path().join("leases.db").display());
        Self { _dir: dir, url }
    }

    async fn supervisor(&self) -> LeaseSupervisor {
        LeaseSupervisor::builder(&self.url).start().await.unwrap()
    }
}

fn key() -> SessionKey {
    SessionKey::new("acct-1", "chat-9").unwrap()
}

fn paused() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

#[test]
fn a_caller_whose_clock_stands_still_has_all_the_time_of_an_acquire() {
    let database = Database::new();
    paused().block_on(async {
        let supervisor =
            LeaseSupervisor::builder(&database.url).acquire_timeout(SHORT).start().await.unwrap();
        // By the caller's clock, what begins now began before the supervisor's last deadline.
        thread::sleep(2 * SHORT);
        supervisor.acquire(&key()).await.unwrap().release().await;
    });
}

#[test]
fn a_caller_whose_clock_runs_ahead_loses_neither_run_nor_limit() {
    let database = Database::new();
    paused().block_on(async {
        let supervisor = database.supervisor().await;
        let run = supervisor.acquire(&key()).max_duration(Duration::from_secs(600)).await.unwrap();
        tokio::time::advance(Duration::from_secs(3_600)).await;
        let other = SessionKey::new("acct-1", "another").unwrap();
        supervisor.acquire(&other).await.unwrap().release().await;
        assert!(run.is_held());
        assert!(run.release().await.released);
    });
}

#[test]
fn the_schema_is_applied_whatever_runtime_there_is() {
    block_on(tenure::migrate(&Database::new().url)).unwrap();
    #[cfg(feature = "postgres")]
    block_on(tenure::migrate("postgres://app@127.0.0.1:1/chat")).unwrap_err();
    Builder::new_current_thread().build().unwrap().block_on(tenure::migrate(&Database::new().url)).unwrap();
    paused().block_on(tenure::migrate(&Database::new().url)).unwrap();
}

#[cfg(feature = "diagnosis")]
#[test]
fn a_database_is_examined_whatever_runtime_there_is() {
    use tenure::diagnosis::Examination;

    let database = Database::new();
    block_on(tenure::migrate(&database.url)).unwrap();
    let examination = || Examination::of(&database.url).lasting(SHORT).run();
    assert!(!block_on(examination()).unwrap().findings.is_empty());
    assert!(!paused().block_on(examination()).unwrap().findings.is_empty());
}

#[test]
fn a_main_that_returns_right_after_its_run_leaves_nothing_behind() {
    const ITS_DATABASE: &str = "TENURE_TEST_MAIN_URL";
    const ITS_RUNTIME: &str = "TENURE_TEST_MAIN_RUNTIME";
    const RUN_LAST: &str = "TENURE_TEST_MAIN_DROPS_ITS_RUN_LAST";
    if let (Ok(url), Ok(runtime)) = (env::var(ITS_DATABASE), env::var(ITS_RUNTIME)) {
        let main = early_end(url, env::var_os(RUN_LAST).is_some());
        let _ended_early = match runtime.as_str() {
            "many threads" => Builder::new_multi_thread().enable_all().build().unwrap().block_on(main),
            "one thread" => Builder::new_current_thread().enable_all().build().unwrap().block_on(main),
            _ => block_on(main),
        };
        // As when `main` returns: no thread is waited for.
        process::exit(0);
    }
    for runtime in ["many threads", "one thread", "none"] {
        for is_run_last in [false, true] {
            let database = Database::new();
            let mut main = process::Command::new(env::current_exe().unwrap());
            main.args(["--exact", "a_main_that_returns_right_after_its_run_leaves_nothing_behind"]);
            main.env(ITS_DATABASE, &database.url).env(ITS_RUNTIME, runtime);
            if is_run_last {
                main.env(RUN_LAST, "yes");
            }
            assert!(main.status().unwrap().success());
            let state = async { database.supervisor().await.inspect(&key()).await.unwrap().state };
            assert_eq!(block_on(state), SessionState::Idle, "{runtime}, run last: {is_run_last}");
        }
    }
}

async fn early_end(url: String, is_run_last: bool) -> Result<(), &'static str> {
    let supervisor = LeaseSupervisor::builder(url).start().await.unwrap();
    let _run = supervisor.acquire(&key()).await.unwrap();
    if is_run_last {
        drop(supervisor);
    }
    Err("an error on the way")
}

#[test]
fn a_fork_is_refused_at_once_and_its_parent_is_unharmed() {
    use nix::{
        sys::{
            signal::{Signal, kill},
            wait::{WaitPidFlag, WaitStatus, waitpid},
        },
        unistd::{ForkResult, fork},
    };

    let database = Database::new();
    let supervisor = block_on(database.supervisor());
    let run = block_on(supervisor.acquire(&key()).into_future()).unwrap();
    #[allow(unsafe_code, reason = "what a fork does is what is tested")]
    // SAFETY: the child calls nothing that waits for another thread of this process, and ends without unwinding.
    let forked = unsafe { fork() }.unwrap();
    let child = match forked {
        ForkResult::Child => {
            let code = misbehaviour_of_a_fork(supervisor, run);
            #[allow(unsafe_code, reason = "nothing of the parent's may run at the exit of the child")]
            // SAFETY: it takes a number and does not return.
            unsafe {
                nix::libc::_exit(code)
            }
        }
        ForkResult::Parent { child } => child,
    };
    let mut status = WaitStatus::StillAlive;
    for _ in 0..600 {
        status = waitpid(child, Some(WaitPidFlag::WNOHANG)).unwrap();
        if status != WaitStatus::StillAlive {
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    if status == WaitStatus::StillAlive {
        kill(child, Signal::SIGKILL).unwrap();
    }
    assert_eq!(status, WaitStatus::Exited(child, 0), "the number of the call that was not refused");
    assert!(run.is_held());
    let holder = block_on(supervisor.inspect(&key())).unwrap().holder.unwrap();
    assert_eq!((holder.run_id, holder.stop), (run.run_id(), None));
    assert!(block_on(run.release()).released);
}

/// The number of the first call that is not as it should be in a fork; 0 if there is none.
fn misbehaviour_of_a_fork(supervisor: LeaseSupervisor, run: Run) -> i32 {
    if run.is_held() || !run.trusted_for().is_zero() {
        return 1;
    }
    let acquired = block_on(supervisor.acquire(&key()).into_future());
    if !matches!(acquired, Err(AcquireError::Closed(_))) {
        return 2;
    }
    if block_on(supervisor.inspect(&key())).is_ok() || block_on(supervisor.stop(&key()).into_future()).is_ok()
    {
        return 3;
    }
    if block_on(supervisor.list().into_future()).is_ok() || block_on(supervisor.is_ready()) {
        return 4;
    }
    if block_on(supervisor.watch(&key()).next()).is_some() || block_on(supervisor.events().next()).is_some() {
        return 5;
    }
    if !block_on(run.cancelled()).is_loss() || block_on(run.release()).released {
        return 6;
    }
    block_on(supervisor.drain());
    if !block_on(supervisor.shutdown(Duration::ZERO)).failed {
        return 7;
    }
    drop(supervisor);
    0
}
