//! Release and sweep: the verbs that delete rows.

use super::{
    connection::Connection,
    row,
    statement::{Statement, Value, millis},
    swallow,
};
use crate::store::{Release, ReleaseOutcome, SWEEP_AFTER, StoreError};

pub(super) const RELEASE: &str = include_str!("release.sql");

pub(super) async fn release(
    connection: &mut Connection,
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
    let rows = match connection.fetch(&statement).await {
        // A key that cannot be stored was never granted.
        Err(StoreError::Unstorable { .. }) if items.len() == 1 => return Ok(vec![ReleaseOutcome::NotFound]),
        answered => answered?,
    };
    swallow::check(connection, &rows).await?;
    row::answers(connection, &rows, items.len(), |_, verdict| {
        Ok(match verdict {
            "released" => ReleaseOutcome::Released,
            "not found" => ReleaseOutcome::NotFound,
            _ => ReleaseOutcome::Locked,
        })
    })
}

pub(super) async fn sweep(connection: &mut Connection, limit: u32) -> Result<u64, StoreError> {
    let values = vec![Value::Number(limit.into()), Value::Number(millis(SWEEP_AFTER))];
    let row = connection.fetch_one(&Statement::new(include_str!("sweep.sql"), values)).await?;
    connection.read::<i64>(&row, "swept").map(i64::unsigned_abs)
}
