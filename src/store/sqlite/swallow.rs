//! Finds triggers that suppress writes.
//!
//! A trigger that somebody else has added may end in `RAISE(IGNORE)`. Then the row is not written, and SQLite reports
//! no error. To a statement this looks like a lost race, or like a row that does not exist. So the store looks for
//! triggers.

use sqlx::SqliteConnection;

use super::failure::Failure;

const TRIGGERS: &str = "SELECT group_concat(name, ', ') FROM sqlite_schema \
    WHERE type = 'trigger' AND tbl_name = 'tenure_session_lease' AND name NOT LIKE 'tenure!_fence!_%' ESCAPE '!'";

/// The names of the triggers that may have suppressed a write. `None` if there are none.
pub(super) async fn suspects(sqlite: &mut SqliteConnection) -> Result<Option<String>, Failure> {
    let names: Vec<Option<String>> = sqlx::query_scalar(TRIGGERS).fetch_all(sqlite).await?;
    Ok(names.into_iter().flatten().next())
}

/// Fails if a trigger may have suppressed the write.
///
/// # Errors
/// There are such triggers.
pub(super) async fn refuse_if_possible(sqlite: &mut SqliteConnection) -> Result<(), Failure> {
    match suspects(sqlite).await? {
        Some(names) => Err(Failure::Swallowed(names)),
        None => Ok(()),
    }
}
