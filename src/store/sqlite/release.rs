//! The verb that gives a session back: it deletes the row of its own run.

use std::collections::HashSet;

use serde_json::{Value, json};
use sqlx::{Row as _, SqliteConnection};

use super::{
    batch::batch,
    failure::Failure,
    history::{self, Presence},
    read, swallow,
};
use crate::store::{Release, ReleaseOutcome, record::RecordedReason};

pub(super) const RELEASE: &str = include_str!("release.sql");

pub(super) async fn release(
    sqlite: &mut SqliteConnection,
    presence: &mut Presence,
    items: &[Release],
) -> Result<Vec<ReleaseOutcome>, Failure> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    let released = batch(items.iter().map(item));
    let deleted = history::noted(sqlite, presence, RELEASE, history::NOTE_RELEASE, |query| {
        query.bind(released.clone())
    });
    let deleted = deleted.await?;
    let deleted = deleted
        .iter()
        .map(|row| Ok((row.try_get("account_id")?, row.try_get("session_id")?)))
        .collect::<Result<HashSet<(&str, &str)>, Failure>>()?;
    let outcome = |Release { key, .. }: &Release| match deleted.contains(&(key.account(), key.session())) {
        true => ReleaseOutcome::Released,
        false => ReleaseOutcome::NotFound,
    };
    let mut outcomes: Vec<_> = items.iter().map(outcome).collect();
    if deleted.len() < items.len()
        && let Some(triggers) = swallow::suspects(sqlite).await?
    {
        find_undeleted(sqlite, items, &mut outcomes).await?;
        // If there are several items, the caller asks for each one alone again. Then this finds the one that is
        // suppressed.
        if let [ReleaseOutcome::Locked] = outcomes[..] {
            return Err(Failure::Swallowed(triggers));
        }
    }
    Ok(outcomes)
}

/// Finds the rows that still exist although the statement should have deleted them.
async fn find_undeleted(
    sqlite: &mut SqliteConnection,
    items: &[Release],
    outcomes: &mut [ReleaseOutcome],
) -> Result<(), Failure> {
    let keys: Vec<_> = items.iter().map(|item| item.key.clone()).collect();
    let found = read::inspect(sqlite, &keys).await?;
    for ((item, outcome), holder) in items.iter().zip(outcomes).zip(found) {
        if holder.is_some_and(|holder| holder.run_id == item.run_id) {
            *outcome = ReleaseOutcome::Locked;
        }
    }
    Ok(())
}

fn item(Release { key, run_id, reason }: &Release) -> Value {
    let reason = reason.as_ref().map(RecordedReason::from);
    json!({
        "account": key.account(),
        "session": key.session(),
        "run": run_id.as_uuid().to_string(),
        "reason": reason.as_ref().map(|reason| reason.word),
        "by": reason.as_ref().and_then(|reason| reason.by.as_deref()),
        "why": reason.as_ref().and_then(|reason| reason.why.as_deref()),
    })
}
