//! Compares the cost of a lease on a real database with that of one plain statement of the same kind, sent by sqlx
//! alone.
//!
//! Compare two lines of one run. The figures themselves depend on the disk, on which a commit waits. The PostgreSQL
//! server is a throw-away one with `fsync` on.

use criterion::{Criterion, criterion_group, criterion_main};
use sqlx::{Connection, Executor, PgConnection, SqliteConnection};
use tenure::{
    EndReason, Label, LeaseSupervisor, NodeId, RunId, RunPhase, RunStage, SessionKey,
    store::{self, Acquire, Bounds, KeepHistory, LeaseConnection, Release, Renew},
};
use tokio::runtime::Runtime;

#[allow(unused_imports, reason = "the tests' own support, of which this takes the server")]
#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use support::postgres::{Options, Server};

const TTL: Duration = Duration::from_secs(30);

fn postgres(c: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let server = Server::start_with(&Options { fsync: true, ..Options::default() });
    let database = runtime.block_on(server.database());
    verbs(c, &runtime, "postgres", &database.url());

    let mut plain = runtime.block_on(PgConnection::connect(&database.url())).expect("it answers");
    let table = "CREATE TABLE plain (k text PRIMARY KEY, run uuid, expires_at timestamptz)";
    runtime.block_on(plain.execute(table)).expect("its owner may");
    let upsert = "INSERT INTO plain VALUES ('k', gen_random_uuid(), clock_timestamp() + interval '30 s') \
                  ON CONFLICT (k) DO UPDATE SET expires_at = excluded.expires_at";
    let update = "UPDATE plain SET expires_at = clock_timestamp() + interval '30 s' WHERE k = 'k'";
    for (name, sql) in [("upsert", upsert), ("update", update), ("delete", "DELETE FROM plain WHERE k = 'k'")]
    {
        c.bench_function(&format!("postgres/plain sqlx: one {name}"), |b| {
            b.iter(|| runtime.block_on(sqlx::query(sql).execute(&mut plain)).expect("it works"));
        });
    }
}

fn sqlite(c: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let directory = tempfile::tempdir().expect("room for a file");
    let url = format!("sqlite://{}", directory.path().join("leases.db").display());
    verbs(c, &runtime, "sqlite", &url);

    let mut plain = runtime.block_on(SqliteConnection::connect(&url)).expect("the file is there");
    let setup =
        "PRAGMA synchronous = NORMAL; CREATE TABLE plain (k text PRIMARY KEY, run text, expires_at integer)";
    runtime.block_on(plain.execute(setup)).expect("the file can be written");
    let upsert = "INSERT INTO plain VALUES ('k', 'r', unixepoch() + 30) \
                  ON CONFLICT (k) DO UPDATE SET expires_at = excluded.expires_at";
    let update = "UPDATE plain SET expires_at = unixepoch() + 30 WHERE k = 'k'";
    for (name, sql) in [("upsert", upsert), ("update", update), ("delete", "DELETE FROM plain WHERE k = 'k'")]
    {
        c.bench_function(&format!("sqlite/plain sqlx: one {name}"), |b| {
            b.iter(|| runtime.block_on(sqlx::query(sql).execute(&mut plain)).expect("it works"));
        });
    }
}

/// Measures the store's statements alone, and a whole acquire and release through a supervisor.
fn verbs(c: &mut Criterion, runtime: &Runtime, backend: &str, url: &str) {
    runtime.block_on(tenure::migrate(url)).expect("it may be migrated");
    let store = store::open(url).expect("a good URL");
    let bounds = Bounds { statement: Duration::from_secs(5), lock: Duration::from_millis(500) };
    let mut connection = runtime.block_on(store.connect(bounds)).expect("it answers");
    let key = SessionKey::new("bench", "verbs").expect("within bounds");

    // The same twice: what the history costs is the ratio of the two.
    for (history, name) in [(KeepHistory::No, ", without a history"), (KeepHistory::Yes, "")] {
        runtime.block_on(tenure::migrate_with(url, history)).expect("it may be migrated");
        c.bench_function(&format!("{backend}/acquire and release: two statements{name}"), |b| {
            b.iter(|| runtime.block_on(acquire_and_release(connection.as_mut(), &key)));
        });
    }
    let run_id = RunId::random();
    runtime.block_on(connection.acquire(&[acquire(&key, run_id)])).expect("it answers");
    let renew = Renew {
        key: key.clone(),
        run_id,
        ttl: TTL,
        safety_margin: TTL / 5,
        stage: RunStage::Running,
        phase: None,
    };
    c.bench_function(&format!("{backend}/renew: one statement"), |b| {
        b.iter(|| runtime.block_on(connection.renew(std::slice::from_ref(&renew))).expect("it answers"));
    });
    let refused = acquire(&key, RunId::random());
    c.bench_function(&format!("{backend}/refused: one statement"), |b| {
        b.iter(|| runtime.block_on(connection.acquire(std::slice::from_ref(&refused))).expect("it answers"));
    });

    let supervisor = runtime.block_on(LeaseSupervisor::builder(url).start()).expect("it starts");
    let free = SessionKey::new("bench", "supervised").expect("within bounds");
    c.bench_function(&format!("{backend}/acquire and release: through a supervisor"), |b| {
        b.iter(|| {
            runtime
                .block_on(async { supervisor.acquire(&free).await.expect("it was released").release().await })
        });
    });
    runtime.block_on(supervisor.shutdown(supervisor.timing().stop_grace()));
}

async fn acquire_and_release(connection: &mut dyn LeaseConnection, key: &SessionKey) {
    let run_id = RunId::random();
    connection.acquire(&[acquire(key, run_id)]).await.expect("it answers");
    connection
        .release(&[Release { key: key.clone(), run_id, reason: Some(EndReason::Completed) }])
        .await
        .expect("it answers");
}

fn acquire(key: &SessionKey, run_id: RunId) -> Acquire {
    Acquire {
        key: key.clone(),
        run_id,
        node: NodeId::random(),
        label: Label::new("bench").expect("within bounds"),
        phase: RunPhase::default(),
        ttl: TTL,
        limit_per_account: None,
    }
}

criterion_group!(benches, postgres, sqlite);
criterion_main!(benches);
