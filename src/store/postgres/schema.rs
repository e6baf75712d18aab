//! The schema's version, and how it gets there.
//!
//! A runner of our own: sqlx's would keep its record in the host application's `_sqlx_migrations`, and has no word
//! for compatibility. Schemas may be newer than the release that meets them, as long as they say so: that is what
//! lets a fleet be upgraded one process at a time.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor as _, Row};

use super::{
    fault,
    naming::{DEFAULT, Naming},
    statement::Session,
};
use crate::store::{Bounds, Migrated, StoreError};

/// Migrations wait for one another, and for transactions that use the table.
pub(super) const BOUNDS: Bounds =
    Bounds { statement: Duration::from_secs(60), lock: Duration::from_secs(30) };

/// A step from the version before.
struct Migration {
    version: u32,
    /// The oldest schema version whose releases still work after this step.
    compatible_from: u32,
    sql: &'static str,
}

const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    compatible_from: 1,
    sql: include_str!("../../../migrations/postgres/0001_session_lease.sql"),
}];

/// The version of the last of [`MIGRATIONS`].
const KNOWN: u32 = 1;

/// `tenure` in ASCII: the key of the advisory lock that migrations of the default schema hold, one database apart from
/// another.
const LOCK: i64 = 0x7465_6e75_7265;

const MAY_CREATE: &str = "a role that migrates needs: GRANT CREATE ON DATABASE, or to own the schema tenure; \
    migrate as its owner once, then grant the rest their use";

/// Whether this release can work with the newest version that was applied, given with its `compatible_from`.
pub(super) fn check(newest: Option<(i32, i32)>, location: &str) -> Result<(), StoreError> {
    let location = location.to_owned();
    let Some((version, compatible_from)) = newest else {
        return Err(StoreError::SchemaMissing { location, detail: "no version was applied".to_owned() });
    };
    let (found, compatible_from) = (version.unsigned_abs(), compatible_from.unsigned_abs());
    if found < KNOWN {
        let detail = format!("it is at version {found}, this release needs {KNOWN}");
        return Err(StoreError::SchemaMissing { location, detail });
    }
    if compatible_from > KNOWN {
        return Err(StoreError::SchemaTooNew { location, found, compatible_from, known: KNOWN });
    }
    Ok(())
}

/// Looks first without any lock or right to create, and creates only what is missing.
pub(super) async fn migrate(session: &mut Session) -> Result<Migrated, StoreError> {
    let location = session.location().to_owned();
    let naming = session.naming().clone();
    let may_create = naming.text(MAY_CREATE);
    let denied = |error| fault::on_statement(error, &location, &may_create);
    let found = newest(session.connection(), &naming).await;
    let found = found.map_err(|error| match denied(error) {
        StoreError::SchemaMissing { detail, .. } => StoreError::Url { detail: taken(&naming, &detail) },
        other => other,
    })?;
    if let Some(current) = current(found, &location)? {
        return Ok(current);
    }
    let mut transaction =
        session.connection().begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await.map_err(denied)?;
    transaction.execute(sqlx::raw_sql(AssertSqlSafe(lock(&naming)))).await.map_err(denied)?;
    // Somebody else may have been faster; what it committed is visible from behind the lock.
    let found = newest(&mut transaction, &naming).await.map_err(denied)?;
    if let Some(current) = current(found, &location)? {
        return Ok(current);
    }
    let from = found.map_or(0, |(version, _)| version.unsigned_abs());
    apply(&mut transaction, &naming, from).await.map_err(denied)?;
    transaction.commit().await.map_err(denied)?;
    Ok(Migrated::new(from, KNOWN))
}

/// The same for an empty database, as one transaction to be run by hand.
pub(super) fn script(naming: &Naming) -> String {
    let mut script = naming.text(CREATE_SCHEMA).into_owned() + ";\n";
    script.push_str(&naming.text(include_str!("bootstrap.sql")));
    for step in MIGRATIONS {
        script.push_str(&format!("\n{}\n{};\n", naming.text(step.sql), record(step, naming)));
    }
    format!("BEGIN;\n{};\n{script}COMMIT;\n", lock(naming))
}

/// There is a table where our record would be.
fn taken(naming: &Naming, detail: &str) -> String {
    let name = naming.name();
    format!(
        "the schema \"{name}\" has a table \"migration\" that is not tenure's ({detail}); name a schema of tenure's own \
         with the URL's parameter schema=, or rename that table"
    )
}

/// `Some` when there is nothing to do.
fn current(newest: Option<(i32, i32)>, location: &str) -> Result<Option<Migrated>, StoreError> {
    match check(newest, location) {
        Ok(()) => {
            Ok(newest.map(|(version, _)| Migrated::new(version.unsigned_abs(), version.unsigned_abs())))
        }
        Err(StoreError::SchemaMissing { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The version that is in force and its `compatible_from`; `None` without a schema.
pub(super) async fn newest(
    connection: &mut sqlx::PgConnection,
    naming: &Naming,
) -> Result<Option<(i32, i32)>, sqlx::Error> {
    // From the catalog itself: name look-ups (to_regclass) may answer from a cache that an advisory lock does not
    // bring up to date, and would miss a schema that was committed while this waited for the lock.
    let exists = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c \
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        WHERE n.nspname = 'tenure' AND c.relname = 'migration')";
    let exists: bool = connection.fetch_one(sqlx::raw_sql(naming.sql(exists))).await?.try_get(0)?;
    if !exists {
        return Ok(None);
    }
    let newest = "SELECT version, compatible_from FROM tenure.migration ORDER BY version DESC LIMIT 1";
    let row = connection.fetch_optional(sqlx::raw_sql(naming.sql(newest))).await?;
    row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose()
}

async fn apply(connection: &mut sqlx::PgConnection, naming: &Naming, from: u32) -> Result<(), sqlx::Error> {
    // `CREATE SCHEMA IF NOT EXISTS` would ask for the right to create even where the schema exists.
    let exists = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'tenure')";
    let exists: bool = connection.fetch_one(sqlx::raw_sql(naming.sql(exists))).await?.try_get(0)?;
    if !exists {
        connection.execute(sqlx::raw_sql(naming.sql(CREATE_SCHEMA))).await?;
    }
    connection.execute(sqlx::raw_sql(naming.sql(include_str!("bootstrap.sql")))).await?;
    for step in MIGRATIONS.iter().filter(|step| step.version > from) {
        connection.execute(sqlx::raw_sql(naming.sql(step.sql))).await?;
        connection.execute(sqlx::raw_sql(AssertSqlSafe(record(step, naming)))).await?;
    }
    Ok(())
}

const CREATE_SCHEMA: &str = "CREATE SCHEMA tenure";

fn record(Migration { version, compatible_from, .. }: &Migration, naming: &Naming) -> String {
    let table = naming.text("tenure.migration");
    format!("INSERT INTO {table} (version, compatible_from) VALUES ({version}, {compatible_from})")
}

/// Migrations of one schema wait for one another, and for those of no other schema.
fn lock(naming: &Naming) -> String {
    match naming.name() {
        DEFAULT => format!("SELECT pg_advisory_xact_lock({LOCK})"),
        other => format!("SELECT pg_advisory_xact_lock(hashtextextended('{other}', {LOCK}))"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_migration_is_the_next_and_names_a_version_it_can_be_compatible_with() {
        for (n, step) in MIGRATIONS.iter().enumerate() {
            assert_eq!(step.version as usize, n + 1);
            assert!((1..=step.version).contains(&step.compatible_from));
        }
        assert_eq!(MIGRATIONS.len(), KNOWN as usize);
    }

    #[test]
    fn a_newer_schema_is_accepted_as_long_as_it_says_so() {
        let known = KNOWN as i32;
        assert_eq!(check(Some((known, 1)), "db"), Ok(()));
        assert_eq!(check(Some((known + 5, known)), "db"), Ok(()));
        assert!(matches!(check(Some((known + 5, known + 1)), "db"), Err(StoreError::SchemaTooNew { .. })));
        assert!(matches!(check(Some((0, 0)), "db"), Err(StoreError::SchemaMissing { .. })));
        assert!(matches!(check(None, "db"), Err(StoreError::SchemaMissing { .. })));
    }
}
