//! Sending one statement, in one of two ways.
//!
//! Ordinarily statements are prepared once per connection, and their values are bound. PgBouncer in transaction
//! mode may hand each message of that exchange to another server session (sqlx ends the preparation with a Sync of
//! its own), so there the values are written into the text as literals, and the statement is one message.

use std::{fmt::Write as _, sync::Arc};

use sqlx::{
    AssertSqlSafe, Connection, Decode, Executor as _, PgConnection, Postgres, Row, SqlStr, Type,
    postgres::PgRow,
};
use uuid::Uuid;

use super::{believe, fault, naming::Naming, target::Server, turn::Turn};
use crate::{
    store::{Bounds, StoreError},
    watch::Standby,
};

/// How often a statement is sent that the server rolls back for the sake of another.
const ATTEMPTS: usize = 4;

/// A statement and its values.
pub(super) struct Statement<'a> {
    /// Each `$n` in it carries a cast to the type of its value.
    sql: &'static str,
    values: Vec<Value<'a>>,
    /// Planned for these very values, each time.
    planned_anew: bool,
}

/// A value of a statement.
#[derive(Debug)]
pub(super) enum Value<'a> {
    Flag(bool),
    Number(i64),
    Text(Option<&'a str>),
    Numbers(Vec<i64>),
    Texts(Vec<&'a str>),
    TextsOrNull(Vec<Option<&'a str>>),
    Uuids(Vec<Uuid>),
}

impl<'a> Statement<'a> {
    pub(super) fn new(sql: &'static str, values: Vec<Value<'a>>) -> Self {
        Self { sql, values, planned_anew: false }
    }

    /// For a statement whose best plan depends on its values.
    pub(super) fn planned_anew(self) -> Self {
        Self { planned_anew: true, ..self }
    }

    /// `sql`: this statement's, for the schema in question.
    async fn send_bound(
        &self,
        sql: SqlStr,
        connection: &mut PgConnection,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut query = sqlx::query(sql).persistent(!self.planned_anew);
        for value in &self.values {
            query = match value {
                Value::Flag(flag) => query.bind(flag),
                Value::Number(number) => query.bind(number),
                Value::Text(text) => query.bind(text),
                Value::Numbers(numbers) => query.bind(numbers),
                Value::Texts(texts) => query.bind(texts),
                Value::TextsOrNull(texts) => query.bind(texts),
                Value::Uuids(uuids) => query.bind(uuids),
            };
        }
        query.fetch_all(connection).await
    }

    async fn send_as_text(
        &self,
        sql: SqlStr,
        connection: &mut PgConnection,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(self.to_text(sql.as_str())))).await
    }

    /// The statement with a literal for each `$n`; a `$` that no number follows stays. Without its comments: in one
    /// of them, a value with a line break would be read as SQL.
    fn to_text(&self, sql: &str) -> String {
        let code: Vec<_> =
            sql.lines().map(|line| line.split_once("--").map_or(line, |(code, _)| code)).collect();
        let code = code.join("\n");
        let mut pieces = code.split('$');
        let mut text = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let digits = piece.find(|char: char| !char.is_ascii_digit()).unwrap_or(piece.len());
            let (number, rest) = piece.split_at(digits);
            match number.parse::<usize>().ok().and_then(|n| self.values.get(n.checked_sub(1)?)) {
                Some(value) => value.write_literal(&mut text),
                None => _ = write!(text, "${number}"),
            }
            text.push_str(rest);
        }
        text
    }
}

impl Value<'_> {
    fn write_literal(&self, text: &mut String) {
        match self {
            Self::Flag(flag) => text.push_str(if *flag { "true" } else { "false" }),
            Self::Number(number) => _ = write!(text, "({number})"),
            Self::Text(None) => text.push_str("null"),
            Self::Text(Some(value)) => write_quoted(text, value),
            Self::Numbers(numbers) => write_array(text, numbers.iter().map(|n| Some(n.to_string()))),
            Self::Texts(texts) => write_array(text, texts.iter().map(Some)),
            Self::TextsOrNull(texts) => write_array(text, texts.iter().copied()),
            Self::Uuids(uuids) => write_array(text, uuids.iter().map(|uuid| Some(uuid.to_string()))),
        }
    }
}

/// `E'…'` reads a backslash the same way whatever `standard_conforming_strings` says.
fn write_quoted(text: &mut String, value: &str) {
    text.push_str(" E'");
    for char in value.chars() {
        match char {
            '\'' => text.push_str("''"),
            '\\' => text.push_str("\\\\"),
            other => text.push(other),
        }
    }
    text.push('\'');
}

fn write_array<T: AsRef<str>>(text: &mut String, elements: impl Iterator<Item = Option<T>>) {
    let mut array = String::from("{");
    for (n, element) in elements.enumerate() {
        if n > 0 {
            array.push(',');
        }
        let Some(element) = element else {
            array.push_str("NULL");
            continue;
        };
        array.push('"');
        for char in element.as_ref().chars() {
            if matches!(char, '"' | '\\') {
                array.push('\\');
            }
            array.push(char);
        }
        array.push('"');
    }
    array.push('}');
    write_quoted(text, &array);
}

/// An open connection.
pub(super) struct Session {
    connection: PgConnection,
    location: Arc<str>,
    naming: Arc<Naming>,
    pooled: bool,
    turn: Turn,
    /// As [`Server::longest_commit`].
    longest_commit: i64,
    awaits_standby: bool,
    purpose: Purpose,
}

/// What a connection is for.
#[derive(Debug, Clone)]
enum Purpose {
    Write,
    /// With whom it has looked last, if that was not the authority.
    Look(Option<Standby>),
}

impl Purpose {
    fn grants(&self) -> &'static str {
        match self {
            Self::Write => fault::GRANTS,
            Self::Look(_) => fault::GRANTS_TO_LOOK,
        }
    }
}

impl Session {
    pub(super) fn new(connection: PgConnection, server: &Server, bounds: Bounds) -> Self {
        let (naming, turn) = (server.naming.clone(), server.turn.clone());
        Self {
            connection,
            location: server.location.clone(),
            naming,
            pooled: server.pooled,
            turn,
            longest_commit: server.longest_commit(bounds),
            awaits_standby: false,
            purpose: Purpose::Write,
        }
    }

    /// From now on it only looks, and may do so on a server that takes no writes.
    pub(super) fn only_look(&mut self) {
        self.purpose = Purpose::Look(None);
    }

    /// Heeds what an answer, to a statement that begins with `server.sql`, says of its server. That may have changed
    /// since the connection was opened.
    pub(super) fn heed(&mut self, row: &PgRow) -> Result<(), StoreError> {
        match self.purpose {
            Purpose::Write => believe::to_write(self, row),
            Purpose::Look(_) => {
                self.purpose = Purpose::Look(believe::to_look(self, row)?);
                Ok(())
            }
        }
    }

    /// Who has answered last, if it was not the authority.
    pub(super) fn standby(&self) -> Option<&Standby> {
        match &self.purpose {
            Purpose::Look(standby) => standby.as_ref(),
            Purpose::Write => None,
        }
    }

    pub(super) fn location(&self) -> &str {
        &self.location
    }

    pub(super) fn naming(&self) -> &Arc<Naming> {
        &self.naming
    }

    /// Whether the next statement may reach another server session.
    pub(super) fn is_pooled(&self) -> bool {
        self.pooled
    }

    /// For the migration, which needs a transaction.
    pub(super) fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// As [`Server::longest_commit`].
    pub(super) fn longest_commit(&self) -> i64 {
        self.longest_commit
    }

    /// A lock may be held by a session that waits for a synchronous standby, and will for ever where that has become
    /// the primary: then this server is as good as silent, and the next is to be asked.
    pub(super) async fn refuse_if_awaiting(&mut self) -> Result<(), StoreError> {
        if !self.turn.has_others() {
            return Ok(());
        }
        let values = vec![Value::Number(self.longest_commit)];
        let statement = Statement::new(include_str!("awaiting.sql"), values);
        // It reads, and waits for no lock.
        let row = Box::pin(self.fetch_one(&statement)).await?;
        match self.read(&row, "awaits_standby")? {
            true => Err(self.refuse_awaiting()),
            false => Ok(()),
        }
    }

    /// This server's commits are not answered, and another is to be asked first.
    fn refuse_awaiting(&self) -> StoreError {
        self.turn.pass_over();
        fault::awaits_standby(&self.location)
    }

    /// Its number in the URL.
    pub(super) fn server(&self) -> usize {
        self.turn.index()
    }

    /// Heeds whether commits are answered here. For whoever only looks there may be nothing better.
    pub(super) fn heed_awaiting(&mut self, awaits_standby: bool) -> Result<(), StoreError> {
        self.awaits_standby = awaits_standby;
        match self.purpose {
            Purpose::Write if awaits_standby => Err(self.refuse_awaiting()),
            _ => Ok(()),
        }
    }

    /// Whether, when that was asked, commits here waited for a standby.
    pub(super) fn awaits_standby(&self) -> bool {
        self.awaits_standby
    }

    /// Sends a statement, again if the server rolled it back for the sake of another.
    ///
    /// Dropping the future says that the answer took too long. A primary that waits for a standby which has taken its
    /// place still accepts connections and answers what is read: only this tells that another server is to be asked.
    pub(super) async fn fetch(&mut self, statement: &Statement<'_>) -> Result<Vec<PgRow>, StoreError> {
        let mut attempt = 1;
        loop {
            let awaited = self.turn.awaited();
            let sql = self.naming.sql(statement.sql);
            let sent = match self.pooled {
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

    /// Has a statement parsed, unless each is parsed anew.
    pub(super) async fn prepare(&mut self, sql: &'static str) -> Result<(), StoreError> {
        if self.pooled {
            return Ok(());
        }
        let prepared = (&mut self.connection).prepare(self.naming.sql(sql)).await;
        prepared.map(drop).map_err(|error| fault::on_use(error, &self.location, &self.naming))
    }

    /// One round trip, and no statement.
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

    /// An answer that is none: what was asked may have happened all the same.
    pub(super) fn unavailable(&self, detail: &str) -> StoreError {
        StoreError::Unavailable { location: self.location.to_string(), detail: detail.to_owned() }
    }

    pub(super) async fn close(self) {
        // The server notices a connection that merely ends, too.
        let _ = self.connection.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literal(value: Value<'_>) -> String {
        Statement::new("$1::t", vec![value]).to_text("$1::t")
    }

    #[test]
    fn no_value_ends_its_own_literal() {
        assert_eq!(literal(Value::Text(Some(r"it's \ ok"))), r" E'it''s \\ ok'::t");
        assert_eq!(
            literal(Value::Texts(vec![r#"a"b\c'd"#, "", "x,y{}"])),
            r#" E'{"a\\"b\\\\c''d","","x,y{}"}'::t"#
        );
        assert_eq!(literal(Value::TextsOrNull(vec![None, Some("NULL")])), r#" E'{NULL,"NULL"}'::t"#);
        assert_eq!(literal(Value::Number(-1)), "(-1)::t");
        assert_eq!(literal(Value::Text(None)), "null::t");
    }

    #[test]
    fn a_place_in_a_comment_is_none() {
        let statement = Statement::new("-- $1 is\nSELECT -- $1\n$1", vec![Value::Text(Some("a\nb -- c"))]);
        assert_eq!(statement.to_text(statement.sql), "\nSELECT \n E'a\nb -- c'");
    }

    #[test]
    fn a_value_that_looks_like_a_place_for_one_stays_as_it_is() {
        let statement = Statement::new("$1 $2 $$ $3", vec![Value::Text(Some("$2")), Value::Text(Some("$1"))]);
        assert_eq!(statement.to_text(statement.sql), " E'$2'  E'$1' $$ $3");
    }
}
