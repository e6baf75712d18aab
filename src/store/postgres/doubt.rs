//! The reasons why the answer of a server may not be true.
//!
//! Only the authority says who holds a session (invariant I1). A standby, or a demoted primary, may lack the latest
//! changes. A view, or a policy of row-level security, may hide the row of a session that is held, so that the session
//! looks idle.

use crate::store::StoreError;

/// The reason for doubt that a statement finds when it begins with `server.sql`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doubt {
    /// The table's name belongs to something else, for example a view.
    NoTable,
    /// Policies decide which rows this role sees.
    RowSecurity,
    /// The server is a standby, which only replays the commits of its primary.
    Standby,
    /// The server takes no writes from any role. It may be a demoted primary.
    ReadOnly,
    /// The server is the authority, but this role may only read.
    ReadOnlyRole,
}

impl Doubt {
    pub(super) fn of(word: &str) -> Self {
        match word {
            "no table" => Self::NoTable,
            "row security" => Self::RowSecurity,
            "standby" => Self::Standby,
            "read-only role" => Self::ReadOnlyRole,
            _ => Self::ReadOnly,
        }
    }

    /// Whether a session that is held may look idle. Then no answer is of any use, not even for reading.
    pub(super) fn hides_rows(self) -> bool {
        matches!(self, Self::NoTable | Self::RowSecurity)
    }

    pub(super) fn error(self, location: &str) -> StoreError {
        let location = location.to_owned();
        match self {
            Self::NoTable | Self::RowSecurity => {
                StoreError::PermissionDenied { location, detail: self.detail().to_owned() }
            }
            Self::Standby | Self::ReadOnly | Self::ReadOnlyRole => {
                StoreError::Unavailable { location, detail: self.detail().to_owned() }
            }
        }
    }

    fn detail(self) -> &'static str {
        match self {
            Self::NoTable => NO_TABLE,
            Self::RowSecurity => ROW_SECURITY,
            Self::Standby => {
                "it is read-only: a standby, or a primary that was demoted; name its primary in the URL too \
                 (postgres://h1,h2/db), or promote it"
            }
            Self::ReadOnly => {
                "it is read-only: default_transaction_read_only is on for the server or the database, as on a primary \
                 that was demoted; name the server that takes writes in the URL too (postgres://h1,h2/db), or turn \
                 the setting off (ALTER SYSTEM, or ALTER DATABASE … RESET default_transaction_read_only)"
            }
            Self::ReadOnlyRole => {
                "it is read-only for this role, whose default_transaction_read_only is on; use a role that may write, \
                 or ALTER ROLE … RESET default_transaction_read_only (ALTER ROLE … IN DATABASE …, PGOPTIONS and the \
                 URL's options can set it, too)"
            }
        }
    }
}

const NO_TABLE: &str = "session_lease is not a table but a view or the like, which may hide sessions that are held; give \
    the table its name back, and let this role use that";

/// Any policy is refused, because nobody can know in advance which rows it will hide.
pub(super) const ROW_SECURITY: &str = "row-level security may hide sessions that are held from this role; ALTER ROLE … \
    BYPASSRLS, or ALTER TABLE … DISABLE ROW LEVEL SECURITY for the tables session_lease and migration";
