//! The schema in PostgreSQL: its steps, and the SQL of the [runner](crate::store::schema).

use std::time::Duration;

use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Row as _};
use tokio::time::{Instant, sleep};

use super::{
    connection::Connection,
    fault,
    naming::{DEFAULT, Naming},
};
use crate::store::{
    Bounds, KeepHistory, Migrated, StoreError,
    schema::{self, Applied, Schema, SchemaConnection, Step, Unfit},
};

pub(crate) const SCHEMA: Schema = Schema {
    steps: &[
        Step {
            version: 1,
            compatible_from: 1,
            is_history: false,
            sql: include_str!("../../../migrations/postgres/0001_session_lease.sql"),
        },
        Step {
            version: 2,
            compatible_from: 1,
            is_history: true,
            sql: include_str!("../../../migrations/postgres/0002_run_history.sql"),
        },
    ],
    needs: 1,
    remove_history: "DROP TRIGGER IF EXISTS record_deletions ON tenure.session_lease; \
        DROP TRIGGER IF EXISTS record_change ON tenure.session_lease; \
        DROP FUNCTION IF EXISTS tenure.record_deletions(); \
        DROP FUNCTION IF EXISTS tenure.record_change(); \
        DROP TABLE IF EXISTS tenure.run_history",
    record: |Step { version, compatible_from, .. }| {
        format!(
            "INSERT INTO tenure.migration (version, compatible_from) VALUES ({version}, {compatible_from})"
        )
    },
};

/// The bounds of a migration's statements. Migrations wait for one another, and for transactions that use the table.
pub(super) const BOUNDS: Bounds =
    Bounds { statement: Duration::from_secs(60), lock: Duration::from_secs(30) };

/// How long a statement of a migration waits for the lock of a table, in milliseconds. Every statement of every run that
/// needs the table waits behind it, so a renewal must hardly notice.
const TABLE_LOCK: u64 = 100;

const CREATE_SCHEMA: &str = "CREATE SCHEMA tenure";

const MAY_CREATE: &str = "a role that migrates needs: GRANT CREATE ON DATABASE, or must own the schema tenure; \
    migrate once as the owner, then grant the other roles what they need";

/// Fails if this release cannot work with the newest version that was applied.
pub(super) fn check(newest: Option<Applied>, location: &str) -> Result<(), StoreError> {
    SCHEMA.check(newest).map(drop).map_err(|unfit| unfit.at(location))
}

pub(super) async fn migrate(
    connection: &mut Connection,
    history: KeepHistory,
) -> Result<Migrated, StoreError> {
    let (location, naming) = (connection.location().to_owned(), connection.naming().clone());
    let mut migration = Migration { connection: connection.raw(), naming: &naming };
    let give_up_at = Instant::now() + BOUNDS.lock;
    let migrated = loop {
        match schema::migrate(&mut migration, history).await {
            // The transactions that are in the way may end in the meantime.
            Err(MigrationFailure::Sql(error))
                if fault::is_lock_timeout(&error) && Instant::now() < give_up_at =>
            {
                sleep(Duration::from_millis(fastrand::u64(TABLE_LOCK..=4 * TABLE_LOCK))).await;
            }
            migrated => break migrated,
        }
    };
    migrated.map_err(|failure| match failure {
        MigrationFailure::Unfit(unfit) => unfit.at(&location),
        MigrationFailure::Sql(error) => fault::on_statement(error, &location, &naming.text(MAY_CREATE)),
        MigrationFailure::Record(error) => {
            match fault::on_statement(error, &location, &naming.text(MAY_CREATE)) {
                StoreError::SchemaMissing { detail, .. } => {
                    StoreError::Url { detail: taken(&naming, &detail) }
                }
                other => other,
            }
        }
    })
}

/// The script that sets up an empty database in one transaction, for people who run it by hand.
pub(super) fn script(naming: &Naming, history: KeepHistory) -> String {
    let script = format!("{CREATE_SCHEMA};\n{}{}", include_str!("bootstrap.sql"), SCHEMA.script(history));
    format!("BEGIN;\n{};\n{}COMMIT;\n", lock(naming), naming.text(&script))
}

/// The message when another program's table has the name of our record.
fn taken(naming: &Naming, detail: &str) -> String {
    let name = naming.name();
    format!(
        "the schema \"{name}\" has a table \"migration\" that is not tenure's ({detail}); name a schema of tenure's own \
         with the URL's parameter schema=, or rename that table"
    )
}

struct Migration<'a> {
    connection: &'a mut PgConnection,
    naming: &'a Naming,
}

enum MigrationFailure {
    Unfit(Unfit),
    Sql(sqlx::Error),
    /// The record of what was applied could not be read.
    Record(sqlx::Error),
}

impl From<Unfit> for MigrationFailure {
    fn from(unfit: Unfit) -> Self {
        Self::Unfit(unfit)
    }
}

impl SchemaConnection for Migration<'_> {
    type Error = MigrationFailure;

    const SCHEMA: Schema = SCHEMA;

    async fn newest(&mut self) -> Result<Option<Applied>, MigrationFailure> {
        newest(self.connection, self.naming).await.map_err(MigrationFailure::Record)
    }

    async fn begin(&mut self) -> Result<(), MigrationFailure> {
        self.execute("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        let lock = sqlx::raw_sql(AssertSqlSafe(lock(self.naming)));
        self.connection.execute(lock).await.map_err(MigrationFailure::Sql)?;
        self.execute(&format!("SET LOCAL lock_timeout = {TABLE_LOCK}")).await
    }

    async fn has_history(&mut self) -> Result<bool, MigrationFailure> {
        self.holds(HAS_HISTORY).await
    }

    async fn bootstrap(&mut self) -> Result<(), MigrationFailure> {
        // `CREATE SCHEMA IF NOT EXISTS` would need the right to create even if the schema exists.
        let exists = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'tenure')";
        if !self.holds(exists).await? {
            self.execute(CREATE_SCHEMA).await?;
        }
        self.execute(include_str!("bootstrap.sql")).await
    }

    async fn execute(&mut self, sql: &str) -> Result<(), MigrationFailure> {
        let sql = sqlx::raw_sql(AssertSqlSafe(self.naming.text(sql).into_owned()));
        self.connection.execute(sql).await.map(drop).map_err(MigrationFailure::Sql)
    }
}

/// Whether the table of the history exists.
pub(super) const HAS_HISTORY: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname = 'tenure' AND c.relname = 'run_history') AS has_history";

impl Migration<'_> {
    async fn holds(&mut self, question: &'static str) -> Result<bool, MigrationFailure> {
        let answer = self.connection.fetch_one(sqlx::raw_sql(self.naming.sql(question))).await;
        answer.and_then(|row| row.try_get(0)).map_err(MigrationFailure::Sql)
    }
}

/// The newest version that the database records. `None` if it has no schema.
pub(super) async fn newest(
    connection: &mut PgConnection,
    naming: &Naming,
) -> Result<Option<Applied>, sqlx::Error> {
    // This reads the catalog itself. A name look-up (to_regclass) may answer from a cache that taking an advisory lock
    // does not refresh, and would miss a schema that was committed while this session waited for the lock.
    let exists = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c \
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        WHERE n.nspname = 'tenure' AND c.relname = 'migration')";
    let exists: bool = connection.fetch_one(sqlx::raw_sql(naming.sql(exists))).await?.try_get(0)?;
    if !exists {
        return Ok(None);
    }
    let newest = "SELECT version, compatible_from FROM tenure.migration ORDER BY version DESC LIMIT 1";
    let row = connection.fetch_optional(sqlx::raw_sql(naming.sql(newest))).await?;
    row.map(|row| Ok(applied(row.try_get(0)?, row.try_get(1)?))).transpose()
}

/// Both numbers are positive: the table has constraints.
pub(super) fn applied(version: i32, compatible_from: i32) -> Applied {
    Applied { version: version.unsigned_abs(), compatible_from: compatible_from.unsigned_abs() }
}

/// The key of the advisory lock for migrations of the default schema: `tenure` in ASCII. Each database has its own
/// lock.
const LOCK: i64 = 0x7465_6e75_7265;

/// Takes the lock, so that migrations of one schema wait for one another. Migrations of other schemas do not wait.
fn lock(naming: &Naming) -> String {
    match naming.name() {
        DEFAULT => format!("SELECT pg_advisory_xact_lock({LOCK})"),
        other => format!("SELECT pg_advisory_xact_lock(hashtextextended('{other}', {LOCK}))"),
    }
}
