//! What the page for operators tells them to do, and what it says will follow.

use std::collections::BTreeMap;

use serde_json::Value;
use tenure::{
    FencingToken, RunId, RunStage,
    store::{self, Renew},
};

use crate::{
    scene::Scene,
    support::{
        backend::Reachable,
        client::{Client, acquire, key, renew},
    },
};

/// Acquires a session, and answers its fence.
async fn fence_of(url: &str, session: &str) -> FencingToken {
    let store = store::open(url).expect("the URL is good");
    let mut client = Client::connect(&*store).await;
    let grant = client.granted(acquire(&key(session), RunId::random())).await;
    client.close().await;
    grant.fence
}

/// A session in each state, by its name.
async fn hold_in_every_state(backend: &impl Reachable) {
    let mut client = Client::connect(&*backend.store()).await;
    for (session, stage) in [
        ("running", RunStage::Running),
        ("stopping", RunStage::Stopping),
        ("asked", RunStage::Running),
        ("stuck", RunStage::Stuck),
        ("expired", RunStage::Stuck),
    ] {
        let run = RunId::random();
        client.granted(acquire(&key(session), run)).await;
        client.renewed(Renew { stage, ..renew(&key(session), run) }).await;
    }
    client.close().await;
    backend.request_stop(&key("asked"), "alice", "enough").await;
    backend.set_remaining(&key("expired"), -1_000).await;
}

/// What the command says of them.
fn states(scene: &Scene, url: &str) -> BTreeMap<String, String> {
    let list = scene.output(["--database", url, "--json", "list", "--expired"]).json();
    let text = |value: &Value| value.as_str().expect("it is text").to_owned();
    let sessions = list.as_array().expect("it is a list").iter();
    sessions.map(|session| (text(&session["session"]), text(&session["state"]))).collect()
}

#[cfg(feature = "postgres")]
mod on_a_server {
    use std::{path::Path, process::Command};

    use sqlx::{AssertSqlSafe, Row as _};

    use super::*;
    use crate::support::{
        operating,
        postgres::{self, Server},
        postgres_backend::PostgresBackend,
    };

    #[tokio::test]
    async fn the_statements_for_dashboards_show_what_the_command_does() {
        let (scene, backend) = (Scene::new(), PostgresBackend::start(Server::shared(), "").await);
        hold_in_every_state(&backend).await;
        let statements = operating::sql(|sql| sql.contains("FROM tenure.session_lease"));
        let [all, counts] = &statements[..] else { panic!("{statements:?}") };
        let mut admin = backend.admin().await;
        let rows = sqlx::raw_sql(AssertSqlSafe(all.clone())).fetch_all(&mut admin).await.unwrap();
        let shown = rows.iter().map(|row| (row.get("session_id"), row.get("state")));
        assert_eq!(shown.collect::<BTreeMap<String, String>>(), states(&scene, &backend.url()));
        let row = sqlx::raw_sql(AssertSqlSafe(counts.clone())).fetch_one(&mut admin).await.unwrap();
        let count = |name| row.get::<i64, _>(name);
        assert_eq!((count("held"), count("stuck"), count("expired")), (4, 1, 1));
    }

    /// The tools that come with the server.
    fn run(tool: &Path, arguments: &[&str], input: &str) -> String {
        use std::io::Write as _;
        let mut command = Command::new(tool);
        command.args(arguments).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut running = command.spawn().expect("the tool starts");
        running.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let done = running.wait_with_output().unwrap();
        assert!(done.status.success(), "{command:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    #[tokio::test]
    async fn a_restored_lease_holds_until_it_expires_and_fences_go_on_growing() {
        let (Some(pg_dump), Some(psql)) = (postgres::tool("pg_dump"), postgres::tool("psql")) else { return };
        let scene = Scene::new();
        for without_rows in [false, true] {
            let backend = PostgresBackend::start(Server::shared(), "").await;
            let held = fence_of(&backend.url(), "held").await;
            let mut arguments = vec!["--no-owner"];
            if without_rows {
                arguments.push("--exclude-table-data=tenure.session_lease");
            }
            let source = backend.database().superuser_url();
            arguments.push(&source);
            let dump = run(&pg_dump, &arguments, "");
            let later = fence_of(&backend.url(), "later").await;

            let restored = Server::shared().database().await;
            let url = restored.superuser_url();
            run(&psql, &["-q", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null", &url], &dump);
            assert_eq!(scene.output(["--database", &url, "migrate"]).code, 0, "the schema is there");
            scene.assert_idle(&url, "later");
            assert!(fence_of(&url, "later").await > later, "though that was given out after the back-up");
            let (code, status) = scene.status(&url, "held");
            let expected = if without_rows { (1, "idle") } else { (0, "running") };
            assert_eq!((code, status["state"].as_str()), (expected.0, Some(expected.1)));
            let mut admin = restored.admin().await;
            let expire =
                "UPDATE tenure.session_lease SET expires_at = clock_timestamp() WHERE session_id = 'held'";
            sqlx::raw_sql(expire).execute(&mut admin).await.unwrap();
            assert!(fence_of(&url, "held").await > held);
        }
    }

    #[tokio::test]
    async fn fences_go_on_growing_when_the_schema_was_removed_and_made_anew() {
        let (scene, backend) = (Scene::new(), PostgresBackend::start(Server::shared(), "").await);
        let before = fence_of(&backend.url(), "chat").await;
        backend.execute("DROP SCHEMA tenure CASCADE").await;
        assert_eq!(scene.output(["--database", &backend.url(), "migrate"]).code, 0);
        scene.assert_idle(&backend.url(), "chat");
        assert!(fence_of(&backend.url(), "chat").await > before);
    }
}

#[cfg(feature = "sqlite")]
mod on_a_file {
    use sqlx::{AssertSqlSafe, Row as _};

    use super::*;
    use crate::support::{operating, sqlite_backend::SqliteBackend};

    #[tokio::test]
    async fn the_statements_for_dashboards_show_what_the_command_does() {
        let (scene, backend) = (Scene::new(), SqliteBackend::start().await);
        hold_in_every_state(&backend).await;
        let statements = operating::sql(|sql| sql.contains("FROM tenure_session_lease"));
        let [all, counts] = &statements[..] else { panic!("{statements:?}") };
        let mut raw = backend.raw().await;
        let rows = sqlx::raw_sql(AssertSqlSafe(all.clone())).fetch_all(&mut raw).await.unwrap();
        let shown = rows.iter().map(|row| (row.get("session_id"), row.get("state")));
        assert_eq!(shown.collect::<BTreeMap<String, String>>(), states(&scene, &backend.url()));
        let row = sqlx::raw_sql(AssertSqlSafe(counts.clone())).fetch_one(&mut raw).await.unwrap();
        let count = |name| row.get::<i64, _>(name);
        assert_eq!((count("held"), count("stuck"), count("expired")), (4, 1, 1));
    }

    #[tokio::test]
    async fn a_restored_lease_holds_until_it_expires_and_fences_go_on_growing() {
        let (scene, backend) = (Scene::new(), SqliteBackend::start().await);
        let held = fence_of(&backend.url(), "held").await;
        let copy = scene.path("copy.db");
        backend.execute(&format!("VACUUM INTO '{}'", copy.display())).await;
        let later = fence_of(&backend.url(), "later").await;

        let url = format!("sqlite://{}", copy.display());
        assert_eq!(scene.status(&url, "held").1["state"], "running");
        scene.assert_idle(&url, "later");
        assert!(fence_of(&url, "later").await > later, "though that was given out after the back-up");
        let mut client = Client::connect(&*store::open(&url).unwrap()).await;
        client.refused(acquire(&key("held"), RunId::random())).await;
        client.close().await;
        let mut raw = <sqlx::SqliteConnection as sqlx::Connection>::connect(&url).await.unwrap();
        let expire = "UPDATE tenure_session_lease SET expires_at = 0 WHERE session_id = 'held'";
        sqlx::raw_sql(expire).execute(&mut raw).await.unwrap();
        assert!(fence_of(&url, "held").await > held);
    }

    #[tokio::test]
    async fn fences_go_on_growing_when_the_file_was_removed_and_made_anew() {
        let (scene, backend) = (Scene::new(), SqliteBackend::start().await);
        let before = fence_of(&backend.url(), "chat").await;
        let file = backend.url().trim_start_matches("sqlite://").to_owned();
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{file}{end}"));
        }
        assert_eq!(scene.output(["--database", &backend.url(), "migrate"]).code, 0);
        scene.assert_idle(&backend.url(), "chat");
        assert!(fence_of(&backend.url(), "chat").await > before);
    }
}
