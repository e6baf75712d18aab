//! As a table of SQLite, in the transaction that writes.

use sqlx::{Connection as _, Executor as _, Row as _, SqliteConnection};
use tempfile::TempDir;
use tenure::fence_gate::{GateError, Refused, SQLITE, SQLITE_TABLE, admit};

use super::*;

#[tokio::test]
async fn a_late_writer_is_refused_in_its_own_transaction_and_told_the_greatest() {
    let (_directory, url) = file().await;
    let mut host = SqliteConnection::connect(&url).await.unwrap();
    for (fence, seen) in [(5, None), (5, None), (9, None), (5, Some(9)), (9, None)] {
        let mut tx = host.begin_with("BEGIN IMMEDIATE").await.unwrap();
        match (admit(&mut *tx, &key("chat"), token(fence)).await, seen) {
            (Ok(()), None) => tx.commit().await.unwrap(),
            (Err(GateError::Refused(Refused::Late { seen, .. })), Some(expected)) => {
                assert_eq!(seen, token(expected));
            }
            other => panic!("{fence}: {other:?}"),
        }
    }
    let row = sqlx::query(SQLITE).bind("acct").bind("chat").bind(5_i64).fetch_one(&mut host).await.unwrap();
    assert_eq!(row.get::<i64, _>("seen"), 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_sixteen_writers_write_is_in_the_order_of_runs() {
    let (_directory, url) = file().await;
    let mut admin = SqliteConnection::connect(&url).await.unwrap();
    admin.execute("CREATE TABLE write (n INTEGER PRIMARY KEY AUTOINCREMENT, fence INTEGER)").await.unwrap();
    let next = Arc::new(AtomicI64::new(1));
    let writers = (0..WRITERS).map(|_| {
        let (url, next) = (url.clone(), next.clone());
        tokio::spawn(async move {
            let mut host = SqliteConnection::connect(&url).await.unwrap();
            for _ in 0..20 {
                let run = next.fetch_add(1, Ordering::SeqCst);
                for _ in 0..3 {
                    if write(&mut host, run).await.is_err() {
                        break;
                    }
                }
            }
        })
    });
    for writer in join_all(writers).await {
        writer.unwrap();
    }
    let written: Vec<i64> =
        sqlx::query_scalar("SELECT fence FROM write ORDER BY n").fetch_all(&mut admin).await.unwrap();
    assert!(written.is_sorted(), "a write came late: {written:?}");
    assert!(written.len() > 20, "only {} were written", written.len());
}

async fn write(host: &mut SqliteConnection, run: i64) -> Result<(), GateError> {
    let mut tx = host.begin_with("BEGIN IMMEDIATE").await?;
    admit(&mut *tx, &key("chat"), token(run)).await?;
    sqlx::query("INSERT INTO write (fence) VALUES (?1)").bind(run).execute(&mut *tx).await?;
    Ok(tx.commit().await?)
}

#[tokio::test]
async fn without_a_transaction_or_its_table_it_says_what_is_missing() {
    let mut host = SqliteConnection::connect("sqlite::memory:").await.unwrap();
    let error = admit(&mut host, &key("chat"), token(5)).await.unwrap_err();
    assert!(matches!(error, GateError::NoTransaction), "{error:?}");
    let mut tx = host.begin().await.unwrap();
    let error = admit(&mut *tx, &key("chat"), token(5)).await.unwrap_err();
    assert!(matches!(error, GateError::NoTable(_)), "{error:?}");
    assert!(error.to_string().contains("SQLITE_TABLE"), "{error}");
}

/// In write-ahead mode, as the file of a busy resource would be.
async fn file() -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/resource.db?mode=rwc", directory.path().display());
    let mut host = SqliteConnection::connect(&url).await.unwrap();
    host.execute("PRAGMA journal_mode = WAL").await.unwrap();
    host.execute(SQLITE_TABLE).await.unwrap();
    (directory, url)
}
