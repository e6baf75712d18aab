//! Rows that a trigger swallows.
//!
//! A trigger of somebody else's that returns NULL keeps a row from being written, and PostgreSQL reports no error. To a
//! statement this looks like a row that it could not lock, so the table is asked for its triggers.

use sqlx::postgres::PgRow;

use super::{connection::Connection, naming::Naming, statement::Statement};
use crate::store::StoreError;

pub(super) const TRIGGERS: &str = include_str!("triggers.sql");

/// # Errors
/// The only item that was asked for has a row that nobody else has locked, and still it was not written. Of several
/// items, each is asked for alone by whoever asks: then this tells which.
pub(super) async fn check(connection: &mut Connection, rows: &[PgRow]) -> Result<(), StoreError> {
    if let [row] = rows
        && connection.read::<&str>(row, "verdict")? == "unwritten"
    {
        refuse_if_possible(connection).await?;
    }
    Ok(())
}

/// For a row that was not written for no reason that is known.
///
/// # Errors
/// There are triggers that may be the reason.
pub(super) async fn refuse_if_possible(connection: &mut Connection) -> Result<(), StoreError> {
    let row = connection.fetch_one(&Statement::new(TRIGGERS, Vec::new())).await?;
    match connection.read::<Option<&str>>(&row, "names")? {
        Some(names) => Err(refusal(connection.location(), connection.naming(), names)),
        None => Ok(()),
    }
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
