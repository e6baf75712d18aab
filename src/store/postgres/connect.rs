//! Opening a connection to the server that takes writes, among those that the URL names.
//!
//! A primary that was demoted still accepts connections and answers reads. So each new connection first asks its
//! server whether it takes writes.

use std::{
    future::pending,
    pin::pin,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::{
    StreamExt as _,
    future::{Either, select},
    stream::FuturesUnordered,
};
use sqlx::{ConnectOptions as _, PgConnection};
use tokio::time::{sleep, timeout};

use super::{
    connection::{Connection, Purpose},
    fault, schema,
    server::Server,
    statement::{Statement, Value},
    target::Target,
};
use crate::store::{Bounds, StoreError};

/// A connection to a server that takes writes and has a schema that this release can work with.
pub(super) async fn to_work(target: &Target, bounds: Bounds) -> Result<Connection, StoreError> {
    search(target, bounds, |server| visit(server, bounds, Purpose::Work)).await
}

/// A connection for whoever only looks: to the authority where it can be had, else to a server that takes no writes.
pub(super) async fn to_look(target: &Target, bounds: Bounds) -> Result<Connection, StoreError> {
    let second_best = Mutex::new(None);
    let found = search(target, bounds, |server| async {
        let connection = visit(server, bounds, Purpose::Look).await?;
        let is_better = connection.standby().is_none();
        if is_better && !connection.awaits_standby() {
            return Ok(connection);
        }
        let refusal = fault::read_only(connection.location());
        let mut second_best = second_best.lock().unwrap_or_else(PoisonError::into_inner);
        if is_better || second_best.is_none() {
            *second_best = Some(connection);
        }
        Err(refusal)
    });
    let found = match target.in_order().len() {
        1 => found.await,
        // A silent server must not keep the answer of another one back.
        _ => timeout(share(bounds, 1), found)
            .await
            .unwrap_or_else(|_elapsed| Err(StoreError::silent(&target.location, share(bounds, 1)))),
    };
    found.or_else(|refusal| second_best.into_inner().unwrap_or_else(PoisonError::into_inner).ok_or(refusal))
}

/// A connection to a server that may have no schema yet.
pub(super) async fn to_migrate(target: &Target) -> Result<Connection, StoreError> {
    search(target, schema::BOUNDS, |server| visit(server, schema::BOUNDS, Purpose::Migrate)).await
}

/// A connection to this server, whatever it is.
pub(super) async fn open(server: &Server, bounds: Option<Bounds>) -> Result<PgConnection, StoreError> {
    let attempt = server.log_in(bounds).await?;
    let options = attempt.options.clone();
    attempt.complete(options.connect()).await
}

/// Visits one server after the other, until one will do; one that is silent is visited on beside the next. What one server refuses for certain (a password, say), another may grant: the
/// refused one may have been fenced off after a failover.
pub(super) async fn search<'a, T, V>(
    target: &'a Target,
    bounds: Bounds,
    visit: impl Fn(&'a Server) -> V,
) -> Result<T, StoreError>
where
    V: Future<Output = Result<T, StoreError>>,
{
    target.warn();
    let servers = target.in_order();
    if let [only] = servers[..] {
        // Whoever asks bounds the whole.
        return visit(only).await;
    }
    let share = share(bounds, servers.len());
    let (mut servers, mut visits) = (servers.into_iter(), FuturesUnordered::new());
    let mut refusals = Vec::new();
    while let Some(server) = servers.next() {
        let visit = visit(server);
        visits.push(async move { (server, visit.await) });
        // The last one is waited for as long as whoever asks does.
        let share = async {
            match servers.len() {
                0 => pending().await,
                _ => sleep(share).await,
            }
        };
        let mut share = pin!(share);
        loop {
            match select(visits.next(), &mut share).await {
                Either::Left((Some((server, Ok(found))), _)) => {
                    server.turn.prefer();
                    return Ok(found);
                }
                Either::Left((Some((refused, Err(refusal))), _)) => {
                    refusals.push((refused, refusal));
                    if std::ptr::eq(refused, server) {
                        break;
                    }
                }
                Either::Left((None, _)) => break,
                Either::Right(_) => {
                    server.turn.pass_over();
                    break;
                }
            }
        }
    }
    while let Some((server, visited)) = visits.next().await {
        match visited {
            Ok(found) => {
                server.turn.prefer();
                return Ok(found);
            }
            Err(refusal) => refusals.push((server, refusal)),
        }
    }
    Err(nobody(target, &refusals))
}

/// How long a server may be silent until the next one is visited besides: it may be gone, or the line be slow.
fn share(bounds: Bounds, servers: usize) -> Duration {
    (bounds.statement * 3 / 4).min(Duration::from_secs(10)) / servers.try_into().unwrap_or(u32::MAX)
}

async fn visit(server: &Server, bounds: Bounds, purpose: Purpose) -> Result<Connection, StoreError> {
    let connection = open(server, Some(bounds)).await?;
    let mut connection = Connection::new(connection, server, bounds, purpose);
    match purpose {
        Purpose::Work | Purpose::Look => check(&mut connection).await?,
        Purpose::Migrate => check_writable(&mut connection).await?,
    }
    Ok(connection)
}

/// One round trip: whether the server is one for what the session is for, and whether its schema fits.
pub(super) async fn check(connection: &mut Connection) -> Result<(), StoreError> {
    let keeps_settings = !connection.is_pooled();
    let values = vec![Value::Flag(keeps_settings), Value::Number(connection.longest_commit())];
    let row = connection.fetch_one(&Statement::new(PROBE, values)).await?;
    connection.heed(&row)?;
    let awaits_standby = connection.read(&row, "awaits_standby")?;
    connection.heed_awaiting(awaits_standby)?;
    let newest = match connection.read::<Option<i32>>(&row, "version")? {
        Some(version) => Some(schema::applied(version, connection.read(&row, "compatible_from")?)),
        None => None,
    };
    schema::check(newest, connection.location())
}

/// Whether a server will do, for a connection that has just been opened.
pub(super) const PROBE: &str = concat!(include_str!("server.sql"), include_str!("probe.sql"));

/// Whether the server takes no writes.
pub(super) const READ_ONLY: &str =
    "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean AS read_only";

/// For a server whose schema may not be there.
async fn check_writable(connection: &mut Connection) -> Result<(), StoreError> {
    let row = connection.fetch_one(&Statement::new(READ_ONLY, Vec::new())).await?;
    match connection.read(&row, "read_only")? {
        true => Err(fault::read_only(connection.location())),
        false => connection.refuse_if_awaiting().await,
    }
}

/// Why none of the servers will do. What is wrong with the schema is so on all of them. Otherwise it is certain only
/// if every server has refused for certain.
pub(super) fn nobody(target: &Target, refusals: &[(&Server, StoreError)]) -> StoreError {
    let is_of_the_schema = |error: &StoreError| {
        matches!(error, StoreError::SchemaMissing { .. } | StoreError::SchemaTooNew { .. })
    };
    let errors = || refusals.iter().map(|(_, error)| error);
    if let Some(error) = errors().find(|error| is_of_the_schema(error)) {
        return error.clone();
    }
    if let (Some(first), true) = (errors().next(), errors().all(|error| !error.is_transient())) {
        return first.clone();
    }
    let told = refusals.iter().map(|(server, error)| told(server, error));
    StoreError::Unavailable {
        location: target.location.to_string(),
        detail: told.collect::<Vec<_>>().join("; "),
    }
}

/// An error of one server, among others'.
pub(super) fn told(server: &Server, error: &StoreError) -> String {
    match error {
        StoreError::Unavailable { detail, .. } => format!("{}: {detail}", server.address),
        other => other.to_string(),
    }
}
