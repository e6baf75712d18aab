//! Renew: one statement, and the steps that follow if the database rejects a new phase.

use super::{
    connection::Connection,
    fault, row,
    statement::{Statement, Value, millis},
    swallow,
    wording::Worded as _,
};
use crate::{
    session::RunPhase,
    store::{Renew, RenewOutcome, StoreError, untold},
    text::printable,
    trace,
};

pub(super) const RENEW: &str = include_str!("renew.sql");

pub(super) async fn renew(
    connection: &mut Connection,
    items: &[Renew],
) -> Result<Vec<RenewOutcome>, StoreError> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    let renewed = extend(connection, items).await;
    match (&renewed, untold(items)) {
        (Err(StoreError::Unstorable { .. } | StoreError::Rejected { .. }), Some(untold)) => {
            // The leases come first (invariant I12). Then the phases are tried, so that one bad phase does not keep the
            // others from being recorded.
            let renewed = extend(connection, &untold).await?;
            record_phases(connection, items)
                .await
                .map_err(|error| fault::after_a_change(error, connection.location()))?;
            Ok(renewed)
        }
        _ => renewed,
    }
}

/// Renews the items with a new phase again, this time with the phase. A phase that the database rejects is left out.
async fn record_phases(connection: &mut Connection, items: &[Renew]) -> Result<(), StoreError> {
    let with_phase: Vec<_> = items.iter().filter(|item| item.phase.is_some()).cloned().collect();
    let mut open = vec![&with_phase[..]];
    while let Some(items) = open.pop() {
        let mut renewed = extend(connection, items).await;
        if let (Err(StoreError::Unstorable { .. }), [item]) = (&renewed, items) {
            renewed = extend(connection, &[item.in_ascii()]).await;
        }
        match (renewed, items) {
            (Err(StoreError::Unstorable { detail, .. } | StoreError::Rejected { detail, .. }), [item]) => {
                let (database, key) = (connection.location(), &item.key);
                tracing::warn!(
                    target: trace::STORE,
                    database,
                    account = &*printable(key.account()),
                    session = &*printable(key.session()),
                    detail,
                    "a new phase was rejected and is not shown"
                );
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

async fn extend(connection: &mut Connection, items: &[Renew]) -> Result<Vec<RenewOutcome>, StoreError> {
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
    let rows = connection.fetch(&statement).await?;
    swallow::check(connection, &rows).await?;
    row::answers(connection, &rows, items.len(), |row, verdict| {
        Ok(match verdict {
            "renewed" => RenewOutcome::Renewed(row::renewed(connection, row)?),
            "expired" => RenewOutcome::Expired { clock_micros: row::clock(connection, row)? },
            "gone" => RenewOutcome::Gone { clock_micros: row::clock(connection, row)? },
            "superseded" => RenewOutcome::Superseded { clock_micros: row::clock(connection, row)? },
            _ => RenewOutcome::Locked,
        })
    })
}
