//! Asks a run to stop.

use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::{
    connection::Connection,
    row,
    statement::{Statement, Value},
    swallow,
    wording::Worded as _,
};
use crate::{
    session::{Reason, Requester, RunId},
    store::{StopOutcome, StopRun, StoreError},
};

pub(super) async fn request(connection: &mut Connection, item: &StopRun) -> Result<StopOutcome, StoreError> {
    let mut rows = ask(connection, item).await;
    if let Err(StoreError::Unstorable { .. }) = rows {
        rows = ask(connection, &item.in_ascii()).await;
    }
    let rows = match rows {
        // No run can hold a session with such a key.
        Err(StoreError::Unstorable { .. }) => return Ok(StopOutcome::Idle),
        answered => answered?,
    };
    swallow::check(connection, &rows).await?;
    let Some(row) = rows.first() else { return Ok(StopOutcome::Idle) };
    let asked = |first| Ok(StopOutcome::Asked { holder: Box::new(row::holder(connection, row)?), first });
    match connection.read::<&str>(row, "verdict")? {
        "asked" => asked(true),
        "asked before" => asked(false),
        "expired" => Ok(StopOutcome::Idle),
        _ => Ok(StopOutcome::Locked(RunId::from(connection.read::<Uuid>(row, "chosen")?))),
    }
}

async fn ask(connection: &mut Connection, item: &StopRun) -> Result<Vec<PgRow>, StoreError> {
    let run_id = item.run_id.map(|run_id| run_id.to_string());
    let statement = Statement::new(
        include_str!("stop.sql"),
        vec![
            Value::Text(Some(item.key.account())),
            Value::Text(Some(item.key.session())),
            Value::Text(run_id.as_deref()),
            Value::Text(item.by.as_ref().map(Requester::as_str)),
            Value::Text(item.reason.as_ref().map(Reason::as_str)),
        ],
    );
    connection.fetch(&statement).await
}
