//! As a table of PostgreSQL, in the transaction that writes.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _};
use tenure::fence_gate::{GateError, POSTGRES, POSTGRES_TABLE, Refused, admit};
use tokio::time::timeout;

use super::{
    support::postgres::{Database, Server},
    *,
};

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

#[tokio::test]
async fn a_late_writer_is_refused_in_its_own_transaction_and_told_the_greatest() {
    let database = database().await;
    let mut host = connect(&database).await;
    let chat = key("chat");
    for level in LEVELS {
        for (fence, seen) in [(5, None), (5, None), (9, None), (5, Some(9)), (9, None)] {
            let mut tx =
                host.begin_with(AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"))).await.unwrap();
            match (admit(&mut *tx, &chat, token(fence)).await, seen) {
                (Ok(()), None) => tx.commit().await.unwrap(),
                (Err(GateError::Refused(Refused::Late { seen, .. })), Some(expected)) => {
                    assert_eq!(seen, token(expected));
                }
                other => panic!("{level}, {fence}: {other:?}"),
            }
        }
        host.execute("TRUNCATE tenure_fence_gate").await.unwrap();
    }
}

/// Of a rolled back transaction nothing is remembered: it has written nothing either.
#[tokio::test]
async fn what_was_rolled_back_was_never_admitted() {
    let database = database().await;
    let mut host = connect(&database).await;
    let mut tx = host.begin().await.unwrap();
    admit(&mut *tx, &key("chat"), token(9)).await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = host.begin().await.unwrap();
    admit(&mut *tx, &key("chat"), token(5)).await.unwrap();
}

#[tokio::test]
async fn transactions_of_one_run_do_not_wait_for_each_other_and_a_later_run_waits_for_them() {
    let database = database().await;
    let (mut one, mut two, mut three) =
        (connect(&database).await, connect(&database).await, connect(&database).await);
    let chat = key("chat");
    let mut first = one.begin().await.unwrap();
    admit(&mut *first, &chat, token(5)).await.unwrap();
    first.commit().await.unwrap();

    let mut first = one.begin().await.unwrap();
    admit(&mut *first, &chat, token(5)).await.unwrap();
    let mut second = two.begin().await.unwrap();
    second.execute("SET LOCAL lock_timeout = '1ms'").await.unwrap();
    admit(&mut *second, &chat, token(5)).await.unwrap();
    second.commit().await.unwrap();

    let later = tokio::spawn(async move {
        let mut later = three.begin().await.unwrap();
        admit(&mut *later, &key("chat"), token(9)).await.unwrap();
        later.commit().await.unwrap();
    });
    let mut later = Box::pin(later);
    assert!(timeout(Duration::from_millis(200), &mut later).await.is_err(), "it waits");
    // Nor is there a deadlock when the earlier run asks again meanwhile.
    admit(&mut *first, &chat, token(5)).await.unwrap();
    first.commit().await.unwrap();
    later.await.unwrap();
    let mut first = one.begin().await.unwrap();
    assert!(matches!(admit(&mut *first, &chat, token(5)).await, Err(GateError::Refused(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_sixteen_writers_write_is_in_the_order_of_runs() {
    let database = database().await;
    let mut admin = connect(&database).await;
    admin.execute("CREATE TABLE write (n bigserial PRIMARY KEY, fence bigint)").await.unwrap();
    let next = Arc::new(AtomicI64::new(1));
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        let (mut host, next) = (connect(&database).await, next.clone());
        writers.push(tokio::spawn(async move {
            for _ in 0..40 {
                let run = next.fetch_add(1, Ordering::SeqCst);
                for _ in 0..3 {
                    if write(&mut host, run).await.is_err() {
                        break;
                    }
                }
            }
        }));
    }
    for writer in join_all(writers).await {
        writer.unwrap();
    }
    let written: Vec<i64> =
        sqlx::query_scalar("SELECT fence FROM write ORDER BY n").fetch_all(&mut admin).await.unwrap();
    assert!(written.is_sorted(), "a write came late: {written:?}");
    assert!(written.len() > 40, "only {} were written", written.len());
}

async fn write(host: &mut PgConnection, run: i64) -> Result<(), GateError> {
    let level = fastrand::choice(LEVELS).expect("there are three");
    let mut tx = host.begin_with(AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"))).await?;
    admit(&mut *tx, &key("chat"), token(run)).await?;
    tokio::time::sleep(Duration::from_micros(fastrand::u64(0..2_000))).await;
    sqlx::query("INSERT INTO write (fence) VALUES ($1)").bind(run).execute(&mut *tx).await?;
    Ok(tx.commit().await?)
}

#[tokio::test]
async fn without_a_transaction_or_its_table_it_says_what_is_missing() {
    let database = database().await;
    let mut host = connect(&database).await;
    let error = admit(&mut host, &key("chat"), token(5)).await.unwrap_err();
    assert!(matches!(error, GateError::NoTransaction), "{error:?}");
    host.execute("DROP TABLE tenure_fence_gate").await.unwrap();
    let mut tx = host.begin().await.unwrap();
    let error = admit(&mut *tx, &key("chat"), token(5)).await.unwrap_err();
    assert!(matches!(error, GateError::NoTable(_)), "{error:?}");
    assert!(error.to_string().contains("POSTGRES_TABLE"), "{error}");
}

/// As from another language; and the short form in `docs/fencing.md`.
#[tokio::test]
async fn the_plain_statements_answer_the_greatest_fence() {
    let docs = include_str!("../../docs/fencing.md");
    let block = docs.split("```sql\n-- gate").nth(1).and_then(|block| block.split("```").next()).unwrap();
    let (table, sql) = block.split_once('\n').and_then(|(_, block)| block.split_once("\n\n")).unwrap();
    for (table, sql) in [(POSTGRES_TABLE, POSTGRES), (table, sql)] {
        let database = Server::shared().database().await;
        let mut host = connect(&database).await;
        host.execute(table).await.unwrap();
        for (fence, seen) in [(5_i64, 5_i64), (9, 9), (5, 9), (9, 9)] {
            let row = sqlx::query(sql).bind("a").bind("s").bind(fence).fetch_one(&mut host).await.unwrap();
            assert_eq!(row.get::<i64, _>("seen"), seen);
        }
    }
}

async fn database() -> Database {
    let database = Server::shared().database().await;
    connect(&database).await.execute(POSTGRES_TABLE).await.unwrap();
    database
}

async fn connect(database: &Database) -> PgConnection {
    // The role of an application may create tables in its database since it owns it; `public` may be closed.
    let mut host = PgConnection::connect(&database.url()).await.unwrap();
    host.execute("CREATE SCHEMA IF NOT EXISTS app; SET search_path = app").await.unwrap();
    host
}
