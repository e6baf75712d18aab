//! Turns the columns of a row into the types of the contract.

use std::{
    fmt::Display,
    str::FromStr,
    time::{Duration, SystemTime},
};

use sqlx::{Row as _, sqlite::SqliteRow};

use super::failure::Failure;
use crate::{
    history::PastRun,
    session::{FencingToken, Holder, Label, RunPhase, StopRequest},
    store::record,
};

pub(super) fn holder(row: &SqliteRow) -> Result<Holder, Failure> {
    Ok(Holder {
        run_id: parsed(row, "run_id")?,
        node: parsed(row, "node")?,
        label: Label::new(row.try_get::<&str, _>("holder")?).map_err(|error| unreadable("holder", error))?,
        fence: fence(row)?,
        stage: parsed(row, "stage")?,
        phase: RunPhase::new(row.try_get::<&str, _>("phase")?).map_err(|error| unreadable("phase", error))?,
        since: instant(row, "acquired_at")?,
        expires_at: instant(row, "expires_at")?,
        expires_in: remaining(row)?,
        stop: stop(row)?,
    })
}

pub(super) fn past_run(row: &SqliteRow) -> Result<PastRun, Failure> {
    let waited = row.try_get::<Option<i64>, _>("waited_ms")?;
    let (reason, by, why) = (row.try_get("end_reason")?, row.try_get("ended_by")?, row.try_get("ended_why")?);
    Ok(PastRun {
        run_id: parsed(row, "run_id")?,
        node: parsed(row, "node")?,
        label: Label::new(row.try_get::<&str, _>("holder")?).map_err(|error| unreadable("holder", error))?,
        fence: fence(row)?,
        phase: RunPhase::new(row.try_get::<&str, _>("phase")?).map_err(|error| unreadable("phase", error))?,
        since: instant(row, "acquired_at")?,
        until: instant(row, "ended_at")?,
        waited: waited.map(|millis| Duration::from_millis(millis.try_into().unwrap_or(0))),
        stop: stop(row)?,
        ending: record::ending(row.try_get("how")?, reason, by, why),
    })
}

pub(super) fn fence(row: &SqliteRow) -> Result<FencingToken, Failure> {
    FencingToken::new(row.try_get("fence")?).map_err(|error| unreadable("fence", error))
}

pub(super) fn stop(row: &SqliteRow) -> Result<Option<StopRequest>, Failure> {
    if row.try_get::<Option<i64>, _>("stop_requested_at")?.is_none() {
        return Ok(None);
    }
    let at = instant(row, "stop_requested_at")?;
    Ok(Some(StopRequest::new(at, row.try_get("stop_by")?, row.try_get("stop_reason")?)))
}

/// The time left, by the statement's clock. Zero if the lease has expired.
pub(super) fn remaining(row: &SqliteRow) -> Result<Duration, Failure> {
    let millis = row.try_get::<i64, _>("remaining")?;
    Ok(Duration::from_millis(millis.try_into().unwrap_or(0)))
}

pub(super) fn micros(row: &SqliteRow, column: &'static str) -> Result<i64, Failure> {
    let millis = row.try_get::<i64, _>(column)?;
    millis.checked_mul(1000).ok_or_else(|| unreadable(column, "it is too far in the future"))
}

fn instant(row: &SqliteRow, column: &'static str) -> Result<SystemTime, Failure> {
    let millis = row.try_get::<i64, _>(column)?;
    u64::try_from(millis)
        .ok()
        .and_then(|millis| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis)))
        .ok_or_else(|| unreadable(column, format!("{millis} ms is not an instant")))
}

fn parsed<T: FromStr<Err: Display>>(row: &SqliteRow, column: &'static str) -> Result<T, Failure> {
    row.try_get::<&str, _>(column)?.parse().map_err(|error| unreadable(column, error))
}

pub(super) fn unreadable(column: &str, error: impl Display) -> Failure {
    Failure::Unreadable(format!("the column {column} of a lease holds what tenure does not write: {error}"))
}
