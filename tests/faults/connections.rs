//! Connections that are not to be had, slow, or lost.

use std::time::Instant;

use futures::future::join_all;
use sqlx::{ConnectOptions as _, PgConnection, postgres::PgConnectOptions};
use tenure::{AcquireError, Connections, StartError};

use super::{
    support::{
        backend::Reachable as _,
        postgres::{Database, Options, ROLE, Server},
        postgres_backend::PostgresBackend,
        proxy::Proxy,
    },
    *,
};

const MODES: [Connections; 3] = [Connections::PerVerb, Connections::RenewalsApart, Connections::Shared];

async fn supervisor_with(url: &str, ttl: Duration, mode: Connections) -> LeaseSupervisor {
    let builder = LeaseSupervisor::builder(url).ttl(ttl).connections(mode).connect_timeout(AT_LAST);
    builder.start().await.unwrap_or_else(|error| panic!("{error}"))
}

/// Whoever else is there takes every connection that is left.
async fn take_all(database: &Database) -> Vec<PgConnection> {
    let options: PgConnectOptions = database.url().parse().expect("it is a URL");
    let (options, mut taken) = (options.disable_statement_logging(), Vec::new());
    loop {
        match options.connect().await {
            Ok(connection) => taken.push(connection),
            Err(error) => {
                let code =
                    error.as_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
                assert_eq!(code.as_deref(), Some("53300"), "{error}");
                return taken;
            }
        }
    }
}

/// The sessions of the role in this database.
async fn sessions(backend: &PostgresBackend) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = $1";
    let counting = sqlx::query_scalar(sql).bind(ROLE);
    counting.fetch_one(&mut backend.admin().await).await.expect("the superuser may look")
}

#[tokio::test(flavor = "multi_thread")]
async fn i11_all_connections_taken_right_after_the_grant_cost_no_run() {
    let conf = "max_connections = 30".to_owned();
    let server = Server::start_with(&Options { conf, ..Options::default() });
    let backend = PostgresBackend::start(&server, "").await;
    let ttl = Duration::from_secs(3);
    let url = backend.url();
    let supervisors = join_all(MODES.map(|mode| supervisor_with(&url, ttl, mode))).await;
    let runs = [held(&supervisors[0], "one").await, held(&supervisors[1], "other").await];
    let taken = take_all(backend.database()).await;
    let refusal = LeaseSupervisor::builder(backend.url()).start().await.unwrap_err().to_string();
    assert!(refusal.contains("53300") && refusal.contains("raise max_connections"), "{refusal}");
    background::sleep(2 * ttl).await;
    for run in runs {
        assert!(run.is_held(), "{run:?}");
        assert!(run.release().await.released);
    }
    drop(taken);
}

#[tokio::test(flavor = "multi_thread")]
async fn i11_without_a_connection_nothing_is_granted_and_the_remedy_is_named() {
    let server = Server::start();
    let backend = PostgresBackend::start(&server, "").await;
    for mode in MODES {
        let supervisor = supervisor_with(&backend.url(), Duration::from_secs(4), mode).await;
        backend.execute(&format!("ALTER ROLE {ROLE} CONNECTION LIMIT 0")).await;
        backend.database().terminate_backends().await;
        // Until its connections have been missed, an acquire may go out over one of them.
        let refusal = at_last("a certain no", async || match supervisor.acquire(&key("chat")).await {
            Err(AcquireError::NotAcquired(error)) => Ok(error.to_string()),
            other => Err(format!("{other:?}")),
        });
        let refusal = refusal.await;
        assert!(refusal.contains("53300") && refusal.contains("CONNECTION LIMIT"), "{refusal}");
        let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM tenure.session_lease")
            .fetch_one(&mut backend.admin().await)
            .await
            .unwrap();
        assert_eq!(rows, 0, "{mode:?}");
        backend.execute(&format!("ALTER ROLE {ROLE} CONNECTION LIMIT -1")).await;
        assert!(held_at_last(&supervisor, "chat").await.release().await.released);
        supervisor.shutdown(Duration::ZERO).await;
    }
}

/// With a ttl so long that no renewal comes meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn i11_lost_connections_are_opened_again_before_a_renewal_needs_them() {
    let backend = PostgresBackend::start(Server::shared(), "").await;
    for (mode, count) in
        [(Connections::PerVerb, 4), (Connections::RenewalsApart, 2), (Connections::Shared, 1)]
    {
        let builder = LeaseSupervisor::builder(backend.url()).ttl(Duration::from_secs(60)).hints(false);
        let supervisor = builder.connections(mode).start().await.unwrap();
        let run = held(&supervisor, "chat").await;
        assert_eq!(sessions(&backend).await, count, "{mode:?}");
        let lost_at = Instant::now();
        backend.database().terminate_backends().await;
        at_last("connections", async || match sessions(&backend).await {
            open if open == count => Ok(()),
            open => Err(format!("{open} are open")),
        })
        .await;
        assert!(lost_at.elapsed() < Duration::from_millis(8_900), "{mode:?}: only with a renewal");
        assert!(run.release().await.released);
        supervisor.shutdown(Duration::ZERO).await;
    }
}

/// A password is asked for, too, which takes more round trips.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_whose_round_trip_is_a_twelfth_of_the_ttl_carries_runs_and_a_slower_one_is_refused_at_once() {
    let server = Server::start();
    let backend = PostgresBackend::start(&server, "").await;
    server.role_with_password("remote", "secret").await;
    backend.execute(&format!("GRANT {ROLE} TO remote")).await;
    let proxy = Proxy::start(server.address());
    let url = backend.database().url_as("remote", "secret");
    let url = url.replace(&server.address().to_string(), &proxy.address().to_string());
    let ttl = Duration::from_millis(4_800);
    proxy.delay(ttl / 24);
    let supervisor = supervisor_with(&url, ttl, Connections::Shared).await;
    let run = held(&supervisor, "chat").await;
    background::sleep(ttl + ttl / 2).await;
    assert!(run.is_held(), "{run:?}");
    assert!(run.release().await.released);

    let builder = LeaseSupervisor::builder(&url).ttl(ttl / 2).connect_timeout(AT_LAST);
    match builder.connections(Connections::Shared).start().await {
        Err(error @ StartError::SlowLine { .. }) => {
            assert!(error.to_string().contains("lengthen the ttl to 5 s"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}
