//! What cannot work is refused with a code and a remedy; nothing is started, and nothing held.

use crate::scene::{Finished, Running, Scene};

/// Every command that needs the database; those that would start something would leave `started`.
fn every_command<'a>(scene: &'a Scene, url: &'a str) -> impl Iterator<Item = (&'static str, Finished)> + 'a {
    let commands: [(&str, &[&str]); 4] = [
        ("run", &["run", "-s", "chat", "--", "touch", "started"]),
        ("status", &["status", "-s", "chat"]),
        ("list", &["list"]),
        ("sweep", &["sweep"]),
    ];
    commands.into_iter().map(move |(name, args)| {
        let mut command = scene.tenure(["--database", url, "--connect-timeout", "1s"]);
        command.args(args);
        (name, Running::start(command).finish())
    })
}

#[track_caller]
fn assert_refused(scene: &Scene, name: &str, done: &Finished, code: i32, remedy: &str) {
    assert_eq!(done.code, code, "{name}: {done:?}");
    assert!(done.is_said(remedy), "{name} does not say {remedy:?}: {done:?}");
    assert!(done.stderr[0].starts_with("tenure: "), "{name}: {done:?}");
    assert_eq!(done.stdout, b"", "{name}: {done:?}");
    assert!(!scene.has("started"), "{name}");
}

#[test]
fn wrong_usage_is_64_and_touches_nothing() {
    let scene = Scene::new();
    let long = "x".repeat(256);
    let run = ["run", "-s", "chat"];
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["no-such-command"], "no-such-command"),
        (&["run", "--", "touch", "started"], "--session"),
        (&[&run[..], &["sqlite://x.db", "touch"]].concat(), "--database"),
        (&run, "<CMD>"),
        (&[&run[..], &["--no-such-option", "--", "touch", "started"]].concat(), "--no-such-option"),
        (&[&run[..], &["--ttl", "30", "--", "touch", "started"]].concat(), "30s"),
        (&[&run[..], &["--ttl", "1w", "--", "touch", "started"]].concat(), "1.5s"),
        (&[&run[..], &["--stop-grace", "5", "--", "touch", "started"]].concat(), "5s"),
        (&[&run[..], &["--max-duration", "5", "--", "touch", "started"]].concat(), "5s"),
        (&["--connect-timeout", "5", "list"], "5s"),
        (&[&run[..], &["--ttl", "999ms", "--", "touch", "started"]].concat(), "1 second and 24 hours"),
        (&[&run[..], &["--ttl", "24.1h", "--", "touch", "started"]].concat(), "1 second and 24 hours"),
        (&[&run[..], &["-E", "256", "--", "touch", "started"]].concat(), "256"),
        (&[&run[..], &["--on-busy", "hope", "--", "touch", "started"]].concat(), "hope"),
        (&["run", "-s", "", "--", "touch", "started"], "session"),
        (&["run", "-s", &long, "--", "touch", "started"], "255"),
        (&["run", "-s", "chat", "-a", "", "--", "touch", "started"], "account"),
        (&[&run[..], &["--holder", "", "--", "touch", "started"]].concat(), "holder"),
        (&[&run[..], &["--holder", &long, "--", "touch", "started"]].concat(), "255"),
        (&["status", "-s", &long], "255"),
        (&["status"], "--session"),
        (&["-q", "-v", "list"], "--verbose"),
        (&["phase", "x"], "TENURE_SOCKET"),
    ];
    for (args, part) in cases {
        let done = scene.output(*args);
        assert_eq!(done.code, 64, "{args:?}: {done:?}");
        assert!(done.is_said(part), "{args:?} does not say {part:?}: {done:?}");
        assert!(!scene.has("started"), "{args:?}");
    }
    assert!(!scene.has("state/tenure/tenure.db"));
}

#[test]
fn help_and_version_are_success_on_stdout() {
    let scene = Scene::new();
    for args in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let done = scene.output(args);
        assert_eq!((done.code, done.stderr.len(), done.stdout.is_empty()), (0, 0, false), "{done:?}");
    }
}

#[test]
fn an_unknown_scheme_is_78() {
    let scene = Scene::new();
    for url in ["mysql://localhost/x", "no url at all", "/just/a/path", "sqlite://"] {
        for (name, done) in every_command(&scene, url) {
            assert_refused(&scene, name, &done, 78, "");
        }
        assert_eq!(scene.output(["--database", url, "migrate"]).code, 78);
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

    use super::*;
    use crate::{
        scene::unprivileged,
        support::{
            backend::{Backend as _, Reachable as _},
            client::key,
            sqlite_backend::SqliteBackend,
        },
    };

    fn url_of(path: &Path) -> String {
        format!("sqlite://{}", path.display())
    }

    #[test]
    fn a_text_file_as_database_is_78_and_left_as_it_was() {
        let scene = Scene::new();
        let text = "this is no database, but somebody's only copy\n".repeat(100);
        fs::write(scene.path("text"), &text).unwrap();
        let url = url_of(&scene.path("text"));
        for (name, done) in every_command(&scene, &url) {
            assert_refused(&scene, name, &done, 78, "not a database");
        }
        assert_eq!(scene.text("text"), text);
    }

    #[test]
    fn a_missing_directory_is_69_for_run_and_empty_for_those_that_look() {
        let scene = Scene::new();
        let url = url_of(&scene.path("none/tenure.db"));
        for (name, done) in every_command(&scene, &url) {
            match name {
                "run" => assert_refused(&scene, name, &done, 69, "create it"),
                "status" => assert_eq!(done.code, 1, "{done:?}"),
                _ => assert_eq!(done.code, 0, "{done:?}"),
            }
        }
        assert!(!scene.has("none"));
    }

    #[tokio::test]
    async fn a_schema_from_the_future_is_78() {
        let (scene, backend) = (Scene::new(), SqliteBackend::start().await);
        backend.execute("INSERT INTO tenure_migration VALUES (99, 99, 0)").await;
        for (name, done) in every_command(&scene, &backend.url()) {
            assert_refused(&scene, name, &done, 78, "99");
        }
        assert!(backend.image(&key("chat")).await.is_none());
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_written_is_69_for_run() {
        let scene = Scene::new();
        let mode = |name: &str, mode| {
            fs::set_permissions(scene.path(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        mode("", 0o755);
        fs::create_dir(scene.path("closed")).unwrap();
        fs::create_dir(scene.path("open")).unwrap();
        tenure::migrate(&url_of(&scene.path("open/tenure.db"))).await.unwrap();
        mode("open", 0o777);
        mode("open/tenure.db", 0o444);
        mode("closed", 0o555);
        for file in ["closed/tenure.db", "open/tenure.db"] {
            let url = url_of(&scene.path(file));
            let args = ["--database", &url, "run", "-s", "chat", "--", "touch", "open/started"];
            let (command, _program) = unprivileged(&scene, &args);
            let done = Running::start(command).finish();
            assert_refused(&scene, file, &done, 69, "");
            assert!(done.is_said(file.split_once('/').unwrap().0), "it names the file: {done:?}");
            assert!(!scene.has("open/started"));
        }
        mode("closed", 0o755);
        scene.assert_idle(&url_of(&scene.path("open/tenure.db")), "chat");
    }

    #[test]
    fn a_default_directory_that_cannot_be_made_is_69() {
        let scene = Scene::new();
        fs::write(scene.path("state/tenure"), "in the way").unwrap();
        let done = scene.output(["run", "-s", "chat", "--", "touch", "started"]);
        assert_refused(&scene, "run", &done, 69, "--database");
    }

    #[tokio::test]
    async fn a_database_that_answers_with_an_error_is_69() {
        let (scene, backend) = (Scene::new(), SqliteBackend::start().await);
        let trigger = "CREATE TRIGGER refuse BEFORE INSERT ON tenure_session_lease \
                       BEGIN SELECT RAISE(ABORT, 'out of order'); END";
        backend.execute(trigger).await;
        let done =
            scene.output(["--database", &backend.url(), "run", "-s", "chat", "--", "touch", "started"]);
        assert_refused(&scene, "run", &done, 69, "out of order");
        scene.assert_idle(&backend.url(), "chat");
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use std::{
        net::TcpListener,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::support::{
        self, NEWEST_SCHEMA,
        backend::{Backend as _, Reachable as _},
        client::key,
        postgres::Server,
        postgres_backend::PostgresBackend,
    };

    #[test]
    fn a_server_that_is_not_there_is_69() {
        let scene = Scene::new();
        let url = format!("postgres://app@{}/none", support::free_address());
        for (name, done) in every_command(&scene, &url) {
            assert_refused(&scene, name, &done, 69, "127.0.0.1");
        }
        assert_eq!(scene.output(["--database", &url, "--connect-timeout", "1s", "migrate"]).code, 69);
    }

    #[test]
    fn a_server_that_says_nothing_is_69_within_the_time_given() {
        let scene = Scene::new();
        // The kernel accepts, and nobody answers.
        let silent = TcpListener::bind(support::free_address()).unwrap();
        let url = format!("postgres://app@{}/none", silent.local_addr().unwrap());
        let start = Instant::now();
        for (name, done) in every_command(&scene, &url) {
            assert_refused(&scene, name, &done, 69, "127.0.0.1");
        }
        assert!(start.elapsed() < Duration::from_secs(60), "four times one second, on a busy machine");
    }

    #[tokio::test]
    async fn a_database_that_is_not_there_is_78_and_says_how_to_get_it() {
        let scene = Scene::new();
        let database = Server::shared().database().await;
        let url = database.url().replace(database.name(), "no_such_database");
        for (name, done) in every_command(&scene, &url) {
            assert_refused(&scene, name, &done, 78, "CREATE DATABASE");
        }
    }

    #[tokio::test]
    async fn a_database_without_the_schema_is_78_and_says_how_to_get_it() {
        let scene = Scene::new();
        let database = Server::shared().database().await;
        for (name, done) in every_command(&scene, &database.url()) {
            assert_refused(&scene, name, &done, 78, "tenure migrate");
        }
        let printed = scene.output(["--database", &database.url(), "migrate", "--print"]);
        assert_eq!(printed.code, 0);
        assert!(printed.text().contains("CREATE TABLE tenure.session_lease"), "{printed:?}");
        let migrate = || scene.output(["--database", &database.url(), "--json", "migrate"]);
        let (first, second) = (migrate(), migrate());
        assert_eq!((first.code, first.json()["from"].as_i64()), (0, Some(0)), "printing has changed nothing");
        assert_eq!((second.code, second.json()["from"].as_i64()), (0, Some(NEWEST_SCHEMA.into())));
        assert_eq!(scene.run(&database.url(), "chat", &[], "exit 3").exit(), 3);
    }

    #[tokio::test]
    async fn a_schema_from_the_future_is_78() {
        let (scene, backend) = (Scene::new(), PostgresBackend::start(Server::shared(), "").await);
        backend.execute("INSERT INTO tenure.migration (version, compatible_from) VALUES (99, 99)").await;
        for (name, done) in every_command(&scene, &backend.url()) {
            assert_refused(&scene, name, &done, 78, "99");
        }
        assert_eq!(scene.output(["--database", &backend.url(), "migrate"]).code, 78);
        assert!(backend.image(&key("chat")).await.is_none());
    }

    #[tokio::test]
    async fn a_role_that_may_not_use_the_schema_is_69_and_told_what_it_needs() {
        let (scene, backend) = (Scene::new(), PostgresBackend::start(Server::shared(), "").await);
        let database = backend.database();
        Server::shared().role_with_password("bare", "secret").await;
        for (name, done) in every_command(&scene, &database.url_as("bare", "secret")) {
            assert_refused(&scene, name, &done, 69, "GRANT");
        }
    }
}
