//! Removes rows of long expired leases, now and then.
//!
//! Such rows only take room, so nothing depends on this (invariant I12). A supervisor does it about once an hour,
//! beginning at a random time of its first hour. So many supervisors spread out, and a process that lives for a minute
//! hardly ever does it. It goes through the worker for long queries, with a pause after each bounded statement.

use std::time::Duration;

use tokio::time::sleep;

use super::query::{Queries, Query};
use crate::{error::QueryError, store::StoreError, trace};

/// The mean time between two sweeps. Each is between half of it and one and a half.
const EVERY: Duration = Duration::from_secs(3600);
/// The pause between two statements of one sweep.
const PAUSE: Duration = Duration::from_secs(1);
/// The most rows that one statement removes.
const SWEEP_BATCH: u32 = 1_000;

/// Sweeps until the supervisor ends.
pub(crate) async fn sweep_now_and_then(queries: Queries, history_kept: Duration) {
    sleep(EVERY.mul_f64(fastrand::f64())).await;
    let mut is_failing = false;
    loop {
        match sweep(&queries, history_kept).await {
            Ok(removed) => {
                is_failing = false;
                if removed > 0 {
                    tracing::debug!(target: trace::STORE, removed, "removed leases that expired long ago");
                }
            }
            Err(QueryError::Closed(_)) => return,
            Err(QueryError::Store(error)) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(
                        target: trace::STORE,
                        %error,
                        "could not remove leases that expired long ago; they only take room"
                    );
                }
            }
        }
        sleep(EVERY.mul_f64(0.5 + fastrand::f64())).await;
    }
}

async fn sweep(queries: &Queries, history_kept: Duration) -> Result<u64, QueryError> {
    let pause = || sleep(PAUSE);
    let removed =
        in_batches(|limit| queries.ask(move |reply| Query::SweepInTurn(limit, reply)), pause).await?;
    let of_history = |limit| queries.ask(move |reply| Query::SweepHistory(history_kept, limit, reply));
    match in_batches(of_history, pause).await {
        // The right to remove old runs may be kept for those who operate the database.
        Ok(_) | Err(QueryError::Store(StoreError::PermissionDenied { .. })) => Ok(removed),
        Err(error) => Err(error),
    }
}

/// Removes a bounded number of rows at a time, with a pause in between, until none is left. Returns how many it removed.
pub(crate) async fn in_batches<B, P>(
    batch: impl Fn(u32) -> B,
    pause: impl Fn() -> P,
) -> Result<u64, QueryError>
where
    B: Future<Output = Result<u64, QueryError>>,
    P: Future<Output = ()>,
{
    let mut removed = 0;
    loop {
        let some = batch(SWEEP_BATCH).await?;
        removed += some;
        if some < u64::from(SWEEP_BATCH) {
            return Ok(removed);
        }
        pause().await;
    }
}
