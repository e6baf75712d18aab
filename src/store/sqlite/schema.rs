//! The schema in SQLite: its steps, and the SQL of the [runner](crate::store::schema).

use std::time::Duration;

use sqlx::{AssertSqlSafe, SqliteConnection};
use tokio::time::Instant;

use super::failure::Failure;
use crate::store::{
    KeepHistory, Migrated,
    schema::{self, Applied, Schema, SchemaConnection, Step},
};

pub(crate) const SCHEMA: Schema = Schema {
    steps: &[
        Step {
            version: 1,
            compatible_from: 1,
            is_history: false,
            sql: include_str!("../../../migrations/sqlite/0001_session_lease.sql"),
        },
        Step {
            version: 2,
            compatible_from: 1,
            is_history: true,
            sql: include_str!("../../../migrations/sqlite/0002_run_history.sql"),
        },
    ],
    needs: 1,
    remove_history: "DROP TRIGGER IF EXISTS tenure_fence_end_deleted; \
        DROP TRIGGER IF EXISTS tenure_fence_end_changed; \
        DROP TABLE IF EXISTS tenure_run_history",
    record: |Step { version, compatible_from, .. }| {
        format!(
            "INSERT INTO tenure_migration (version, compatible_from, applied_at) \
             VALUES ({version}, {compatible_from}, CAST(round(unixepoch('subsec') * 1000) AS INTEGER))"
        )
    },
};

/// How long to keep trying while other processes have the file locked. SQLite's `busy_timeout` is not enough: when
/// several processes switch a new file to write-ahead logging at the same time, SQLite answers "database is locked" at
/// once.
const PATIENCE: Duration = Duration::from_secs(10);

const BOOTSTRAP: &str = "\
-- The steps of the schema that were applied to this file.
CREATE TABLE IF NOT EXISTS tenure_migration (
    -- The number of the step.
    version INTEGER PRIMARY KEY,
    -- The oldest schema version whose releases still work with the schema after this step.
    compatible_from INTEGER NOT NULL,
    -- When the step was applied, in ms since 1970.
    applied_at INTEGER NOT NULL
) STRICT;
";

/// The script that sets up an empty file, for people who run it by hand.
pub(super) fn script(history: KeepHistory) -> String {
    format!("PRAGMA journal_mode = WAL;\nBEGIN IMMEDIATE;\n{BOOTSTRAP}{}COMMIT;\n", SCHEMA.script(history))
}

/// Fails unless this release can work with the schema.
pub(super) async fn check(sqlite: &mut SqliteConnection) -> Result<Applied, Failure> {
    Ok(SCHEMA.check(newest(sqlite).await?)?)
}

/// Switches the file to write-ahead logging and brings it to this release's schema. If both are already so, it only
/// reads, so that a start never waits for a writer.
pub(super) async fn ensure(sqlite: &mut SqliteConnection, history: KeepHistory) -> Result<Migrated, Failure> {
    let give_up_at = Instant::now() + PATIENCE;
    loop {
        match try_ensure(sqlite, history).await {
            Err(failure) if failure.is_busy() && Instant::now() < give_up_at => {
                // Jitter, so that processes that have collided once do not collide again and again.
                tokio::time::sleep(Duration::from_millis(fastrand::u64(1..=25))).await;
            }
            done => return done,
        }
    }
}

pub(super) async fn uses_wal(sqlite: &mut SqliteConnection) -> Result<bool, Failure> {
    let mode: Vec<String> = sqlx::query_scalar("PRAGMA journal_mode").fetch_all(sqlite).await?;
    Ok(mode.iter().any(|mode| mode == "wal"))
}

/// Lets a commit return without a flush if the file uses write-ahead logging, and returns whether it does.
pub(super) async fn flush_less(sqlite: &mut SqliteConnection) -> Result<bool, Failure> {
    let uses_wal = uses_wal(sqlite).await?;
    if uses_wal {
        sqlx::query("PRAGMA synchronous = NORMAL").execute(sqlite).await?;
    }
    Ok(uses_wal)
}

async fn try_ensure(sqlite: &mut SqliteConnection, history: KeepHistory) -> Result<Migrated, Failure> {
    if !uses_wal(sqlite).await? {
        sqlx::query("PRAGMA journal_mode = WAL").fetch_all(&mut *sqlite).await?;
        flush_less(sqlite).await?;
    }
    schema::migrate(&mut Migration(sqlite), history).await
}

struct Migration<'a>(&'a mut SqliteConnection);

impl SchemaConnection for Migration<'_> {
    type Error = Failure;

    const SCHEMA: Schema = SCHEMA;

    async fn newest(&mut self) -> Result<Option<Applied>, Failure> {
        newest(self.0).await
    }

    /// Takes the write lock at once. A plain BEGIN would take a read lock first, and the change to a write lock may
    /// fail.
    async fn begin(&mut self) -> Result<(), Failure> {
        self.execute("BEGIN IMMEDIATE").await
    }

    async fn bootstrap(&mut self) -> Result<(), Failure> {
        self.execute(BOOTSTRAP).await
    }

    async fn has_history(&mut self) -> Result<bool, Failure> {
        has_history(self.0).await
    }

    async fn execute(&mut self, sql: &str) -> Result<(), Failure> {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut *self.0).await?;
        Ok(())
    }
}

/// Whether the file has the table of the history.
pub(super) async fn has_history(sqlite: &mut SqliteConnection) -> Result<bool, Failure> {
    let found: Vec<i64> = sqlx::query_scalar(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'tenure_run_history'",
    )
    .fetch_all(sqlite)
    .await?;
    Ok(!found.is_empty())
}

/// The newest version that the file records. `None` if it has no schema.
async fn newest(sqlite: &mut SqliteConnection) -> Result<Option<Applied>, Failure> {
    let newest: Result<Vec<(i64, i64)>, Failure> =
        sqlx::query_as("SELECT version, compatible_from FROM tenure_migration ORDER BY version DESC LIMIT 1")
            .fetch_all(sqlite)
            .await
            .map_err(Failure::from);
    match newest {
        Ok(newest) => newest.first().copied().map(applied).transpose(),
        Err(failure) if failure.is_missing_table() => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn applied((version, compatible_from): (i64, i64)) -> Result<Applied, Failure> {
    Ok(Applied { version: number(version)?, compatible_from: number(compatible_from)? })
}

fn number(stored: i64) -> Result<u32, Failure> {
    stored.try_into().map_err(|_| Failure::Unreadable(format!("tenure_migration holds the version {stored}")))
}
