//! A statement, and the two ways to send it.
//!
//! Usually a statement is prepared once per connection, and its values are bound. That takes several messages, and
//! PgBouncer in transaction mode may send each of them to another server session (sqlx ends the preparation with a Sync
//! of its own). So behind PgBouncer the values are written into the text as literals, and the statement is one message.
//! The same is done for a script of several statements, which is one transaction because it is one message.

use std::{fmt::Write as _, time::Duration};

use sqlx::{AssertSqlSafe, Executor as _, PgConnection, SqlStr, postgres::PgRow};
use uuid::Uuid;

/// A statement and its values.
pub(super) struct Statement<'a> {
    /// The text. Each `$n` in it has a cast to the type of its value.
    pub(super) sql: &'static str,
    values: Vec<Value<'a>>,
    /// Whether the server plans the statement each time, for these values.
    planned_anew: bool,
    /// Whether the text has several statements, which are one transaction because they are one message.
    is_script: bool,
}

/// A value of a statement.
#[derive(Debug)]
pub(super) enum Value<'a> {
    Flag(bool),
    Number(i64),
    Text(Option<&'a str>),
    Numbers(Vec<i64>),
    NumbersOrNull(Vec<Option<i64>>),
    Texts(Vec<&'a str>),
    TextsOrNull(Vec<Option<&'a str>>),
    Uuids(Vec<Uuid>),
}

impl<'a> Statement<'a> {
    pub(super) fn new(sql: &'static str, values: Vec<Value<'a>>) -> Self {
        Self { sql, values, planned_anew: false, is_script: false }
    }

    /// Several statements in one message, and so in one transaction. The answer has the rows of all of them.
    pub(super) fn script(sql: &'static str, values: Vec<Value<'a>>) -> Self {
        Self { is_script: true, ..Self::new(sql, values) }
    }

    /// Whether the values can only be sent as literals in the text.
    pub(super) fn is_script(&self) -> bool {
        self.is_script
    }

    /// Makes the server plan the statement each time, because its best plan depends on its values.
    pub(super) fn planned_anew(self) -> Self {
        Self { planned_anew: true, ..self }
    }

    /// Sends the statement with bound values. `sql` is its text for the present schema.
    pub(super) async fn send_bound(
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
                Value::NumbersOrNull(numbers) => query.bind(numbers),
                Value::Texts(texts) => query.bind(texts),
                Value::TextsOrNull(texts) => query.bind(texts),
                Value::Uuids(uuids) => query.bind(uuids),
            };
        }
        query.fetch_all(connection).await
    }

    /// Sends the statement as one message, with literals in its text. `sql` is its text for the present schema.
    pub(super) async fn send_as_text(
        &self,
        sql: SqlStr,
        connection: &mut PgConnection,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(self.to_text(sql.as_str())))).await
    }

    /// The statement with a literal for each `$n`. A `$` without a number after it stays as it is. Comments are left
    /// out: if a value with a line break were put into a comment, its second line would be read as SQL.
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
            Self::NumbersOrNull(numbers) => {
                write_array(text, numbers.iter().map(|number| number.map(|n| n.to_string())));
            }
            Self::Texts(texts) => write_array(text, texts.iter().map(Some)),
            Self::TextsOrNull(texts) => write_array(text, texts.iter().copied()),
            Self::Uuids(uuids) => write_array(text, uuids.iter().map(|uuid| Some(uuid.to_string()))),
        }
    }
}

/// Whole milliseconds.
pub(super) fn millis(duration: Duration) -> i64 {
    duration.as_millis().try_into().unwrap_or(i64::MAX)
}

/// Writes `E'…'`, in which a backslash has the same meaning whatever `standard_conforming_strings` says.
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
