//! What the doctor finds, and what it says to change.

use std::collections::BTreeMap;

use serde_json::Value;
use tenure::RunId;

use crate::{
    events::names,
    scene::{Finished, Scene},
    support::{
        NEWEST_SCHEMA,
        backend::Reachable,
        client::{Client, acquire, key},
    },
};

on_every_backend! {
    a_healthy_database_is_ok_in_every_respect
    it_disturbs_no_lease_and_leaves_nothing
}

async fn a_healthy_database_is_ok_in_every_respect(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let seen = Seen::of(&scene, &url);
    assert_eq!(seen.code, 0);
    for (check, finding) in &seen.findings {
        let expected = match check.as_str() {
            // That of the tests is fast instead of safe.
            "fsync" => "warn",
            // The machine's load and its disk decide.
            "disk_space" | "round_trip" | "commit" | "clock" => continue,
            _ => "ok",
        };
        assert_eq!(finding["verdict"], expected, "{finding}");
        assert_eq!(names(finding), ["advice", "check", "found", "measured", "verdict"]);
        assert_eq!(finding["advice"].is_null(), expected == "ok", "{finding}");
    }
    for check in ["round_trip", "commit"] {
        let measured = &seen.findings[check]["measured"];
        let (median, worst) = (measured["median_ms"].as_f64(), measured["worst_ms"].as_f64());
        assert!(median > Some(0.0) && worst >= median, "{check}: {measured}");
    }
    assert!(seen.findings["clock"]["measured"]["rate_ppm"].is_f64());
    assert!(seen.findings.contains_key("schema"));

    let done = scene.output(["--database", &url, "doctor", "--for", "50ms"]);
    assert_eq!(done.code, 0);
    for (check, finding) in &seen.findings {
        let shown = |line: &str| line.split_whitespace().nth(1) == Some(check);
        assert!(done.text().lines().any(shown), "{check} {finding}: {done:?}");
    }
}

async fn it_disturbs_no_lease_and_leaves_nothing(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut client = Client::connect(&*backend.store()).await;
    client.granted(acquire(&key("chat"), RunId::random())).await;
    // On SQLite an image ends in the state of the log, which moves on with every commit.
    let row = async || {
        backend.image(&key("chat")).await.map(|image| image.split(" Some(").next().unwrap().to_owned())
    };
    let before = row().await;
    assert_eq!(Seen::of(&scene, &url).code, 0);
    assert_eq!(row().await, before);
    let list = scene.output(["--database", &url, "--json", "list", "--expired"]).json();
    assert_eq!(list.as_array().map(Vec::len), Some(1), "{list}");
    let migrated = scene.output(["--database", &url, "--json", "migrate"]).json();
    assert_eq!((&migrated["from"], &migrated["to"]), (&NEWEST_SCHEMA.into(), &NEWEST_SCHEMA.into()));
}

/// What was found.
struct Seen {
    code: i32,
    verdict: String,
    findings: BTreeMap<String, Value>,
    /// Of each server that the URL names, in that order of the answer.
    #[cfg(feature = "postgres")]
    servers: Vec<Value>,
    /// How many of the findings are failures.
    failures: usize,
}

impl Seen {
    #[track_caller]
    fn of(scene: &Scene, url: &str) -> Self {
        Self::in_answer(&scene.output(["--database", url, "--json", "doctor", "--for", "50ms"]))
    }

    #[track_caller]
    fn in_answer(done: &Finished) -> Self {
        let answer = done.json();
        assert_eq!(names(&answer), ["database", "findings", "verdict"]);
        let findings = answer["findings"].as_array().expect("it is a list");
        Self {
            code: done.code,
            verdict: answer["verdict"].as_str().unwrap_or_default().to_owned(),
            findings: findings
                .iter()
                .map(|finding| (finding["check"].as_str().unwrap_or_default().to_owned(), finding.clone()))
                .collect(),
            failures: findings.iter().filter(|finding| finding["verdict"] == "fail").count(),
            #[cfg(feature = "postgres")]
            servers: findings.iter().filter(|finding| finding["check"] == "server").cloned().collect(),
        }
    }

    /// The finding is this bad, and says this of what to change, or of what is there.
    #[track_caller]
    fn assert(&self, check: &str, verdict: &str, says: &str) {
        let finding = self.findings.get(check).unwrap_or_else(|| panic!("no {check}: {:?}", self.findings));
        assert_eq!(finding["verdict"], verdict, "{finding}");
        assert!(finding.to_string().contains(says), "{says}: {finding}");
    }
}

#[cfg(feature = "postgres")]
mod on_a_server {
    use super::*;
    use crate::support::{
        pgbouncer::PgBouncer,
        postgres::{Options, REPLICATION, ROLE, Server},
        postgres_backend::PostgresBackend,
    };

    async fn database_set(settings: &[&str]) -> PostgresBackend {
        let backend = PostgresBackend::start(Server::shared(), "").await;
        for setting in settings {
            backend.execute(&format!("ALTER DATABASE {} SET {setting}", backend.database().name())).await;
        }
        backend
    }

    #[tokio::test]
    async fn settings_that_tenure_overrides_are_a_warning_only_behind_pgbouncer() {
        let backend =
            database_set(&["default_transaction_isolation = 'repeatable read'", "synchronous_commit = off"])
                .await;
        let (scene, url) = (Scene::new(), backend.url());
        let direct = Seen::of(&scene, &url);
        direct.assert("isolation", "ok", "tenure's own sessions use read committed");
        direct.assert("synchronous_commit", "ok", "turn it on");
        direct.assert("timeouts", "ok", "statement_timeout none");
        let pooled = Seen::of(&scene, &format!("{url}?pgbouncer=true"));
        assert_eq!((pooled.code, pooled.verdict.as_str()), (0, "warn"));
        pooled.assert("isolation", "warn", "SET default_transaction_isolation = 'read committed'");
        pooled.assert("synchronous_commit", "warn", "SET synchronous_commit = on");
        pooled.assert("timeouts", "warn", "SET statement_timeout = 3000, SET lock_timeout = 500");
        pooled.assert("pooler", "ok", "leave pgbouncer=true out");
    }

    #[tokio::test]
    async fn a_trigger_that_swallows_rows_is_found_by_a_trial() {
        let backend = database_set(&[]).await;
        let (scene, url) = (Scene::new(), backend.url());
        for verb in ["INSERT", "UPDATE", "DELETE"] {
            backend
                .execute(&format!(
                    "CREATE FUNCTION public.swallow() RETURNS trigger LANGUAGE plpgsql AS \
                     $$ BEGIN RETURN NULL; END $$; \
                     CREATE TRIGGER greedy BEFORE {verb} ON tenure.session_lease \
                     FOR EACH ROW EXECUTE FUNCTION public.swallow()"
                ))
                .await;
            let seen = Seen::of(&scene, &url);
            assert_ne!(seen.code, 0, "{verb}");
            seen.assert("trial", "fail", "greedy");
            backend.execute("DROP FUNCTION public.swallow() CASCADE").await;
        }
        Seen::of(&scene, &url).assert("trial", "ok", "taken back");
    }

    #[tokio::test]
    async fn want_of_connections_is_a_warning_that_names_whose_limit_it_is() {
        let server = Server::start();
        let backend = PostgresBackend::start(&server, "").await;
        let (scene, url, name) = (Scene::new(), backend.url(), backend.database().name());
        Seen::of(&scene, &url).assert("connections", "ok", "that the server may have are used");
        backend.execute(&format!("ALTER DATABASE {name} CONNECTION LIMIT 9")).await;
        Seen::of(&scene, &url).assert("connections", "warn", "ALTER DATABASE … CONNECTION LIMIT");
        backend.execute(&format!("ALTER ROLE {ROLE} CONNECTION LIMIT 7")).await;
        let seen = Seen::of(&scene, &url);
        seen.assert("connections", "warn", "ALTER ROLE … CONNECTION LIMIT");
        assert_eq!(seen.code, 0);
    }

    #[tokio::test]
    async fn what_only_an_operator_can_change_is_named_with_the_statement() {
        let backend = database_set(&["idle_session_timeout = '5s'"]).await;
        backend.execute("CREATE INDEX by_expiry ON tenure.session_lease (expires_at)").await;
        backend.execute("ALTER SEQUENCE tenure.fence_floor SET UNLOGGED").await;
        backend.execute("ALTER TABLE tenure.session_lease SET UNLOGGED").await;
        let seen = Seen::of(&Scene::new(), &backend.url());
        assert_eq!(seen.code, 0);
        seen.assert("updates", "warn", "by_expiry");
        seen.assert("table", "warn", "SET LOGGED");
        seen.assert("timeouts", "ok", "idle_session_timeout 5000 ms; tenure's own sessions set theirs");
        let pooled = Seen::of(&Scene::new(), &format!("{}?pgbouncer=true", backend.url()));
        pooled.assert("timeouts", "warn", "SET statement_timeout");
    }

    #[tokio::test]
    async fn a_database_that_can_hold_no_lease_fails_with_the_code_of_its_reason() {
        let scene = Scene::new();
        let read_only = database_set(&["default_transaction_read_only = on"]).await;
        let seen = Seen::of(&scene, &read_only.url());
        assert_eq!((seen.code, seen.verdict.as_str()), (69, "fail"));
        seen.assert("server", "fail", "read-only");
        assert_eq!(seen.failures, 1, "{:?}", seen.findings);
        assert!(seen.findings.contains_key("round_trip"));
        assert!(!seen.findings.contains_key("commit"));

        let empty = Server::shared().database().await;
        let seen = Seen::of(&scene, &empty.url());
        assert_eq!((seen.code, seen.verdict.as_str()), (78, "fail"));
        seen.assert("schema", "fail", "tenure migrate");
        assert!(seen.findings.contains_key("commit"));

        let backend = database_set(&[]).await;
        Server::shared().role_with_password("patient", "s3cret").await;
        let seen = Seen::of(&scene, &backend.database().url_as("patient", "s3cret"));
        assert_eq!((seen.code, seen.verdict.as_str()), (69, "fail"));
        seen.assert("schema", "fail", "GRANT USAGE ON SCHEMA tenure");
        assert_eq!(seen.failures, 1, "{:?}", seen.findings);
        backend
            .execute(
                "GRANT USAGE ON SCHEMA tenure TO patient; GRANT SELECT ON tenure.migration TO patient; \
                 GRANT SELECT ON tenure.session_lease TO patient",
            )
            .await;
        let seen = Seen::of(&scene, &backend.database().url_as("patient", "s3cret"));
        seen.assert("rights", "fail", "GRANT SELECT, INSERT, UPDATE, DELETE");
        assert_eq!(seen.failures, 1, "{:?}", seen.findings);
        // As after ALTER DEFAULT PRIVILEGES.
        backend
            .execute(
                "GRANT INSERT, UPDATE, DELETE ON tenure.session_lease TO patient; \
                 GRANT USAGE, UPDATE ON SEQUENCE tenure.fence_floor TO patient; \
                 REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA tenure FROM PUBLIC",
            )
            .await;
        let seen = Seen::of(&scene, &backend.database().url_as("patient", "s3cret"));
        seen.assert("rights", "fail", "GRANT EXECUTE ON FUNCTION tenure.next_fence(bigint)");
        backend.execute("GRANT EXECUTE ON FUNCTION tenure.next_fence(bigint) TO patient").await;
        Seen::of(&scene, &backend.database().url_as("patient", "s3cret")).assert("rights", "ok", "all");

        let closed = backend.database().url_at(crate::support::free_address());
        let done = scene.output(["--database", &closed, "--json", "doctor"]);
        assert_eq!((done.code, &done.json()["event"]), (69, &"failed".into()), "{done:?}");
    }

    /// What it sees of a cluster, from the healthy one to the worst of all.
    #[tokio::test(flavor = "multi_thread")]
    async fn every_server_of_a_cluster_is_judged_in_its_place() {
        let options = Options { hba: REPLICATION.to_owned(), ..Options::default() };
        let primary = Server::start_with(&options);
        let standby = primary.synchronous_standby().await;
        let database = primary.database().await;
        let url = database.url_at(format_args!("{},{}", standby.address(), primary.address()));
        tenure::migrate(&url).await.unwrap();
        let scene = Scene::new();
        let verdicts = |seen: &Seen| {
            let found = seen.servers.iter();
            found.map(|server| server["verdict"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };

        // What was committed is on the standby's disk, but it may yet have to find out that there is a database.
        crate::support::wait_until("the standby has replayed it all", || {
            Seen::of(&scene, &url).servers.iter().all(|server| server["verdict"] == "ok")
        });
        let healthy = Seen::of(&scene, &url);
        assert_eq!(verdicts(&healthy), ["ok", "ok"]);
        assert!(healthy.servers[0].to_string().contains("a standby"), "{:?}", healthy.servers);
        assert!(healthy.servers[1].to_string().contains("takes writes"), "{:?}", healthy.servers);
        healthy.assert("replication", "ok", "synchronous (*)");
        let alone = Seen::of(&scene, &database.url_at(standby.address()));
        assert_eq!(alone.code, 69);
        alone.assert("server", "fail", "name its primary in the URL too");

        let mut admin = primary.admin("postgres").await;
        sqlx::raw_sql("ALTER SYSTEM SET synchronous_standby_names = ''").execute(&mut admin).await.unwrap();
        sqlx::raw_sql("SELECT pg_reload_conf()").execute(&mut admin).await.unwrap();
        crate::support::wait_until("the setting is in force", || {
            Seen::of(&scene, &url).findings["replication"]["verdict"] == "warn"
        });
        Seen::of(&scene, &url).assert("replication", "warn", "set synchronous_standby_names");

        standby.promote().await;
        let torn = Seen::of(&scene, &url);
        assert_eq!(verdicts(&torn), ["warn", "warn"]);
        torn.assert("server", "warn", "two primaries grant the same session twice");
        primary.stop().await;
        let left = Seen::of(&scene, &url);
        assert_eq!((verdicts(&left), left.code), (vec!["ok".to_owned(), "warn".to_owned()], 0));
    }

    /// The standby has gone, or has taken the place of a primary that was not fenced off: no commit is ever answered.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_primary_that_cannot_commit_hides_nothing_else() {
        let options = Options { hba: REPLICATION.to_owned(), ..Options::default() };
        let primary = Server::start_with(&options);
        let standby = primary.synchronous_standby().await;
        let database = primary.database().await;
        let url = database.url_at(format_args!("{},{}", primary.address(), standby.address()));
        tenure::migrate(&url).await.unwrap();
        let scene = Scene::new();
        let seen = |url: &str| {
            let args = ["--database", url, "--json", "--connect-timeout", "2s", "doctor", "--for", "50ms"];
            Seen::in_answer(&scene.output(args))
        };

        standby.promote().await;
        crate::support::wait_until("the schema is there", || {
            seen(&database.url_at(standby.address())).findings["schema"]["verdict"] == "ok"
        });
        let torn = seen(&url);
        assert_eq!((torn.code, torn.servers.len()), (69, 2));
        torn.assert("server", "warn", "two primaries grant the same session twice");
        torn.assert("commit", "fail", "whether its synchronous standbys are there");

        standby.stop().await;
        let alone = seen(&database.url_at(primary.address()));
        assert_eq!((alone.code, alone.verdict.as_str()), (69, "fail"));
        alone.assert("commit", "fail", "no answer within 2s");
        for check in ["server", "schema", "rights", "replication", "pooler", "updates"] {
            alone.assert(check, "ok", "");
        }
    }

    #[tokio::test]
    async fn a_pgbouncer_is_noticed_whatever_the_url_says() {
        let lenient = "ignore_startup_parameters = extra_float_digits,options\n";
        let Some(pgbouncer) = PgBouncer::start_with(Server::shared(), lenient) else { return };
        let (scene, backend) = (Scene::new(), database_set(&[]).await);
        let url = backend.database().url_at(pgbouncer.address());
        Seen::of(&scene, &format!("{url}?pgbouncer=true")).assert("pooler", "ok", "in transaction mode");
        Seen::of(&scene, &url).assert("pooler", "warn", "add pgbouncer=true");

        let strict = PgBouncer::start(Server::shared()).unwrap();
        let done = scene.output(["--database", &backend.database().url_at(strict.address()), "doctor"]);
        assert_eq!(done.code, 78, "{done:?}");
        assert!(done.is_said("add pgbouncer=true"), "{done:?}");
    }
}

#[cfg(feature = "sqlite")]
mod on_a_file {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;
    use crate::support::sqlite_backend::SqliteBackend;

    #[tokio::test]
    async fn a_file_that_everybody_may_write_or_that_has_no_log_is_a_warning() {
        let (scene, backend) = (Scene::new(), SqliteBackend::start().await);
        backend.execute("PRAGMA journal_mode = DELETE").await;
        let path = backend.url().trim_start_matches("sqlite://").to_owned();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let seen = Seen::of(&scene, &format!("{}?mode=rw", backend.url()));
        assert_eq!((seen.code, seen.verdict.as_str()), (0, "warn"));
        seen.assert("permissions", "warn", "chmod o-w");
        seen.assert("journal_mode", "warn", "journal_mode = WAL");
    }

    #[tokio::test]
    async fn a_trigger_that_swallows_rows_is_found_by_a_trial() {
        let (scene, backend) = (Scene::new(), SqliteBackend::start().await);
        for verb in ["INSERT", "UPDATE", "DELETE"] {
            backend
                .execute(&format!(
                    "CREATE TRIGGER greedy BEFORE {verb} ON tenure_session_lease BEGIN SELECT RAISE(IGNORE); END"
                ))
                .await;
            let seen = Seen::of(&scene, &backend.url());
            assert_ne!(seen.code, 0, "{verb}");
            seen.assert("trial", "fail", "greedy");
            backend.execute("DROP TRIGGER greedy").await;
        }
        Seen::of(&scene, &backend.url()).assert("trial", "ok", "taken back");
    }

    /// One cause is one finding, however many questions meet it.
    #[tokio::test]
    async fn a_user_who_may_only_read_is_told_so_once() {
        let (scene, backend) = (Scene::new(), SqliteBackend::start().await);
        let path = backend.url().trim_start_matches("sqlite://").to_owned();
        let directory = std::path::Path::new(&path).parent().unwrap().to_owned();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o555)).unwrap();
        let url = backend.url();
        let args = ["--database", url.as_str(), "--json", "doctor", "--for", "50ms"];
        let (command, _program) = crate::scene::unprivileged(&scene, &args);
        let done = crate::scene::Running::start(command).finish();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        let seen = Seen::in_answer(&done);
        assert_eq!(seen.failures, 1, "{:?}", seen.findings);
    }

    /// Not only slow: no commit can succeed, so no lease can be held.
    #[test]
    fn a_full_disk_is_a_failure_and_no_trial_says_otherwise() {
        let scene = Scene::new();
        fs::create_dir(scene.path("small")).unwrap();
        let script = "mount -t tmpfs -o size=200k tmpfs $dir/small || exit 99
            url=sqlite://$dir/small/t.db
            \"$TENURE\" -q --database $url run -s held -- sleep 6000 &
            until [ \"$($TENURE --database $url status -s held | grep running)\" ]; do sleep 0.02; done
            cat /dev/zero > $dir/small/fill
            \"$TENURE\" --database $url --json doctor --for 50ms; code=$?; kill $!; wait; exit $code";
        let mut shell = scene.dress(std::process::Command::new("unshare"), ["-Urm", "sh", "-c", script]);
        shell.env("TENURE", crate::scene::TENURE);
        let done = crate::scene::Running::start(shell).finish();
        if done.code == 99 || done.is_said("unshare: ") {
            eprintln!("SKIPPED: this user may not mount anything: {done:?}");
            return;
        }
        let seen = Seen::in_answer(&done);
        assert_eq!((seen.code, seen.verdict.as_str()), (69, "fail"), "{:?}", seen.findings);
        seen.assert("commit", "fail", "free some disk space");
        assert!(!seen.findings.contains_key("trial"), "{:?}", seen.findings);
    }

    /// The same of a limit on the size of files, where SQLite reports another error.
    #[tokio::test]
    async fn a_limit_on_the_size_of_files_is_a_failure() {
        let (scene, backend) = (Scene::new(), SqliteBackend::start().await);
        let script = "trap '' XFSZ; ulimit -f 1; exec \"$TENURE\" --json doctor --for 50ms";
        let mut shell = scene.dress(std::process::Command::new("sh"), ["-c", script]);
        shell.env("TENURE", crate::scene::TENURE).env("TENURE_DATABASE_URL", backend.url());
        let seen = Seen::in_answer(&crate::scene::Running::start(shell).finish());
        assert_eq!((seen.code, seen.verdict.as_str()), (69, "fail"), "{:?}", seen.findings);
    }

    #[test]
    fn a_look_longer_than_an_hour_is_wrong_usage() {
        let scene = Scene::new();
        for time in ["5000000000000000h", "61m"] {
            let done = scene.output(["doctor", "--for", time]);
            assert!(done.code == 64 && done.is_said("at most 1h"), "{done:?}");
        }
    }

    #[tokio::test]
    async fn a_look_without_end_is_one_of_an_hour() {
        use std::time::Duration;
        use tenure::diagnosis::Examination;

        let backend = SqliteBackend::start().await;
        let examined = Examination::of(backend.url()).lasting(Duration::MAX).run();
        assert!(tokio::time::timeout(Duration::from_millis(200), examined).await.is_err());
    }

    /// It tries what the first run would do, as a user who may not do everything.
    #[test]
    fn a_place_where_no_run_could_make_its_database_fails_and_is_left_as_it_was() {
        let scene = Scene::new();
        let mode = |name: &str, mode| {
            fs::set_permissions(scene.path(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        mode("", 0o755);
        for (name, bits) in [("closed", 0o555), ("open", 0o777)] {
            fs::create_dir(scene.path(name)).unwrap();
            mode(name, bits);
        }
        fs::write(scene.path("text"), "in the way").unwrap();
        fs::write(scene.path("closed/empty.db"), "").unwrap();
        let of = |file: &str| {
            let url = format!("sqlite://{}", scene.path(file).display());
            let args = ["--database", &url, "--json", "doctor", "--for", "50ms"];
            let (command, _program) = crate::scene::unprivileged(&scene, &args);
            Seen::in_answer(&crate::scene::Running::start(command).finish())
        };
        for (file, check, says) in [
            ("none/tenure.db", "file", "none does not exist; create it"),
            ("text/tenure.db", "file", "text is not a directory"),
            ("closed/tenure.db", "file", "closed cannot be written"),
            ("closed/empty.db", "permissions", "closed"),
        ] {
            let seen = of(file);
            assert_eq!((seen.code, seen.verdict.as_str()), (69, "fail"), "{file}: {:?}", seen.findings);
            seen.assert(check, "fail", says);
        }
        let fine = of("open/tenure.db");
        assert_eq!(fine.code, 0, "{:?}", fine.findings);
        fine.assert("file", "ok", "the first run creates it");
        fine.assert("journal_mode", "ok", "write-ahead");
        assert!(fine.findings["commit"]["measured"]["worst_ms"].is_f64());
        for (directory, left) in [("closed", 1), ("open", 0)] {
            assert_eq!(fs::read_dir(scene.path(directory)).unwrap().count(), left, "{directory}");
        }
        assert!(!scene.has("none"));
    }

    #[test]
    fn a_default_directory_that_could_not_be_made_fails() {
        let scene = Scene::new();
        let seen = || Seen::in_answer(&scene.output(["--json", "doctor", "--for", "50ms"]));
        assert_eq!(seen().code, 0, "{:?}", seen().findings);
        assert_eq!(fs::read_dir(scene.path("state")).unwrap().count(), 0, "nothing is left");
        fs::write(scene.path("state/tenure"), "in the way").unwrap();
        let blocked = seen();
        assert_eq!(blocked.code, 69);
        blocked.assert("file", "fail", "state/tenure is not a directory");
    }

    #[test]
    fn what_is_no_database_fails_with_its_code_and_is_not_touched() {
        let scene = Scene::new();
        let url = |name: &str| format!("sqlite://{}", scene.path(name).display());
        fs::write(scene.path("text.db"), "no database, but long enough to be looked at as if it were one")
            .unwrap();
        let done = scene.output(["--database", &url("text.db"), "doctor"]);
        assert_eq!(done.code, 78, "{done:?}");

        fs::write(scene.path("empty.db"), "").unwrap();
        let unused = Seen::of(&scene, &url("empty.db"));
        assert_eq!(unused.code, 0);
        unused.assert("schema", "ok", "the first run applies it");
        let strict = Seen::of(&scene, &format!("{}?mode=rw", url("empty.db")));
        assert_eq!(strict.code, 78);
        strict.assert("schema", "fail", "tenure migrate");
        assert_eq!(fs::read(scene.path("empty.db")).unwrap(), b"");

        let absent = Seen::of(&scene, &format!("{}?mode=rw", url("absent.db")));
        assert_eq!(absent.code, 78);
        absent.assert("file", "fail", "does not exist");
        assert!(!scene.has("absent.db"));
    }
}
