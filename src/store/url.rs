//! What every backend asks of a database URL.

use super::error::StoreError;

/// Checked before a backend reads it: a line break that came with a secret must neither name
/// another database nor be sent to one.
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

/// Whether it is the bare path of a file, and nothing with a password in it.
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
    // What is no scheme may be a part of a password.
    match scheme.chars().all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char)) {
        true => format!("{scheme:?} is not a scheme of an enabled backend; use {enabled}"),
        false => format!("it does not begin with a scheme; use {enabled}"),
    }
}
