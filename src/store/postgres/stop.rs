//! Asking a run to stop.

use uuid::Uuid;

use super::{
    row,
    statement::{Session, Statement, Value},
};
use crate::{
    session::{Reason, Requester, RunId},
    store::{StopOutcome, StopRun, StoreError},
};

pub(super) async fn request(session: &mut Session, item: &StopRun) -> Result<StopOutcome, StoreError> {
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
    let rows = session.fetch(&statement).await?;
    let Some(row) = rows.first() else { return Ok(StopOutcome::Idle) };
    let asked = |first| Ok(StopOutcome::Asked { holder: Box::new(row::holder(session, row)?), first });
    match session.read::<&str>(row, "verdict")? {
        "asked" => asked(true),
        "asked before" => asked(false),
        "expired" => Ok(StopOutcome::Idle),
        _ => Ok(StopOutcome::Locked(RunId::from(session.read::<Uuid>(row, "chosen")?))),
    }
}
