//! Rows that a trigger swallows.
//!
//! A trigger of somebody else's that returns NULL keeps a row from being written, and PostgreSQL reports no error. To a
//! statement this looks like a row that it could not lock, so the table is asked for its triggers.

use sqlx::postgres::PgRow;

use super::{connection::Connection, naming::Naming, statement::Statement};
use crate::store::StoreError;

pub(super) const TRIGGERS: &str = include_str!("triggers.sql");

/// For one item alone, whose row nobody else has locked, and which still was not written. Of several items, the caller asks
/// for each one alone again.
///
/// # Errors
/// There are triggers that may be the reason.
pub(super) async fn check(connection: &mut Connection, rows: &[PgRow]) -> Result<(), StoreError> {
    if let [row] = rows
        && connection.read::<&str>(row, "verdict")? == "unwritten"
        && let Some(refusal) = suspicion(connection).await?
    {
        return Err(refusal);
    }
    Ok(())
}

/// What to answer if a row was not written for no other reason; `None` if no trigger can be the reason.
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
