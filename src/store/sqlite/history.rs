//! The history of runs that are over. Triggers write it (see the migration). This adds what only tenure's statements know,
//! reads it, and removes old records.
//!
//! A trigger that fails makes its statement fail. A lease must not depend on that (invariant I12). So a statement that
//! failed, perhaps because of the history, is [sent again without the triggers](set_aside).

use std::time::Duration;

use serde_json::json;
use sqlx::{AssertSqlSafe, Row as _, Sqlite, SqliteConnection, query::Query, sqlite::SqliteRow};

use super::{batch::batch, failure::Failure, row, schema};
use crate::{history::PastRun, store::HistoryPage, trace};

const HISTORY: &str = include_str!("history.sql");
pub(super) const NOTE_RELEASE: &str = include_str!("note_release.sql");
pub(super) const NOTE_BREAK: &str = include_str!("note_break.sql");
const TABLE: &str = "tenure_run_history";
const TRIGGERS: &str = "SELECT sql FROM sqlite_schema WHERE type = 'trigger' \
    AND name IN ('tenure_fence_end_deleted', 'tenure_fence_end_changed')";
const DROP_TRIGGERS: &str = "DROP TRIGGER IF EXISTS tenure_fence_end_deleted; \
    DROP TRIGGER IF EXISTS tenure_fence_end_changed";

/// Whether the history's table was missing the last time. It may come and go while a connection is open. A file that has
/// it is not asked for it each time.
#[derive(Debug, Default)]
pub(super) struct Presence {
    was_missing: bool,
}

/// Executes a write, and notes in the same transaction what only it knows. Without a history it is the write alone. The
/// values must be the same for both statements.
pub(super) async fn noted<'q>(
    sqlite: &mut SqliteConnection,
    presence: &mut Presence,
    write: &'static str,
    note: &'static str,
    bind: impl Fn(
        Query<'q, Sqlite, sqlx::sqlite::SqliteArguments>,
    ) -> Query<'q, Sqlite, sqlx::sqlite::SqliteArguments>,
) -> Result<Vec<SqliteRow>, Failure> {
    if presence.was_missing {
        presence.was_missing = !schema::has_history(sqlite).await?;
    }
    if !presence.was_missing {
        // One message, so that the write lock is not kept while this task waits for its turn. A savepoint, because there
        // may be a transaction.
        let both = format!("SAVEPOINT tenure_note; {write}; {note}; RELEASE tenure_note");
        match bind(sqlx::query(AssertSqlSafe(both))).fetch_all(&mut *sqlite).await {
            Ok(rows) => return Ok(rows),
            Err(error) => {
                // These fail if the transaction was rolled back.
                let _ = sqlx::raw_sql("ROLLBACK TO tenure_note").execute(&mut *sqlite).await;
                let _ = sqlx::raw_sql("RELEASE tenure_note").execute(&mut *sqlite).await;
                let failure = Failure::from(error);
                if !may_be_the_reason(&failure) {
                    return Err(failure);
                }
                match failure.is_missing_table() {
                    true => presence.was_missing = true,
                    false => {
                        tracing::warn!(
                            target: trace::STORE,
                            ?failure,
                            "the history of runs lacks what only this statement knows"
                        );
                    }
                }
            }
        }
    }
    Ok(bind(sqlx::query(write)).fetch_all(sqlite).await?)
}

/// The triggers that write the history, while a transaction is open that does without them.
pub(super) struct SetAside {
    failure: Failure,
    /// The statements that create them.
    triggers: Vec<String>,
    is_kept: bool,
}

/// After a write that failed, perhaps because of the history: begins a transaction without its triggers, in which the
/// caller tries again.
///
/// # Errors
/// The same failure, if the history is not the reason.
pub(super) async fn set_aside(sqlite: &mut SqliteConnection, failure: Failure) -> Result<SetAside, Failure> {
    if !may_be_the_reason(&failure) {
        return Err(failure);
    }
    let triggers: Vec<String> = sqlx::query_scalar(TRIGGERS).fetch_all(&mut *sqlite).await?;
    if triggers.is_empty() {
        return Err(failure);
    }
    let is_kept = schema::has_history(sqlite).await?;
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut *sqlite).await?;
    if let Err(error) = sqlx::raw_sql(DROP_TRIGGERS).execute(&mut *sqlite).await {
        tracing::debug!(target: trace::STORE, %error, "the triggers of the history cannot be set aside");
        let _ = sqlx::raw_sql("ROLLBACK").execute(sqlite).await;
        return Err(failure);
    }
    Ok(SetAside { failure, triggers, is_kept })
}

impl SetAside {
    /// Ends the transaction. If the write has succeeded now, the history was the reason, and the triggers come back with
    /// the same commit. If the history's table is gone, they do not: it stays off until it is asked for again.
    pub(super) async fn put_back<T>(
        self,
        sqlite: &mut SqliteConnection,
        again: Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Ok(done) = again else {
            let _ = sqlx::raw_sql("ROLLBACK").execute(sqlite).await;
            return Err(self.failure);
        };
        tracing::warn!(
            target: trace::STORE,
            failure = ?self.failure,
            is_kept = self.is_kept,
            "the history of runs cannot be written"
        );
        if self.is_kept {
            let back = self.triggers.join(";\n");
            // If this fails, the history is off.
            let _ = sqlx::raw_sql(AssertSqlSafe(back)).execute(&mut *sqlite).await;
        }
        match sqlx::raw_sql("COMMIT").execute(&mut *sqlite).await {
            Ok(_) => Ok(done),
            Err(error) => {
                let _ = sqlx::raw_sql("ROLLBACK").execute(sqlite).await;
                Err(Failure::from(error).after_a_write())
            }
        }
    }
}

fn may_be_the_reason(failure: &Failure) -> bool {
    failure.is_missing_table() || failure.is_rejection() || failure.is_full()
}

#[cfg(feature = "diagnosis")]
pub(super) async fn examine(
    sqlite: &mut SqliteConnection,
) -> Result<crate::store::finding::Finding, Failure> {
    let triggers: Vec<String> = sqlx::query_scalar(TRIGGERS).fetch_all(&mut *sqlite).await?;
    let has_table = schema::has_history(sqlite).await?;
    let has_triggers = triggers.len() == 2 || (!has_table && !triggers.is_empty());
    Ok(crate::store::finding::Finding::history(has_table, has_triggers, true))
}

pub(super) async fn history(
    sqlite: &mut SqliteConnection,
    page: &HistoryPage,
) -> Result<Option<Vec<PastRun>>, Failure> {
    if !schema::has_history(sqlite).await? {
        return Ok(None);
    }
    let rows = sqlx::query(HISTORY)
        .bind(page.key.account())
        .bind(page.key.session())
        .bind(page.before.map(|fence| fence.as_i64()))
        .bind(page.limit)
        .fetch_all(sqlite)
        .await?;
    rows.iter().map(row::past_run).collect::<Result<_, _>>().map(Some)
}

/// First a read, because as part of the delete the scan would delay every renewal.
pub(super) async fn sweep(sqlite: &mut SqliteConnection, keep: Duration, limit: u32) -> Result<u64, Failure> {
    if !schema::has_history(sqlite).await? {
        return Ok(0);
    }
    let old = format!(
        "SELECT account_id, session_id, fence FROM {TABLE} \
         WHERE ended_at <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) - ?1 LIMIT ?2"
    );
    let keep = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
    let old = sqlx::query(AssertSqlSafe(old)).bind(keep).bind(limit).fetch_all(&mut *sqlite).await?;
    if old.is_empty() {
        return Ok(0);
    }
    let keys = old
        .iter()
        .map(|row| {
            let (account, session): (&str, &str) = (row.try_get("account_id")?, row.try_get("session_id")?);
            let fence: i64 = row.try_get("fence")?;
            Ok(json!({ "account": account, "session": session, "fence": fence }))
        })
        .collect::<Result<Vec<_>, Failure>>()?;
    let delete = format!(
        "DELETE FROM {TABLE} WHERE (account_id, session_id, fence) IN \
         (SELECT value ->> 'account', value ->> 'session', value ->> 'fence' FROM json_each(?1))"
    );
    let deleted = sqlx::query(AssertSqlSafe(delete)).bind(batch(keys.into_iter())).execute(sqlite).await?;
    Ok(deleted.rows_affected())
}
