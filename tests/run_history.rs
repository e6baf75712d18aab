//! Promises about the history of runs and the schema's second version: who may be missing, what shows, and that nothing
//! that is wrong with the history costs a lease. What every store records is in `conformance.rs`.

#![cfg(any(feature = "postgres", feature = "sqlite"))]

mod support;

use std::time::Duration;

use support::{
    NEWEST_SCHEMA,
    backend::Backend,
    client::{Client, acquire, key, renew},
};
use tenure::{
    EndReason, Ending, RunId,
    store::{
        BreakLease, BreakOutcome, HistoryPage, KeepHistory, LeaseStore, Migrated, Release, ReleaseOutcome,
        RenewOutcome,
    },
};

/// All that ends a run, and all that leads there.
async fn every_verb_works(backend: &impl Backend) {
    every_verb_but_a_sweep_works(backend).await;
    let mut client = Client::connect(&*backend.store()).await;
    client.granted(acquire(&key("chat"), RunId::random())).await;
    backend.set_remaining(&key("chat"), -2 * 3_600_000).await;
    assert_eq!(client.raw().sweep(10).await, Ok(1));
    client.close().await;
}

/// Lets the lease of the session `chat` expire by itself.
async fn expire(backend: &impl Backend) {
    backend.set_remaining(&key("chat"), 200).await;
    tokio::time::sleep(Duration::from_millis(250)).await;
}

async fn every_verb_but_a_sweep_works(backend: &impl Backend) {
    let mut client = Client::connect(&*backend.store()).await;
    let (chat, run) = (key("chat"), RunId::random());
    client.granted(acquire(&chat, run)).await;
    client.renewed(renew(&chat, run)).await;
    let reason = Some(EndReason::Completed);
    let item = Release { key: chat.clone(), run_id: run, reason };
    assert_eq!(client.raw().release(&[item]).await, Ok(vec![ReleaseOutcome::Released]));

    let taken = client.granted(acquire(&chat, RunId::random())).await;
    expire(backend).await;
    let run = RunId::random();
    assert!(client.granted(acquire(&chat, run)).await.fence > taken.fence);
    let holder = client.holder(&chat).await.expect("it is held");
    let item =
        BreakLease { key: chat.clone(), run_id: run, expires_at: holder.expires_at, by: None, reason: None };
    assert!(matches!(client.break_lease(item).await, BreakOutcome::Broken { .. }));
    assert!(matches!(client.renew(renew(&chat, run)).await, RenewOutcome::Expired { .. }));
    let run = RunId::random();
    client.granted(acquire(&chat, run)).await;
    assert_eq!(client.release(&chat, run).await, ReleaseOutcome::Released);
    client.close().await;
}

async fn history(store: &dyn LeaseStore) -> Option<Vec<Ending>> {
    let mut client = Client::connect(store).await;
    let page = HistoryPage { key: key("chat"), before: None, limit: 100 };
    let past = client.raw().history(&page).await.unwrap_or_else(|error| panic!("{error}"));
    client.close().await;
    past.map(|past| past.into_iter().rev().map(|run| run.ending).collect())
}

async fn a_database_may_be_without_a_history(backend: &impl Backend) {
    let store = backend.store();
    let as_is = Migrated::new(NEWEST_SCHEMA, NEWEST_SCHEMA);
    for _ in 0..2 {
        assert_eq!(store.migrate_with(KeepHistory::No).await, Ok(as_is));
        assert_eq!(store.migrate().await, Ok(as_is), "it stays so");
        every_verb_works(backend).await;
        assert_eq!(history(&*store).await, None);
    }
    let mut client = Client::connect(&*store).await;
    assert_eq!(client.raw().sweep_history(Duration::ZERO, 10).await, Ok(0));
    for _ in 0..2 {
        assert_eq!(store.migrate_with(KeepHistory::Yes).await, Ok(as_is));
    }
    every_verb_works(backend).await;
    assert_eq!(history(&*store).await.map(|past| past.len()), Some(5));
}

#[cfg(feature = "postgres")]
mod on_postgres {
    use sqlx::{AssertSqlSafe, Executor as _, PgConnection};
    use tokio::time::{Instant, timeout};

    use super::{
        support::{
            postgres::{Database, Server},
            postgres_backend::PostgresBackend,
        },
        *,
    };

    async fn start() -> PostgresBackend {
        PostgresBackend::start(Server::shared(), "").await
    }

    #[tokio::test]
    async fn a_database_may_be_without_a_history() {
        super::a_database_may_be_without_a_history(&start().await).await;
        let store = tenure::store::open("postgres://localhost/app").expect("the URL is good");
        let script = store.schema_with(KeepHistory::No);
        assert!(!script.contains("run_history") && script.contains("VALUES (2, 1)"), "{script}");
    }

    #[tokio::test]
    async fn i12_a_history_that_cannot_be_written_costs_no_lease() {
        for broken in [
            "DROP TABLE tenure.run_history",
            "ALTER TABLE tenure.run_history RENAME TO gone",
            "ALTER TABLE tenure.run_history DROP COLUMN how",
            "REVOKE ALL ON tenure.run_history FROM app",
            "ALTER TABLE tenure.run_history ADD CHECK (false)",
            "CREATE FUNCTION public.no() RETURNS trigger LANGUAGE plpgsql AS \
                $$ BEGIN RAISE EXCEPTION 'no room'; END $$; \
             CREATE TRIGGER no BEFORE INSERT ON tenure.run_history FOR EACH ROW EXECUTE FUNCTION public.no()",
            "ALTER TABLE tenure.run_history ENABLE ROW LEVEL SECURITY; \
             ALTER TABLE tenure.run_history FORCE ROW LEVEL SECURITY",
        ] {
            let backend = start().await;
            backend.execute(broken).await;
            every_verb_works(&backend).await;
        }
    }

    /// A stranger's lock on the history delays what ends a run by no more than the bound on locks.
    #[tokio::test]
    async fn i12_a_history_that_is_locked_costs_no_lease() {
        let backend = start().await;
        let mut stranger = backend.admin().await;
        stranger.execute("BEGIN; LOCK TABLE tenure.run_history").await.expect("it locks");
        let bounds =
            tenure::store::Bounds { statement: Duration::from_secs(30), lock: Duration::from_millis(200) };
        let mut connection = backend.store().connect(bounds).await.expect("it connects");
        let run_id = RunId::random();
        connection.acquire(&[acquire(&key("chat"), run_id)]).await.expect("it answers");
        let item = Release { key: key("chat"), run_id, reason: None };
        assert_eq!(connection.release(&[item]).await, Ok(vec![ReleaseOutcome::Released]));
    }

    #[tokio::test]
    async fn what_is_done_by_hand_shows_with_the_role_that_did_it() {
        let backend = start().await;
        let mut client = Client::connect(&*backend.store()).await;
        let other = "UPDATE tenure.session_lease SET run_id = gen_random_uuid(), fence = fence + 1";
        let ended = "UPDATE tenure.session_lease SET expires_at = clock_timestamp()";
        for by_hand in ["DELETE FROM tenure.session_lease", other, ended] {
            client.granted(acquire(&key("chat"), RunId::random())).await;
            backend.execute(by_hand).await;
            backend.execute("TRUNCATE tenure.session_lease").await;
        }
        let past = history(&*backend.store()).await.expect("it is kept");
        let [
            Ending::Deleted { by: Some(first), .. },
            Ending::Changed { by: Some(second), .. },
            Ending::Changed { by: Some(third), .. },
        ] = &past[..]
        else {
            panic!("{past:?}")
        };
        assert!(first == second && second == third && first != "app", "{past:?}");
    }

    /// It needs none of its own: the triggers have those of the table's owner.
    #[tokio::test]
    async fn a_role_that_holds_leases_needs_no_right_for_the_history() {
        let backend = start().await;
        let database = backend.database();
        database.server().role_with_password("bare", "s3cret").await;
        backend
            .execute(
                "GRANT USAGE ON SCHEMA tenure TO bare; GRANT SELECT ON tenure.migration TO bare; \
                 GRANT SELECT, INSERT, UPDATE, DELETE ON tenure.session_lease TO bare; \
                 GRANT USAGE, UPDATE ON SEQUENCE tenure.fence_floor TO bare",
            )
            .await;
        let store = tenure::store::open(&database.url_as("bare", "s3cret")).expect("the URL is good");
        let mut client = Client::connect(&*store).await;
        let run = RunId::random();
        client.granted(acquire(&key("chat"), run)).await;
        assert_eq!(client.release(&key("chat"), run).await, ReleaseOutcome::Released);
        assert_eq!(history(&*backend.store()).await, Some(vec![Ending::released(None)]));
        let page = HistoryPage { key: key("chat"), before: None, limit: 100 };
        let denied = client.raw().history(&page).await.expect_err("it may not read it").to_string();
        assert!(denied.contains("GRANT SELECT ON tenure.run_history"), "{denied}");
        let denied = client.raw().sweep_history(Duration::ZERO, 1).await.expect_err("it may not").to_string();
        assert!(denied.contains("GRANT SELECT, DELETE ON tenure.run_history"), "{denied}");
        backend.execute("GRANT SELECT ON tenure.run_history TO bare").await;
        assert_eq!(history(&*store).await.map(|past| past.len()), Some(1));
    }

    /// A search path must not lead the triggers, which have the owner's rights, to somebody's own functions.
    #[tokio::test]
    async fn the_triggers_use_nothing_that_a_role_has_made() {
        let backend = start().await;
        backend
            .execute(
                "CREATE SCHEMA evil; \
                 CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS \
                    $$ SELECT timestamptz '2000-01-01' $$; \
                 CREATE FUNCTION evil.is_less(timestamptz, timestamptz) RETURNS boolean LANGUAGE sql AS \
                    $$ SELECT true $$; \
                 CREATE OPERATOR evil.<= (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = evil.is_less)",
            )
            .await;
        let mut client = Client::connect(&*backend.store()).await;
        client.granted(acquire(&key("chat"), RunId::random())).await;
        backend.execute("SET search_path = evil, pg_catalog; DELETE FROM tenure.session_lease").await;
        let page = HistoryPage { key: key("chat"), before: None, limit: 1 };
        let past = client.raw().history(&page).await.expect("it reads").expect("it is kept");
        assert!(past[0].until >= past[0].since, "{past:?}");
    }

    /// A database as the first release has set it up.
    async fn of_release_1() -> Database {
        let database = Server::shared().database().await;
        let mut owner = owner(&database).await;
        let script = format!(
            "CREATE SCHEMA tenure; {}; {}; INSERT INTO tenure.migration (version, compatible_from) VALUES (1, 1)",
            include_str!("../src/store/postgres/bootstrap.sql"),
            include_str!("release_1/postgres/schema.sql"),
        );
        owner.execute(AssertSqlSafe(script)).await.expect("it is SQL");
        database
    }

    async fn owner(database: &Database) -> PgConnection {
        <PgConnection as sqlx::Connection>::connect(&database.url()).await.expect("it answers")
    }

    #[tokio::test]
    async fn this_release_works_on_the_first_version_and_after_its_migration() {
        let database = of_release_1().await;
        let store = tenure::store::open(&database.url()).expect("the URL is good");
        let mut early = Client::connect(&*store).await;
        let run = RunId::random();
        early.granted(acquire(&key("chat"), run)).await;
        assert_eq!(early.release(&key("chat"), run).await, ReleaseOutcome::Released);
        assert_eq!(history(&*store).await, None);

        early.granted(acquire(&key("chat"), run)).await;
        let backend = PostgresBackend::on(database, "").await;
        early.renewed(renew(&key("chat"), run)).await;
        assert_eq!(early.release(&key("chat"), run).await, ReleaseOutcome::Released);
        assert_eq!(history(&*store).await, Some(vec![Ending::released(None)]));
        every_verb_works(&backend).await;
        assert_eq!(backend.store().migrate().await, Ok(Migrated::new(NEWEST_SCHEMA, NEWEST_SCHEMA)));
    }

    /// Every statement of a run would wait behind the migration, which waits for a lock of the whole table.
    #[tokio::test(flavor = "multi_thread")]
    async fn i10_a_migration_that_waits_for_a_stranger_holds_up_no_renewal() {
        let database = of_release_1().await;
        let store = tenure::store::open(&database.url()).expect("the URL is good");
        let mut client = Client::connect(&*store).await;
        let run = RunId::random();
        for session in ["chat", "other"] {
            client.granted(acquire(&key(session), run)).await;
        }
        let mut stranger = owner(&database).await;
        let write = "BEGIN; UPDATE tenure.session_lease SET phase = 'mine' WHERE session_id = 'other'";
        stranger.execute(write).await.expect("it writes");
        let migrating = store.migrate();
        let migrating = tokio::spawn(migrating);
        let until = Instant::now() + Duration::from_secs(4);
        let mut longest = Duration::ZERO;
        while Instant::now() < until {
            let began = Instant::now();
            client.renewed(renew(&key("chat"), run)).await;
            longest = longest.max(began.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(!migrating.is_finished());
        assert!(longest < Duration::from_secs(1), "{longest:?}");
        stranger.execute("COMMIT").await.expect("it ends");
        let migrated = timeout(Duration::from_secs(60), migrating).await.expect("it ends").expect("no panic");
        assert_eq!(migrated, Ok(Migrated::new(1, NEWEST_SCHEMA)));
    }

    #[tokio::test]
    async fn the_statements_of_the_first_release_work_and_show() {
        let backend = start().await;
        let mut old = owner(backend.database()).await;
        let run = RunId::random();
        let texts = |text: &str| vec![text.to_owned()];
        let acquire_as = async |old: &mut PgConnection, run: RunId| {
            let query = sqlx::query(include_str!("release_1/postgres/acquire.sql"))
                .bind(texts("acct"))
                .bind(texts("chat"))
                .bind(vec![run.as_uuid()])
                .bind(vec![run.as_uuid()])
                .bind(texts("old"))
                .bind(texts(""))
                .bind(vec![30_000_i64]);
            verdict(&query.fetch_all(old).await.expect("it answers"))
        };
        let release_as = async |old: &mut PgConnection, run: RunId| {
            let query = sqlx::query(include_str!("release_1/postgres/release.sql"))
                .bind(texts("acct"))
                .bind(texts("chat"))
                .bind(vec![run.as_uuid()]);
            verdict(&query.fetch_all(old).await.expect("it answers"))
        };
        old.execute("SET application_name = 'tenure'").await.expect("it sets");
        assert_eq!(acquire_as(&mut old, run).await, "granted");
        let query = sqlx::query(include_str!("release_1/postgres/renew.sql"))
            .bind(texts("acct"))
            .bind(texts("chat"))
            .bind(vec![run.as_uuid()])
            .bind(vec![30_000_i64])
            .bind(vec![6_000_i64])
            .bind(texts("running"))
            .bind(vec![None::<String>]);
        assert_eq!(verdict(&query.fetch_all(&mut old).await.expect("it answers")), "renewed");
        assert_eq!(release_as(&mut old, run).await, "released");

        // A lease of this release is taken over by the first one, and the other way round.
        let mut new = Client::connect(&*backend.store()).await;
        new.granted(acquire(&key("chat"), RunId::random())).await;
        expire(&backend).await;
        assert_eq!(acquire_as(&mut old, run).await, "granted");
        expire(&backend).await;
        new.granted(acquire(&key("chat"), RunId::random())).await;
        expire(&backend).await;
        backend
            .execute("UPDATE tenure.session_lease SET expires_at = expires_at - interval '2 hours', fence = fence + 1")
            .await;
        let sweep = include_str!("release_1/postgres/sweep.sql");
        sqlx::query(sweep).bind(10_i64).bind(3_600_000_i64).execute(&mut old).await.expect("it sweeps");
        let past = history(&*backend.store()).await.expect("it is kept");
        assert!(
            matches!(
                &past[..],
                [
                    Ending::Released { why: None, .. },
                    Ending::TakenOver,
                    Ending::TakenOver,
                    Ending::Changed { .. },
                    Ending::Swept
                ]
            ),
            "{past:?}"
        );
    }

    fn verdict(rows: &[sqlx::postgres::PgRow]) -> String {
        use sqlx::Row as _;
        rows.iter().map(|row| row.get::<String, _>("verdict")).collect()
    }
}

#[cfg(feature = "sqlite")]
mod on_sqlite {
    use serde_json::json;
    use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};
    use tenure::store::SqliteStore;

    use super::{
        support::{
            client::{MARGIN, TTL},
            sqlite_backend::SqliteBackend,
        },
        *,
    };

    #[tokio::test]
    async fn a_database_may_be_without_a_history() {
        super::a_database_may_be_without_a_history(&SqliteBackend::start().await).await;
    }

    #[tokio::test]
    async fn i12_a_history_that_cannot_be_written_costs_no_lease() {
        for (broken, is_kept) in [
            ("DROP TABLE tenure_run_history", false),
            ("ALTER TABLE tenure_run_history RENAME TO gone", false),
            ("ALTER TABLE tenure_run_history RENAME COLUMN how TO what", true),
            (
                "CREATE TRIGGER no BEFORE INSERT ON tenure_run_history BEGIN SELECT RAISE(ABORT, 'no'); END",
                true,
            ),
            (
                "CREATE TRIGGER no BEFORE UPDATE ON tenure_run_history BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
                true,
            ),
        ] {
            // Whoever meets it first, a connection that is open or one that is being opened.
            let backend = SqliteBackend::start().await;
            backend.execute(broken).await;
            every_verb_but_a_sweep_works(&backend).await;

            let backend = SqliteBackend::start().await;
            let mut open = Client::connect(&*backend.store()).await;
            let run = RunId::random();
            open.granted(acquire(&key("early"), run)).await;
            backend.execute(broken).await;
            open.renewed(renew(&key("early"), run)).await;
            assert_eq!(open.release(&key("early"), run).await, ReleaseOutcome::Released, "{broken}");
            every_verb_but_a_sweep_works(&backend).await;
            let found = "SELECT count(*) FROM sqlite_schema WHERE name = 'tenure_run_history'";
            let found: i64 = sqlx::query_scalar(found).fetch_one(&mut backend.raw().await).await.unwrap();
            assert_eq!(found == 1, is_kept, "{broken}");
        }
    }

    #[tokio::test]
    async fn what_is_done_by_hand_shows() {
        let backend = SqliteBackend::start().await;
        let mut client = Client::connect(&*backend.store()).await;
        let other = "UPDATE tenure_session_lease SET run_id = '00000000-0000-4000-8000-000000000007', fence = fence + 1";
        let ended = "UPDATE tenure_session_lease SET expires_at = unixepoch() * 1000";
        for by_hand in ["DELETE FROM tenure_session_lease", other, ended] {
            client.granted(acquire(&key("chat"), RunId::random())).await;
            backend.execute(by_hand).await;
            backend.execute("DELETE FROM tenure_session_lease").await;
        }
        let past = history(&*backend.store()).await.expect("it is kept");
        let by_hand = [Ending::deleted(None), Ending::changed(None)];
        assert_eq!(past[..2], by_hand, "{past:?}");
        assert_eq!(past.last(), Some(&by_hand[1]), "{past:?}");
    }

    /// A file as the first release has set it up.
    async fn of_release_1() -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("there is room for a directory");
        let script = format!(
            "PRAGMA journal_mode = WAL; \
             CREATE TABLE tenure_migration (version INTEGER PRIMARY KEY, compatible_from INTEGER NOT NULL, \
                applied_at INTEGER NOT NULL) STRICT; \
             {}; INSERT INTO tenure_migration VALUES (1, 1, 0)",
            include_str!("release_1/sqlite/schema.sql")
        );
        let url = format!("sqlite://{}/tenure.db?mode=rwc", directory.path().display());
        let mut raw =
            <SqliteConnection as sqlx::Connection>::connect(&url).await.expect("the file is created");
        sqlx::raw_sql(AssertSqlSafe(script)).execute(&mut raw).await.expect("it is SQL");
        directory
    }

    #[tokio::test]
    async fn this_release_works_on_the_first_version_and_migrates_it_where_it_may_create() {
        let directory = of_release_1().await;
        let url = format!("sqlite://{}/tenure.db", directory.path().display());
        let store = SqliteStore::new(&format!("{url}?mode=rw")).expect("the URL is good");
        let mut early = Client::connect(&store).await;
        let run = RunId::random();
        early.granted(acquire(&key("chat"), run)).await;
        assert_eq!(early.release(&key("chat"), run).await, ReleaseOutcome::Released);
        assert_eq!(history(&store).await, None);
        early.granted(acquire(&key("chat"), run)).await;

        let migrating = SqliteStore::new(&url).expect("the URL is good");
        assert_eq!(history(&migrating).await, Some(Vec::new()));
        early.renewed(renew(&key("chat"), run)).await;
        let reason = Some(EndReason::Completed);
        let item = Release { key: key("chat"), run_id: run, reason: reason.clone() };
        assert_eq!(early.raw().release(&[item]).await, Ok(vec![ReleaseOutcome::Released]));
        assert_eq!(history(&store).await, Some(vec![Ending::released(reason)]));
        assert_eq!(migrating.migrate().await, Ok(Migrated::new(NEWEST_SCHEMA, NEWEST_SCHEMA)));
    }

    #[tokio::test]
    async fn the_statements_of_the_first_release_work_and_show() {
        let backend = SqliteBackend::start().await;
        let mut old = backend.raw().await;
        let run = RunId::random();
        let item = json!([{
            "account": "acct", "session": "chat", "run": run.to_string(), "node": run.to_string(), "holder": "old",
            "phase": "", "stage": "running", "ttl": TTL.as_millis() as u64, "margin": MARGIN.as_millis() as u64,
        }])
        .to_string();
        let write = async |old: &mut SqliteConnection, sql: &'static str| {
            sqlx::query(sql).bind(&item).fetch_all(old).await.expect("it answers").len()
        };
        let grant = include_str!("release_1/sqlite/grant.sql");
        assert_eq!(write(&mut old, grant).await, 1);
        assert_eq!(write(&mut old, include_str!("release_1/sqlite/renew.sql")).await, 1);
        assert_eq!(write(&mut old, include_str!("release_1/sqlite/release.sql")).await, 1);

        let mut new = Client::connect(&*backend.store()).await;
        for _ in 0..2 {
            new.granted(acquire(&key("chat"), RunId::random())).await;
            expire(&backend).await;
            assert_eq!(write(&mut old, grant).await, 1);
            expire(&backend).await;
        }
        let past = history(&*backend.store()).await.expect("it is kept");
        assert_eq!(past[0], Ending::deleted(None), "it cannot be told from one by hand");
        assert_eq!(past[1..], [Ending::TakenOver, Ending::TakenOver, Ending::TakenOver]);
        // That release blames every other trigger of the table for a write that changes nothing.
        let suspects = "SELECT count(*) FROM sqlite_schema WHERE type = 'trigger' AND \
            tbl_name = 'tenure_session_lease' AND name NOT LIKE 'tenure!_fence!_%' ESCAPE '!'";
        let row = sqlx::query(suspects).fetch_one(&mut old).await.expect("it reads");
        assert_eq!(row.get::<i64, _>(0), 0);
    }
}
