//! The examination's connection to one server. It sets time-outs of its own and `jit`, and changes no other setting.

use std::time::Duration;

use futures::future::OptionFuture;
use sqlx::{AssertSqlSafe, Decode, Executor as _, PgConnection, Postgres, Row as _, Type, postgres::PgRow};
use tokio::time::timeout;

use crate::{
    store::finding::ExaminationPlan,
    store::{
        Bounds, StoreError,
        postgres::{connect, doubt::Doubt, fault, schema, server::Server},
        schema::Applied,
    },
};

/// How many times to try to set our time-out. The role's own time-out may be 1 ms, and the server busy.
const ATTEMPTS: u32 = 50;

/// One server, and a connection to it. If the connection is given up, the next statement opens another one.
pub(super) struct Visit<'a> {
    pub(super) server: &'a Server,
    /// The bounds of the session, if it gets any.
    bounds: Option<Bounds>,
    /// `None` before the first statement. Also `None` after a statement without an answer, because the next statement
    /// would wait for that answer.
    connection: Option<PgConnection>,
    pub(super) patience: Duration,
    pub(super) version: String,
    /// Why this server cannot grant leases, apart from its schema.
    pub(super) doubt: Option<Doubt>,
    /// The age of the last commit that a standby has.
    pub(super) behind: Option<Duration>,
}

impl<'a> Visit<'a> {
    /// Connects, and asks the server whether it is a standby, read-only or neither.
    pub(super) async fn begin(server: &'a Server, plan: ExaminationPlan) -> Result<Self, StoreError> {
        let mut visit = Self::of(server, None, plan.patience);
        let row = visit.row(include_str!("server.sql")).await?;
        visit.version = visit.read(&row, "version")?;
        visit.doubt = visit.read::<Option<&str>>(&row, "doubt")?.map(Doubt::of);
        let behind = visit.read::<Option<i64>>(&row, "behind")?;
        visit.behind = behind.map(|micros| Duration::from_micros(micros.try_into().unwrap_or(0)));
        Ok(visit)
    }

    pub(super) fn of(server: &'a Server, bounds: Option<Bounds>, patience: Duration) -> Self {
        Self { server, bounds, connection: None, patience, version: String::new(), doubt: None, behind: None }
    }

    /// Takes the present connection, or opens a new one.
    async fn take_connection(&mut self) -> Result<PgConnection, StoreError> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        let connection = timeout(self.patience, connect::open(self.server, self.bounds)).await;
        let mut connection =
            connection.map_err(|_elapsed| StoreError::silent(self.location(), self.patience))??;
        if !self.server.pooled {
            self.take_time(&mut connection).await?;
        }
        Ok(connection)
    }

    /// Makes sure that each statement has the time that it needs: the role may have a short time-out, and compiling a
    /// plan takes time. Other sessions of tenure send these settings at connection. Here that would hide the role's own
    /// values.
    async fn take_time(&self, connection: &mut PgConnection) -> Result<(), StoreError> {
        let location = self.location();
        let millis = self.patience.as_millis().clamp(1, i32::MAX as u128);
        for attempt in 1.. {
            // The role's time-out still applies to the first of these statements.
            let set = format!(
                "SET statement_timeout = {millis}; SET jit = off; \
                 SELECT set_config(name, '0', false) FROM (VALUES ('idle_session_timeout')) AS later (name) \
                 WHERE current_setting(name, true) IS NOT NULL"
            );
            let set = timeout(self.patience, connection.execute(sqlx::raw_sql(AssertSqlSafe(set)))).await;
            match set.map_err(|_elapsed| StoreError::silent(location, self.patience))? {
                Err(error) if attempt < ATTEMPTS && fault::is_timeout(&error) => {}
                Err(error) => return Err(fault::on_use(error, location, &self.server.naming)),
                Ok(_) => break,
            }
        }
        Ok(())
    }

    /// As [`schema::newest`].
    pub(super) async fn newest_schema(&mut self) -> Result<Option<Applied>, StoreError> {
        let mut connection = self.take_connection().await?;
        let newest = timeout(self.patience, schema::newest(&mut connection, &self.server.naming)).await;
        let newest = newest.map_err(|_elapsed| StoreError::silent(self.location(), self.patience))?;
        self.connection = Some(connection);
        newest.map_err(|error| fault::on_use(error, self.location(), &self.server.naming))
    }

    pub(super) fn location(&self) -> &'a str {
        &self.server.location
    }

    /// Sends a statement, and returns its one row.
    pub(super) async fn row(&mut self, sql: &'static str) -> Result<PgRow, StoreError> {
        let sql = self.server.naming.sql(sql);
        let mut connection = self.take_connection().await?;
        let answer = timeout(self.patience, connection.fetch_one(sqlx::raw_sql(sql))).await;
        let answer = answer.map_err(|_elapsed| StoreError::silent(self.location(), self.patience))?;
        let answer = answer.map_err(|error| fault::on_use(error, self.location(), &self.server.naming));
        if !answer.as_ref().is_err_and(StoreError::is_uncertain) {
            self.connection = Some(connection);
        }
        answer
    }

    /// Sends several statements in one message, and returns how many rows they have written. After an error the
    /// connection is given up, because it may be inside a transaction.
    pub(super) async fn affected(&mut self, sql: &'static str) -> Result<u64, StoreError> {
        let sql = self.server.naming.sql(sql);
        let mut connection = self.take_connection().await?;
        let answer = timeout(self.patience, connection.execute(sqlx::raw_sql(sql))).await;
        let answer = answer.map_err(|_elapsed| StoreError::silent(self.location(), self.patience))?;
        let done = answer.map_err(|error| fault::on_use(error, self.location(), &self.server.naming))?;
        self.connection = Some(connection);
        Ok(done.rows_affected())
    }

    pub(super) fn read<'r, T>(&self, row: &'r PgRow, column: &'static str) -> Result<T, StoreError>
    where
        T: Decode<'r, Postgres> + Type<Postgres>,
    {
        row.try_get(column).map_err(|error| StoreError::Unavailable {
            location: self.location().to_owned(),
            detail: error.to_string(),
        })
    }

    pub(super) fn end(self) -> impl Future<Output = ()> + Send {
        // If this fails, the server notices the closed connection anyway.
        let goodbye = self.connection.map(sqlx::Connection::close);
        let goodbye = timeout(self.patience, OptionFuture::from(goodbye));
        async move { drop(goodbye.await) }
    }
}
