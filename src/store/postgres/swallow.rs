//! Finds triggers that suppress writes.
//!
//! A trigger that somebody else has added may return NULL. Then the row is not written, and PostgreSQL reports no
//! error. To a statement this looks like a row that it could not lock. So the store looks for triggers on the table.

use sqlx::postgres::PgRow;

use super::{connection::Connection, naming::Naming, statement::Statement};
use crate::store::StoreError;

pub(super) const TRIGGERS: &str = include_str!("triggers.sql");

/// Fails if a trigger may have suppressed the write of a single item whose row was not locked by another transaction.
/// If there are several items, the caller asks for each one alone again.
///
/// # Errors
/// There are such triggers.
pub(super) async fn check(connection: &mut Connection, rows: &[PgRow]) -> Result<(), StoreError> {
    if let [row] = rows
        && connection.read::<&str>(row, "verdict")? == "unwritten"
        && let Some(refusal) = suspicion(connection).await?
    {
        return Err(refusal);
    }
    Ok(())
}

/// The error to return if no other reason explains why a row was not written. `None` if no trigger can be the reason.
pub(super) async fn suspicion(connection: &mut Connection) -> Result<Option<StoreError>, StoreError> {
    let row = connection.fetch_one(&Statement::new(TRIGGERS, Vec::new())).await?;
    let names = connection.read::<Option<&str>>(&row, "names")?;
    Ok(names.map(|names| refusal(connection.location(), connection.naming(), names)))
}

pub(super) fn refusal(location: &str, naming: &Naming, triggers: &str) -> StoreError {
    let table = naming.text("tenure.session_lease");
    StoreError::Rejected {
        location: location.to_owned(),
        detail: format!(
            "a row of {table} was not written, and no error was raised: a trigger swallows it (RETURN NULL); look at \
             {triggers}, which must return NEW, or OLD for a deletion, or DROP TRIGGER … ON {table}"
        ),
    }
}
