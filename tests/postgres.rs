//! Promises that only PostgreSQL can break: locks of strangers, true races, isolation levels, roles, plans.

#![cfg(feature = "postgres")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Row};
use tenure::{
    RunId, SessionKey,
    store::{
        Acquire, AcquireOutcome, Bounds, LeaseStore, Migrated, PostgresStore, Release, ReleaseOutcome,
        RenewOutcome, SWEEP_AFTER, SharedStore, StoreError,
    },
};
use tokio::sync::Barrier;

use support::{
    NEWEST_SCHEMA,
    backend::Backend,
    client::{BOUNDS, Client, acquire, key, renew},
    postgres::{Options, Server},
    postgres_backend::PostgresBackend,
};

/// A trigger of the host that keeps a record, say, is no reason to doubt a lock.
#[tokio::test]
async fn a_trigger_that_lets_rows_pass_is_not_blamed_for_a_lock() {
    let backend = start().await;
    backend
        .execute(
            "CREATE FUNCTION public.pass() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$; \
             CREATE TRIGGER pass BEFORE INSERT OR UPDATE ON tenure.session_lease \
             FOR EACH ROW EXECUTE FUNCTION public.pass()",
        )
        .await;
    let mut client = connect(&backend).await;
    let (key, run) = (key("s"), RunId::random());
    client.granted(acquire(&key, run)).await;
    let mut host = HostTransaction::begin(&backend, "SELECT FROM tenure.session_lease FOR UPDATE").await;
    assert_eq!(client.renew(renew(&key, run)).await, RenewOutcome::Locked);
    assert_eq!(client.release(&key, run).await, ReleaseOutcome::Locked);
    host.end().await;
    backend.set_remaining(&key, -1).await;
    let mut host = HostTransaction::begin(&backend, "SELECT FROM tenure.session_lease FOR UPDATE").await;
    assert_eq!(client.acquire(acquire(&key, RunId::random())).await, AcquireOutcome::Locked);
    host.end().await;
    client.granted(acquire(&key, RunId::random())).await;
}

/// I10: a row that somebody has locked is skipped, and its neighbours in the batch do not wait.
#[tokio::test]
async fn a_locked_row_delays_nobody() {
    let backend = start().await;
    let mut client = connect(&backend).await;
    let (expired, mine, run) = (key("m"), key("n"), RunId::random());
    client.granted(acquire(&expired, RunId::random())).await;
    client.granted(acquire(&mine, run)).await;
    backend.set_remaining(&expired, -1).await;
    let mut host = HostTransaction::begin(&backend, "SELECT FROM tenure.session_lease FOR UPDATE").await;

    let items = ["l", "m", "n", "o"].map(|session| acquire(&key(session), run));
    let outcomes = client.raw().acquire(&items).await.expect("it waits for nobody");
    assert!(
        matches!(
            &outcomes[..],
            [
                AcquireOutcome::Granted(_),
                AcquireOutcome::Locked,
                AcquireOutcome::Locked,
                AcquireOutcome::Granted(_)
            ]
        ),
        "{outcomes:?}"
    );
    let items = ["l", "m", "n", "o"].map(|session| renew(&key(session), run));
    let outcomes = client.raw().renew(&items).await.expect("it waits for nobody");
    assert!(
        matches!(
            &outcomes[..],
            [
                RenewOutcome::Renewed(_),
                RenewOutcome::Superseded { .. },
                RenewOutcome::Locked,
                RenewOutcome::Renewed(_)
            ]
        ),
        "{outcomes:?}"
    );
    let items = ["l", "m", "n", "o"].map(|session| Release { key: key(session), run_id: run, reason: None });
    assert_eq!(
        client.raw().release(&items).await.expect("it waits for nobody"),
        [
            ReleaseOutcome::Released,
            ReleaseOutcome::NotFound,
            ReleaseOutcome::Locked,
            ReleaseOutcome::Released
        ]
    );
    host.end().await;
    assert!(matches!(client.acquire(acquire(&expired, run)).await, AcquireOutcome::Granted(_)));
    assert_eq!(client.release(&mine, run).await, ReleaseOutcome::Released);
}

/// A host transaction that pins its lease commits before any takeover can.
#[tokio::test]
async fn a_pin_holds_off_takeover_and_release_but_no_renewal() {
    let backend = start().await;
    let mut client = connect(&backend).await;
    let (key, run, other) = (key("s"), RunId::random(), RunId::random());
    client.granted(acquire(&key, run)).await;
    let pin = "SELECT FROM tenure.session_lease FOR KEY SHARE";

    let mut host = HostTransaction::begin(&backend, pin).await;
    client.renewed(renew(&key, run)).await;
    assert_eq!(client.release(&key, run).await, ReleaseOutcome::Locked);
    assert_eq!(client.acquire(acquire(&key, run)).await, AcquireOutcome::Locked);
    assert_eq!(client.refused(acquire(&key, other)).await.run_id, run);
    host.end().await;

    backend.set_remaining(&key, -1).await;
    let mut host = HostTransaction::begin(&backend, pin).await;
    let holder = client.refused(acquire(&key, other)).await;
    assert_eq!((holder.run_id, holder.expires_in), (run, Duration::ZERO));
    host.end().await;
    client.granted(acquire(&key, other)).await;

    backend.set_remaining(&key, -2 * SWEEP_AFTER.as_millis() as i64).await;
    let mut host = HostTransaction::begin(&backend, pin).await;
    assert_eq!(client.raw().sweep(10).await, Ok(0));
    host.end().await;
    assert_eq!(client.raw().sweep(10).await, Ok(1));
}

/// I4: not even a lock. The stranger's next renewal would be skipped for it.
#[tokio::test]
async fn a_late_renewal_or_release_does_not_lock_the_next_runs_row() {
    let backend = start().await;
    let mut client = connect(&backend).await;
    let (key, run) = (key("s"), RunId::random());
    client.granted(acquire(&key, run)).await;
    let before = backend.image(&key).await;
    let renewed = client.renew(renew(&key, RunId::random())).await;
    assert!(matches!(renewed, RenewOutcome::Superseded { .. }), "{renewed:?}");
    assert_eq!(client.release(&key, RunId::random()).await, ReleaseOutcome::NotFound);
    assert_eq!(backend.image(&key).await, before, "xmax would show a lock");
}

#[tokio::test]
async fn a_refusal_writes_no_wal() {
    let backend = start().await;
    let mut client = connect(&backend).await;
    let keys: Vec<_> = (0..50).map(|n| key(format!("s{n}"))).collect();
    let items: Vec<_> = keys.iter().map(|key| acquire(key, RunId::random())).collect();
    client.raw().acquire(&items).await.expect("they are free");
    let mut admin = backend.admin().await;
    prepare_verbs(&mut admin).await;
    let acquire = arguments(&mut admin, "generate_series(0, 49) AS n").await[0].clone();
    let refused = &format!("EXPLAIN (ANALYZE, WAL, TIMING OFF) EXECUTE {acquire}");
    // The first read after the insertions may clean their pages up.
    lines(&mut admin, refused).await;
    let plan = lines(&mut admin, refused).await;
    assert!(plan.contains("actual rows=50"), "{plan}");
    assert!(!plan.contains("WAL:"), "{plan}");
}

/// I1: eight connections ask for one free session at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_race_for_a_free_session_one_wins_and_the_others_are_told_who() {
    let backend = start().await;
    race(&backend, false, 1_000).await;
}

/// I1: the same for an expired one.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_race_for_an_expired_session_one_wins_and_the_others_are_told_who() {
    let backend = start().await;
    race(&backend, true, 300).await;
}

/// Whatever the host's database has as a default.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_defaults_to_serializable_changes_nothing() {
    let backend = start().await;
    let name = backend.database().name();
    backend
        .execute(&format!("ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"))
        .await;
    race(&backend, false, 200).await;
    race(&backend, true, 50).await;
}

#[tokio::test]
async fn a_session_commits_to_disk_even_where_the_default_does_not() {
    let backend = start().await;
    let name = backend.database().name();
    backend.execute(&format!("ALTER DATABASE {name} SET synchronous_commit = off")).await;
    // What a session has set for itself shows nowhere but in the session: there, a trigger can look.
    backend
        .execute(
            "CREATE FUNCTION public.look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                NEW.phase := current_setting('synchronous_commit') || ' ' || \
                             current_setting('transaction_isolation'); RETURN NEW; END $$; \
             CREATE TRIGGER look BEFORE INSERT ON tenure.session_lease \
                FOR EACH ROW EXECUTE FUNCTION public.look()",
        )
        .await;
    let mut client = connect(&backend).await;
    client.granted(acquire(&key("s"), RunId::random())).await;
    let holder = client.holder(&key("s")).await.expect("it is held");
    assert_eq!(holder.phase.as_str(), "on read committed");
}

/// Two statements that begin at once do not see each other's rows. So one of them must not judge the limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_per_account_holds_among_fifty_that_ask_at_once() {
    a_limit_holds_among_fifty_that_ask_at_once("").await;
}

/// Behind PgBouncer the default isolation level is the database's.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_per_account_holds_where_snapshots_last_for_a_transaction() {
    a_limit_holds_among_fifty_that_ask_at_once("?pgbouncer=true").await;
}

async fn a_limit_holds_among_fifty_that_ask_at_once(parameters: &str) {
    const LIMIT: u32 = 3;
    let backend = PostgresBackend::start(Server::shared(), parameters).await;
    let name = backend.database().name().to_owned();
    backend
        .execute(&format!("ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'"))
        .await;
    let (together, running) = (Arc::new(Barrier::new(50)), Arc::new(AtomicU32::new(0)));
    let tasks: Vec<_> = (0..50)
        .map(|n| {
            let (store, together, running) = (backend.store(), together.clone(), running.clone());
            tokio::spawn(async move {
                let (mut client, mut granted) = (Client::connect(&*store).await, 0);
                let (key, run_id) = (key(format!("s{n}")), RunId::random());
                let item = Acquire { limit_per_account: Some(LIMIT), ..acquire(&key, run_id) };
                together.wait().await;
                for _ in 0..20 {
                    match client.acquire(item.clone()).await {
                        AcquireOutcome::Granted(_) => {
                            granted += 1;
                            assert!(running.fetch_add(1, Ordering::SeqCst) < LIMIT);
                            tokio::time::sleep(Duration::from_millis(2)).await;
                            running.fetch_sub(1, Ordering::SeqCst);
                            client.release(&key, run_id).await;
                        }
                        AcquireOutcome::Full { running } => assert!(running >= LIMIT),
                        AcquireOutcome::Locked => {}
                        AcquireOutcome::Busy(holder) => panic!("nobody else asks for it: {holder:?}"),
                    }
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..20))).await;
                }
                granted
            })
        })
        .collect();
    let mut granted = 0;
    for task in tasks {
        granted += task.await.expect("it ends");
    }
    assert!(granted > 50, "{granted} were granted");
}

#[tokio::test]
async fn of_those_that_sweep_in_turn_one_does_so_at_a_time() {
    let backend = start().await;
    let mut client = connect(&backend).await;
    client.granted(acquire(&key("s"), RunId::random())).await;
    backend.set_remaining(&key("s"), -3_600_001).await;
    let mut admin = backend.admin().await;
    admin
        .execute("SELECT pg_advisory_lock(hashtextextended('tenure.session_lease sweep', 0))")
        .await
        .expect("it is free");
    assert_eq!(client.raw().sweep_in_turn(10).await, Ok(0));
    admin.execute("SELECT pg_advisory_unlock_all()").await.expect("it is its own");
    assert_eq!(client.raw().sweep_in_turn(10).await, Ok(1));
}

/// Batches overlap in all orders, and every verb locks in the order of the keys.
#[tokio::test(flavor = "multi_thread")]
async fn batches_in_any_order_never_deadlock() {
    const KEYS: usize = 40;
    let backend = start().await;
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let store = backend.store();
            tokio::spawn(async move {
                let mut client = Client::connect(&*store).await;
                let run = RunId::random();
                let mut granted = 0;
                for _ in 0..60 {
                    let mut keys: Vec<_> = (0..KEYS).map(|n| key(format!("s{n}"))).collect();
                    fastrand::shuffle(&mut keys);
                    let items: Vec<_> = keys.iter().map(|key| acquire(key, run)).collect();
                    let outcomes = client.raw().acquire(&items).await.expect("no deadlock");
                    granted += outcomes.iter().filter(|it| matches!(it, AcquireOutcome::Granted(_))).count();
                    let items: Vec<_> = keys.iter().map(|key| renew(key, run)).collect();
                    client.raw().renew(&items).await.expect("no deadlock");
                    fastrand::shuffle(&mut keys);
                    let items: Vec<_> =
                        keys.into_iter().map(|key| Release { key, run_id: run, reason: None }).collect();
                    client.raw().release(&items).await.expect("no deadlock");
                }
                granted
            })
        })
        .collect();
    let mut granted = 0;
    for task in tasks {
        granted += task.await.expect("it ends");
    }
    assert!(granted >= KEYS);
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let deadlocks: i64 =
        backend.admin().await.fetch_one(sqlx::raw_sql(deadlocks)).await.expect("it reads").get(0);
    assert_eq!(deadlocks, 0, "none was hidden by a retry");
}

/// I8: between the clock that gave a fresh row its fence and the row's insertion, another run may come and go. It
/// is played by a transaction in whose way the insertion waits, and which takes its fence only then.
#[tokio::test]
async fn a_fence_is_greater_than_that_of_a_run_that_came_and_went_meanwhile() {
    let backend = start().await;
    let (key, item) = (key("s"), acquire(&key("s"), RunId::random()));
    let mut host = HostTransaction::begin(
        &backend,
        "INSERT INTO tenure.session_lease \
            (account_id, session_id, run_id, fence, node, holder, acquired_at, expires_at) \
         VALUES ('acct', 's', gen_random_uuid(), 1, gen_random_uuid(), 'h', clock_timestamp(), \
            clock_timestamp() + interval '1 minute')",
    )
    .await;
    let store = backend.store();
    let asking = tokio::spawn(async move { Client::connect(&*store).await.granted(item).await });
    until(
        &backend,
        "SELECT count(*) FROM pg_stat_activity \
         WHERE datname = current_database() AND wait_event = 'transactionid'",
        1,
    )
    .await;
    let meanwhile: i64 = host.read("SELECT tenure.next_fence(1)").await;
    host.end().await;

    let grant = asking.await.expect("it is granted");
    assert!(grant.fence.as_i64() > meanwhile, "{} came after {meanwhile}", grant.fence);
    let holder = connect(&backend).await.holder(&key).await.expect("it is held");
    assert_eq!(holder.fence, grant.fence, "a retry after a lost reply finds the same");
}

/// I7: the row is this run's by the time its own second attempt has waited for the first.
#[tokio::test(flavor = "multi_thread")]
async fn two_attempts_of_one_run_get_the_same_lease() {
    let backend = start().await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(connect(&backend).await);
    }
    for round in 0..200 {
        let item = acquire(&key(format!("s{round}")), RunId::random());
        let outcomes =
            futures::future::join_all(clients.iter_mut().map(|client| client.acquire(item.clone())));
        let fences: Vec<_> = outcomes
            .await
            .into_iter()
            .filter_map(|outcome| match outcome {
                AcquireOutcome::Granted(grant) => Some(grant.fence),
                AcquireOutcome::Locked => None,
                other => panic!("refused: {other:?}"),
            })
            .collect();
        assert!(!fences.is_empty() && fences.iter().all(|fence| *fence == fences[0]), "{fences:?}");
    }
}

/// Renewals write no index: that is what the fill factor, and having no second index, are for.
#[tokio::test]
async fn every_renewal_is_a_heap_only_update() {
    // A neighbour's open transaction, of whatever database, would keep old row versions alive.
    // So would a vacuum's.
    let options = Options { conf: "autovacuum = off".to_owned(), ..Options::default() };
    let backend = PostgresBackend::start(&Server::start_with(&options), "").await;
    let mut client = connect(&backend).await;
    let runs: Vec<_> = (0..200).map(|n| (key(format!("s{n}")), RunId::random())).collect();
    let items: Vec<_> = runs.iter().map(|(key, run)| acquire(key, *run)).collect();
    client.raw().acquire(&items).await.expect("they are free");
    let before = statistics(&backend, client).await;
    let mut client = connect(&backend).await;
    let items: Vec<_> = runs.iter().map(|(key, run)| renew(key, *run)).collect();
    for _ in 0..20 {
        client.raw().renew(&items).await.expect("it renews");
    }
    let after = statistics(&backend, client).await;
    assert_eq!(after.0 - before.0, 4_000);
    assert_eq!(after.1 - before.1, 4_000, "of 4,000 updates");
}

/// With many rows, a batch reaches its own by the index, whether planned for its values or once and for all.
#[tokio::test]
async fn a_full_batch_reads_no_more_than_its_rows() {
    let backend = start().await;
    let mut admin = backend.admin().await;
    admin
        .execute(
            "INSERT INTO tenure.session_lease \
                (account_id, session_id, run_id, fence, node, holder, acquired_at, expires_at) \
             SELECT 'acct', 's' || n, gen_random_uuid(), 1, gen_random_uuid(), 'h', \
                clock_timestamp() + interval '1 minute', clock_timestamp() + interval '10 minutes' \
             FROM generate_series(1, 100000) AS n",
        )
        .await
        .expect("it inserts");
    admin.execute("ANALYZE tenure.session_lease").await.expect("it reads");
    prepare_verbs(&mut admin).await;
    let calls = arguments(&mut admin, "generate_series(1, 100000, 200) AS n").await;
    for mode in ["force_custom_plan", "force_generic_plan"] {
        admin.execute(AssertSqlSafe(format!("SET plan_cache_mode = {mode}"))).await.expect("it sets");
        for call in &calls {
            let plan = lines(&mut admin, &format!("EXPLAIN EXECUTE {call}")).await;
            assert!(plan.contains("Index"), "{plan}");
            assert!(!plan.contains("Seq Scan on session_lease"), "{mode}: {plan}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_processes_may_migrate_at_once() {
    let database = Server::shared().database().await;
    let barrier = Arc::new(Barrier::new(16));
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let (store, barrier) = (store(&database.url()), barrier.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                store.migrate().await
            })
        })
        .collect();
    let mut from_nothing = 0;
    for task in tasks {
        let migrated = task.await.expect("it ends").expect("it migrates");
        from_nothing += usize::from(migrated.from == 0);
        assert_eq!(migrated.to, NEWEST_SCHEMA);
    }
    assert_eq!(from_nothing, 1, "the others found it done");
}

#[tokio::test]
async fn a_migration_leaves_the_hosts_own_alone() {
    let database = Server::shared().database().await;
    let mut admin = database.admin().await;
    admin
        .execute("CREATE TABLE public._sqlx_migrations AS SELECT 7 AS version; CREATE SCHEMA host")
        .await
        .expect("it creates");
    // A host may have a search path of its own, too.
    admin
        .execute(AssertSqlSafe(format!("ALTER DATABASE {} SET search_path = host", database.name())))
        .await
        .expect("it sets");
    let backend = PostgresBackend::on(database, "").await;
    let mut client = connect(&backend).await;
    client.granted(acquire(&key("s"), RunId::random())).await;
    let versions = "SELECT count(*) FROM public._sqlx_migrations WHERE version = 7";
    until(&backend, versions, 1).await;
    let strays =
        "SELECT count(*) FROM pg_class WHERE relnamespace IN ('public'::regnamespace, 'host'::regnamespace)";
    until(&backend, strays, 1).await;
}

#[tokio::test]
async fn a_schema_from_the_future_is_used_if_it_says_so_and_refused_otherwise() {
    let backend = start().await;
    backend.execute("INSERT INTO tenure.migration (version, compatible_from) VALUES (7, 1)").await;
    let mut client = connect(&backend).await;
    client.granted(acquire(&key("s"), RunId::random())).await;
    assert_eq!(backend.store().migrate().await, Ok(Migrated::new(7, 7)));

    backend.execute("INSERT INTO tenure.migration (version, compatible_from) VALUES (8, 5)").await;
    for error in [backend.store().migrate().await.err(), refusal(&*backend.store()).await] {
        let error = error.expect("it is too new");
        assert!(
            matches!(
                error,
                StoreError::SchemaTooNew { found: 8, compatible_from: 5, known: NEWEST_SCHEMA, .. }
            ),
            "{error:?}"
        );
        assert!(error.to_string().contains("upgrade tenure"), "{error}");
    }
}

/// A release that knows fewer columns must go on working beside one that has added some.
#[tokio::test]
async fn a_column_more_does_not_disturb() {
    let backend = start().await;
    backend.execute("ALTER TABLE tenure.session_lease ADD COLUMN item text, ADD COLUMN read_at text").await;
    let mut client = connect(&backend).await;
    let (key, run) = (key("s"), RunId::random());
    client.granted(acquire(&key, run)).await;
    client.refused(acquire(&key, RunId::random())).await;
    client.renewed(renew(&key, run)).await;
    assert!(client.holder(&key).await.is_some());
    assert_eq!(client.release(&key, run).await, ReleaseOutcome::Released);
}

#[tokio::test]
async fn a_missing_schema_names_its_remedy() {
    let database = Server::shared().database().await;
    let error = refusal(&*store(&database.url())).await.expect("there is no schema");
    assert!(matches!(error, StoreError::SchemaMissing { .. }), "{error:?}");
    assert!(error.to_string().contains("tenure migrate"), "{error}");
}

#[tokio::test]
async fn a_missing_database_names_its_remedy() {
    let database = Server::shared().database().await;
    let url = database.url().replace(database.name(), "nowhere");
    let error = refusal(&*store(&url)).await.expect("there is no such database");
    assert!(matches!(error, StoreError::Url { .. }), "{error:?}");
    assert!(error.to_string().contains("CREATE DATABASE \"nowhere\""), "{error}");
}

#[tokio::test]
async fn a_server_without_tls_names_its_remedy() {
    let database = Server::shared().database().await;
    for mode in ["require", "verify-full"] {
        let url = format!("{}?sslmode={mode}", database.url_at(Server::shared().address()));
        let refused = tenure::migrate(&url).await.expect_err("it has no TLS").to_string();
        assert!(refused.contains("sslmode=disable") && refused.contains("TLS"), "{refused}");
    }
}

#[test]
fn a_connection_string_is_named_as_such_wherever_a_url_is_expected() {
    let text = "host=db.example user=me password=s3cret dbname=app";
    let opened = tenure::store::open(text).expect_err("it is no URL").to_string();
    let named = PostgresStore::new(text).expect_err("it is no URL").to_string();
    for refused in [opened, named] {
        assert!(refused.contains("postgres://me:PASSWORD@db.example/app"), "{refused}");
        assert!(!refused.contains("s3cret"), "{refused}");
    }
}

#[tokio::test]
async fn a_refused_password_is_said_and_not_shown() {
    let backend = start().await;
    backend.database().server().role_with_password("guarded", "r1ght").await;
    let url = backend.database().url_as("guarded", "wr0ng");
    let error = refusal(&*store(&url)).await.expect("the password is wrong");
    assert!(matches!(error, StoreError::PermissionDenied { .. }), "{error:?}");
    for text in [error.to_string(), format!("{error:?}"), format!("{:?}", PostgresStore::new(&url))] {
        assert!(!text.contains("wr0ng"), "{text}");
    }
    assert!(error.to_string().contains("check the user and the password"), "{error}");
}

/// The texts name exactly what has to be granted: granting that is enough.
#[tokio::test]
async fn a_role_without_rights_learns_which_it_needs() {
    let backend = start().await;
    let server = backend.database().server();
    server.role_with_password("poor", "p0or").await;
    let url = backend.database().url_as("poor", "p0or");
    let error = refusal(&*store(&url)).await.expect("it may do nothing");
    assert!(matches!(error, StoreError::PermissionDenied { .. }), "{error:?}");
    let text = error.to_string();
    let grants: Vec<_> =
        text.split("; ").filter_map(|part| part.find("GRANT").map(|at| &part[at..])).collect();
    assert_eq!(grants.len(), 5, "{text}");
    backend.execute("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA tenure FROM PUBLIC").await;
    for grant in grants {
        backend.execute(&format!("{grant} TO poor")).await;
    }
    let store = store(&url);
    assert_eq!(
        store.migrate().await,
        Ok(Migrated::new(NEWEST_SCHEMA, NEWEST_SCHEMA)),
        "nothing to create, no right needed"
    );
    let mut client = Client::connect(&*store).await;
    let (key, run) = (key("s"), RunId::random());
    client.granted(acquire(&key, run)).await;
    client.renewed(renew(&key, run)).await;
    backend.set_remaining(&key, -1).await;
    client.granted(acquire(&key, RunId::random())).await;
    backend.set_remaining(&key, -2 * SWEEP_AFTER.as_millis() as i64).await;
    assert_eq!(client.raw().sweep(1).await, Ok(1));
}

#[tokio::test]
async fn a_role_that_may_not_create_is_told_so_by_the_migration() {
    let database = Server::shared().database().await;
    database.server().role_with_password("reader", "s3cret").await;
    let error = store(&database.url_as("reader", "s3cret")).migrate().await.expect_err("it may not create");
    assert!(matches!(error, StoreError::PermissionDenied { .. }), "{error:?}");
    assert!(error.to_string().contains("GRANT CREATE ON DATABASE"), "{error}");
}

/// The usual way to give a role its own place: it may create in its schema, not in the database.
#[tokio::test]
async fn a_role_that_owns_the_schema_may_migrate() {
    let database = Server::shared().database().await;
    database.server().role_with_password("owner", "s3cret").await;
    database.admin().await.execute("CREATE SCHEMA tenure AUTHORIZATION owner").await.expect("it creates");
    let migrated = store(&database.url_as("owner", "s3cret")).migrate().await;
    assert_eq!(migrated, Ok(Migrated::new(0, NEWEST_SCHEMA)));
}

#[tokio::test]
async fn a_server_that_accepts_no_writes_is_unavailable() {
    let backend = start().await;
    let mut client = connect(&backend).await;
    let name = backend.database().name();
    let read_only = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    backend.admin().await.execute(AssertSqlSafe(read_only)).await.expect("it sets");
    let error = refusal(&*backend.store()).await.expect("it is read-only");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("read-only"), "{error}");
    client.granted(acquire(&key("s"), RunId::random())).await;
}

/// I9: nothing is known of a statement that the server stopped, or whose connection it closed.
#[tokio::test]
async fn a_statement_that_was_cut_off_is_uncertain() {
    let backend = start().await;
    let bounds = Bounds { statement: Duration::from_millis(500), lock: Duration::from_secs(20) };
    let mut host = HostTransaction::begin(&backend, "LOCK TABLE tenure.session_lease").await;
    let mut connection = backend.store().connect(bounds).await.expect("it connects");
    let item = acquire(&key("s"), RunId::random());
    let error =
        connection.acquire(std::slice::from_ref(&item)).await.expect_err("the statement takes too long");
    assert!(error.is_uncertain(), "{error:?}");
    let bounds = Bounds { statement: Duration::from_secs(20), lock: Duration::from_millis(500) };
    let mut connection = backend.store().connect(bounds).await.expect("it connects");
    let error = connection.acquire(std::slice::from_ref(&item)).await.expect_err("the lock takes too long");
    assert!(matches!(error, StoreError::RolledBack { .. }), "{error:?}");
    host.end().await;

    connection.acquire(std::slice::from_ref(&item)).await.expect("the connection is still good");
    backend.database().terminate_backends().await;
    let error = connection.acquire(&[item]).await.expect_err("the connection is gone");
    assert!(error.is_uncertain(), "{error:?}");
}

#[tokio::test]
async fn a_row_that_makes_no_sense_is_an_error() {
    let backend = start().await;
    let mut client = connect(&backend).await;
    let (key, run) = (key("s"), RunId::random());
    client.granted(acquire(&key, run)).await;
    backend
        .execute(
            "ALTER TABLE tenure.session_lease DROP CONSTRAINT session_lease_values; \
             UPDATE tenure.session_lease SET stage = 'paused'",
        )
        .await;
    let error = client.raw().inspect(std::slice::from_ref(&key)).await.expect_err("no stage is called that");
    assert!(error.to_string().contains("paused"), "{error}");
}

/// A transaction of the host application, open until [`end`](Self::end).
struct HostTransaction {
    connection: PgConnection,
}

impl HostTransaction {
    async fn begin(backend: &PostgresBackend, first: &str) -> Self {
        let mut connection = backend.admin().await;
        connection.execute("BEGIN").await.expect("it begins");
        connection.execute(AssertSqlSafe(first)).await.expect("it goes first");
        Self { connection }
    }

    async fn read(&mut self, sql: &'static str) -> i64 {
        self.connection.fetch_one(sql).await.expect("it reads").get(0)
    }

    async fn end(&mut self) {
        self.connection.execute("ROLLBACK").await.expect("it ends");
    }
}

async fn start() -> PostgresBackend {
    PostgresBackend::start(Server::shared(), "").await
}

async fn connect(backend: &PostgresBackend) -> Client {
    Client::connect(&*backend.store()).await
}

fn store(url: &str) -> SharedStore {
    Arc::new(PostgresStore::new(url).expect("the URL is good"))
}

async fn refusal(store: &dyn LeaseStore) -> Option<StoreError> {
    store.connect(BOUNDS).await.err()
}

/// Eight connections, one session, all at once, many times; the winner releases when all have their answer.
async fn race(backend: &PostgresBackend, expired: bool, rounds: usize) {
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(connect(backend).await);
    }
    let mut last_fence = None;
    for round in 0..rounds {
        let key = key("contended");
        if expired {
            clients[0].granted(acquire(&key, RunId::random())).await;
            backend.set_remaining(&key, -1).await;
        }
        let outcomes = one_round(&mut clients, &key).await;
        let winners: Vec<_> = outcomes
            .iter()
            .filter_map(|(run, outcome)| match outcome {
                AcquireOutcome::Granted(grant) => Some((*run, grant.fence)),
                _ => None,
            })
            .collect();
        let [(winner, fence)] = winners[..] else { panic!("round {round}: {} winners", winners.len()) };
        assert!(last_fence < Some(fence), "round {round}: {fence} after {last_fence:?}");
        last_fence = Some(fence);
        for (run, outcome) in outcomes {
            match outcome {
                AcquireOutcome::Busy(holder) => assert_eq!((holder.run_id, holder.fence), (winner, fence)),
                // The winner has the expired row's lock while a loser looks at it.
                AcquireOutcome::Locked => assert!(expired && run != winner, "round {round}"),
                AcquireOutcome::Granted(_) => {}
                AcquireOutcome::Full { .. } => panic!("it has no limit"),
            }
        }
        assert_eq!(clients[0].release(&key, winner).await, ReleaseOutcome::Released);
    }
}

async fn one_round(clients: &mut Vec<Client>, key: &SessionKey) -> Vec<(RunId, AcquireOutcome)> {
    let barrier = Arc::new(Barrier::new(clients.len()));
    let tasks: Vec<_> = clients
        .drain(..)
        .map(|mut client| {
            let (item, barrier) = (acquire(key, RunId::random()), barrier.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                (item.run_id, client.acquire(item).await, client)
            })
        })
        .collect();
    let mut outcomes = Vec::new();
    for task in tasks {
        let (run, outcome, client) = task.await.expect("it ends");
        outcomes.push((run, outcome));
        clients.push(client);
    }
    outcomes
}

/// Waits until a count is as expected; asking is the only way to be told.
async fn until(backend: &PostgresBackend, sql: &'static str, expected: i64) {
    let mut admin = backend.admin().await;
    let mut seen = None;
    for _ in 0..50_000 {
        let count: i64 = admin.fetch_one(sqlx::raw_sql(sql)).await.expect("it reads").get(0);
        if count == expected {
            return;
        }
        seen = Some(count);
    }
    panic!("{sql}: {seen:?} and never {expected}");
}

/// Updates and heap-only updates so far. A session reports them at its end at the latest, so it is ended.
async fn statistics(backend: &PostgresBackend, client: Client) -> (i64, i64) {
    client.close().await;
    until(
        backend,
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tenure'",
        0,
    )
    .await;
    let sql = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'session_lease'";
    let row = backend.admin().await.fetch_one(sqlx::raw_sql(sql)).await.expect("it reads");
    (row.get(0), row.get(1))
}

/// The store's own statements, under the names of their verbs.
async fn prepare_verbs(admin: &mut PgConnection) {
    for (verb, sql) in [
        ("acquire", include_str!("../src/store/postgres/acquire.sql")),
        ("renew", include_str!("../src/store/postgres/renew.sql")),
        ("release", include_str!("../src/store/postgres/release.sql")),
        (
            "inspect",
            concat!(
                include_str!("../src/store/postgres/server.sql"),
                include_str!("../src/store/postgres/inspect.sql")
            ),
        ),
    ] {
        admin.execute(AssertSqlSafe(format!("PREPARE {verb} AS {sql}"))).await.expect("it is good SQL");
    }
}

/// Calls of the prepared verbs, with one item for each `n` of a series.
async fn arguments(admin: &mut PgConnection, series: &str) -> [String; 4] {
    let mut literals = Vec::new();
    for (value, array) in [
        ("'acct'::text", "text[]"),
        ("'s' || n", "text[]"),
        ("gen_random_uuid()", "uuid[]"),
        ("1000", "bigint[]"),
    ] {
        let sql = format!("SELECT quote_literal(array_agg({value})) || '::{array}' FROM {series}");
        let row = admin.fetch_one(sqlx::raw_sql(AssertSqlSafe(sql))).await.expect("it reads");
        literals.push(row.get::<String, _>(0));
    }
    let [accounts, sessions, uuids, numbers] = &literals[..] else { unreachable!("four were made") };
    [
        format!("acquire({accounts}, {sessions}, {uuids}, {uuids}, {accounts}, {accounts}, {numbers})"),
        format!("renew({accounts}, {sessions}, {uuids}, {numbers}, {numbers}, {accounts}, {accounts})"),
        format!("release({accounts}, {sessions}, {uuids}, {accounts}, {accounts}, {accounts})"),
        format!("inspect({accounts}, {sessions})"),
    ]
}

async fn lines(connection: &mut PgConnection, sql: &str) -> String {
    let rows = connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql))).await.expect("it explains");
    rows.iter().map(|row| row.get::<String, _>(0) + "\n").collect()
}
