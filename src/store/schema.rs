//! Applies a schema and judges the one that is there. This part is the same for every backend.
//!
//! This runner is our own, because the one of sqlx keeps its record in the host application's `_sqlx_migrations` and
//! knows nothing about compatibility. Here, each step names the oldest schema version whose releases still work after
//! it. So the schema may be newer than the release that uses it, and a fleet can be upgraded one process at a time.

use super::{KeepHistory, Migrated, StoreError};

/// All steps of one backend's schema, and how that backend records that a step was applied.
pub(crate) struct Schema {
    /// In order. The first step is for an empty database.
    pub(crate) steps: &'static [Step],
    /// The oldest version that this release works with.
    pub(crate) needs: u32,
    /// Removes what the [optional](Step::is_history) step has created, as far as it is there.
    pub(crate) remove_history: &'static str,
    /// The statement that records that a step was applied.
    pub(crate) record: fn(&Step) -> String,
}

/// A step that brings the schema from the version before to this version.
pub(crate) struct Step {
    pub(crate) version: u32,
    /// The oldest schema version whose releases still work after this step.
    pub(crate) compatible_from: u32,
    /// Whether the step only creates the history of runs, which a database may be without.
    pub(crate) is_history: bool,
    pub(crate) sql: &'static str,
}

/// The newest version that a database records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) version: u32,
    /// As in [`Step`]. This release may not know the step itself.
    pub(crate) compatible_from: u32,
}

/// Why this release cannot work with a schema.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// There is no schema, or an older one. The text says which.
    Missing(String),
    TooNew {
        found: Applied,
        known: u32,
    },
}

impl Unfit {
    pub(crate) fn at(self, location: &str) -> StoreError {
        let location = location.to_owned();
        match self {
            Self::Missing(detail) => StoreError::SchemaMissing { location, detail },
            Self::TooNew { found: Applied { version: found, compatible_from }, known } => {
                StoreError::SchemaTooNew { location, found, compatible_from, known }
            }
        }
    }
}

impl Schema {
    /// Whether this release can work with what a database records.
    pub(crate) fn check(&self, newest: Option<Applied>) -> Result<Applied, Unfit> {
        let (known, needs) = (self.known(), self.needs);
        match newest {
            None => Err(Unfit::Missing("no version was applied".to_owned())),
            Some(Applied { version, .. }) if version < needs => {
                Err(Unfit::Missing(format!("it is at version {version}, this release needs {needs}")))
            }
            Some(found) if found.compatible_from > known => Err(Unfit::TooNew { found, known }),
            Some(found) => Ok(found),
        }
    }

    /// The version that this release brings a database to.
    fn known(&self) -> u32 {
        self.steps.last().map_or(0, |step| step.version)
    }

    /// The version, if no step is left to apply.
    fn up_to_date(&self, newest: Option<Applied>) -> Result<Option<u32>, Unfit> {
        match self.check(newest) {
            Ok(Applied { version, .. }) => Ok((version >= self.known()).then_some(version)),
            Err(Unfit::Missing(_)) => Ok(None),
            Err(too_new) => Err(too_new),
        }
    }

    /// The statements that set up an empty database. The caller adds the statements that begin and end the transaction.
    pub(crate) fn script(&self, history: KeepHistory) -> String {
        let sql = |step: &Step| if step.is_left_out(history) { "" } else { step.sql };
        self.steps.iter().map(|step| format!("\n{}\n{};\n", sql(step), (self.record)(step))).collect()
    }

    fn history_step(&self) -> Option<&'static Step> {
        self.steps.iter().find(|step| step.is_history)
    }
}

impl Step {
    fn is_left_out(&self, history: KeepHistory) -> bool {
        self.is_history && history == KeepHistory::No
    }
}

/// A connection to the database that gets the schema.
pub(crate) trait SchemaConnection: Send {
    type Error: From<Unfit> + Send;

    const SCHEMA: Schema;

    /// What the database records; `None` if it has no record.
    fn newest(&mut self) -> impl Future<Output = Result<Option<Applied>, Self::Error>> + Send;

    /// Begins a transaction, and waits until no other migration is under way.
    fn begin(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Creates the place for the record if it does not exist.
    fn bootstrap(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send;

    fn execute(&mut self, sql: &str) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Whether the database keeps the history of runs.
    fn has_history(&mut self) -> impl Future<Output = Result<bool, Self::Error>> + Send;
}

/// Brings a schema up to this release. If several processes do this at the same time, one of them applies each step.
///
/// # Cancel safety
/// If the future is dropped, drop the connection, too: it may be inside the transaction.
pub(crate) async fn migrate<C: SchemaConnection>(
    connection: &mut C,
    history: KeepHistory,
) -> Result<Migrated, C::Error> {
    // Most of the time there is nothing to do. Finding that out takes no lock, and no right to create anything.
    let found = connection.newest().await?;
    if let Some(done) = done(connection, found, history).await? {
        return Ok(done);
    }
    let migrated = apply(connection, history).await;
    if migrated.is_err() {
        // The transaction must not stay open. If this fails, too, the connection is of no use, and closing it ends the
        // transaction.
        let _ = connection.execute("ROLLBACK").await;
    }
    migrated
}

/// `Some` when there is nothing to apply.
async fn done<C: SchemaConnection>(
    connection: &mut C,
    newest: Option<Applied>,
    history: KeepHistory,
) -> Result<Option<Migrated>, C::Error> {
    let Some(version) = C::SCHEMA.up_to_date(newest)? else { return Ok(None) };
    let is_as_wanted = match history {
        KeepHistory::AsItIs => true,
        wanted => connection.has_history().await? == (wanted == KeepHistory::Yes),
    };
    Ok(is_as_wanted.then(|| Migrated::new(version, version)))
}

async fn apply<C: SchemaConnection>(connection: &mut C, history: KeepHistory) -> Result<Migrated, C::Error> {
    connection.begin().await?;
    // Another process may have been faster. Under the lock, its commit is visible.
    let found = connection.newest().await?;
    if let Some(done) = done(connection, found, history).await? {
        connection.execute("ROLLBACK").await?;
        return Ok(done);
    }
    let from = found.map_or(0, |found| found.version);
    connection.bootstrap().await?;
    for step in C::SCHEMA.steps.iter().filter(|step| step.version > from) {
        if !step.is_left_out(history) {
            connection.execute(step.sql).await?;
        }
        connection.execute(&(C::SCHEMA.record)(step)).await?;
    }
    if let Some(step) = C::SCHEMA.history_step().filter(|step| step.version <= from) {
        match history {
            KeepHistory::Yes if !connection.has_history().await? => connection.execute(step.sql).await?,
            KeepHistory::No => connection.execute(C::SCHEMA.remove_history).await?,
            _ => {}
        }
    }
    connection.execute("COMMIT").await?;
    Ok(Migrated::new(from, C::SCHEMA.known().max(from)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schemas() -> Vec<Schema> {
        vec![
            #[cfg(feature = "postgres")]
            super::super::postgres::SCHEMA,
            #[cfg(feature = "sqlite")]
            super::super::sqlite::SCHEMA,
        ]
    }

    #[test]
    fn every_migration_is_the_next_and_names_a_version_it_can_be_compatible_with() {
        for schema in schemas() {
            for (n, step) in schema.steps.iter().enumerate() {
                assert_eq!(step.version as usize, n + 1);
                assert!((1..=step.version).contains(&step.compatible_from));
            }
            assert_eq!(schema.steps.len(), schema.known() as usize);
        }
    }

    #[test]
    fn a_newer_schema_is_accepted_as_long_as_it_says_so() {
        for schema in schemas() {
            let known = schema.known();
            let check = |version, compatible_from| schema.check(Some(Applied { version, compatible_from }));
            assert!(check(known, 1).is_ok());
            assert!(check(schema.needs, 1).is_ok());
            assert!(check(known + 5, known).is_ok());
            assert!(matches!(check(known + 5, known + 1), Err(Unfit::TooNew { .. })));
            assert!(matches!(check(0, 0), Err(Unfit::Missing(_))));
            assert!(matches!(schema.check(None), Err(Unfit::Missing(_))));
        }
    }
}
