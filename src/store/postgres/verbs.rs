//! The verbs that are one statement each.

use std::time::Duration;

use sqlx::postgres::PgRow;

use super::{
    fault, row,
    statement::{Session, Statement, Value},
    wording::Worded,
};
use crate::{
    session::{Holder, RunPhase, SessionKey},
    store::{Page, Release, ReleaseOutcome, Renew, RenewOutcome, SWEEP_AFTER, StoreError, untold},
};

// What a connection is made ready for has to be the very text that is sent.
pub(super) const RENEW: &str = include_str!("renew.sql");
pub(super) const RELEASE: &str = include_str!("release.sql");
pub(super) const INSPECT: &str = concat!(include_str!("server.sql"), include_str!("inspect.sql"));

pub(super) async fn renew(session: &mut Session, items: &[Renew]) -> Result<Vec<RenewOutcome>, StoreError> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    let renewed = extend(session, items).await;
    match (&renewed, untold(items)) {
        (Err(StoreError::Unstorable { .. } | StoreError::Rejected { .. }), Some(untold)) => {
            // The leases first (invariant I12). Whose phase was to blame shows then, and it costs no other's.
            let renewed = extend(session, &untold).await?;
            tell(session, items).await.map_err(|error| fault::after_a_change(error, session.location()))?;
            Ok(renewed)
        }
        _ => renewed,
    }
}

/// Renews those again that have a phase to tell, as far as the database takes it.
async fn tell(session: &mut Session, items: &[Renew]) -> Result<(), StoreError> {
    let told: Vec<_> = items.iter().filter(|item| item.phase.is_some()).cloned().collect();
    let mut open = vec![&told[..]];
    while let Some(items) = open.pop() {
        let mut renewed = extend(session, items).await;
        if let (Err(StoreError::Unstorable { .. }), [item]) = (&renewed, items) {
            renewed = extend(session, &[item.in_ascii()]).await;
        }
        match (renewed, items) {
            (Err(StoreError::Unstorable { detail, .. } | StoreError::Rejected { detail, .. }), [item]) => {
                let (database, session) = (session.location(), item.key.to_string());
                tracing::warn!(database, session, detail, "a new phase was rejected and is not shown");
            }
            (Err(StoreError::Unstorable { .. } | StoreError::Rejected { .. }), _) => {
                let (first, second) = items.split_at(items.len() / 2);
                open.extend([first, second]);
            }
            (renewed, _) => drop(renewed?),
        }
    }
    Ok(())
}

async fn extend(session: &mut Session, items: &[Renew]) -> Result<Vec<RenewOutcome>, StoreError> {
    let statement = Statement::new(
        RENEW,
        vec![
            Value::Texts(items.iter().map(|item| item.key.account()).collect()),
            Value::Texts(items.iter().map(|item| item.key.session()).collect()),
            Value::Uuids(items.iter().map(|item| item.run_id.as_uuid()).collect()),
            Value::Numbers(items.iter().map(|item| millis(item.ttl)).collect()),
            Value::Numbers(items.iter().map(|item| millis(item.safety_margin)).collect()),
            Value::Texts(items.iter().map(|item| item.stage.as_str()).collect()),
            Value::TextsOrNull(items.iter().map(|item| item.phase.as_ref().map(RunPhase::as_str)).collect()),
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
        RELEASE,
        vec![
            Value::Texts(items.iter().map(|item| item.key.account()).collect()),
            Value::Texts(items.iter().map(|item| item.key.session()).collect()),
            Value::Uuids(items.iter().map(|item| item.run_id.as_uuid()).collect()),
        ],
    );
    let rows = match session.fetch(&statement).await {
        // It was never granted.
        Err(StoreError::Unstorable { .. }) if items.len() == 1 => return Ok(vec![ReleaseOutcome::NotFound]),
        answered => answered?,
    };
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
    let mut found = Vec::with_capacity(keys.len());
    let mut open = vec![keys];
    while let Some(keys) = open.pop() {
        match read_rows(session, keys).await {
            // Nobody can hold a session with such a key. Its neighbours are read without it.
            Err(StoreError::Unstorable { .. }) if keys.len() == 1 => found.push(None),
            Err(StoreError::Unstorable { .. }) => {
                let (first, second) = keys.split_at(keys.len() / 2);
                open.extend([second, first]);
            }
            rows => {
                for row in rows? {
                    found.push(row.map(|row| row::holder(session, &row)).transpose()?);
                }
            }
        }
    }
    Ok(found)
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
    let statement = Statement::new(INSPECT, vec![Value::Texts(accounts), Value::Texts(sessions)]);
    let mut found: Vec<_> = keys.iter().map(|_| None).collect();
    for row in session.fetch(&statement).await? {
        session.heed(&row)?;
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
        concat!(include_str!("server.sql"), include_str!("list.sql")),
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
    let rows = match session.fetch(&statement).await {
        // No session of such an account can be held.
        Err(StoreError::Unstorable { .. }) => return Ok(found),
        answered => answered?,
    };
    for row in &rows {
        session.heed(row)?;
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
