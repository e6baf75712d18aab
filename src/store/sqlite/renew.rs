//! Renew: first one write that extends leases, then a read that says why the other leases were not extended.

use serde_json::{Value, json};
use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};

use super::{
    batch::{batch, millis, places},
    failure::Failure,
    row, swallow,
};
use crate::{
    store::{Renew, RenewOutcome, Renewed, untold},
    trace,
};

pub(super) const EXTEND: &str = include_str!("renew.sql");
pub(super) const EXPLAIN: &str = include_str!("explain.sql");

pub(super) async fn renew(
    sqlite: &mut SqliteConnection,
    items: &[Renew],
) -> Result<Vec<RenewOutcome>, Failure> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    let mut outcomes = vec![RenewOutcome::Locked; items.len()];
    let mut open: Vec<usize> = (0..items.len()).collect();
    let mut extended = extend(sqlite, items, &mut open, &mut outcomes).await;
    // Only for a single item. If there are several, the caller asks for each one alone again, so that a rejected phase
    // does not cost the other items theirs.
    if let Err(failure) = &extended
        && failure.is_rejection()
        && let ([_], Some(untold)) = (items, untold(items))
    {
        tracing::warn!(target: trace::STORE, ?failure, "a new phase was rejected and is not shown");
        extended = extend(sqlite, &untold, &mut open, &mut outcomes).await;
    }
    extended?;
    match explain(sqlite, items, &open, &mut outcomes).await {
        Err(failure) if open.len() < items.len() => return Err(failure.after_a_write()),
        explained => explained?,
    }
    if let [RenewOutcome::Locked] = outcomes[..] {
        swallow::refuse_if_possible(sqlite).await?;
    }
    Ok(outcomes)
}

async fn extend(
    sqlite: &mut SqliteConnection,
    items: &[Renew],
    open: &mut Vec<usize>,
    outcomes: &mut [RenewOutcome],
) -> Result<(), Failure> {
    let extended = sqlx::query(EXTEND).bind(batch(items.iter().map(item))).fetch_all(sqlite).await?;
    let asked = places(items.iter().map(|item| &item.key).enumerate());
    for written in &extended {
        let key = (written.try_get("account_id")?, written.try_get("session_id")?);
        let Some(&index) = asked.get(&key) else { continue };
        outcomes[index] = RenewOutcome::Renewed(renewed(written)?);
    }
    open.retain(|&index| !matches!(outcomes[index], RenewOutcome::Renewed(_)));
    Ok(())
}

async fn explain(
    sqlite: &mut SqliteConnection,
    items: &[Renew],
    open: &[usize],
    outcomes: &mut [RenewOutcome],
) -> Result<(), Failure> {
    if open.is_empty() {
        return Ok(());
    }
    let found = sqlx::query(EXPLAIN)
        .bind(batch(open.iter().map(|&index| item(&items[index]))))
        .fetch_all(sqlite)
        .await?;
    for found in &found {
        let index = open[found.try_get::<u32, _>("item")? as usize];
        let clock_micros = row::micros(found, "clock")?;
        outcomes[index] = match (found.try_get("own")?, found.try_get("renewable")?) {
            (None, _) => RenewOutcome::Gone { clock_micros },
            (Some(false), _) => RenewOutcome::Superseded { clock_micros },
            (Some(true), Some(true)) => {
                // The run's own acquire came between the two statements, the clock was stepped back, or a trigger
                // suppresses the write.
                RenewOutcome::Locked
            }
            (Some(true), _) => RenewOutcome::Expired { clock_micros },
        };
    }
    Ok(())
}

fn item(renew: &Renew) -> Value {
    json!({
        "account": renew.key.account(),
        "session": renew.key.session(),
        "run": renew.run_id.as_uuid().to_string(),
        "ttl": millis(renew.ttl),
        "margin": millis(renew.safety_margin),
        "stage": renew.stage.as_str(),
        "phase": renew.phase.as_ref().map(|phase| phase.as_str()),
    })
}

fn renewed(written: &SqliteRow) -> Result<Renewed, Failure> {
    Ok(Renewed {
        remaining: row::remaining(written)?,
        clock_micros: row::micros(written, "clock")?,
        stop: row::stop(written)?,
    })
}
