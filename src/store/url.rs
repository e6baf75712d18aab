//! The checks of a database URL that are the same for every backend.

use super::error::StoreError;

/// The URL without white space around it. It is checked before a backend reads it, because a line break that came with
/// a secret must not become part of a name, and must not be sent to a server.
pub(crate) fn checked(url: &str) -> Result<&str, StoreError> {
    let url = url.trim_matches(|char: char| char.is_ascii_whitespace() || char == '\u{b}');
    let refused = |detail: &str| Err(StoreError::Url { detail: detail.to_owned() });
    match url {
        "" => refused("it is empty; name a database, or leave the setting or the variable out"),
        _ if url.contains(char::is_control) => {
            refused("it has a line break or another control character in it; remove that")
        }
        _ => Ok(url),
    }
}

/// Whether this is the bare path of a file, which cannot contain a password.
#[cfg(feature = "sqlite")]
pub(super) fn is_path(url: &str) -> bool {
    url.contains(['/', '.']) && !url.contains([':', '@', '=', '?', '%', ' '])
}

pub(super) fn unknown_scheme(scheme: &str) -> String {
    let enabled: &[&str] = &[
        #[cfg(feature = "postgres")]
        "postgres://user@host/database",
        #[cfg(feature = "sqlite")]
        "sqlite://path/to/file.db",
    ];
    let enabled = enabled.join(" or ");
    // A text that cannot be a scheme may be part of a password, so it is not shown.
    let is_scheme = scheme.chars().all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char));
    match is_scheme && !scheme.is_empty() {
        true => format!("{scheme:?} is not a scheme of an enabled backend; use {enabled}"),
        false => format!("it does not begin with a scheme; use {enabled}"),
    }
}
