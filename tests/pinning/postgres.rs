//! On PostgreSQL: a row lock that renewals go past.

use std::time::Instant;

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Postgres, Row as _, Transaction};
use tenure::{
    AcquireError, Busy, RunId, SessionKey,
    pin::{self, PinError, Pinned},
    store::{AcquireOutcome, Bounds, ReleaseOutcome, SWEEP_AFTER},
};
use tokio::{task::yield_now, time::sleep};

use super::{
    support::{
        backend::{Backend, Reachable},
        client::{BOUNDS, Client, acquire, key, renew},
        postgres::Server,
        postgres_backend::PostgresBackend,
    },
    *,
};

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
/// Those whose statements all see the same.
const SNAPSHOTS: [&str; 2] = ["REPEATABLE READ", "SERIALIZABLE"];

#[tokio::test]
async fn what_was_pinned_commits_before_another_run_is_granted_though_the_lease_expires_meanwhile() {
    let backend = start().await;
    let mut client = Client::connect(&*backend.store()).await;
    backend.execute("CREATE TABLE write (fence bigint); GRANT ALL ON write TO app").await;
    for level in LEVELS {
        let (key, run, next) = (key(level), RunId::random(), RunId::random());
        let fence = client.granted(acquire(&key, run)).await.fence;
        let mut host = host(&backend).await;
        let mut tx = begin(&mut host, level).await;
        let pinned = pin::pin(&mut *tx, &key, run).await.unwrap();
        assert_eq!(pinned.fence, fence);
        assert!(pinned.remaining.is_some_and(|left| left > Duration::from_secs(15)), "{pinned:?}");
        backend.set_remaining(&key, -1).await;

        let holder = client.refused(acquire(&key, next)).await;
        assert_eq!((holder.run_id, holder.expires_in), (run, Duration::ZERO), "{level}");
        assert_eq!(client.release(&key, run).await, ReleaseOutcome::Locked);
        backend.set_remaining(&key, -2 * SWEEP_AFTER.as_millis() as i64).await;
        assert_eq!(client.raw().sweep(10).await, Ok(0));
        sqlx::query("INSERT INTO write VALUES ($1)").bind(fence.as_i64()).execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();

        let next = client.granted(acquire(&key, next)).await.fence;
        assert!(next > fence, "{level}: {next} after {fence}");
    }
    let written: i64 = backend.admin().await.fetch_one("SELECT count(*) FROM write").await.unwrap().get(0);
    assert_eq!(written, 3);
}

/// The same as a host sees it: its run has lost its lease, and another process asks all the time.
#[tokio::test]
async fn a_run_that_expires_in_its_pinned_transaction_is_followed_only_after_the_commit() {
    let backend = start().await;
    let (here, there) = (supervisor(&backend.url(), TTL).await, supervisor(&backend.url(), TTL).await);
    let run = held(&here, "chat").await;
    let mut host = host(&backend).await;
    let mut tx = begin(&mut host, LEVELS[0]).await;
    run.pin(&mut *tx).await.unwrap();
    backend.set_remaining(run.key(), -1).await;
    assert!(run.cancelled().await.is_loss());

    for _ in 0..20 {
        let busy = refused(&there, "chat").await;
        assert_eq!(busy.holder().run_id, run.run_id());
        assert_eq!(busy.retry_after(), Duration::from_secs(1));
        assert!(busy.to_string().contains("has expired") && busy.to_string().contains("pinned"), "{busy}");
    }
    tx.commit().await.unwrap();
    let next = held(&there, "chat").await;
    assert!(next.fence() > run.fence());
}

#[tokio::test]
async fn a_pin_that_comes_too_late_says_what_has_happened_and_locks_nothing() {
    let backend = start().await;
    let mut client = Client::connect(&*backend.store()).await;
    for level in LEVELS {
        let (taken, released, expired) = (key("taken"), key("released"), key("expired"));
        let (run, next) = (RunId::random(), RunId::random());
        for key in [&taken, &released, &expired] {
            client.granted(acquire(key, run)).await;
        }
        backend.set_remaining(&taken, -1).await;
        backend.set_remaining(&expired, -1).await;
        let fence = client.granted(acquire(&taken, next)).await.fence;
        client.release(&released, run).await;

        let mut host = host(&backend).await;
        let mut tx = begin(&mut host, level).await;
        let error = pin::pin(&mut *tx, &taken, run).await.unwrap_err();
        assert!(
            matches!(error, PinError::Superseded { run_id, fence: f, .. } if (run_id, f) == (next, fence))
        );
        assert!(error.to_string().contains(&fence.to_string()), "{error}");
        let error = pin::pin(&mut *tx, &released, run).await.unwrap_err();
        assert!(matches!(error, PinError::Released), "{error:?}");
        let error = pin::pin(&mut *tx, &expired, run).await.unwrap_err();
        assert!(matches!(error, PinError::Expired), "{error:?}");
        assert!(error.is_loss());
        // The transaction is still open, and keeps nobody from any of them.
        for key in [&released, &expired] {
            client.granted(acquire(key, next)).await;
        }
        for key in [&taken, &released, &expired] {
            client.release(key, next).await;
        }
    }
}

/// The snapshot shows the old run, and must not be believed.
#[tokio::test]
async fn a_pin_does_not_succeed_on_a_snapshot_from_before_the_loss() {
    let backend = start().await;
    let mut client = Client::connect(&*backend.store()).await;
    for level in SNAPSHOTS {
        for taken_over in [true, false] {
            let (key, run) = (key("s"), RunId::random());
            client.granted(acquire(&key, run)).await;
            let mut host = host(&backend).await;
            let mut tx = begin(&mut host, level).await;
            tx.execute("SELECT count(*) FROM tenure.session_lease").await.unwrap();
            let next = RunId::random();
            if taken_over {
                backend.set_remaining(&key, -1).await;
                client.granted(acquire(&key, next)).await;
            } else {
                client.release(&key, run).await;
            }
            let error = pin::pin(&mut *tx, &key, run).await.unwrap_err();
            assert!(matches!(error, PinError::Lost), "{level}: {error:?}");
            client.release(&key, next).await;
        }
    }
}

/// The snapshot shows the expiry of long ago. The holder's process knows of the renewals since; nobody else does.
#[tokio::test]
async fn a_transaction_that_is_older_than_a_whole_lease_can_still_pin_it() {
    let backend = start().await;
    let supervisor = supervisor(&backend.url(), TTL).await;
    for level in SNAPSHOTS {
        let run = held(&supervisor, "chat").await;
        let mut host = host(&backend).await;
        let mut tx = begin(&mut host, level).await;
        tx.execute("SELECT count(*) FROM tenure.session_lease").await.unwrap();
        sleep(TTL + TTL / 4).await;
        assert!(run.is_held());
        let error = pin::pin(&mut *tx, run.key(), run.run_id()).await.unwrap_err();
        assert!(matches!(error, PinError::StaleSnapshot) && !error.is_loss(), "{level}: {error:?}");
        let pinned = run.pin(&mut *tx).await.unwrap();
        assert!(matches!(pinned, Pinned { remaining: None, fence, .. } if fence == run.fence()));

        backend.set_remaining(run.key(), -1).await;
        run.cancelled().await;
        let mut client = Client::connect(&*backend.store()).await;
        assert_eq!(client.refused(acquire(run.key(), RunId::random())).await.run_id, run.run_id());
        let error = run.pin(&mut *tx).await.unwrap_err();
        assert!(matches!(&error, PinError::Ended(reason) if reason.is_loss()), "{level}: {error:?}");
        tx.rollback().await.unwrap();
        client.granted(acquire(&key("chat"), RunId::random())).await;
        backend.set_remaining(run.key(), -1).await;
    }
}

#[tokio::test]
async fn a_pinned_lease_is_renewed_for_as_long_as_the_transaction_lasts() {
    let backend = start().await;
    let supervisor = supervisor(&backend.url(), TTL).await;
    for level in LEVELS {
        let run = held(&supervisor, "chat").await;
        let mut host = host(&backend).await;
        let mut tx = begin(&mut host, level).await;
        run.pin(&mut *tx).await.unwrap();
        sleep(2 * TTL).await;
        assert!(run.is_held(), "{level}");
        tx.commit().await.unwrap();
        assert!(run.release().await.released);
    }
}

#[tokio::test]
async fn a_run_that_is_told_to_stop_can_pin_what_it_still_writes_and_is_released_after_the_commit() {
    let backend = start().await;
    let (here, there) =
        (supervisor(&backend.url(), LONG_TTL).await, supervisor(&backend.url(), LONG_TTL).await);
    let run = held(&here, "chat").await;
    assert!(matches!(there.stop(&key("chat")).await, Ok(tenure::StopAnswer::Asked(_))));
    run.cancelled().await;
    let mut host = host(&backend).await;
    let mut tx = begin(&mut host, LEVELS[0]).await;
    run.pin(&mut *tx).await.unwrap();

    let releasing = tokio::spawn(run.release());
    for _ in 0..20 {
        refused(&there, "chat").await;
        yield_now().await;
    }
    assert!(!releasing.is_finished());
    tx.commit().await.unwrap();
    assert!(releasing.await.unwrap().released);
    held(&there, "chat").await.release().await;
}

/// A connection whose statements fail where they wait for a lock at all.
#[tokio::test]
async fn a_hundred_pinned_leases_are_waited_for_by_nobody() {
    let backend = start().await;
    let mut client = Client::connect(&*backend.store()).await;
    let run = RunId::random();
    let pinned: Vec<_> = (0..100).map(|n| acquire(&key(format!("pinned-{n}")), run)).collect();
    client.raw().acquire(&pinned).await.unwrap();
    let mut host = host(&backend).await;
    let mut tx = begin(&mut host, LEVELS[0]).await;
    for item in &pinned {
        pin::pin(&mut *tx, &item.key, run).await.unwrap();
        backend.set_remaining(&item.key, -1).await;
    }

    let bounds = Bounds { lock: Duration::from_millis(1), ..BOUNDS };
    let mut impatient = backend.store().connect(bounds).await.unwrap();
    let mixed = |round: usize| {
        let fresh = (0..100).map(move |n| acquire(&key(format!("fresh-{round}-{n}")), RunId::random()));
        let taken = pinned.iter().map(|item| acquire(&item.key, RunId::random()));
        fresh.zip(taken).flat_map(|(fresh, taken)| [fresh, taken]).collect::<Vec<_>>()
    };
    for round in 0..5 {
        let began = Instant::now();
        for (n, outcome) in impatient.acquire(&mixed(round)).await.unwrap().into_iter().enumerate() {
            match outcome {
                AcquireOutcome::Granted(_) if n % 2 == 0 => {}
                AcquireOutcome::Busy(holder) if n % 2 == 1 => assert_eq!(holder.run_id, run),
                other => panic!("{n}: {other:?}"),
            }
        }
        println!("100 granted and 100 pinned ones refused in {:?}", began.elapsed());
    }
    assert_eq!(impatient.sweep(1_000).await, Ok(0));
    tx.commit().await.unwrap();
    let outcomes = impatient.acquire(&mixed(5)).await.unwrap();
    assert!(outcomes.iter().all(|outcome| matches!(outcome, AcquireOutcome::Granted(_))));
}

/// What only looks like a pin, as it ends in a moment, is waited out: the real holder is named.
#[tokio::test]
async fn a_row_that_is_locked_for_other_reasons_is_not_taken_for_pinned() {
    let backend = start().await;
    let mut client = Client::connect(&*backend.store()).await;
    let (key, run) = (key("s"), RunId::random());
    client.granted(acquire(&key, run)).await;
    backend.set_remaining(&key, -1).await;
    for lock in ["FOR UPDATE", "FOR NO KEY UPDATE"] {
        let mut admin = backend.admin().await;
        let mut tx = admin.begin().await.unwrap();
        let sql = format!("SELECT FROM tenure.session_lease {lock}");
        tx.execute(AssertSqlSafe(sql)).await.unwrap();
        assert_eq!(client.acquire(acquire(&key, RunId::random())).await, AcquireOutcome::Locked, "{lock}");
    }
}

#[tokio::test]
async fn without_a_transaction_nothing_is_pinned_and_one_that_was_begun_by_hand_will_do() {
    let backend = start().await;
    let supervisor = supervisor(&backend.url(), LONG_TTL).await;
    let run = held(&supervisor, "chat").await;
    let mut host = host(&backend).await;
    let error = run.pin(&mut host).await.unwrap_err();
    assert!(matches!(error, PinError::NoTransaction) && !error.is_loss(), "{error:?}");
    host.execute("BEGIN").await.unwrap();
    run.pin(&mut host).await.unwrap();
    let mut client = Client::connect(&*backend.store()).await;
    assert_eq!(client.release(run.key(), run.run_id()).await, ReleaseOutcome::Locked);
    host.execute("COMMIT").await.unwrap();
    assert!(matches!(run.pin(&mut host).await, Err(PinError::NoTransaction)));
}

#[tokio::test]
async fn a_lease_in_a_schema_of_another_name_is_pinned_there() {
    let backend = PostgresBackend::start(Server::shared(), "?schema=My-agents").await;
    let supervisor = supervisor(&backend.url(), LONG_TTL).await;
    let run = held(&supervisor, "chat").await;
    let mut host = PgConnection::connect(&backend.database().url()).await.unwrap();
    let mut tx = begin(&mut host, LEVELS[0]).await;
    run.pin(&mut *tx).await.unwrap();
    pin::pin_in(&mut *tx, "My-agents", run.key(), run.run_id()).await.unwrap();
    let mut client = Client::connect(&*backend.store()).await;
    assert_eq!(client.release(run.key(), run.run_id()).await, ReleaseOutcome::Locked);
    backend.set_remaining(run.key(), -1).await;
    assert_eq!(client.refused(acquire(run.key(), RunId::random())).await.run_id, run.run_id());
}

#[tokio::test]
async fn a_database_without_leases_is_named_as_such() {
    let backend = start().await;
    let supervisor = supervisor(&backend.url(), LONG_TTL).await;
    let run = held(&supervisor, "chat").await;
    let other = Server::shared().database().await;
    let mut host = PgConnection::connect(&other.url()).await.unwrap();
    let mut tx = host.begin().await.unwrap();
    let error = run.pin(&mut *tx).await.unwrap_err();
    assert!(matches!(error, PinError::NoLeases(_)) && !error.is_loss(), "{error:?}");
    assert!(error.to_string().contains("fence_gate"), "{error}");
}

/// What the documentation says it takes, and no more; as plain SQL, as from another language.
#[tokio::test]
async fn the_plain_statement_pins_with_the_rights_that_are_documented() {
    let backend = start().await;
    let mut client = Client::connect(&*backend.store()).await;
    let (key, run) = (key("s"), RunId::random());
    client.granted(acquire(&key, run)).await;
    Server::shared().role_with_password("pinner", "secret").await;
    let url = backend.database().url_as("pinner", "secret");
    let mut host = PgConnection::connect(&url).await.unwrap();
    backend
        .execute(
            "GRANT USAGE ON SCHEMA tenure TO pinner; GRANT SELECT ON tenure.session_lease TO pinner; \
             GRANT UPDATE (phase) ON tenure.session_lease TO pinner",
        )
        .await;
    let mut tx = host.begin().await.unwrap();
    assert_eq!(verdict(&mut tx, pin::POSTGRES.to_owned(), &key, run).await, "pinned");
    assert_eq!(client.release(&key, run).await, ReleaseOutcome::Locked);
    tx.commit().await.unwrap();
    client.renewed(renew(&key, run)).await;

    backend.execute("ALTER SCHEMA tenure RENAME TO \"my leases\"").await;
    let mut tx = host.begin().await.unwrap();
    assert_eq!(verdict(&mut tx, pin::postgres_in("my leases"), &key, run).await, "pinned");
}

/// The short form in `docs/fencing.md`.
#[tokio::test]
async fn the_statement_in_the_docs_pins_in_read_committed() {
    let docs = include_str!("../../docs/fencing.md");
    let sql = docs.split("```sql\n-- pin\n").nth(1).and_then(|block| block.split("```").next()).unwrap();
    let backend = start().await;
    let mut client = Client::connect(&*backend.store()).await;
    let (key, run) = (key("s"), RunId::random());
    client.granted(acquire(&key, run)).await;
    let mut host = host(&backend).await;
    let mut tx = begin(&mut host, LEVELS[0]).await;
    let pin = |run: RunId| sqlx::query(sql).bind(key.account()).bind(key.session()).bind(run.as_uuid());
    assert!(pin(RunId::random()).fetch_optional(&mut *tx).await.unwrap().is_none());
    assert!(pin(run).fetch_optional(&mut *tx).await.unwrap().is_some());
    backend.set_remaining(&key, -1).await;
    client.refused(acquire(&key, RunId::random())).await;
    tx.commit().await.unwrap();
    let mut tx = begin(&mut host, LEVELS[0]).await;
    assert!(pin(run).fetch_optional(&mut *tx).await.unwrap().is_none());
}

async fn verdict(tx: &mut Transaction<'_, Postgres>, sql: String, key: &SessionKey, run: RunId) -> String {
    let query = sqlx::query(AssertSqlSafe(sql)).bind(key.account()).bind(key.session()).bind(run.as_uuid());
    query.fetch_one(&mut **tx).await.unwrap().get("verdict")
}

async fn start() -> PostgresBackend {
    PostgresBackend::start(Server::shared(), "").await
}

/// A connection of the application's own role.
async fn host(backend: &PostgresBackend) -> PgConnection {
    PgConnection::connect(&backend.url()).await.unwrap()
}

async fn begin<'a>(host: &'a mut PgConnection, level: &str) -> Transaction<'a, Postgres> {
    host.begin_with(AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"))).await.unwrap()
}

async fn refused(supervisor: &LeaseSupervisor, session: &str) -> Box<Busy> {
    match supervisor.acquire(&key(session)).await {
        Err(AcquireError::Busy(busy)) => busy,
        other => panic!("{session}: not refused: {other:?}"),
    }
}
