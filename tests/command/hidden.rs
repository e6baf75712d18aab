//! What may be hidden from a role is never shown as if nobody held it, and the cause is named.

use sqlx::{AssertSqlSafe, Connection as _};
use tenure::{LeaseSupervisor, QueryError, RunId, StoreError};

use crate::{
    events::names,
    scene::{ACCOUNT, Running, Scene},
    support::{
        backend::{Backend as _, Reachable as _},
        client::{Client, acquire, key},
        postgres::Server,
        postgres_backend::PostgresBackend,
    },
};

const USE: &str = "GRANT USAGE ON SCHEMA tenure TO hermit; GRANT SELECT ON tenure.migration TO hermit; \
    GRANT SELECT, INSERT, UPDATE, DELETE ON tenure.session_lease TO hermit; \
    GRANT USAGE, UPDATE ON SEQUENCE tenure.fence_floor TO hermit";

/// A database with a session that is held, and what then happens to its tables.
async fn database_in_which(role: &str, happens: &str) -> PostgresBackend {
    let backend = PostgresBackend::start(Server::shared(), "").await;
    let mut client = Client::connect(&*backend.store()).await;
    client.granted(acquire(&key("chat"), RunId::random())).await;
    client.close().await;
    let role =
        format!("DO $$ BEGIN IF to_regrole('{role}') IS NULL THEN CREATE ROLE {role} LOGIN; END IF; END $$;");
    backend.execute(&(role + &USE.replace("hermit", "public") + ";" + happens)).await;
    backend
}

/// Each of the commands says so, and none shows anything.
#[track_caller]
fn assert_told(scene: &Scene, url: &str, cause: &str, remedy: &str) {
    let session = ["-a", ACCOUNT, "-s", "chat"];
    for args in [
        &[&["run"][..], &session, &["--", "touch", "started"]].concat()[..],
        &[&["status"][..], &session].concat(),
        &[&["stop"][..], &session].concat(),
        &[&["watch"][..], &session].concat(),
        &["list"],
        &["sweep"],
    ] {
        let mut command = scene.tenure(["--database", url]);
        command.args(args);
        let done = Running::start(command).finish();
        assert_eq!((done.code, done.text().as_str()), (69, ""), "{args:?}: {done:?}");
        assert!(done.is_said(cause) && done.is_said(remedy) && !done.is_said("GRANT"), "{args:?}: {done:?}");
    }
    assert!(!scene.has("started"));
    let done = scene.output(["--database", url, "--json", "doctor", "--for", "50ms"]);
    let findings = done.json()["findings"].clone();
    let visibility = findings.as_array().unwrap().iter().find(|found| found["check"] == "visibility");
    let visibility = visibility.unwrap_or_else(|| panic!("{findings}"));
    assert_eq!((done.code, &visibility["verdict"]), (69, &"fail".into()), "{visibility}");
    assert!(visibility.to_string().contains(cause), "{visibility}");
    assert!(names(visibility).contains(&"advice"));
}

#[tokio::test]
async fn a_session_that_a_policy_hides_is_never_idle_and_the_policy_is_named() {
    let scene = Scene::new();
    for (role, happens) in [
        ("hermit", "ALTER TABLE tenure.session_lease ENABLE ROW LEVEL SECURITY"),
        (
            "hermit",
            "ALTER TABLE tenure.session_lease ENABLE ROW LEVEL SECURITY; \
             CREATE POLICY all_of_it ON tenure.session_lease USING (true); \
             CREATE POLICY but ON tenure.session_lease AS RESTRICTIVE USING (account_id <> 'acct')",
        ),
        ("hermit", "ALTER TABLE tenure.migration ENABLE ROW LEVEL SECURITY"),
        ("app", "ALTER TABLE tenure.session_lease ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY"),
    ] {
        let backend = database_in_which(role, happens).await;
        let url = backend.url().replace("//app@", &format!("//{role}@"));
        assert_told(&scene, &url, "row-level security", "BYPASSRLS");
        assert_told(&scene, &format!("{url}?pgbouncer=true"), "row-level security", "BYPASSRLS");
    }
}

#[tokio::test]
async fn a_view_in_the_place_of_the_table_is_never_believed_and_named() {
    let scene = Scene::new();
    let backend = database_in_which(
        "hermit",
        "ALTER TABLE tenure.session_lease RENAME TO all_leases; \
         CREATE VIEW tenure.session_lease AS SELECT * FROM tenure.all_leases WHERE account_id <> 'acct'; \
         GRANT ALL ON tenure.session_lease TO public",
    )
    .await;
    let url = backend.url().replace("//app@", "//hermit@");
    assert_told(&scene, &url, "not a table but a view", "give the table its name back");
}

/// The owner passes policies, and so does whoever may: for them nothing is hidden.
#[tokio::test]
async fn a_role_that_passes_the_policies_is_not_disturbed_by_them() {
    let scene = Scene::new();
    let backend =
        database_in_which("hermit", "ALTER TABLE tenure.session_lease ENABLE ROW LEVEL SECURITY").await;
    assert_eq!(scene.status(&backend.url(), "chat").1["state"], "running");
    assert_eq!(scene.run(&backend.url(), "other", &[], "exit 3").exit(), 3);
}

/// A connection that is open already is told as well, whatever is between it and the server.
#[tokio::test]
async fn a_policy_that_comes_under_an_open_connection_makes_no_session_idle() {
    for parameters in ["", "?pgbouncer=true"] {
        let backend = database_in_which("hermit", "").await;
        let url = backend.url() + parameters;
        for builder in [LeaseSupervisor::builder(&url), LeaseSupervisor::builder(&url).looking_only()] {
            let supervisor = builder.start().await.expect("nothing is hidden yet");
            assert!(supervisor.inspect(&key("chat")).await.expect("it can be read").is_held());
            let sql = "ALTER TABLE tenure.session_lease ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY";
            backend.execute(sql).await;
            for _ in 0..2 {
                let refused = supervisor.inspect(&key("chat")).await;
                let Err(QueryError::Store(StoreError::PermissionDenied { detail, .. })) = refused else {
                    panic!("{refused:?}");
                };
                assert!(detail.contains("row-level security may hide"), "{detail}");
                supervisor.list().await.expect_err("nor is the list");
            }
            backend.execute("ALTER TABLE tenure.session_lease DISABLE ROW LEVEL SECURITY").await;
            assert!(supervisor.inspect(&key("chat")).await.expect("it can be read again").is_held());
            supervisor.shutdown(std::time::Duration::ZERO).await;
        }
    }
}

/// By the place in the server's source, not by its words, which may be of any language.
#[tokio::test]
async fn the_names_of_the_places_in_the_servers_source_are_what_they_were() {
    let backend =
        database_in_which("hermit", "ALTER TABLE tenure.session_lease ENABLE ROW LEVEL SECURITY").await;
    let mut hermit =
        sqlx::PgConnection::connect(&backend.url().replace("//app@", "//hermit@")).await.unwrap();
    for (sql, place) in [
        ("SET row_security = off; SELECT * FROM tenure.session_lease", "check_enable_rls"),
        (
            "SET row_security = on; INSERT INTO tenure.session_lease \
             VALUES ('a', 's', gen_random_uuid(), 1, gen_random_uuid(), 'x', 'running', '', now(), now())",
            "ExecWithCheckOptions",
        ),
    ] {
        let refused = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut hermit).await.unwrap_err();
        let refused = refused.into_database_error().expect("the server has refused");
        let refused = refused.downcast_ref::<sqlx::postgres::PgDatabaseError>();
        assert_eq!((refused.code(), refused.routine()), ("42501", Some(place)));
    }
}
