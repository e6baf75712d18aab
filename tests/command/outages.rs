//! A database that is away, silent, slow to come back, or that ends its connections; and readers that do not read.

use std::{
    io::{PipeReader, PipeWriter, Write as _, pipe},
    process::Stdio,
    time::{Duration, Instant},
};

use crate::{
    ending::{Contender, nasty},
    scene::{Running, Scene},
    support::{
        backend::{Backend as _, Reachable as _},
        background,
        client::key,
        postgres::{Options, Server},
        postgres_backend::PostgresBackend,
        process_table,
        proxy::Proxy,
    },
};

/// A script that runs until the test has written a line.
const WAITING: &str = "ready; read line; exit 7";

fn waiting(scene: &Scene, url: &str, ttl: &str) -> Running {
    let mut command = scene.run_command(url, "chat", &["--ttl", ttl], WAITING);
    command.stdin(Stdio::piped());
    let run = Running::start(command);
    scene.wait_for("ready");
    run
}

/// The run has come through: CMD goes on, and ends by itself.
#[track_caller]
fn assert_survived(mut run: Running) {
    run.write(b"\n");
    let done = run.finish();
    assert_eq!(done.code, 7, "{done:?}");
    assert_eq!(done.events().pop().unwrap()["released"], true, "{done:?}");
}

#[tokio::test]
async fn an_outage_of_a_third_of_the_lease_is_told_as_a_risk_and_as_recovered() {
    let (scene, backend) = (Scene::new(), PostgresBackend::start(Server::shared(), "").await);
    let proxy = Proxy::start(Server::shared().address());
    let mut run = waiting(&scene, &proxy.url_for(backend.database()), "9s");
    proxy.cut();
    let cut = Instant::now();
    let at_risk = run.event("at_risk");
    assert_eq!(
        crate::events::names(&at_risk),
        ["account", "at", "cause", "confirmed_at", "event", "run_id", "session", "trusted_for_ms"]
    );
    let confirmed_at = crate::events::instant(&at_risk["confirmed_at"]);
    assert!(confirmed_at < crate::events::instant(&at_risk["at"]), "{at_risk}");
    assert!(at_risk["trusted_for_ms"].as_u64().is_some_and(|left| left > 0 && left < 9_000), "{at_risk}");
    background::sleep(Duration::from_secs(3).saturating_sub(cut.elapsed())).await;
    proxy.pass();
    let recovered = run.event("recovered");
    assert_eq!(crate::events::names(&recovered), ["account", "at", "event", "run_id", "session"]);
    for event in [at_risk, recovered] {
        crate::events::assert_recent(crate::events::instant(&event["at"]));
    }
    assert_survived(run);
}

#[tokio::test]
async fn connections_that_are_ended_again_and_again_cost_no_run() {
    let (scene, backend) = (Scene::new(), PostgresBackend::start(Server::shared(), "").await);
    let run = waiting(&scene, &backend.url(), "9s");
    let mut ended = 0;
    for _ in 0..20 {
        ended += backend.database().terminate_backends().await;
        background::sleep(Duration::from_millis(150)).await;
    }
    assert!(ended > 2, "{ended} connections");
    assert_survived(run);
    scene.assert_idle(&backend.url(), "chat");
}

#[tokio::test]
async fn a_server_that_is_restarted_costs_no_run() {
    let server = Server::start_with(&Options::default());
    let (scene, backend) = (Scene::new(), PostgresBackend::start(&server, "").await);
    let run = waiting(&scene, &backend.url(), "15s");
    server.restart_immediate().await;
    assert_survived(run);
    scene.assert_idle(&backend.url(), "chat");
}

#[tokio::test]
async fn nothing_is_alive_when_another_can_acquire_from_a_server_that_stood_still() {
    let server = Server::start();
    let (scene, backend) = (Scene::new(), PostgresBackend::start(&server, "").await);
    let mut run = nasty(&scene, &backend.url(), &["--ttl", "8s", "--stop-grace", "10m"]);
    let contender = Contender::start(&backend.url(), scene.pids());
    let frozen = server.freeze();
    let stopping = run.event("stopping");
    assert_eq!(stopping["reason"], "unconfirmed");
    assert!(crate::events::instant(&stopping["confirmed_at"]) < crate::events::instant(&stopping["at"]));
    scene.wait_until_gone();
    assert_eq!(run.exit(), 76, "while the server stands still");
    frozen.thaw();
    contender.assert_nothing_was_alive();
}

#[tokio::test]
async fn nothing_is_alive_when_another_can_acquire_behind_a_network_that_is_silent() {
    let (scene, backend) = (Scene::new(), PostgresBackend::start(Server::shared(), "").await);
    let proxy = Proxy::start(Server::shared().address());
    let url = proxy.url_for(backend.database());
    let mut run = nasty(&scene, &url, &["--ttl", "8s", "--stop-grace", "10m"]);
    let contender = Contender::start(&backend.url(), scene.pids());
    proxy.swallow();
    contender.assert_nothing_was_alive();
    assert_eq!(run.event("stopping")["reason"], "unconfirmed");
    assert_eq!(run.exit(), 76);
}

#[tokio::test]
async fn nothing_is_alive_when_another_can_acquire_though_command_and_server_stood_still() {
    let server = Server::start();
    let (scene, backend) = (Scene::new(), PostgresBackend::start(&server, "").await);
    let mut run = nasty(&scene, &backend.url(), &["--ttl", "8s", "--stop-grace", "10m"]);
    let contender = Contender::start(&backend.url(), scene.pids());
    let frozen = server.freeze();
    process_table::freeze(run.pid());
    scene.wait_until_gone();
    frozen.thaw();
    contender.assert_nothing_was_alive();
    run.signal(rustix::process::Signal::CONT);
    assert_eq!(run.exit(), 76);
}

#[tokio::test]
async fn a_release_that_fails_leaves_cmds_own_code_and_says_so() {
    let (scene, backend) = (Scene::new(), PostgresBackend::start(Server::shared(), "").await);
    let proxy = Proxy::start(Server::shared().address());
    let url = proxy.url_for(backend.database());
    let mut command =
        scene.tenure(["run", "-a", "acct", "-s", "chat", "--ttl", "9s", "--database", &url, "--"]);
    command.args(["sh", "-c", ": > $dir/ready; read line; exit 7"]).stdin(Stdio::piped());
    let mut run = Running::start(command);
    scene.wait_for("ready");
    proxy.cut();
    run.write(b"\n");
    let done = run.finish();
    assert_eq!(done.code, 7, "{done:?}");
    assert!(done.is_said("warning: the release is not confirmed"), "{done:?}");
    assert!(done.is_said("not released"), "{done:?}");
    assert!(backend.image(&key("chat")).await.is_some(), "it expires by itself");
}

#[tokio::test]
async fn the_wait_for_a_release_that_nobody_answers_is_short_and_said_and_a_signal_ends_it() {
    use rustix::process::Signal;

    for signal in [None, Some(Signal::INT), Some(Signal::TERM)] {
        let (scene, backend) = (Scene::new(), PostgresBackend::start(Server::shared(), "").await);
        let proxy = Proxy::start(Server::shared().address());
        let url = proxy.url_for(backend.database());
        // Trusted for eight minutes.
        let mut command =
            scene.tenure(["run", "-a", "acct", "-s", "chat", "--ttl", "10m", "--database", &url, "--"]);
        command.args(["sh", "-c", ": > $dir/ready; read line; exit 7"]).stdin(Stdio::piped());
        let mut run = Running::start(command);
        scene.wait_for("ready");
        proxy.swallow();
        run.write(b"\n");
        run.line_of_text("waiting for the database to confirm the release");
        let said = Instant::now();
        if let Some(signal) = signal {
            run.signal(signal);
        }
        let done = run.finish();
        assert_eq!(done.code, 7, "{done:?}");
        assert!(done.is_said("not released"), "{done:?}");
        assert!(said.elapsed() < Duration::from_secs(60), "{:?}: {done:?}", said.elapsed());
    }
}

/// A pipe that is full, and that nobody reads.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    for piece in [4_096, 1] {
        while writer.write(&vec![b'x'; piece]).is_ok() {}
    }
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    (reader, writer)
}

#[tokio::test]
async fn a_full_stderr_that_nobody_reads_costs_no_lease() {
    let (scene, backend) = (Scene::new(), PostgresBackend::start(Server::shared(), "").await);
    for verbosity in [None, Some("-vvv")] {
        let (reader, writer) = full_pipe();
        let script = "exec 2> /dev/null; : > $dir/ready; read line; exit 7";
        let mut command = scene.tenure(["--database", &backend.url()]);
        command.args(verbosity).args(["run", "-a", "acct", "-s", "chat", "--ttl", "3s"]);
        command.args(["--", "sh", "-c", script]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(writer);
        let mut child = command.spawn().unwrap();
        drop(command);
        scene.wait_for("ready");
        let run_id = scene.status(&backend.url(), "chat").1["run_id"].clone();
        // Three leases long.
        background::sleep(Duration::from_secs(9)).await;
        let (code, status) = scene.status(&backend.url(), "chat");
        assert_eq!((code, &status["run_id"]), (0, &run_id), "{verbosity:?}: {status}");
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let mut code = None;
        crate::support::wait_until("the command ends", || {
            code = child.try_wait().unwrap();
            code.is_some()
        });
        assert_eq!(code.unwrap().code(), Some(7), "{verbosity:?}");
        drop(reader);
        std::fs::remove_file(scene.path("ready")).unwrap();
    }
}
