//! The verb that deletes rows whose leases have long expired.

use serde_json::json;
use sqlx::SqliteConnection;

use super::{batch::batch, failure::Failure};
use crate::store::SWEEP_AFTER;

const CANDIDATES: &str = include_str!("sweep_candidates.sql");
pub(super) const SWEEP: &str = include_str!("sweep.sql");

pub(super) async fn sweep(sqlite: &mut SqliteConnection, limit: u32) -> Result<u64, Failure> {
    let sweep_after = SWEEP_AFTER.as_millis() as i64;
    let candidates: Vec<(String, String)> =
        sqlx::query_as(CANDIDATES).bind(sweep_after).bind(limit).fetch_all(&mut *sqlite).await?;
    if candidates.is_empty() {
        return Ok(0);
    }
    let candidates =
        candidates.iter().map(|(account, session)| json!({ "account": account, "session": session }));
    let deleted = sqlx::query(SWEEP).bind(sweep_after).bind(batch(candidates)).execute(sqlite).await?;
    Ok(deleted.rows_affected())
}
