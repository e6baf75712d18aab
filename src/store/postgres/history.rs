//! The history of runs that are over. Triggers write it (see the migration). This reads it and removes old records.

use std::time::Duration;

use super::{
    connection::Connection,
    row, schema,
    statement::{Statement, Value, millis},
};
use crate::{
    history::PastRun,
    store::{HistoryPage, StoreError},
};

const HISTORY: &str = concat!(include_str!("server.sql"), include_str!("history.sql"));

pub(super) async fn history(
    connection: &mut Connection,
    page: &HistoryPage,
) -> Result<Option<Vec<PastRun>>, StoreError> {
    if !is_kept(connection).await? {
        return Ok(None);
    }
    let before = page.before.map(|fence| fence.to_string());
    let statement = Statement::new(
        HISTORY,
        vec![
            Value::Text(Some(page.key.account())),
            Value::Text(Some(page.key.session())),
            Value::Text(before.as_deref()),
            Value::Number(page.limit.into()),
        ],
    );
    let rows = match connection.fetch(&statement).await {
        // No run can have held a session with such a key.
        Err(StoreError::Unstorable { .. }) => return Ok(Some(Vec::new())),
        answered => answered.map_err(|error| denied(connection, error, "read", "SELECT"))?,
    };
    let mut runs = Vec::with_capacity(rows.len());
    for row in &rows {
        connection.heed(row)?;
        if row::is_there(connection, row)? {
            runs.push(row::past_run(connection, row)?);
        }
    }
    Ok(Some(runs))
}

pub(super) async fn sweep(
    connection: &mut Connection,
    keep: Duration,
    limit: u32,
) -> Result<u64, StoreError> {
    if !is_kept(connection).await? {
        return Ok(0);
    }
    let values = vec![Value::Number(limit.into()), Value::Number(millis(keep))];
    let swept = connection.fetch_one(&Statement::new(include_str!("sweep_history.sql"), values)).await;
    let row = swept.map_err(|error| denied(connection, error, "sweep", "SELECT, DELETE"))?;
    connection.read::<i64>(&row, "swept").map(i64::unsigned_abs)
}

async fn is_kept(connection: &mut Connection) -> Result<bool, StoreError> {
    let row = connection.fetch_one(&Statement::new(schema::HAS_HISTORY, Vec::new())).await?;
    connection.read(&row, "has_history")
}

/// The error with the right that is missing. Leases need none of these rights.
fn denied(connection: &Connection, error: StoreError, what: &str, rights: &str) -> StoreError {
    match error {
        StoreError::PermissionDenied { location, .. } => {
            let grant = format!("GRANT {rights} ON tenure.run_history");
            let grant = connection.naming().text(&grant);
            StoreError::PermissionDenied {
                location,
                detail: format!("to {what} the history of runs, the role needs: {grant}"),
            }
        }
        other => other,
    }
}
