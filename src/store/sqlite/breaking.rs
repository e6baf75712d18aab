//! Ends the lease of a dead run: first a write, then, if it changed nothing, a read that says why.

use std::time::{Duration, SystemTime};

use sqlx::{Row as _, SqliteConnection};

use super::{
    failure::Failure,
    history::{self, Presence},
    read, swallow,
};
use crate::{
    session::{Reason, Requester},
    store::{BreakLease, BreakOutcome},
};

const BREAK: &str = include_str!("break.sql");

pub(super) async fn break_lease(
    sqlite: &mut SqliteConnection,
    presence: &mut Presence,
    item: &BreakLease,
) -> Result<BreakOutcome, Failure> {
    let since_1970 = item.expires_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let broken = history::noted(sqlite, presence, BREAK, history::NOTE_BREAK, |query| {
        query
            .bind(item.key.account().to_owned())
            .bind(item.key.session().to_owned())
            .bind(item.run_id.to_string())
            .bind(i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX))
            .bind(item.by.as_ref().map(|by: &Requester| by.as_str().to_owned()))
            .bind(item.reason.as_ref().map(|reason: &Reason| reason.as_str().to_owned()))
    });
    if let Some(row) = broken.await?.first() {
        let millis = row.try_get::<i64, _>("remaining")?;
        let remaining = Duration::from_millis(millis.try_into().unwrap_or(0));
        return Ok(BreakOutcome::Broken { remaining });
    }
    let found = read::inspect(&mut *sqlite, std::slice::from_ref(&item.key)).await?.into_iter().flatten();
    let own = found.last().filter(|holder| holder.run_id == item.run_id && !holder.expires_in.is_zero());
    Ok(match own {
        None => BreakOutcome::NotHeld,
        Some(holder) if holder.expires_at != item.expires_at => BreakOutcome::Renewed,
        // The clock was stepped back, or a trigger suppresses the write.
        Some(_) => {
            swallow::refuse_if_possible(sqlite).await?;
            BreakOutcome::Locked
        }
    })
}
