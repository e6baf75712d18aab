//! The schema: applied once, however many processes start on one new file, and checked by every connection.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection};
use tokio::time::Instant;

use super::failure::Failure;
use crate::store::Migrated;

/// One step of the schema.
struct Migration {
    version: u32,
    /// The oldest schema version whose releases still work with the schema after this step: what lets old and
    /// new releases share a file while an upgrade rolls out.
    compatible_from: u32,
    sql: &'static str,
}

const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    compatible_from: 1,
    sql: include_str!("../../../migrations/sqlite/0001_session_lease.sql"),
}];

/// How long to go on trying while others hold the file. `busy_timeout` is not enough: the switch of a new file
/// to write-ahead logging answers "database is locked" at once when several processes try it together.
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

/// What sets up an empty file, to be run by hand.
pub(super) fn script() -> String {
    let mut script = format!("PRAGMA journal_mode = WAL;\nBEGIN IMMEDIATE;\n{BOOTSTRAP}");
    for migration in MIGRATIONS {
        script.push_str(&format!("\n{}\n{};\n", migration.sql, record(migration)));
    }
    script.push_str("COMMIT;\n");
    script
}

fn record(Migration { version, compatible_from, .. }: &Migration) -> String {
    format!(
        "INSERT INTO tenure_migration \
         VALUES ({version}, {compatible_from}, CAST(round(unixepoch('subsec') * 1000) AS INTEGER))"
    )
}

fn known() -> u32 {
    MIGRATIONS.last().map_or(0, |migration| migration.version)
}

/// Fails unless this release can work with the schema.
pub(super) async fn check(sqlite: &mut SqliteConnection) -> Result<(), Failure> {
    match installed(sqlite).await? {
        Some((found, _)) if found == known() => Ok(()),
        Some((found, compatible_from)) if found > known() => accept(found, compatible_from),
        Some((found, _)) => {
            Err(Failure::SchemaMissing(format!("it has version {found}, this release needs {}", known())))
        }
        None => Err(Failure::SchemaMissing("there is none".to_owned())),
    }
}

/// Brings the file to write-ahead logging and to this release's schema. A file that is there already is only
/// read, so that starting never waits for a writer.
pub(super) async fn ensure(sqlite: &mut SqliteConnection) -> Result<Migrated, Failure> {
    let give_up_at = Instant::now() + PATIENCE;
    loop {
        match try_ensure(sqlite).await {
            Err(failure) if failure.is_busy() && Instant::now() < give_up_at => {
                // Jitter, so that processes which collided once do not go on colliding.
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

async fn try_ensure(sqlite: &mut SqliteConnection) -> Result<Migrated, Failure> {
    if !uses_wal(sqlite).await? {
        sqlx::query("PRAGMA journal_mode = WAL").fetch_all(&mut *sqlite).await?;
    }
    match installed(sqlite).await? {
        Some((found, _)) if found == known() => Ok(Migrated::new(found, found)),
        _ => migrate(sqlite).await,
    }
}

async fn migrate(sqlite: &mut SqliteConnection) -> Result<Migrated, Failure> {
    // Takes the write lock first: what is installed cannot change before the commit.
    let mut transaction = sqlite.begin_with("BEGIN IMMEDIATE").await?;
    let (from, compatible_from) = installed(&mut transaction).await?.unwrap_or((0, 0));
    if from > known() {
        accept(from, compatible_from)?;
        return Ok(Migrated::new(from, from));
    }
    sqlx::raw_sql(BOOTSTRAP).execute(&mut *transaction).await?;
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > from) {
        apply(&mut transaction, migration).await?;
    }
    transaction.commit().await?;
    Ok(Migrated::new(from, known()))
}

async fn apply(transaction: &mut SqliteConnection, migration: &Migration) -> Result<(), Failure> {
    sqlx::raw_sql(migration.sql).execute(&mut *transaction).await?;
    sqlx::raw_sql(AssertSqlSafe(record(migration))).execute(transaction).await?;
    Ok(())
}

/// The newest version in the file, and the oldest that its schema is compatible with.
pub(super) async fn installed(sqlite: &mut SqliteConnection) -> Result<Option<(u32, u32)>, Failure> {
    let newest: Result<Vec<(i64, i64)>, Failure> =
        sqlx::query_as("SELECT version, compatible_from FROM tenure_migration ORDER BY version DESC LIMIT 1")
            .fetch_all(sqlite)
            .await
            .map_err(Failure::from);
    match newest {
        Ok(newest) => {
            newest.first().map(|(version, from)| Ok((number(*version)?, number(*from)?))).transpose()
        }
        Err(failure) if failure.is_missing_table() => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn number(stored: i64) -> Result<u32, Failure> {
    stored.try_into().map_err(|_| Failure::Unreadable(format!("tenure_migration holds the version {stored}")))
}

fn accept(found: u32, compatible_from: u32) -> Result<(), Failure> {
    if compatible_from <= known() {
        return Ok(());
    }
    Err(Failure::SchemaTooNew { found, compatible_from, known: known() })
}
