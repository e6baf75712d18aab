//! Looking where nothing can be written: with a role that may only read, and on a standby.

use serde_json::Value;
use tenure::RunId;

use crate::{
    events::names,
    scene::{ACCOUNT, Running, Scene},
    support::{
        backend::{Backend as _, Reachable as _},
        client::{Client, acquire, key},
        operating,
        postgres::{Options, REPLICATION, Server},
        postgres_backend::PostgresBackend,
    },
};

/// With the grants that the page for operators names.
async fn monitored(happens: &str) -> (PostgresBackend, String) {
    let backend = PostgresBackend::start(Server::shared(), "").await;
    let name = format!("monitor_{}", backend.database().name());
    let grants = operating::sql(|sql| sql.contains("TO monitor;")).remove(0).replace("monitor", &name);
    backend.execute(&format!("CREATE ROLE {name} LOGIN; {grants} {happens}")).await;
    let url = backend.url().replace("//app@", &format!("//{name}@"));
    (backend, url)
}

#[tokio::test]
async fn a_role_that_may_only_read_looks_and_is_told_why_it_cannot_do_more() {
    let scene = Scene::new();
    for read_only in [false, true] {
        let (backend, url) = monitored("").await;
        if read_only {
            let role = url.split(['/', '@']).nth(2).unwrap().to_owned();
            backend.execute(&format!("ALTER ROLE {role} SET default_transaction_read_only = on")).await;
        }
        let mut client = Client::connect(&*backend.store()).await;
        client.granted(acquire(&key("chat"), RunId::random())).await;
        client.close().await;

        let (code, status) = scene.status(&url, "chat");
        assert_eq!((code, &status["state"], &status["standby"]), (0, &"running".into(), &Value::Null));
        scene.assert_idle(&url, "other");
        let list = scene.output(["--database", &url, "--json", "list"]);
        assert_eq!((list.code, list.json().as_array().map(Vec::len), list.stderr.len()), (0, Some(1), 0));
        let mut watch = scene.watch(&url, "chat");
        watch.line("the holder", |line| line["state"] == "running");

        let says = if read_only { "default_transaction_read_only" } else { "GRANT" };
        for args in [
            &["run", "-a", ACCOUNT, "-s", "other", "--", "touch", "started"][..],
            &["stop", "-a", ACCOUNT, "-s", "chat"],
            &["doctor", "--for", "50ms"],
        ] {
            let mut command = scene.tenure(["--database", &url, "--connect-timeout", "2s"]);
            command.args(args);
            let done = Running::start(command).finish();
            let text = done.text() + &done.stderr.join("\n");
            assert_eq!(done.code, 69, "{done:?}");
            assert!(text.contains(says) && !scene.has("started"), "{args:?} does not say {says}: {done:?}");
        }
        let doctor = scene.output(["--database", &url, "--json", "doctor", "--for", "50ms"]).json();
        let verdict = |check: &str| {
            let found = doctor["findings"].as_array().unwrap().iter().find(|found| found["check"] == check);
            found.unwrap_or_else(|| panic!("no {check}: {doctor}"))["verdict"].clone()
        };
        for check in ["schema", "visibility", "updates", "dead_rows", "clock"] {
            assert_eq!(verdict(check), "ok", "{doctor}");
        }
        assert_eq!((verdict("rights"), verdict("server") == "fail"), ("fail".into(), read_only), "{doctor}");
    }
}

/// What it shows is not taken for the truth of now while the one that takes writes can be asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_says_what_it_knows_and_how_old_that_is_until_the_primary_is_back() {
    let scene = Scene::new();
    let options = Options { hba: REPLICATION.to_owned(), ..Options::default() };
    let primary = Server::start_with(&options);
    let standby = primary.synchronous_standby().await;
    let backend = PostgresBackend::on(primary.database().await, "").await;
    let mut client = Client::connect(&*backend.store()).await;
    client.granted(acquire(&key("chat"), RunId::random())).await;
    client.close().await;
    backend.set_remaining(&key("chat"), 3_600_000).await;
    let alone = backend.database().url_at(standby.address());
    let both = backend.database().url_at(format_args!("{},{}", standby.address(), primary.address()));

    crate::support::wait_until("the standby has replayed it", || {
        scene.status(&alone, "chat").1["expires_in_ms"].as_u64() > Some(3_000_000)
    });
    let (code, status) = scene.status(&alone, "chat");
    assert_eq!((code, &status["state"]), (0, &"running".into()), "{status}");
    assert_eq!(names(&status["standby"]), ["behind_ms", "server"]);
    assert!(status["standby"]["behind_ms"].is_u64(), "{status}");
    let text = scene.output(["--database", &alone, "status", "-a", ACCOUNT, "-s", "chat"]).text();
    assert!(text.contains("  seen     as it was ") && text.contains("a standby"), "{text}");
    let idle = scene.status(&alone, "other");
    assert_eq!((idle.0, idle.1["standby"].is_object()), (1, true), "{idle:?}");
    for account in [ACCOUNT, "nobody"] {
        let list = scene.output(["--database", &alone, "--json", "list", "-a", account]);
        assert_eq!(list.code, 0, "{list:?}");
        assert!(list.is_said("a standby"), "{list:?}");
        assert!(list.json().as_array().unwrap().iter().all(|found| found["standby"].is_object()));
    }
    let run = scene.run(&alone, "other", &[], "ready").finish();
    assert!(run.code == 69 && run.is_said("name its primary"), "{run:?}");

    assert!(scene.status(&both, "chat").1["standby"].is_null(), "there is somebody who knows");
    let mut watch = scene.watch(&both, "chat");
    watch.line("the truth", |line| line["state"] == "running" && line["standby"].is_null());
    let silent = primary.freeze();
    let (code, status) = scene.status(&both, "chat");
    assert_eq!(
        (code, status["standby"].is_object()),
        (0, true),
        "who is silent keeps nothing back: {status}"
    );
    silent.thaw();
    primary.crash().await;
    watch.line("the standby", |line| line["state"] == "running" && line["standby"].is_object());
    assert!(scene.status(&both, "chat").1["standby"].is_object());
    primary.start_again().await;
    watch.line("the truth again", |line| line["state"] == "running" && line["standby"].is_null());
}

/// A lease that has run out since the last commit that a standby knows may have been renewed.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_shows_a_session_as_it_was_at_its_last_commit() {
    let scene = Scene::new();
    let options = Options { hba: REPLICATION.to_owned(), ..Options::default() };
    let primary = Server::start_with(&options);
    let standby = primary.synchronous_standby().await;
    let backend = PostgresBackend::on(primary.database().await, "").await;
    let mut client = Client::connect(&*backend.store()).await;
    client.granted(acquire(&key("chat"), RunId::random())).await;
    client.close().await;
    let alone = backend.database().url_at(standby.address());
    crate::support::wait_until("it is there", || scene.status(&alone, "chat").0 == 0);
    backend.set_remaining(&key("chat"), 300).await;
    primary.crash().await;
    crate::support::wait_until("the last commit is older than the lease", || {
        let (code, status) = scene.status(&alone, "chat");
        assert_eq!((code, &status["state"]), (0, &"running".into()), "{status}");
        status["expires_in_ms"].as_u64() <= Some(300) && status["standby"]["behind_ms"].as_u64() > Some(400)
    });
    let list = scene.output(["--database", &alone, "--json", "list"]).json();
    assert_eq!(list[0]["state"], "running", "{list}");
}

/// Nobody can write there: it may be a primary that was demoted, and how old it is nobody knows.
#[tokio::test]
async fn a_database_that_is_read_only_for_all_is_not_taken_for_the_authority() {
    let scene = Scene::new();
    let backend = PostgresBackend::start(Server::shared(), "").await;
    let mut client = Client::connect(&*backend.store()).await;
    client.granted(acquire(&key("chat"), RunId::random())).await;
    client.close().await;
    let name = backend.database().name().to_owned();
    backend.execute(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on")).await;
    let (code, status) = scene.status(&backend.url(), "chat");
    assert_eq!(
        (code, &status["state"], &status["standby"]["behind_ms"]),
        (0, &"running".into(), &Value::Null)
    );
    assert!(status["standby"]["server"].is_string(), "{status}");
    let run = scene.run(&backend.url(), "other", &[], "ready").finish();
    assert!(run.code == 69 && run.is_said("default_transaction_read_only"), "{run:?}");
}
