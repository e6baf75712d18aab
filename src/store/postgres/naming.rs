//! The name of the schema, and SQL for a schema with another name.
//!
//! The embedded statements, and the remedies in messages, are written for the schema `tenure`. They name the schema
//! before each of its objects, so that `search_path` does not matter. Only this module replaces the name.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

use super::uri::refused;
use crate::{store::StoreError, text::printable};

/// The default name of the schema. All embedded SQL is written for it.
pub(super) const DEFAULT: &str = "tenure";

/// A schema's name.
pub(super) struct Naming {
    name: String,
    /// The rendered texts, by the embedded text. Each text is rendered once, because a connection finds its prepared
    /// statements by their text.
    rendered: Mutex<HashMap<&'static str, Arc<str>>>,
}

impl Naming {
    /// Reads the URL's parameter. The name is the one in the catalog: upper case stays upper case.
    pub(super) fn parse(parameter: Option<String>) -> Result<Self, StoreError> {
        let name = parameter.unwrap_or_else(|| DEFAULT.to_owned());
        check(&name)?;
        Ok(Self { name, rendered: Mutex::default() })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_default(&self) -> bool {
        self.name == DEFAULT
    }

    /// A statement for this schema.
    pub(super) fn sql(&self, embedded: &'static str) -> SqlStr {
        if self.is_default() {
            return embedded.into_sql_str();
        }
        let mut rendered = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
        let sql = rendered.entry(embedded).or_insert_with(|| self.text(embedded).into());
        // Safe: `check` allows only names that need no quoting or escaping.
        AssertSqlSafe(sql.clone()).into_sql_str()
    }

    /// A text for this schema, for people or as a part of a script.
    pub(super) fn text<'a>(&self, embedded: &'a str) -> Cow<'a, str> {
        if self.is_default() {
            return Cow::Borrowed(embedded);
        }
        let name = &self.name;
        let text = embedded
            .replace("tenure.", &format!("\"{name}\"."))
            .replace("SCHEMA tenure", &format!("SCHEMA \"{name}\""))
            .replace("schema tenure", &format!("schema \"{name}\""))
            .replace("'tenure'", &format!("'{name}'"));
        Cow::Owned(text)
    }
}

impl fmt::Debug for Naming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Naming").field(&self.name).finish()
    }
}

/// PostgreSQL allows any name in quotes. This allows only names that need no escaping in an identifier, a literal, the
/// body of a function, a message, a URL or a shell, and whose characters are in every database encoding.
fn check(name: &str) -> Result<(), StoreError> {
    let shown = || printable(name);
    if name.is_empty() || name.len() > LONGEST {
        return Err(refused(format!(
            "schema={:?} has {} bytes; name a schema with 1 to {LONGEST}, or leave the parameter out for \"{DEFAULT}\"",
            shown(),
            name.len()
        )));
    }
    if name.starts_with("pg_") || name == "information_schema" {
        return Err(refused(format!("schema={:?} is PostgreSQL's own; name another one", shown())));
    }
    // Two hyphens look like a comment to a program that removes comments but does not understand quotes.
    if name.contains("--")
        || !name.chars().all(|char| char.is_ascii_alphanumeric() || matches!(char, '_' | '-'))
    {
        return Err(refused(format!(
            "schema={:?} is not a name that tenure accepts; use letters from A to Z, digits, '_' and single '-'",
            shown()
        )));
    }
    Ok(())
}

/// The longest name, in bytes. PostgreSQL truncates longer names.
const LONGEST: usize = 63;

#[cfg(test)]
mod tests {
    use super::*;

    fn naming(name: &str) -> Naming {
        Naming::parse(Some(name.to_owned())).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_name_takes_the_place_of_the_default_wherever_sql_has_it() {
        let sql = "CREATE SCHEMA tenure; SELECT pg_notify('tenure_1', nspname = 'tenure') FROM tenure.session_lease; \
                   SELECT nextval('tenure.fence_floor')";
        assert_eq!(
            naming("A-b").text(sql),
            "CREATE SCHEMA \"A-b\"; SELECT pg_notify('tenure_1', nspname = 'A-b') FROM \"A-b\".session_lease; \
             SELECT nextval('\"A-b\".fence_floor')"
        );
        assert_eq!(naming("tenure").text(sql), sql);
    }

    /// A connection finds a prepared statement by its text, and rendering costs time.
    #[test]
    fn a_statement_is_rendered_once() {
        let (naming, sql) = (naming("a"), "SELECT FROM tenure.session_lease");
        let (one, other) = (naming.sql(sql), naming.sql(sql));
        assert_eq!(one.as_str().as_ptr(), other.as_str().as_ptr());
    }

    #[test]
    fn a_name_that_would_need_care_is_refused() {
        let long = "x".repeat(64);
        for name in [
            "",
            "pg_x",
            "information_schema",
            "a b",
            "a\"b",
            "a'b",
            "a.b",
            "a$b",
            "a--b",
            "a\\b",
            "日本",
            "a\n",
            &long,
        ] {
            let refusal = Naming::parse(Some(name.to_owned())).err();
            assert!(matches!(refusal, Some(StoreError::Url { .. })), "{name:?}: {refusal:?}");
        }
        for name in ["tenure", "Prod", "agents-2", "_x", "1", &long[1..]] {
            assert_eq!(naming(name).name(), name);
        }
    }
}
