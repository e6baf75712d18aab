//! One open connection. It sends statements, and judges whether the server's answers can be trusted.

use std::{sync::Arc, time::Duration};

use sqlx::{Connection as _, Decode, Executor as _, PgConnection, Postgres, Row as _, Type, postgres::PgRow};

use super::{
    doubt::Doubt,
    fault,
    naming::Naming,
    server::Server,
    statement::{Statement, Value},
    turn::Turn,
};
use crate::{
    store::{Bounds, StoreError},
    watch::Standby,
};

/// How many times a statement is sent if the server keeps rolling it back in favour of another transaction.
const ATTEMPTS: usize = 4;

/// An open connection.
pub(super) struct Connection {
    connection: PgConnection,
    location: Arc<str>,
    naming: Arc<Naming>,
    pooled: bool,
    turn: Turn,
    /// As [`Server::longest_commit`].
    longest_commit: i64,
    awaits_standby: bool,
    purpose: Purpose,
    /// The standby that gave the last answer. Only a connection for [`Purpose::Look`] has one.
    standby: Option<Standby>,
}

/// What a connection is opened for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    /// To hold leases.
    Work,
    /// Only to read, if necessary on a standby.
    Look,
    /// To apply the schema, which may not be there yet.
    Migrate,
}

impl Purpose {
    fn grants(self) -> &'static str {
        match self {
            Self::Work | Self::Migrate => fault::GRANTS,
            Self::Look => fault::GRANTS_TO_LOOK,
        }
    }
}

impl Connection {
    pub(super) fn new(connection: PgConnection, server: &Server, bounds: Bounds, purpose: Purpose) -> Self {
        let (naming, turn) = (server.naming.clone(), server.turn.clone());
        Self {
            connection,
            location: server.location.clone(),
            naming,
            pooled: server.pooled,
            turn,
            longest_commit: server.longest_commit(bounds),
            awaits_standby: false,
            purpose,
            standby: None,
        }
    }

    /// Checks what an answer says about its server, which may have changed since the connection was opened. The answer
    /// is to a statement that begins with `server.sql`.
    ///
    /// # Errors
    /// The answer cannot be trusted, or the server takes no writes and this connection must be able to write.
    pub(super) fn heed(&mut self, row: &PgRow) -> Result<(), StoreError> {
        let doubt = self.read::<Option<&str>>(row, "doubt")?.map(Doubt::of);
        self.standby = match (doubt, self.purpose) {
            (None, _) | (Some(Doubt::ReadOnlyRole), Purpose::Look) => None,
            (Some(doubt), Purpose::Look) if !doubt.hides_rows() => Some(self.standby_in(row)?),
            (Some(doubt), _) => return Err(doubt.error(&self.location)),
        };
        Ok(())
    }

    fn standby_in(&self, row: &PgRow) -> Result<Standby, StoreError> {
        let behind = self.read::<Option<i64>>(row, "behind")?;
        // It is negative if the standby's clock is behind the primary's.
        let behind = behind.map(|micros| Duration::from_micros(micros.try_into().unwrap_or(0)));
        Ok(Standby { server: self.location.to_string(), behind })
    }

    /// The standby that gave the last answer. `None` if the server that takes writes gave it.
    pub(super) fn standby(&self) -> Option<&Standby> {
        self.standby.as_ref()
    }

    pub(super) fn location(&self) -> &str {
        &self.location
    }

    pub(super) fn naming(&self) -> &Arc<Naming> {
        &self.naming
    }

    /// Whether the next statement may reach another server session, as behind PgBouncer.
    pub(super) fn is_pooled(&self) -> bool {
        self.pooled
    }

    /// The driver's connection. The migration needs it for its transaction.
    pub(super) fn raw(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// As [`Server::longest_commit`].
    pub(super) fn longest_commit(&self) -> i64 {
        self.longest_commit
    }

    /// Fails if commits on this server wait for a standby that does not answer.
    ///
    /// A session that holds a lock may be waiting for a synchronous standby in its commit. If the standby has become
    /// the primary, that session waits for ever. Then this server is as good as silent, and the next one has to be
    /// asked.
    pub(super) async fn refuse_if_awaiting(&mut self) -> Result<(), StoreError> {
        if !self.turn.has_others() {
            return Ok(());
        }
        let values = vec![Value::Number(self.longest_commit)];
        let statement = Statement::new(include_str!("awaiting.sql"), values);
        // This statement only reads, and waits for no lock.
        let row = Box::pin(self.fetch_one(&statement)).await?;
        match self.read(&row, "awaits_standby")? {
            true => Err(self.refuse_awaiting()),
            false => Ok(()),
        }
    }

    /// The error for a server whose commits wait for a standby that does not answer. From now on another server is
    /// asked first.
    fn refuse_awaiting(&self) -> StoreError {
        self.turn.pass_over();
        fault::awaits_standby(&self.location)
    }

    /// The number of its server in the URL, counted from zero.
    pub(super) fn server(&self) -> usize {
        self.turn.index()
    }

    /// Records whether commits on this server wait for a standby. If so, this fails on a connection that works with
    /// leases. For reading, such a server may still be the best one.
    pub(super) fn heed_awaiting(&mut self, awaits_standby: bool) -> Result<(), StoreError> {
        self.awaits_standby = awaits_standby;
        match self.purpose {
            Purpose::Work if awaits_standby => Err(self.refuse_awaiting()),
            _ => Ok(()),
        }
    }

    /// Whether commits waited for a standby at the last check.
    pub(super) fn awaits_standby(&self) -> bool {
        self.awaits_standby
    }

    /// Sends a statement, and sends it again if the server rolled it back in favour of another transaction.
    ///
    /// Dropping the future counts as a sign that the answer took too long, and another server is asked first from then
    /// on. A primary whose commits wait for a standby that has taken its place still accepts connections and answers
    /// reads. So this may be the only sign.
    pub(super) async fn fetch(&mut self, statement: &Statement<'_>) -> Result<Vec<PgRow>, StoreError> {
        let mut attempt = 1;
        loop {
            let awaited = self.turn.awaited();
            let sql = self.naming.sql(statement.sql);
            let sent = match self.pooled || statement.is_script() {
                true => statement.send_as_text(sql, &mut self.connection).await,
                false => statement.send_bound(sql, &mut self.connection).await,
            };
            awaited.answered();
            match sent {
                Err(error) if attempt < ATTEMPTS && fault::is_retried(&error) => attempt += 1,
                Err(error) => {
                    if fault::is_lock_timeout(&error) {
                        self.refuse_if_awaiting().await?;
                    }
                    let remedy = self.naming.text(self.purpose.grants());
                    return Err(fault::on_statement(error, &self.location, &remedy));
                }
                Ok(rows) => return Ok(rows),
            }
        }
    }

    pub(super) async fn fetch_one(&mut self, statement: &Statement<'_>) -> Result<PgRow, StoreError> {
        let rows = self.fetch(statement).await?;
        rows.into_iter().next().ok_or_else(|| self.unavailable("it answered without a row"))
    }

    /// Prepares a statement before its first use. Does nothing behind PgBouncer, where statements are not prepared.
    pub(super) async fn prepare(&mut self, sql: &'static str) -> Result<(), StoreError> {
        if self.pooled {
            return Ok(());
        }
        let prepared = (&mut self.connection).prepare(self.naming.sql(sql)).await;
        prepared.map(drop).map_err(|error| fault::on_use(error, &self.location, &self.naming))
    }

    /// Makes one round trip without a statement.
    pub(super) async fn ping(&mut self) -> Result<(), StoreError> {
        let answered = self.connection.ping().await;
        answered.map_err(|error| fault::on_use(error, &self.location, &self.naming))
    }

    /// A column of an answer.
    pub(super) fn read<'r, T>(&self, row: &'r PgRow, column: &'static str) -> Result<T, StoreError>
    where
        T: Decode<'r, Postgres> + Type<Postgres>,
    {
        row.try_get(column).map_err(|error| self.unavailable(&error.to_string()))
    }

    /// The error for an answer that cannot be used. What was asked may still have happened.
    pub(super) fn unavailable(&self, detail: &str) -> StoreError {
        StoreError::Unavailable { location: self.location.to_string(), detail: detail.to_owned() }
    }

    pub(super) async fn close(self) {
        // If this fails, the server notices the closed connection anyway.
        let _ = self.connection.close().await;
    }
}
