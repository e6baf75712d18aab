//! Reading rows. What does not parse was written by something else: an error, never a panic.

use std::time::{Duration, SystemTime};

use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::statement::Session;
use crate::{
    session::{FencingToken, Holder, Label, RunPhase, SessionKey, StopRequest},
    store::{Grant, Renewed, StoreError},
};

/// The place of the item that a row answers, counted from zero.
pub(super) fn item(session: &Session, row: &PgRow, items: usize) -> Result<usize, StoreError> {
    let ordinality: i64 = session.read(row, "item")?;
    usize::try_from(ordinality - 1)
        .ok()
        .filter(|item| *item < items)
        .ok_or_else(|| session.unavailable(&format!("it answered an item {ordinality} that was not asked")))
}

/// Whether a row that was only read is of a lease.
pub(super) fn is_there(session: &Session, row: &PgRow) -> Result<bool, StoreError> {
    Ok(session.read::<Option<Uuid>>(row, "run_id")?.is_some())
}

pub(super) fn key(session: &Session, row: &PgRow) -> Result<SessionKey, StoreError> {
    let account: &str = session.read(row, "account_id")?;
    SessionKey::new(account, session.read::<&str>(row, "session_id")?).map_err(unreadable(session))
}

pub(super) fn holder(session: &Session, row: &PgRow) -> Result<Holder, StoreError> {
    Ok(Holder {
        run_id: session.read::<Uuid>(row, "run_id")?.into(),
        node: session.read::<Uuid>(row, "node")?.into(),
        label: Label::new(session.read::<&str>(row, "holder")?).map_err(unreadable(session))?,
        fence: FencingToken::from(session.read::<i64>(row, "fence")?),
        stage: session.read::<&str>(row, "stage")?.parse().map_err(unreadable(session))?,
        phase: RunPhase::new(session.read::<&str>(row, "phase")?).map_err(unreadable(session))?,
        since: instant(session, session.read(row, "acquired_at")?)?,
        expires_at: instant(session, session.read(row, "expires_at")?)?,
        expires_in: length(session.read(row, "remaining")?),
        stop: stop(session, row)?,
    })
}

pub(super) fn grant(session: &Session, row: &PgRow) -> Result<Grant, StoreError> {
    Ok(Grant {
        fence: FencingToken::from(session.read::<i64>(row, "fence")?),
        remaining: length(session.read(row, "remaining")?),
        acquired_at_micros: session.read(row, "acquired_at")?,
        expires_at_micros: session.read(row, "expires_at")?,
        stop: stop(session, row)?,
    })
}

pub(super) fn renewed(session: &Session, row: &PgRow) -> Result<Renewed, StoreError> {
    Ok(Renewed {
        remaining: length(session.read(row, "remaining")?),
        clock_micros: clock(session, row)?,
        stop: stop(session, row)?,
    })
}

/// The server's clock when it decided: microseconds since 1970.
pub(super) fn clock(session: &Session, row: &PgRow) -> Result<i64, StoreError> {
    session.read(row, "clock")
}

fn stop(session: &Session, row: &PgRow) -> Result<Option<StopRequest>, StoreError> {
    let Some(at) = session.read::<Option<i64>>(row, "stop_at")? else { return Ok(None) };
    let by = session.read(row, "stop_by")?;
    let reason = session.read(row, "stop_reason")?;
    Ok(Some(StopRequest::new(instant(session, at)?, by, reason)))
}

/// From microseconds since 1970.
fn instant(session: &Session, micros: i64) -> Result<SystemTime, StoreError> {
    let distance = Duration::from_micros(micros.unsigned_abs());
    let instant = match micros {
        0.. => SystemTime::UNIX_EPOCH.checked_add(distance),
        _ => SystemTime::UNIX_EPOCH.checked_sub(distance),
    };
    instant.ok_or_else(|| session.unavailable(&format!("{micros} µs since 1970 is no instant")))
}

/// From microseconds; what lies behind us is zero.
fn length(micros: i64) -> Duration {
    Duration::from_micros(micros.try_into().unwrap_or(0))
}

fn unreadable<E: std::fmt::Display>(session: &Session) -> impl Fn(E) -> StoreError + '_ {
    |error| session.unavailable(&format!("a row that tenure did not write: {error}"))
}
