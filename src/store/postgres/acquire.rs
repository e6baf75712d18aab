//! Acquire: the one verb that may need more than one statement.

use sqlx::postgres::PgRow;

use super::{
    fault, row,
    statement::{Session, Statement, Value},
    verbs::{millis, read_rows},
    wording::Worded as _,
};
use crate::store::{Acquire, AcquireOutcome, StoreError};

/// How often an item is asked for that lost a race and then finds nobody there.
const ROUNDS: usize = 2;

/// What is known of an item after one statement.
enum Answer {
    Final(AcquireOutcome),
    /// The row is this run's, but its fence may have been issued again since (see `fence_again` in the migration).
    Unsettled,
    /// Another run was faster, and this statement's snapshot is too old to show it.
    LostRace,
}

pub(super) async fn acquire(
    session: &mut Session,
    items: &[Acquire],
) -> Result<Vec<AcquireOutcome>, StoreError> {
    let mut outcomes = vec![None; items.len()];
    for round in 0..ROUNDS {
        let open: Vec<usize> = (0..items.len()).filter(|item| outcomes[*item].is_none()).collect();
        if open.is_empty() {
            break;
        }
        let asked = ask(session, items, &open, &mut outcomes).await;
        asked.map_err(|error| match round {
            0 => error,
            _ => fault::after_a_change(error, session.location()),
        })?;
    }
    Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or(AcquireOutcome::Locked)).collect())
}

/// Asks for the open items, and settles all but those that are worth asking again.
async fn ask(
    session: &mut Session,
    items: &[Acquire],
    open: &[usize],
    outcomes: &mut [Option<AcquireOutcome>],
) -> Result<(), StoreError> {
    let asked: Vec<&Acquire> = open.iter().map(|item| &items[*item]).collect();
    let mut unclear = Vec::new();
    for (item, answer) in open.iter().zip(grant_or_refuse(session, &asked).await?) {
        match answer {
            Answer::Final(outcome) => outcomes[*item] = Some(outcome),
            Answer::Unsettled => unclear.push((*item, Some(AcquireOutcome::Locked))),
            Answer::LostRace => unclear.push((*item, None)),
        }
    }
    let keys: Vec<_> = unclear.iter().map(|(item, _)| &items[*item].key).collect();
    let found = read_rows(session, &keys).await;
    let found = found.map_err(|error| fault::after_a_change(error, session.location()))?;
    for ((item, otherwise), row) in unclear.into_iter().zip(found) {
        let judged = match row {
            Some(row) => judge(session, &items[item], &row)?,
            None => None,
        };
        // A row that was granted and is gone again was released under our hands. It is not asked for again: the
        // release would then have come first, and the row would be nobody's.
        outcomes[item] = judged.or(otherwise);
    }
    Ok(())
}

/// What a row that was read after a race says; an expired one of another run says nothing.
fn judge(session: &Session, item: &Acquire, row: &PgRow) -> Result<Option<AcquireOutcome>, StoreError> {
    let holder = row::holder(session, row)?;
    if holder.run_id == item.run_id {
        return Ok(Some(AcquireOutcome::Granted(row::grant(session, row)?)));
    }
    Ok((!holder.expires_in.is_zero()).then(|| AcquireOutcome::Busy(Box::new(holder))))
}

async fn grant_or_refuse(session: &mut Session, items: &[&Acquire]) -> Result<Vec<Answer>, StoreError> {
    let mut rows = session.fetch(&statement(items)).await;
    if let Err(StoreError::Unstorable { .. }) = rows {
        let in_ascii: Vec<_> = items.iter().map(|item| item.in_ascii()).collect();
        rows = session.fetch(&statement(&in_ascii.iter().collect::<Vec<_>>())).await;
    }
    let rows = rows?;
    let mut answers: Vec<Answer> = items.iter().map(|_| Answer::LostRace).collect();
    for row in &rows {
        let answer = match session.read::<&str>(row, "verdict")? {
            "granted" => Answer::Final(AcquireOutcome::Granted(row::grant(session, row)?)),
            "busy" => Answer::Final(AcquireOutcome::Busy(Box::new(row::holder(session, row)?))),
            "locked" => Answer::Final(AcquireOutcome::Locked),
            _ => Answer::Unsettled,
        };
        answers[row::item(session, row, items.len())?] = answer;
    }
    Ok(answers)
}

fn statement<'a>(items: &[&'a Acquire]) -> Statement<'a> {
    Statement::new(
        include_str!("acquire.sql"),
        vec![
            Value::Texts(items.iter().map(|item| item.key.account()).collect()),
            Value::Texts(items.iter().map(|item| item.key.session()).collect()),
            Value::Uuids(items.iter().map(|item| item.run_id.as_uuid()).collect()),
            Value::Uuids(items.iter().map(|item| item.node.as_uuid()).collect()),
            Value::Texts(items.iter().map(|item| item.label.as_str()).collect()),
            Value::Texts(items.iter().map(|item| item.phase.as_str()).collect()),
            Value::Numbers(items.iter().map(|item| millis(item.ttl)).collect()),
        ],
    )
}
