//! Reads rows. A value that does not parse was not written by tenure. It is an error, and never a panic.

use std::time::{Duration, SystemTime};

use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::connection::Connection;
use crate::{
    history::PastRun,
    session::{FencingToken, Holder, Label, RunPhase, SessionKey, StopRequest},
    store::{Grant, Renewed, StoreError, record},
};

/// The item that a row answers, counted from zero.
pub(super) fn item(connection: &Connection, row: &PgRow, items: usize) -> Result<usize, StoreError> {
    let ordinality: i64 = connection.read(row, "item")?;
    usize::try_from(ordinality - 1).ok().filter(|item| *item < items).ok_or_else(|| {
        connection.unavailable(&format!("it answered an item {ordinality} that was not asked"))
    })
}

/// One outcome per item, in the order of the items.
pub(super) fn answers<T: Clone>(
    connection: &Connection,
    rows: &[PgRow],
    items: usize,
    outcome: impl Fn(&PgRow, &str) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut answers = vec![None; items];
    for row in rows {
        let verdict = connection.read(row, "verdict")?;
        answers[item(connection, row, items)?] = Some(outcome(row, verdict)?);
    }
    let unanswered = || connection.unavailable("it left an item without an answer");
    answers.into_iter().map(|answer| answer.ok_or_else(unanswered)).collect()
}

/// Whether the row of a read contains a lease.
pub(super) fn is_there(connection: &Connection, row: &PgRow) -> Result<bool, StoreError> {
    Ok(connection.read::<Option<Uuid>>(row, "run_id")?.is_some())
}

pub(super) fn key(connection: &Connection, row: &PgRow) -> Result<SessionKey, StoreError> {
    let account: &str = connection.read(row, "account_id")?;
    SessionKey::new(account, connection.read::<&str>(row, "session_id")?).map_err(unreadable(connection))
}

pub(super) fn holder(connection: &Connection, row: &PgRow) -> Result<Holder, StoreError> {
    Ok(Holder {
        run_id: connection.read::<Uuid>(row, "run_id")?.into(),
        node: connection.read::<Uuid>(row, "node")?.into(),
        label: Label::new(connection.read::<&str>(row, "holder")?).map_err(unreadable(connection))?,
        fence: fence(connection, row)?,
        stage: connection.read::<&str>(row, "stage")?.parse().map_err(unreadable(connection))?,
        phase: RunPhase::new(connection.read::<&str>(row, "phase")?).map_err(unreadable(connection))?,
        since: instant(connection, connection.read(row, "acquired_at")?)?,
        expires_at: instant(connection, connection.read(row, "expires_at")?)?,
        expires_in: length(connection.read(row, "remaining")?),
        stop: stop(connection, row)?,
    })
}

pub(super) fn past_run(connection: &Connection, row: &PgRow) -> Result<PastRun, StoreError> {
    let waited = connection.read::<Option<i64>>(row, "waited_ms")?;
    let by = connection.read(row, "ended_by")?;
    let why = connection.read(row, "ended_why")?;
    Ok(PastRun {
        run_id: connection.read::<Uuid>(row, "run_id")?.into(),
        node: connection.read::<Uuid>(row, "node")?.into(),
        label: Label::new(connection.read::<&str>(row, "holder")?).map_err(unreadable(connection))?,
        fence: fence(connection, row)?,
        phase: RunPhase::new(connection.read::<&str>(row, "phase")?).map_err(unreadable(connection))?,
        since: instant(connection, connection.read(row, "acquired_at")?)?,
        until: instant(connection, connection.read(row, "ended_at")?)?,
        waited: waited.map(|millis| Duration::from_millis(millis.try_into().unwrap_or(0))),
        stop: stop(connection, row)?,
        ending: record::ending(connection.read(row, "how")?, connection.read(row, "end_reason")?, by, why),
    })
}

pub(super) fn grant(connection: &Connection, row: &PgRow) -> Result<Grant, StoreError> {
    Ok(Grant {
        fence: fence(connection, row)?,
        remaining: length(connection.read(row, "remaining")?),
        acquired_at_micros: connection.read(row, "acquired_at")?,
        expires_at_micros: connection.read(row, "expires_at")?,
        stop: stop(connection, row)?,
    })
}

pub(super) fn renewed(connection: &Connection, row: &PgRow) -> Result<Renewed, StoreError> {
    Ok(Renewed {
        remaining: length(connection.read(row, "remaining")?),
        clock_micros: clock(connection, row)?,
        stop: stop(connection, row)?,
    })
}

fn fence(connection: &Connection, row: &PgRow) -> Result<FencingToken, StoreError> {
    FencingToken::new(connection.read(row, "fence")?).map_err(unreadable(connection))
}

/// The server's clock when it decided, in microseconds since 1970.
pub(super) fn clock(connection: &Connection, row: &PgRow) -> Result<i64, StoreError> {
    connection.read(row, "clock")
}

fn stop(connection: &Connection, row: &PgRow) -> Result<Option<StopRequest>, StoreError> {
    let Some(at) = connection.read::<Option<i64>>(row, "stop_at")? else { return Ok(None) };
    let by = connection.read(row, "stop_by")?;
    let reason = connection.read(row, "stop_reason")?;
    Ok(Some(StopRequest::new(instant(connection, at)?, by, reason)))
}

/// The instant that is this many microseconds after 1970.
fn instant(connection: &Connection, micros: i64) -> Result<SystemTime, StoreError> {
    let distance = Duration::from_micros(micros.unsigned_abs());
    let instant = match micros {
        0.. => SystemTime::UNIX_EPOCH.checked_add(distance),
        _ => SystemTime::UNIX_EPOCH.checked_sub(distance),
    };
    instant.ok_or_else(|| connection.unavailable(&format!("{micros} µs since 1970 is no instant")))
}

/// The duration of this many microseconds. A negative number, from an expired lease, gives zero.
pub(super) fn length(micros: i64) -> Duration {
    Duration::from_micros(micros.try_into().unwrap_or(0))
}

fn unreadable<E: std::fmt::Display>(connection: &Connection) -> impl Fn(E) -> StoreError + '_ {
    |error| connection.unavailable(&format!("a row that tenure did not write: {error}"))
}
