//! The verb that gives a session back: it deletes the row of its own run.

use super::{
    connection::Connection,
    row,
    statement::{Statement, Value},
    swallow,
};
use crate::store::{Release, ReleaseOutcome, StoreError};

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
