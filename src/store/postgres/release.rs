//! The verb that gives a session back: it deletes the row of its own run.

use super::{
    connection::Connection,
    row,
    statement::{Statement, Value},
    swallow,
    wording::Worded as _,
};
use crate::store::{Release, ReleaseOutcome, StoreError, record::RecordedReason};

pub(super) const RELEASE: &str = include_str!("release.sql");

pub(super) async fn release(
    connection: &mut Connection,
    items: &[Release],
) -> Result<Vec<ReleaseOutcome>, StoreError> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    let mut reasons: Vec<_> =
        items.iter().map(|item| item.reason.as_ref().map(RecordedReason::from)).collect();
    let mut rows = connection.fetch(&statement(items, &reasons)).await;
    if let Err(StoreError::Unstorable { .. }) = rows {
        reasons = reasons.into_iter().map(|reason| reason.map(|reason| reason.in_ascii())).collect();
        rows = connection.fetch(&statement(items, &reasons)).await;
    }
    let rows = match rows {
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

fn statement<'a>(items: &'a [Release], reasons: &'a [Option<RecordedReason>]) -> Statement<'a> {
    let by = |reason: &'a Option<RecordedReason>| reason.as_ref()?.by.as_deref();
    let why = |reason: &'a Option<RecordedReason>| reason.as_ref()?.why.as_deref();
    Statement::new(
        RELEASE,
        vec![
            Value::Texts(items.iter().map(|item| item.key.account()).collect()),
            Value::Texts(items.iter().map(|item| item.key.session()).collect()),
            Value::Uuids(items.iter().map(|item| item.run_id.as_uuid()).collect()),
            Value::TextsOrNull(reasons.iter().map(|reason| Some(reason.as_ref()?.word)).collect()),
            Value::TextsOrNull(reasons.iter().map(by).collect()),
            Value::TextsOrNull(reasons.iter().map(why).collect()),
        ],
    )
}
