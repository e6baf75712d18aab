//! Ends the lease of a dead run.

use std::time::{Duration, SystemTime};

use sqlx::postgres::PgRow;

use super::{
    connection::Connection,
    row,
    statement::{Statement, Value},
    swallow,
    wording::Worded as _,
};
use crate::{
    clock::micros,
    session::{Reason, Requester},
    store::{BreakLease, BreakOutcome, StoreError},
};

pub(super) async fn break_lease(
    connection: &mut Connection,
    item: &BreakLease,
) -> Result<BreakOutcome, StoreError> {
    let mut rows = ask(connection, item).await;
    if let Err(StoreError::Unstorable { .. }) = rows {
        rows = ask(connection, &item.in_ascii()).await;
    }
    let rows = match rows {
        // No run can hold a session with such a key.
        Err(StoreError::Unstorable { .. }) => return Ok(BreakOutcome::NotHeld),
        answered => answered?,
    };
    swallow::check(connection, &rows).await?;
    let Some(row) = rows.first() else { return Ok(BreakOutcome::NotHeld) };
    Ok(match connection.read::<&str>(row, "verdict")? {
        "broken" => BreakOutcome::Broken { remaining: row::length(connection.read(row, "remaining")?) },
        "renewed" => BreakOutcome::Renewed,
        "not held" => BreakOutcome::NotHeld,
        _ => BreakOutcome::Locked,
    })
}

async fn ask(connection: &mut Connection, item: &BreakLease) -> Result<Vec<PgRow>, StoreError> {
    let run_id = item.run_id.to_string();
    let since_1970 = item.expires_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let statement = Statement::new(
        include_str!("break.sql"),
        vec![
            Value::Text(Some(item.key.account())),
            Value::Text(Some(item.key.session())),
            Value::Text(Some(&run_id)),
            Value::Number(micros(since_1970)),
            Value::Text(item.by.as_ref().map(Requester::as_str)),
            Value::Text(item.reason.as_ref().map(Reason::as_str)),
        ],
    );
    connection.fetch(&statement).await
}
