//! The verbs that are one statement each.

use std::time::Duration;

use sqlx::postgres::PgRow;

use super::{
    row,
    statement::{Session, Statement, Value},
};
use crate::{
    session::{Holder, Phase, SessionKey},
    store::{Page, Release, ReleaseOutcome, Renew, RenewOutcome, SWEEP_AFTER, StoreError},
};

pub(super) async fn renew(session: &mut Session, items: &[Renew]) -> Result<Vec<RenewOutcome>, StoreError> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    let statement = Statement::new(
        include_str!("renew.sql"),
        vec![
            Value::Texts(items.iter().map(|item| item.key.account()).collect()),
            Value::Texts(items.iter().map(|item| item.key.session()).collect()),
            Value::Uuids(items.iter().map(|item| item.run_id.as_uuid()).collect()),
            Value::Numbers(items.iter().map(|item| millis(item.ttl)).collect()),
            Value::Numbers(items.iter().map(|item| millis(item.safety_margin)).collect()),
            Value::Texts(items.iter().map(|item| item.stage.as_str()).collect()),
            Value::TextsOrNull(items.iter().map(|item| item.phase.as_ref().map(Phase::as_str)).collect()),
        ],
    );
    let rows = session.fetch(&statement).await?;
    answers(session, &rows, items.len(), |row, verdict| {
        Ok(match verdict {
            "renewed" => RenewOutcome::Renewed(row::renewed(session, row)?),
            "expired" => RenewOutcome::Expired { clock_micros: row::clock(session, row)? },
            "gone" => RenewOutcome::Gone { clock_micros: row::clock(session, row)? },
            "superseded" => RenewOutcome::Superseded { clock_micros: row::clock(session, row)? },
            _ => RenewOutcome::Locked,
        })
    })
}

pub(super) async fn release(
    session: &mut Session,
    items: &[Release],
) -> Result<Vec<ReleaseOutcome>, StoreError> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    let statement = Statement::new(
        include_str!("release.sql"),
        vec![
            Value::Texts(items.iter().map(|item| item.key.account()).collect()),
            Value::Texts(items.iter().map(|item| item.key.session()).collect()),
            Value::Uuids(items.iter().map(|item| item.run_id.as_uuid()).collect()),
        ],
    );
    let rows = session.fetch(&statement).await?;
    answers(session, &rows, items.len(), |_, verdict| {
        Ok(match verdict {
            "released" => ReleaseOutcome::Released,
            "not found" => ReleaseOutcome::NotFound,
            _ => ReleaseOutcome::Locked,
        })
    })
}

pub(super) async fn inspect(
    session: &mut Session,
    keys: &[&SessionKey],
) -> Result<Vec<Option<Holder>>, StoreError> {
    let rows = read_rows(session, keys).await?;
    rows.iter().map(|row| row.as_ref().map(|row| row::holder(session, row)).transpose()).collect()
}

/// The rows of these sessions, in the order of the keys.
pub(super) async fn read_rows(
    session: &mut Session,
    keys: &[&SessionKey],
) -> Result<Vec<Option<PgRow>>, StoreError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let accounts = keys.iter().map(|key| key.account()).collect();
    let sessions = keys.iter().map(|key| key.session()).collect();
    let statement =
        Statement::new(include_str!("inspect.sql"), vec![Value::Texts(accounts), Value::Texts(sessions)]);
    let mut found: Vec<_> = keys.iter().map(|_| None).collect();
    for row in session.fetch(&statement).await? {
        if row::is_there(session, &row)? {
            let item = row::item(session, &row, keys.len())?;
            found[item] = Some(row);
        }
    }
    Ok(found)
}

pub(super) async fn list(
    session: &mut Session,
    page: &Page,
) -> Result<Vec<(SessionKey, Holder)>, StoreError> {
    // No key's part is empty, so the empty one is before them all.
    let first = (page.account.as_deref().unwrap_or_default(), "");
    let after = page.after.as_ref().map_or(first, |key| first.max((key.account(), key.session())));
    let statement = Statement::new(
        include_str!("list.sql"),
        vec![
            Value::Text(Some(after.0)),
            Value::Text(Some(after.1)),
            Value::Text(page.account.as_deref()),
            Value::Flag(page.expired),
            Value::Number(page.limit.into()),
        ],
    )
    .planned_anew();
    let mut found = Vec::new();
    for row in &session.fetch(&statement).await? {
        if row::is_there(session, row)? {
            found.push((row::key(session, row)?, row::holder(session, row)?));
        }
    }
    Ok(found)
}

pub(super) async fn sweep(session: &mut Session, limit: u32) -> Result<u64, StoreError> {
    let values = vec![Value::Number(limit.into()), Value::Number(millis(SWEEP_AFTER))];
    let row = session.fetch_one(&Statement::new(include_str!("sweep.sql"), values)).await?;
    session.read::<i64>(&row, "swept").map(i64::unsigned_abs)
}

/// Whole milliseconds.
pub(super) fn millis(duration: Duration) -> i64 {
    duration.as_millis().try_into().unwrap_or(i64::MAX)
}

/// One outcome per item, in the order of the items.
fn answers<T: Clone>(
    session: &Session,
    rows: &[PgRow],
    items: usize,
    outcome: impl Fn(&PgRow, &str) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut answers = vec![None; items];
    for row in rows {
        let verdict = session.read(row, "verdict")?;
        answers[row::item(session, row, items)?] = Some(outcome(row, verdict)?);
    }
    let unanswered = || session.unavailable("it left an item without an answer");
    answers.into_iter().map(|answer| answer.ok_or_else(unanswered)).collect()
}
