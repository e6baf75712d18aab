//! Acquire: the one verb that may need more than one statement.

use sqlx::postgres::PgRow;

use super::{
    connection::Connection,
    fault,
    read::read_rows,
    row,
    statement::{Statement, Value, millis},
    swallow,
    wording::Worded as _,
};
use crate::{
    session::{Holder, SessionKey},
    store::{Acquire, AcquireOutcome, StoreError},
};

pub(super) const ACQUIRE: &str = include_str!("acquire.sql");

/// How often an item is asked for. A second time is for one that lost a race and then found nobody there, or whose row was
/// locked.
const ROUNDS: usize = 2;

/// What is known of an item after one statement.
enum AcquireVerdict {
    Final(AcquireOutcome),
    /// The row is this run's, but its fence may have been issued again since: "Fences" in the migration explains it.
    Unsettled,
    /// Another run was faster, and this statement's snapshot is too old to show it. Or a trigger swallows the row.
    LostRace,
    /// This holder's lease has expired, and its row is locked, either for a moment by a statement or by a pin.
    LockedExpired(Box<Holder>),
}

pub(super) async fn acquire(
    connection: &mut Connection,
    items: &[Acquire],
) -> Result<Vec<AcquireOutcome>, StoreError> {
    let mut outcomes = vec![None; items.len()];
    let mut locked = Vec::new();
    for round in 0..ROUNDS {
        let open: Vec<usize> = (0..items.len()).filter(|item| outcomes[*item].is_none()).collect();
        if open.is_empty() {
            break;
        }
        let asked = ask(connection, items, &open, &mut outcomes).await;
        locked = asked.map_err(|error| match round {
            0 => error,
            _ => fault::after_a_change(error, connection.location()),
        })?;
    }
    if let ([None], []) = (&outcomes[..], &locked[..]) {
        return Ok(vec![among_triggers(connection, items).await?]);
    }
    for (item, holder) in pinned(connection, items, locked).await? {
        outcomes[item] = Some(AcquireOutcome::Busy(holder));
    }
    Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or(AcquireOutcome::Locked)).collect())
}

/// How much oftener an item is asked for before a trigger is blamed. A race may be lost twice, but hardly so often.
const MORE_ROUNDS: usize = 3;

/// For one item alone that has lost a race in every round, or whose row a trigger swallows.
async fn among_triggers(
    connection: &mut Connection,
    items: &[Acquire],
) -> Result<AcquireOutcome, StoreError> {
    let Some(refusal) = swallow::suspicion(connection).await? else { return Ok(AcquireOutcome::Locked) };
    for _ in 0..MORE_ROUNDS {
        let mut outcome = [None];
        let asked = ask(connection, items, &[0], &mut outcome).await;
        let locked = asked.map_err(|error| fault::after_a_change(error, connection.location()))?;
        match outcome {
            [Some(outcome)] => return Ok(outcome),
            // It is somebody's after all.
            [None] if !locked.is_empty() => return Ok(AcquireOutcome::Locked),
            [None] => {}
        }
    }
    Err(refusal)
}

/// Items whose row is locked, each with the holder of the expired lease.
type Locked = Vec<(usize, Box<Holder>)>;

/// Asks for the open items and fills in their outcomes. Those that are worth asking for again stay open; the answer names
/// the locked ones among them.
async fn ask(
    connection: &mut Connection,
    items: &[Acquire],
    open: &[usize],
    outcomes: &mut [Option<AcquireOutcome>],
) -> Result<Locked, StoreError> {
    let asked: Vec<&Acquire> = open.iter().map(|item| &items[*item]).collect();
    let (mut unclear, mut locked) = (Vec::new(), Vec::new());
    for (item, answer) in open.iter().zip(grant_or_refuse(connection, &asked).await?) {
        match answer {
            AcquireVerdict::Final(outcome) => outcomes[*item] = Some(outcome),
            AcquireVerdict::Unsettled => unclear.push((*item, Some(AcquireOutcome::Locked))),
            AcquireVerdict::LostRace => unclear.push((*item, None)),
            AcquireVerdict::LockedExpired(holder) => locked.push((*item, holder)),
        }
    }
    let keys: Vec<_> = unclear.iter().map(|(item, _)| &items[*item].key).collect();
    let found = read_rows(connection, &keys).await;
    let found = found.map_err(|error| fault::after_a_change(error, connection.location()))?;
    for ((item, otherwise), row) in unclear.into_iter().zip(found) {
        let judged = match row {
            Some(row) => judge(connection, &items[item], &row)?,
            None => None,
        };
        // A row that was granted and is gone again was released in the meantime. It is not asked for again: that grant would
        // come after its own release, and nobody would give it back.
        outcomes[item] = judged.or(otherwise);
    }
    Ok(locked)
}

/// Those of the locked items that are pinned by a transaction of their last holder. It keeps them until it ends, which may
/// take long.
async fn pinned(
    connection: &mut Connection,
    items: &[Acquire],
    locked: Locked,
) -> Result<Locked, StoreError> {
    if locked.is_empty() {
        return Ok(locked);
    }
    let keys = || locked.iter().map(|(item, _)| &items[*item].key);
    let statement = Statement::new(
        include_str!("pinned.sql"),
        vec![
            Value::Texts(keys().map(SessionKey::account).collect()),
            Value::Texts(keys().map(SessionKey::session).collect()),
            Value::Uuids(locked.iter().map(|(_, holder)| holder.run_id.as_uuid()).collect()),
        ],
    );
    let rows = connection.fetch(&statement).await;
    let rows = rows.map_err(|error| fault::after_a_change(error, connection.location()))?;
    let mut is_pinned = vec![false; locked.len()];
    for row in &rows {
        is_pinned[row::item(connection, row, locked.len())?] = true;
    }
    Ok(locked.into_iter().zip(is_pinned).filter_map(|(item, is_pinned)| is_pinned.then_some(item)).collect())
}

/// The outcome that a row shows which was read after a race. `None` for an expired lease of another run.
fn judge(connection: &Connection, item: &Acquire, row: &PgRow) -> Result<Option<AcquireOutcome>, StoreError> {
    let holder = row::holder(connection, row)?;
    if holder.run_id == item.run_id {
        return Ok(Some(AcquireOutcome::Granted(row::grant(connection, row)?)));
    }
    Ok((!holder.expires_in.is_zero()).then(|| AcquireOutcome::Busy(Box::new(holder))))
}

async fn grant_or_refuse(
    connection: &mut Connection,
    items: &[&Acquire],
) -> Result<Vec<AcquireVerdict>, StoreError> {
    let mut rows = connection.fetch(&statement(items)).await;
    if let Err(StoreError::Unstorable { .. }) = rows {
        let in_ascii: Vec<_> = items.iter().map(|item| item.in_ascii()).collect();
        rows = connection.fetch(&statement(&in_ascii.iter().collect::<Vec<_>>())).await;
    }
    let rows = rows?;
    let mut answers: Vec<AcquireVerdict> = items.iter().map(|_| AcquireVerdict::LostRace).collect();
    for row in &rows {
        let item = row::item(connection, row, items.len())?;
        let answer = match connection.read::<&str>(row, "verdict")? {
            "granted" => AcquireVerdict::Final(AcquireOutcome::Granted(row::grant(connection, row)?)),
            "busy" => AcquireVerdict::Final(AcquireOutcome::Busy(Box::new(row::holder(connection, row)?))),
            "locked" => match row::holder(connection, row)? {
                // An earlier attempt of the same run.
                holder if holder.run_id == items[item].run_id => {
                    AcquireVerdict::Final(AcquireOutcome::Locked)
                }
                holder => AcquireVerdict::LockedExpired(Box::new(holder)),
            },
            "unwritten" => AcquireVerdict::LostRace,
            _ => AcquireVerdict::Unsettled,
        };
        answers[item] = answer;
    }
    Ok(answers)
}

fn statement<'a>(items: &[&'a Acquire]) -> Statement<'a> {
    Statement::new(
        ACQUIRE,
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
