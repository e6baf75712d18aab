//! Strangers' transactions hold locks for longer than any statement of ours may take.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tenure::AcquireError;

use super::{
    support::{postgres::Server, postgres_backend::PostgresBackend},
    *,
};

const TTL: Duration = Duration::from_secs(2);

/// I10: a stranger forgets its transaction for many ttls; one session suffers, by the rules.
#[tokio::test(flavor = "multi_thread")]
async fn i10_a_row_locked_for_long_ends_its_own_run_and_no_other() {
    let backend = PostgresBackend::start(Server::shared(), "").await;
    let supervisor = supervisor(&backend.database().url(), TTL).await;
    let timing = supervisor.timing();
    let others = held_all(&supervisor, 20).await;
    let watch = Watch::over(vec![held(&supervisor, "locked").await]);
    let stranger = Stranger::begin(&backend, &format!("{ROW} = 'locked' FOR UPDATE")).await;

    let (locked, _) = watch.all_ended_on_time(timing).await;
    drop(locked);
    let until = SystemClock.now() + 2 * TTL;
    let mut acquired = 0;
    while SystemClock.now() < until {
        // The locked session is asked for too, so that it could be in the way of its neighbours in a batch.
        let name = format!("new-{acquired}");
        let (neighbour, unknown) =
            futures::join!(held(&supervisor, &name), supervisor.acquire(&key("locked")).into_future());
        assert!(matches!(
            unknown,
            Err(AcquireError::Unavailable(_) | AcquireError::NotAcquired(_) | AcquireError::Busy(_))
        ));
        assert!(neighbour.release().await.released);
        acquired += 1;
    }
    for run in &others {
        assert!(run.is_held(), "{run:?}");
    }
    stranger.end().await;
    drop(held_at_last(&supervisor, "locked").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn i10_a_row_locked_for_less_than_the_tolerated_outage_costs_nothing() {
    let backend = PostgresBackend::start(Server::shared(), "").await;
    let supervisor = supervisor(&backend.database().url(), 2 * TTL).await;
    let run = held(&supervisor, "locked").await;
    let mut events = supervisor.events();
    for _ in 0..2 {
        let stranger = Stranger::begin(&backend, &format!("{ROW} = 'locked' FOR UPDATE")).await;
        told(&mut events, |event| matches!(event, RunEvent::AtRisk { .. })).await;
        stranger.end().await;
        told(&mut events, |event| matches!(event, RunEvent::Recovered { .. })).await;
    }
    assert!(run.is_held());
    assert!(run.release().await.released);
}

/// A row that a stranger has inserted and not committed cannot be skipped, only waited for.
#[tokio::test(flavor = "multi_thread")]
async fn i10_a_session_that_a_stranger_is_inserting_holds_no_other_up() {
    let backend = PostgresBackend::start(Server::shared(), "").await;
    let supervisor = supervisor(&backend.database().url(), TTL).await;
    let others = held_all(&supervisor, 20).await;
    let stranger = Stranger::begin(&backend, INSERT).await;
    let until = SystemClock.now() + 2 * TTL;
    let mut acquired = 0;
    while SystemClock.now() < until {
        let names: Vec<_> = (0..5).map(|index| format!("new-{acquired}-{index}")).collect();
        let neighbours = join_all(names.iter().map(|name| held(&supervisor, name)));
        let (neighbours, blocked) =
            futures::join!(neighbours, supervisor.acquire(&key("inserted")).into_future());
        blocked.expect_err("it is the stranger's, or nobody's");
        acquired += neighbours.len();
    }
    for run in &others {
        assert!(run.is_held(), "{run:?}");
    }
    stranger.end().await;
    drop(held_at_last(&supervisor, "inserted").await);
}

/// As by `VACUUM FULL`, or a migration of the host's.
#[tokio::test(flavor = "multi_thread")]
async fn i10_a_table_locked_for_less_than_the_tolerated_outage_costs_no_run() {
    let backend = PostgresBackend::start(Server::shared(), "").await;
    let supervisor = supervisor(&backend.database().url(), 2 * TTL).await;
    let runs = held_all(&supervisor, 100).await;
    for _ in 0..2 {
        let stranger =
            Stranger::begin(&backend, "LOCK TABLE tenure.session_lease IN ACCESS EXCLUSIVE MODE").await;
        // The rest is for the machine, which may be busy.
        background::sleep(supervisor.timing().tolerated_outage() / 2).await;
        stranger.end().await;
        background::sleep(TTL).await;
    }
    for run in &runs {
        assert!(run.is_held(), "{run:?}");
    }
}

const ROW: &str = "SELECT FROM tenure.session_lease WHERE session_id";
const INSERT: &str = "INSERT INTO tenure.session_lease \
    (account_id, session_id, run_id, fence, node, holder, acquired_at, expires_at) \
    VALUES ('acct', 'inserted', gen_random_uuid(), 1, gen_random_uuid(), 'stranger', now(), now())";

/// Somebody else's open transaction.
struct Stranger(PgConnection);

impl Stranger {
    async fn begin(backend: &PostgresBackend, sql: &str) -> Self {
        let mut connection = backend.admin().await;
        sqlx::raw_sql(AssertSqlSafe(format!("BEGIN; {sql}"))).execute(&mut connection).await.unwrap();
        Self(connection)
    }

    async fn end(mut self) {
        sqlx::raw_sql("ROLLBACK").execute(&mut self.0).await.unwrap();
        self.0.close().await.unwrap();
    }
}
