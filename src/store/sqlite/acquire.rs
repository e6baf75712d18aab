//! Acquire: first a read that refuses, then one write that grants.

use std::sync::LazyLock;

use serde_json::{Value, json};
use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};

use super::{
    batch::{batch, millis, places},
    failure::Failure,
    row, swallow,
};
use crate::store::{Acquire, AcquireOutcome, Grant};

pub(super) const REFUSE: &str = include_str!("refuse.sql");
pub(super) const GRANT: &str = include_str!("grant.sql");

/// A grant some of whose items have a limit. Only the source of the items differs.
static GRANT_LIMITED: LazyLock<&'static str> = LazyLock::new(|| {
    let allowed = format!("FROM (\n{}) AS item", include_str!("allowed.sql"));
    GRANT.replace(ALL_ITEMS, &allowed).leak()
});

/// A line of `grant.sql`.
const ALL_ITEMS: &str = "FROM json_each(?1) AS item";

/// The open items that their limit refuses, and how many live leases their account has.
const FULL: &str = include_str!("full.sql");

/// How many times an item is tried if it loses a race and the winner releases at once, so that there is no holder to
/// name. After the last attempt the outcome is `Locked`, and the caller decides.
const ATTEMPTS: usize = 2;

/// How many more times an item is tried before a trigger is blamed. A run may lose a race twice, but hardly this often.
const MORE_ATTEMPTS: usize = 3;

pub(super) async fn acquire(
    sqlite: &mut SqliteConnection,
    items: &[Acquire],
) -> Result<Vec<AcquireOutcome>, Failure> {
    let mut outcomes = vec![AcquireOutcome::Locked; items.len()];
    let mut open: Vec<usize> = (0..items.len()).collect();
    refuse(sqlite, items, &mut open, &mut outcomes).await?;
    for _ in 0..ATTEMPTS {
        if open.is_empty() {
            break;
        }
        match attempt(sqlite, items, &mut open, &mut outcomes).await {
            Err(failure) if !outcomes.iter().any(is_granted) => return Err(failure),
            // The grants stay valid, and certainly none of the open items was acquired.
            Err(failure) if failure.is_busy() => break,
            Err(failure) => return Err(failure.after_a_write()),
            Ok(()) => {}
        }
    }
    // If there are several items, the caller asks for each one alone again. Then this finds the one that is suppressed.
    if let ([AcquireOutcome::Locked], [_]) = (&outcomes[..], &open[..])
        && let Some(triggers) = swallow::suspects(sqlite).await?
    {
        for _ in 0..MORE_ATTEMPTS {
            attempt(sqlite, items, &mut open, &mut outcomes).await?;
            if open.is_empty() {
                return Ok(outcomes);
            }
        }
        return Err(Failure::Swallowed(triggers));
    }
    Ok(outcomes)
}

async fn attempt(
    sqlite: &mut SqliteConnection,
    items: &[Acquire],
    open: &mut Vec<usize>,
    outcomes: &mut [AcquireOutcome],
) -> Result<(), Failure> {
    grant(sqlite, items, open, outcomes).await?;
    refuse(sqlite, items, open, outcomes).await?;
    refuse_full(sqlite, items, open, outcomes).await
}

fn is_granted(outcome: &AcquireOutcome) -> bool {
    matches!(outcome, AcquireOutcome::Granted(_))
}

/// Answers those open items whose session another run holds with a live lease. This only reads, and in write-ahead mode
/// a reader neither waits for a writer nor delays one.
async fn refuse(
    sqlite: &mut SqliteConnection,
    items: &[Acquire],
    open: &mut Vec<usize>,
    outcomes: &mut [AcquireOutcome],
) -> Result<(), Failure> {
    if open.is_empty() {
        return Ok(());
    }
    let refused = sqlx::query(REFUSE)
        .bind(batch(open.iter().map(|&index| {
            let Acquire { key, run_id, .. } = &items[index];
            json!({ "account": key.account(), "session": key.session(), "run": run_id.as_uuid().to_string() })
        })))
        .fetch_all(sqlite)
        .await?;
    for found in &refused {
        let index = open[found.try_get::<u32, _>("item")? as usize];
        outcomes[index] = AcquireOutcome::Busy(Box::new(row::holder(found)?));
    }
    open.retain(|&index| outcomes[index] == AcquireOutcome::Locked);
    Ok(())
}

/// Answers those open items that were not granted because of their limit. This only reads. If a place has become free
/// in the meantime, the item stays open.
async fn refuse_full(
    sqlite: &mut SqliteConnection,
    items: &[Acquire],
    open: &mut Vec<usize>,
    outcomes: &mut [AcquireOutcome],
) -> Result<(), Failure> {
    if !is_limited(items, open) {
        return Ok(());
    }
    let asked = batch(open.iter().map(|&index| item(&items[index])));
    for full in &sqlx::query(FULL).bind(asked).fetch_all(sqlite).await? {
        let index = open[full.try_get::<u32, _>("item")? as usize];
        outcomes[index] = AcquireOutcome::Full { running: full.try_get("running")? };
    }
    open.retain(|&index| outcomes[index] == AcquireOutcome::Locked);
    Ok(())
}

fn is_limited(items: &[Acquire], open: &[usize]) -> bool {
    open.iter().any(|&index| items[index].limit_per_account.is_some())
}

/// Grants those open items whose session is free. Only the conflict rule of the statement decides.
async fn grant(
    sqlite: &mut SqliteConnection,
    items: &[Acquire],
    open: &mut Vec<usize>,
    outcomes: &mut [AcquireOutcome],
) -> Result<(), Failure> {
    let grant = if is_limited(items, open) { *GRANT_LIMITED } else { GRANT };
    let granted = sqlx::query(grant)
        .bind(batch(open.iter().map(|&index| item(&items[index]))))
        .fetch_all(sqlite)
        .await?;
    let asked = places(open.iter().map(|&index| (index, &items[index].key)));
    for written in &granted {
        let key = (written.try_get("account_id")?, written.try_get("session_id")?);
        let Some(&index) = asked.get(&key) else { continue };
        outcomes[index] = AcquireOutcome::Granted(granted_row(written)?);
    }
    open.retain(|&index| outcomes[index] == AcquireOutcome::Locked);
    Ok(())
}

fn item(acquire: &Acquire) -> Value {
    json!({
        "account": acquire.key.account(),
        "session": acquire.key.session(),
        "run": acquire.run_id.as_uuid().to_string(),
        "node": acquire.node.as_uuid().to_string(),
        "holder": acquire.label.as_str(),
        "phase": acquire.phase.as_str(),
        "ttl": millis(acquire.ttl),
        "most": acquire.limit_per_account,
    })
}

fn granted_row(written: &SqliteRow) -> Result<Grant, Failure> {
    Ok(Grant {
        fence: row::fence(written)?,
        remaining: row::remaining(written)?,
        acquired_at_micros: row::micros(written, "acquired_at")?,
        expires_at_micros: row::micros(written, "expires_at")?,
        stop: row::stop(written)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limited_grant_reads_its_items_from_those_that_are_allowed() {
        assert_eq!(GRANT.matches(ALL_ITEMS).count(), 1);
        assert!(GRANT_LIMITED.contains("row_number()"));
    }
}
