//! Recognises a connection string of `name=value` pairs, which libpq accepts besides URLs, and shows the equivalent
//! URL.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{parameter, uri::refused};
use crate::store::StoreError;

/// Percent-encodes everything except the characters that any part of a URL may contain as they are.
const SPECIAL: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b':')
    .remove(b'[')
    .remove(b']');

/// Whether a text begins with a parameter of libpq and an equals sign.
pub(crate) fn is_conninfo(text: &str) -> bool {
    let first = text.split_once('=').map_or("", |(name, _)| name.trim());
    !first.is_empty() && parameter::find(first).is_ok()
}

/// The error for a connection string of `name=value` pairs. It contains no secret.
pub(super) fn refusal(text: &str) -> StoreError {
    let form = match pairs(text) {
        Some(pairs) => as_url(&pairs),
        None => "postgres://user:password@host:port/database".to_owned(),
    };
    refused(format!("it is a connection string of name=value pairs; write it as a URL: {form}"))
}

fn as_url(pairs: &[(String, String)]) -> String {
    let value = |name: &str| pairs.iter().rfind(|(given, _)| given == name).map(|(_, value)| encoded(value));
    let has = |name: &str| pairs.iter().any(|(given, _)| given == name);
    let password = if has("password") { ":PASSWORD" } else { "" };
    let login = match value("user") {
        Some(user) => format!("{user}{password}@"),
        None => String::new(),
    };
    let port = value("port").map(|port| format!(":{port}")).unwrap_or_default();
    let host = value("host").unwrap_or_default();
    // A list of hosts, or the directory of a socket, goes among the parameters.
    let is_plain = !host.contains('%');
    let (host, port) = if is_plain { (host, port) } else { (String::new(), String::new()) };
    let moved = ["user", "password", "dbname"]
        .into_iter()
        .chain(is_plain.then_some(["host", "port"]).into_iter().flatten());
    let moved: Vec<_> = moved.collect();
    let rest: Vec<_> = pairs
        .iter()
        .filter(|(name, _)| !moved.contains(&name.as_str()))
        .map(|(name, value)| match parameter::is_secret(name) {
            true => format!("{}=…", encoded(name)),
            false => format!("{}={}", encoded(name), encoded(value)),
        })
        .collect();
    let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
    format!("postgres://{login}{host}{port}/{}{query}", value("dbname").unwrap_or_default())
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, SPECIAL).to_string()
}

/// The pairs of the text. `None` if it cannot be parsed to its end.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let (mut pairs, mut rest) = (Vec::new(), text.trim_start());
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = value(after.trim_start())?;
        pairs.push((name.trim_end().to_owned(), value));
        rest = after.trim_start();
    }
    Some(pairs)
}

/// The value at the beginning of a text, and the rest. It is in quotes or ends at a blank, and a backslash escapes the
/// next character.
fn value(text: &str) -> Option<(String, &str)> {
    let (quoted, body) = match text.strip_prefix('\'') {
        Some(body) => (true, body),
        None => (false, text),
    };
    let mut value = String::new();
    let mut chars = body.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '\\' => value.push(chars.next()?.1),
            '\'' if quoted => return Some((value, &body[at + 1..])),
            blank if !quoted && blank.is_whitespace() => return Some((value, &body[at..])),
            other => value.push(other),
        }
    }
    (!quoted).then_some((value, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_string_is_told_the_url_that_would_do_and_no_secret() {
        for (text, url) in [
            ("host=db dbname=app", "postgres://db/app"),
            (
                "host = db port=6000 user='me' password=s3cret dbname=app",
                "postgres://me:PASSWORD@db:6000/app",
            ),
            (
                "host=/run/pg dbname='my app' sslmode=disable",
                "postgres:///my%20app?host=%2Frun%2Fpg&sslmode=disable",
            ),
            ("host=h1,h2 port=1,2 user=me dbname=a", "postgres://me@/a?host=h1%2Ch2&port=1%2C2"),
            (r"dbname=it\'s user='a b'", "postgres://a%20b@/it%27s"),
            ("host=db sslpassword=s3cret", "postgres://db/?sslpassword=…"),
            ("host=db password='s3cret", "postgres://user:password@host:port/database"),
            ("dbname=app host=::1 junk", "postgres://user:password@host:port/database"),
        ] {
            assert!(is_conninfo(text), "{text}");
            let refusal = refusal(text).to_string();
            assert!(refusal.ends_with(&format!("write it as a URL: {url}")), "{refusal}");
            assert!(!refusal.contains("s3cret"), "{refusal}");
        }
        for other in ["", "db", "mysql://h/x?host=y", "=x", "sqlite:x=y", "colour=red"] {
            assert!(!is_conninfo(other), "{other}");
        }
    }
}
