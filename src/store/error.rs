//! Why a database did not do what it was asked.

use std::time::Duration;

/// Why a database did not do what it was asked.
///
/// No message contains a password or a whole URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer, or no usable one: a time-out, a broken connection, a server that restarts or is read-only, a full
    /// disk. What was asked may still have happened. Trying again may help.
    #[error("the database {location} is unavailable: {detail}")]
    #[non_exhaustive]
    Unavailable {
        /// Which database.
        location: String,
        /// What went wrong.
        detail: String,
    },
    /// The server rolled the statement back because of other transactions (a deadlock, too long a wait for a lock, a
    /// serialization failure). Certainly nothing happened. Trying again helps.
    #[error("the database {location} rolled the statement back: {detail}")]
    #[non_exhaustive]
    RolledBack {
        /// Which database.
        location: String,
        /// What the server said.
        detail: String,
    },
    /// The server refused this statement because of its content. Certainly nothing happened. Trying the same again does
    /// not help.
    #[error("the database {location} rejected the statement: {detail}")]
    #[non_exhaustive]
    Rejected {
        /// Which database.
        location: String,
        /// What the server said.
        detail: String,
    },
    /// The database's encoding lacks a character of a session's key, or of an account to list. Certainly nothing
    /// happened, and no such session can be held in this database. Texts for people never cause this error: their
    /// missing characters are stored in escaped form, as `\u{65e5}`.
    #[error("the database {location} cannot store this name: {detail}")]
    #[non_exhaustive]
    Unstorable {
        /// Which database.
        location: String,
        /// What the server said, and the remedy.
        detail: String,
    },
    /// The database that granted the leases is no longer the authority, or has lost commits. Certainly nothing
    /// happened. Another database may now grant a session that was held here.
    #[error("the database {location} is not what it was: {detail}")]
    #[non_exhaustive]
    Lost {
        /// Which database.
        location: String,
        /// What became of it, and the remedy.
        detail: String,
    },
    /// There is no schema, or it is older than this release needs.
    #[error(
        "the database {location} has no usable tenure schema ({detail}); apply it with `tenure migrate` or \
         `tenure::migrate(url)`"
    )]
    #[non_exhaustive]
    SchemaMissing {
        /// Which database.
        location: String,
        /// What is missing.
        detail: String,
    },
    /// A later release has changed the schema in a way that this release cannot work with.
    #[error(
        "the database {location} has tenure schema version {found}, which needs at least schema support \
         {compatible_from}; this release knows version {known}: upgrade tenure"
    )]
    #[non_exhaustive]
    SchemaTooNew {
        /// Which database.
        location: String,
        /// The schema's version.
        found: u32,
        /// The oldest schema version whose releases still work with it.
        compatible_from: u32,
        /// The newest schema version this release knows.
        known: u32,
    },
    /// The database's user may not do this, or the file may not be written.
    #[error("the database {location} refused permission: {detail}")]
    #[non_exhaustive]
    PermissionDenied {
        /// Which database.
        location: String,
        /// What was refused, and the remedy where it is known.
        detail: String,
    },
    /// The URL is malformed, or does not name a database that this release can use.
    #[error("unusable database URL: {detail}")]
    #[non_exhaustive]
    Url {
        /// What is wrong with it, and the remedy.
        detail: String,
    },
}

impl StoreError {
    /// No answer came within this time.
    pub(crate) fn silent(location: &str, within: Duration) -> Self {
        Self::Unavailable { location: location.to_owned(), detail: format!("no answer within {within:?}") }
    }

    pub(crate) fn panicked(location: &str) -> Self {
        Self::Unavailable { location: location.to_owned(), detail: "the driver panicked".to_owned() }
    }

    /// Whether what was asked may have happened, or may still happen (invariant I9).
    pub fn is_uncertain(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Whether the same request may succeed if it is repeated unchanged.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::RolledBack { .. })
    }
}
