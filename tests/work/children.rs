//! Child processes of a run.

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Command, Stdio},
    time::Instant,
};

use tempfile::TempDir;
use tenure::{
    Run, RunContext,
    process::{ChildTree, ProcessOutcome},
};

use super::{
    support::{background, process_table, wait_until},
    *,
};

on_every_backend! {
    i6_a_session_is_free_only_after_the_last_process_of_its_run_has_gone
    i3_the_processes_of_a_lost_run_are_gone_before_another_may_enter
    processes_are_ended_in_time_although_the_host_is_blocked
}

const NONE: [i32; 0] = [];

/// A place where scripts tell their processes.
struct Scene {
    dir: TempDir,
}

impl Scene {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A shell that adds its own id to the file `pids`, then does this.
    fn script(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        let script = format!("tell() {{ echo $1 >> $dir/pids; }}; tell $$; {script}");
        command.args(["-c", &script]).env("dir", self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Starts a script under a run, and waits until it and so many others have told their ids.
    fn start(&self, ctx: &RunContext, script: &str, processes: usize) -> ChildTree {
        let before = self.pids().len();
        let child = ctx.child(&mut self.script(script)).unwrap();
        wait_until("all have started", || self.pids().len() == before + processes);
        child
    }

    fn pids(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.path("pids")).unwrap_or_default();
        // The last line may be half written.
        let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        lines.map(|pid| pid.parse().unwrap()).collect()
    }

    fn alive(&self) -> Vec<i32> {
        self.pids().into_iter().filter(|pid| process_table::is_alive(*pid)).collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        process_table::kill_all_with(&format!("dir={}", self.dir.path().display()));
    }
}

/// One in a session of its own, and one that ignores the request to end.
const STUBBORN: &str = r#"
    setsid sh -c 'echo $$ >> $dir/pids; exec sleep 600' &
    sh -c 'trap "" TERM; echo $$ >> $dir/pids; while :; do sleep 600 & wait; done' &
    wait
"#;

async fn held(backend: &impl Reachable, ttl: Duration) -> (LeaseSupervisor, Run) {
    let started =
        LeaseSupervisor::builder(backend.url()).ttl(ttl).stop_grace(Duration::from_millis(500)).start();
    let supervisor = started.await.unwrap();
    let run = supervisor.acquire(&key("chat")).await.unwrap();
    (supervisor, run)
}

/// Looks at both at once: the row, and whoever is alive.
async fn i6_a_session_is_free_only_after_the_last_process_of_its_run_has_gone(backend: impl Reachable) {
    let (scene, other) = (Scene::new(), supervisor(&backend, TTL).await);
    let (_supervisor, run) = held(&backend, TTL).await;
    let context = run.context();
    let stubborn = scene.start(&context, STUBBORN, 3);
    let scope = tokio::spawn(async move {
        let child = stubborn;
        let result = run.scope(async |ctx| ctx.cancelled().await).await;
        (result, child)
    });
    context.stop("tea");
    let next = loop {
        match other.acquire(&key("chat")).await {
            Ok(next) => break next,
            Err(AcquireError::Busy(_)) => background::sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(scene.alive(), NONE, "another run is in");
    drop(next);
    let (result, child) = scope.await.unwrap();
    assert!(matches!(result.unwrap_err().reason(), EndReason::Stopped { .. }));
    let end = child.wait().await;
    assert!(end.tree.is_verified());
    assert!(end.tree.killed().count() >= 1, "one ignores SIGTERM: {end:?}");
    let leader = end.tree.processes().iter().find(|process| process.pid == child.pid()).unwrap();
    assert_eq!(leader.how, ProcessOutcome::Terminated, "it had its grace");
}

/// The run learns at its next renewal that its lease is over, and its work has no grace then (invariant I13).
async fn i3_the_processes_of_a_lost_run_are_gone_before_another_may_enter(backend: impl Reachable) {
    let scene = Scene::new();
    let (supervisor, run) = held(&backend, Duration::from_secs(12)).await;
    let timing = supervisor.timing();
    let context = run.context();
    let stubborn = scene.start(&context, STUBBORN, 3);
    backend.set_remaining(&key("chat"), 0).await;
    let told = async { (context.cancelled().await, Instant::now()) };
    let scope = run.scope(async |_| std::future::pending::<()>().await);
    let ((reason, told_at), ended) = futures::join!(told, scope);
    assert_eq!(scene.alive(), NONE, "the scope has ended");
    assert_eq!((&reason, ended.unwrap_err().into_value()), (&EndReason::Expired, None));
    let gone_after = told_at.elapsed();
    // What the kernel and a busy machine take.
    assert!(gone_after < timing.safety_margin() / 2, "{gone_after:?}");
    assert!(stubborn.wait().await.tree.is_verified());
}

/// The work itself blocks the only thread of its runtime.
async fn processes_are_ended_in_time_although_the_host_is_blocked(backend: impl Reachable) {
    let scene = Scene::new();
    let (supervisor, run) = held(&backend, TTL).await;
    let context = run.context();
    let child = scene.start(&context, "exec sleep 600", 1);
    let error = run
        .scope(async |ctx| {
            ctx.stop("tea");
            wait_until("the child is gone", || scene.alive().is_empty());
        })
        .await
        .unwrap_err();
    assert!(matches!(error.reason(), EndReason::Stopped { .. }) && error.ended().released, "{error:?}");
    assert_eq!(child.wait().await.status.unwrap().signal(), Some(15));
    supervisor.shutdown(Duration::ZERO).await;
}

#[cfg(feature = "testing")]
mod in_memory {
    use std::{io::Read, sync::Arc, thread};

    use tenure::{clock::SystemClock, process::ChildError, store::MemoryStore};

    use super::*;

    /// Each ignores the request to end, and has a child of its own.
    const DEAF: &str = "trap '' TERM; while :; do sleep 600; done";

    fn start_deaf(scene: &Scene, ctx: &RunContext, count: usize) -> Vec<ChildTree> {
        let children = (0..count).map(|_| ctx.child(&mut scene.script(DEAF)).unwrap()).collect();
        wait_until("all have started", || scene.pids().len() == count);
        children
    }

    /// However many there are, another run may enter half a margin after they are killed.
    #[tokio::test]
    async fn i3_very_many_children_of_a_lost_run_are_gone_before_another_may_enter() {
        const CHILDREN: usize = 120;
        let (scene, store) = (Scene::new(), MemoryStore::new(Arc::new(SystemClock)));
        let started = LeaseSupervisor::builder_on(Arc::new(store.clone()))
            .ttl(Duration::from_secs(20))
            .renew_interval(Duration::from_secs(2))
            .start();
        let supervisor = started.await.unwrap();
        let margin = supervisor.timing().safety_margin();
        let run = supervisor.acquire(&key("chat")).await.unwrap();
        let children = start_deaf(&scene, &run.context(), CHILDREN);
        store.set_remaining_millis(&key("chat"), 0);
        let context = run.context();
        let told = async { (context.cancelled().await, Instant::now()) };
        // The loss is certain: the work is dropped without having a say.
        let scope = run.scope(async |_| std::future::pending::<()>().await);
        let ((reason, told_at), _) = futures::join!(told, scope);
        let gone_after = told_at.elapsed();
        assert_eq!((reason, scene.alive()), (EndReason::Expired, vec![]));
        // Trust that ends by the clock leaves a margin until the session's expiry.
        assert!(gone_after < margin, "{gone_after:?}");
        for child in children {
            assert!(child.wait().await.tree.is_verified());
        }
    }

    #[tokio::test]
    async fn i6_very_many_children_of_a_stopped_run_are_gone_when_it_is_released() {
        const CHILDREN: usize = 60;
        let (scene, store) = (Scene::new(), MemoryStore::new(Arc::new(SystemClock)));
        let started = LeaseSupervisor::builder_on(Arc::new(store))
            .ttl(Duration::from_secs(20))
            .stop_grace(Duration::from_millis(200))
            .start();
        let supervisor = started.await.unwrap();
        let run = supervisor.acquire(&key("chat")).await.unwrap();
        let children = start_deaf(&scene, &run.context(), CHILDREN);
        run.stop("tea");
        let ended = run.release().await;
        assert_eq!((ended.released, scene.alive()), (true, vec![]));
        for child in children {
            let end = child.wait().await;
            assert_eq!(end.status.unwrap().signal(), Some(9));
            assert!(end.tree.is_verified(), "{end:?}");
        }
    }

    async fn run() -> Run {
        let store = MemoryStore::new(Arc::new(SystemClock));
        let supervisor = LeaseSupervisor::builder_on(Arc::new(store)).ttl(TTL).start().await.unwrap();
        let run = supervisor.acquire(&key("chat")).await.unwrap();
        // The last handle would end the run.
        tokio::spawn(async move {
            let _supervisor = supervisor;
            std::future::pending::<()>().await
        });
        run
    }

    #[tokio::test]
    async fn a_child_gives_its_output_and_status_and_what_it_left_behind_is_ended() {
        let scene = Scene::new();
        let run = run().await;
        let mut command = scene.script("sh -c 'echo $$ >> $dir/pids; exec sleep 600' & echo hello; exit 3");
        command.stdout(Stdio::piped());
        let (end, output) = run
            .scope(async |ctx| {
                let mut child = ctx.child(&mut command).unwrap();
                let mut stdout = child.stdout.take().unwrap();
                let end = child.wait().await;
                assert_eq!(scene.alive(), NONE);
                let mut output = String::new();
                stdout.read_to_string(&mut output).unwrap();
                (end, output)
            })
            .await
            .unwrap();
        assert_eq!((end.status.unwrap().code(), output.as_str()), (Some(3), "hello\n"));
        assert!(end.tree.is_verified());
    }

    #[tokio::test]
    async fn a_scope_waits_for_a_child_that_nobody_waits_for() {
        let scene = Scene::new();
        let run = run().await;
        let go_on = scene.path("go on");
        let opener = go_on.clone();
        let script = "while [ ! -e \"$dir/go on\" ]; do sleep 0.01; done; : > $dir/done";
        let context = run.context();
        run.scope(async |ctx| {
            drop(ctx.child(&mut scene.script(script)).unwrap());
            thread::spawn(move || {
                assert!(context.is_held());
                fs::write(opener, "").unwrap();
            });
        })
        .await
        .unwrap();
        assert!(scene.path("done").exists() && scene.alive().is_empty());
    }

    #[tokio::test]
    async fn one_child_of_several_can_be_ended_alone() {
        let scene = Scene::new();
        let run = run().await;
        let context = run.context();
        let (one, other) = (scene.start(&context, STUBBORN, 3), scene.start(&context, "exec sleep 600", 1));
        one.end();
        let end = one.wait().await;
        assert!(end.tree.is_verified() && context.is_held());
        assert_eq!(scene.alive(), [other.pid() as i32]);
        assert!(run.release().await.released);
        assert_eq!(scene.alive(), NONE);
    }

    #[tokio::test]
    async fn children_of_one_command_are_ended_apart() {
        let scene = Scene::new();
        let run = run().await;
        let mut command = scene.script("exec sleep 600");
        let (one, other) =
            (run.context().child(&mut command).unwrap(), run.context().child(&mut command).unwrap());
        one.end();
        assert!(one.wait().await.tree.is_verified());
        // Time enough to be told to end, too.
        background::sleep(Duration::from_millis(200)).await;
        assert!(process_table::is_alive(other.pid() as i32));
        assert!(run.release().await.released);
        assert!(!process_table::is_alive(other.pid() as i32));
    }

    /// Scenario: no child is started after a stop decision.
    #[tokio::test]
    async fn no_child_is_started_once_the_run_was_told_to_end() {
        let scene = Scene::new();
        let run = run().await;
        run.stop("tea");
        run.cancelled().await;
        match run.context().child(&mut scene.script("")) {
            Err(ChildError::Ended(EndReason::Stopped { .. })) => {}
            other => panic!("{other:?}"),
        }
        let context = run.context();
        assert!(run.release().await.released);
        match context.child(&mut scene.script("")) {
            Err(ChildError::Ended(EndReason::Stopped { .. })) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(scene.pids(), NONE);
    }

    #[tokio::test]
    async fn a_child_that_cannot_be_started_harms_nothing() {
        let run = run().await;
        let missing = run.context().child(&mut Command::new("/no/such/program")).unwrap_err();
        assert!(matches!(missing, ChildError::NotStarted(_)), "{missing}");
        assert!(run.is_held());
        let ended = run.release().await;
        assert_eq!((ended.reason, ended.released), (EndReason::Completed, true));
    }

    /// Somebody else's `waitpid(-1)`, or a host that ignores SIGCHLD, may take the status. Not the end.
    #[tokio::test]
    async fn a_child_whose_status_somebody_else_took_still_ends() {
        let scene = Scene::new();
        let run = run().await;
        let context = run.context();
        let child = scene.start(&context, "exec sleep 600", 1);
        let pid = rustix::process::Pid::from_raw(child.pid() as i32);
        process_table::signal(child.pid() as i32, rustix::process::Signal::KILL);
        let _ = rustix::process::waitpid(pid, rustix::process::WaitOptions::empty());
        let end = child.wait().await;
        assert!(end.tree.is_verified());
        assert!(end.status.is_none_or(|status| status.signal() == Some(9)));
        assert!(run.release().await.released);
    }
}
