//! Rows that a trigger swallows.
//!
//! A trigger of the host's that ends in `RAISE(IGNORE)` keeps a row from being written, and SQLite reports no error. To a
//! statement this looks like a lost race, or like a row that is not there. So the file is asked for its triggers.

use sqlx::SqliteConnection;

use super::failure::Failure;

const TRIGGERS: &str = "SELECT group_concat(name, ', ') FROM sqlite_schema \
    WHERE type = 'trigger' AND tbl_name = 'tenure_session_lease' AND name NOT LIKE 'tenure!_fence!_%' ESCAPE '!'";

/// The triggers that may have swallowed a row that was not written for no reason that is known.
pub(super) async fn suspects(sqlite: &mut SqliteConnection) -> Result<Option<String>, Failure> {
    let names: Vec<Option<String>> = sqlx::query_scalar(TRIGGERS).fetch_all(sqlite).await?;
    Ok(names.into_iter().flatten().next())
}

/// # Errors
/// There are such triggers.
pub(super) async fn refuse_if_possible(sqlite: &mut SqliteConnection) -> Result<(), Failure> {
    match suspects(sqlite).await? {
        Some(names) => Err(Failure::Swallowed(names)),
        None => Ok(()),
    }
}
