//! Acquire. One statement grants or refuses; further statements are for items that lost a race or found a locked row.

use std::sync::LazyLock;

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

/// An acquire some of whose items have a limit. `limit.sql` explains why it comes twice. A later statement sees what
/// was committed after the first one began only under READ COMMITTED, which may not be the default behind PgBouncer.
static ACQUIRE_LIMITED: LazyLock<&'static str> = LazyLock::new(|| {
    let limit = include_str!("limit.sql");
    let acquire = ACQUIRE.replace(PLACE_OF_THE_LIMIT, UNLESS_REFUSED);
    format!("SET TRANSACTION ISOLATION LEVEL READ COMMITTED;\n{limit};\n{limit};\n{acquire}").leak()
});

/// A line of `acquire.sql`.
const PLACE_OF_THE_LIMIT: &str = "-- Here a limited acquire leaves out what it refuses.";
const UNLESS_REFUSED: &str = "WHERE item <> ALL ( \
    string_to_array(coalesce(current_setting('tenure_limit.refused', true), ''), ',')::bigint[])";

/// How many times an item is tried. The second time is for an item that lost a race and then found no holder, or whose
/// row was locked.
const ROUNDS: usize = 2;

/// What is known about an item after one statement.
enum AcquireVerdict {
    Final(AcquireOutcome),
    /// The row is this run's, but its fence may have been issued a second time. "Fences" in the migration explains
    /// this.
    Unsettled,
    /// Another run was faster, and this statement's snapshot is too old to show it. Or a trigger suppresses the write.
    LostRace,
    /// This holder's lease has expired, and its row is locked: by a statement for a moment, or by a pin.
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

/// How many more times an item is tried before a trigger is blamed. A run may lose a race twice, but hardly this often.
const MORE_ROUNDS: usize = 3;

/// Tries a single item again that has lost a race in every round. The cause may be a trigger that suppresses the write.
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
            // Another run has the row, so it was a race after all.
            [None] if !locked.is_empty() => return Ok(AcquireOutcome::Locked),
            [None] => {}
        }
    }
    Err(refusal)
}

/// Items whose row is locked, each with the holder of the expired lease.
type Locked = Vec<(usize, Box<Holder>)>;

/// Tries the open items and fills in their outcomes. Items that are worth another try stay open. Returns those of them
/// that are locked.
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
        // If a granted row is gone, it was released in the meantime. It must not be acquired again: that grant would
        // come after the run's own release, and nothing would release it.
        outcomes[item] = judged.or(otherwise);
    }
    Ok(locked)
}

/// The locked items whose row is pinned by a transaction of the last holder. Such a lock lasts until that transaction
/// ends, which may take long.
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

/// The outcome according to a row that was read after a race. `None` for an expired lease of another run.
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
                // The row is the run's own, from an earlier attempt.
                holder if holder.run_id == items[item].run_id => {
                    AcquireVerdict::Final(AcquireOutcome::Locked)
                }
                holder => AcquireVerdict::LockedExpired(Box::new(holder)),
            },
            "full" => {
                let running = connection.read::<i64>(row, "running")?;
                let running = running.try_into().unwrap_or(u32::MAX);
                AcquireVerdict::Final(AcquireOutcome::Full { running })
            }
            "contended" => AcquireVerdict::Final(AcquireOutcome::Locked),
            // The holder is not in this answer. Whoever asks reads the row next, as after a race.
            "unwritten" | "held" => AcquireVerdict::LostRace,
            _ => AcquireVerdict::Unsettled,
        };
        answers[item] = answer;
    }
    Ok(answers)
}

fn statement<'a>(items: &[&'a Acquire]) -> Statement<'a> {
    let mut values = vec![
        Value::Texts(items.iter().map(|item| item.key.account()).collect()),
        Value::Texts(items.iter().map(|item| item.key.session()).collect()),
        Value::Uuids(items.iter().map(|item| item.run_id.as_uuid()).collect()),
        Value::Uuids(items.iter().map(|item| item.node.as_uuid()).collect()),
        Value::Texts(items.iter().map(|item| item.label.as_str()).collect()),
        Value::Texts(items.iter().map(|item| item.phase.as_str()).collect()),
        Value::Numbers(items.iter().map(|item| millis(item.ttl)).collect()),
    ];
    let limits: Vec<_> = items.iter().map(|item| item.limit_per_account.map(i64::from)).collect();
    if limits.iter().all(Option::is_none) {
        return Statement::new(ACQUIRE, values);
    }
    values.push(Value::NumbersOrNull(limits));
    Statement::script(*ACQUIRE_LIMITED, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limited_acquire_leaves_out_what_its_limits_refuse() {
        assert_eq!(ACQUIRE.matches(PLACE_OF_THE_LIMIT).count(), 1);
        assert_eq!(ACQUIRE_LIMITED.matches(UNLESS_REFUSED).count(), 1);
    }
}
