//! Asks a run to stop: first a write, then, if it changed nothing, a read that tells an earlier request from an idle
//! session.

use sqlx::SqliteConnection;

use super::{failure::Failure, read, row, swallow};
use crate::{
    session::{Reason, Requester},
    store::{StopOutcome, StopRun},
};

pub(super) const STOP: &str = include_str!("stop.sql");

pub(super) async fn request(sqlite: &mut SqliteConnection, item: &StopRun) -> Result<StopOutcome, Failure> {
    let asked = sqlx::query(STOP)
        .bind(item.key.account())
        .bind(item.key.session())
        .bind(item.run_id.map(|run_id| run_id.to_string()))
        .bind(item.by.as_ref().map(Requester::as_str))
        .bind(item.reason.as_ref().map(Reason::as_str))
        .fetch_all(&mut *sqlite)
        .await?;
    if let Some(written) = asked.first() {
        return Ok(StopOutcome::Asked { holder: Box::new(row::holder(written)?), first: true });
    }
    let found =
        read::inspect(&mut *sqlite, std::slice::from_ref(&item.key)).await?.into_iter().flatten().next();
    let is_wanted = |run_id| item.run_id.is_none_or(|wanted| wanted == run_id);
    Ok(match found.filter(|holder| is_wanted(holder.run_id) && !holder.expires_in.is_zero()) {
        Some(holder) if holder.stop.is_some() => {
            StopOutcome::Asked { holder: Box::new(holder), first: false }
        }
        // The run was granted between the two statements, so the request came before it and does not concern it. Or a
        // trigger suppresses the write.
        Some(_) => {
            swallow::refuse_if_possible(sqlite).await?;
            StopOutcome::Idle
        }
        None => StopOutcome::Idle,
    })
}
