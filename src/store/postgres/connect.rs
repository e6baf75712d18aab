//! Opens a connection to the server that takes writes, among those that the URL names.
//!
//! A primary that was demoted still accepts connections and answers reads. So each new connection first asks its server
//! whether it takes writes.

use std::{
    future::pending,
    pin::pin,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::{
    Stream, StreamExt as _,
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

/// Opens a connection to a server that takes writes and has a schema that this release can work with.
pub(super) async fn to_work(target: &Target, bounds: Bounds) -> Result<Connection, StoreError> {
    search(target, bounds, |server| visit(server, bounds, Purpose::Work)).await
}

/// Opens a connection that only reads. It goes to the server that takes writes if that can be reached, and otherwise to
/// a standby.
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
        // The silence of one server must not delay the answer of another.
        _ => timeout(share(bounds, 1), found)
            .await
            .unwrap_or_else(|_elapsed| Err(StoreError::silent(&target.location, share(bounds, 1)))),
    };
    found.or_else(|refusal| second_best.into_inner().unwrap_or_else(PoisonError::into_inner).ok_or(refusal))
}

/// Opens a connection to a server that takes writes and may have no schema yet.
pub(super) async fn to_migrate(target: &Target) -> Result<Connection, StoreError> {
    search(target, schema::BOUNDS, |server| visit(server, schema::BOUNDS, Purpose::Migrate)).await
}

/// Opens a connection to this server, without any check.
pub(super) async fn open(server: &Server, bounds: Option<Bounds>) -> Result<PgConnection, StoreError> {
    let attempt = server.log_in(bounds).await?;
    let options = attempt.options.clone();
    attempt.complete(options.connect()).await
}

/// Visits one server after the other until one is suitable. While a server is silent, the next one is visited, too.
///
/// A certain refusal, for example of the password, does not end the search. The server may have been fenced off after a
/// failover, and another server may accept the same connection.
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
        // The caller limits the whole wait.
        return visit(only).await;
    }
    let share = share(bounds, servers.len());
    let (mut servers, mut visits) = (servers.into_iter(), FuturesUnordered::new());
    let mut refusals = Vec::new();
    while let Some(server) = servers.next() {
        let visit = visit(server);
        visits.push(async move { (server, visit.await) });
        // After the last server there is no next one, so the silent servers may take as long as the caller waits.
        let patience = (servers.len() > 0).then_some(share);
        if let Some((server, found)) = first_to_do(&mut visits, server, patience, &mut refusals).await {
            server.turn.prefer();
            return Ok(found);
        }
    }
    Err(nobody(target, &refusals))
}

/// Waits until a visited server is suitable. `None` if the newest one has refused or was silent for too long, or if all
/// have refused.
async fn first_to_do<'a, T>(
    visits: &mut (impl Stream<Item = (&'a Server, Result<T, StoreError>)> + Unpin),
    newest: &Server,
    patience: Option<Duration>,
    refusals: &mut Vec<(&'a Server, StoreError)>,
) -> Option<(&'a Server, T)> {
    let silence = async {
        match patience {
            Some(patience) => sleep(patience).await,
            None => pending().await,
        }
    };
    let mut silence = pin!(silence);
    loop {
        match select(visits.next(), &mut silence).await {
            Either::Left((Some((server, Ok(found))), _)) => return Some((server, found)),
            Either::Left((Some((refused, Err(refusal))), _)) => {
                refusals.push((refused, refusal));
                if patience.is_some() && std::ptr::eq(refused, newest) {
                    return None;
                }
            }
            Either::Left((None, _)) => return None,
            Either::Right(_) => {
                newest.turn.pass_over();
                return None;
            }
        }
    }
}

/// How long a server may be silent before the next one is visited, too. It may be gone, or the network may be slow.
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

/// Checks in one round trip that the server suits the connection's purpose, and that its schema fits this release.
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

/// The first statement of each connection.
pub(super) const PROBE: &str = concat!(include_str!("server.sql"), include_str!("probe.sql"));

/// Whether the server takes no writes.
pub(super) const READ_ONLY: &str =
    "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean AS read_only";

/// Like [`check`], for a server that may have no schema yet.
async fn check_writable(connection: &mut Connection) -> Result<(), StoreError> {
    let row = connection.fetch_one(&Statement::new(READ_ONLY, Vec::new())).await?;
    match connection.read(&row, "read_only")? {
        true => Err(fault::read_only(connection.location())),
        false => connection.refuse_if_awaiting().await,
    }
}

/// Why none of the servers is suitable.
///
/// An unfit schema is the same on all servers, so one server's refusal is enough. Any other refusal is certain only if
/// every server has refused for certain.
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
    let refusals = refusals.iter().map(|(server, error)| shown(server, error));
    StoreError::Unavailable {
        location: target.location.to_string(),
        detail: refusals.collect::<Vec<_>>().join("; "),
    }
}

/// One server's error, as a part of a message about several.
pub(super) fn shown(server: &Server, error: &StoreError) -> String {
    match error {
        StoreError::Unavailable { detail, .. } => format!("{}: {detail}", server.address),
        other => other.to_string(),
    }
}
