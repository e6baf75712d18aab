//! What the host program does: blocks its runtime, burns its cores, runs on whatever executor, starts twice.

use std::{collections::BTreeMap, fs, future::Future, pin::pin, sync::mpsc, task, thread::Thread};

use tenure::{AcquireError, SessionKey};

use super::{
    support::{
        backend::Reachable,
        process::{Commands, Worker, say},
    },
    *,
};

/// The shortest there is.
const TTL: Duration = Duration::from_secs(1);

on_every_backend! {
    i10_a_host_whose_every_thread_is_blocked_for_three_ttls_keeps_every_lease
    i10_a_healthy_run_of_twenty_ttls_on_busy_cores_is_never_cancelled
    two_supervisors_of_one_process_are_two_devices
    a_shutdown_leaves_no_thread_and_no_connection_behind_in_any_runtime
}

/// All that the host has is blocked: its workers sleep, its cores spin.
async fn i10_a_host_whose_every_thread_is_blocked_for_three_ttls_keeps_every_lease(backend: impl Reachable) {
    const WORKERS: usize = 4;
    let url = backend.url();
    let (sender, receiver) = mpsc::channel();
    // A runtime of its own, so that the test's is not the one that is blocked.
    let host = thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build();
        let runtime = runtime.expect("four threads");
        let (supervisor, runs) = runtime.block_on(async {
            let supervisor = supervisor(&url, TTL).await;
            let runs = held_all(&supervisor, 20).await;
            (supervisor, runs)
        });
        let _busy = BusyCores::start();
        let blocked: Vec<_> = (0..WORKERS).map(|_| runtime.spawn(async { thread::sleep(3 * TTL) })).collect();
        runtime.block_on(join_all(blocked));
        let held = runs.iter().filter(|run| run.is_held()).count();
        sender.send((held, runs.len())).expect("the test waits");
        runtime.block_on(supervisor.shutdown(supervisor.timing().stop_grace()));
    });
    let (held, of) =
        background::run_blocking(move || receiver.recv()).await.expect("the host does not panic");
    assert_eq!(held, of, "leases were lost");
    background::run_blocking(move || host.join()).await.expect("the host does not panic");
}

async fn i10_a_healthy_run_of_twenty_ttls_on_busy_cores_is_never_cancelled(backend: impl Reachable) {
    let supervisor = supervisor(&backend.url(), TTL).await;
    let runs = held_all(&supervisor, 10).await;
    let _busy = BusyCores::start();
    let ended = runs.iter().map(|run| Box::pin(run.cancelled()));
    tokio::select! {
        (reason, index, _) = futures::future::select_all(ended) => panic!("{:?}: {reason}", runs[index]),
        () = background::sleep(20 * TTL) => {}
    }
    for run in &runs {
        assert!(run.is_held(), "{run:?}");
    }
}

async fn two_supervisors_of_one_process_are_two_devices(backend: impl Reachable) {
    let (one, other) = (supervisor(&backend.url(), TTL).await, supervisor(&backend.url(), TTL).await);
    assert_ne!(one.node(), other.node());
    let (first, second) =
        futures::join!(one.acquire(&key("chat")).into_future(), other.acquire(&key("chat")).into_future());
    let (run, refused, winner) = match (first, second) {
        (Ok(run), Err(refused)) => (run, refused, &one),
        (Err(refused), Ok(run)) => (run, refused, &other),
        answers => panic!("{answers:?}"),
    };
    let AcquireError::Busy(busy) = refused else { panic!("{refused}") };
    assert_eq!((busy.holder().run_id, busy.holder().node), (run.run_id(), winner.node()));

    let kept = [held(&one, "one's").await, held(&other, "other's").await];
    assert_eq!(
        one.shutdown(one.timing().stop_grace()).await.left.len(),
        usize::from(winner.node() == one.node()) + 1
    );
    assert_eq!(kept[0].cancelled().await, EndReason::Shutdown);
    background::sleep(2 * TTL).await;
    assert!(kept[1].is_held(), "the other supervisor goes on");
    drop(run);
    drop(held_at_last(&other, "chat").await);
}

/// In a process of its own each, whose threads and connections can be counted.
async fn a_shutdown_leaves_no_thread_and_no_connection_behind_in_any_runtime(backend: impl Reachable) {
    for role in ["tokio", "tokio on one thread", "actix", "no runtime"] {
        let url = backend.url();
        let mut host = Worker::spawn(role, &[("URL", &url)]);
        let during = host.expect("during ").await;
        for thread in [r#""tenure""#, r#""tenure-watch""#] {
            assert!(during.contains(thread), "{role}: {during}");
        }
        assert_eq!(host.expect("at once ").await, "{}", "{role}: supervisors' threads after the shutdown");
        assert_eq!(host.expect("at last ").await, "{}", "{role}: threads and connections after the shutdown");
        host.kill();
    }
}

/// The processes of the test above.
pub(super) fn work(role: &str, commands: Commands) {
    match role {
        "tokio" => tokio_main(),
        "tokio on one thread" => tokio_on_one_thread(),
        "actix" => actix_main(),
        "no runtime" => block_on(program()),
        _ => panic!("no role {role}"),
    }
    say(format_args!("at once {:?}", with_prefix(&threads(), "tenure")));
    // The operating system takes back threads and sockets when it gets round to it.
    let until = SystemClock.now() + AT_LAST;
    while !left_behind().is_empty() && SystemClock.now() < until {
        thread::sleep(Duration::from_millis(5));
    }
    say(format_args!("at last {:?}", left_behind()));
    commands.stay();
}

#[tokio::main]
async fn tokio_main() {
    program().await;
}

#[tokio::main(flavor = "current_thread")]
async fn tokio_on_one_thread() {
    program().await;
}

#[actix_rt::main]
async fn actix_main() {
    program().await;
}

/// What a program does with a supervisor, ended while a renewal is under way, most likely.
async fn program() {
    let url = std::env::var("URL").expect("the test sets it");
    let supervisor = LeaseSupervisor::builder(url).ttl(TTL).start().await.expect("the database is there");
    let sessions: Vec<_> = (0..5).map(|n| SessionKey::new("acct", format!("{n}")).expect("short")).collect();
    let mut runs = Vec::new();
    for session in &sessions {
        runs.push(supervisor.acquire(session).await.expect("it is free"));
    }
    let work = runs.pop().expect("there are five").scope(async |context| context.is_held());
    assert!(work.await.expect("the run is healthy"));
    // Not a timer: this runs without a runtime, too.
    let renewed = runs[0].trusted_for();
    while runs[0].trusted_for() <= renewed {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!left_behind().contains_key("tenure-watch"), "nobody watches yet");
    let mut watching = supervisor.watch(&sessions[0]);
    watching.next().await.expect("the supervisor goes on");
    say(format_args!("during {:?}", left_behind()));
    let stopping = runs.into_iter().map(|run| async move {
        assert_eq!(run.cancelled().await, EndReason::Shutdown);
    });
    let (report, _) =
        futures::join!(supervisor.shutdown(supervisor.timing().stop_grace()), join_all(stopping));
    assert!(report.left.is_empty(), "{report:?}");
    supervisor.acquire(&sessions[0]).await.expect_err("it has ended");
}

/// The least executor there is.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut context = task::Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            task::Poll::Ready(output) => return output,
            task::Poll::Pending => thread::park(),
        }
    }
}

/// What a supervisor has made of this process that its host has not: threads by name, sockets and database files.
fn left_behind() -> BTreeMap<String, usize> {
    let mut found = with_prefix(&threads(), "tenure");
    found.extend(with_prefix(&threads(), "sqlx"));
    for file in fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let target = fs::read_link(file.path()).unwrap_or_default().display().to_string();
        if target.starts_with("socket:") && is_tcp(&target) || target.contains("tenure.db") {
            *found.entry(target).or_default() += 1;
        }
    }
    found
}

/// Whether a socket is an established connection: runtimes have sockets of their own for signals.
fn is_tcp(link: &str) -> bool {
    let inode = link.trim_start_matches("socket:[").trim_end_matches(']');
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap_or_default();
    table.lines().any(|line| line.split_whitespace().nth(9) == Some(inode))
}

fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
        .map(|name| name.trim_end().to_owned())
        .collect()
}

fn with_prefix(names: &[String], prefix: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for name in names.iter().filter(|name| name.starts_with(prefix)) {
        *found.entry(name.clone()).or_default() += 1;
    }
    found
}
