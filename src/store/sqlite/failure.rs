//! Turns SQLite's errors into the errors of the contract.

use super::file::{Access, DatabaseFile, unusable};
use crate::{
    limits,
    store::{StoreError, schema::Unfit},
};

/// Why a statement gave no usable answer. The caller adds the name of the file.
#[derive(Debug)]
pub(super) enum Failure {
    Sql(sqlx::Error),
    /// The answer cannot be used, for example because a row has a value that no release of tenure writes.
    Unreadable(String),
    /// A later statement of a call failed, after an earlier one had written.
    AfterAWrite(Box<Failure>),
    Unfit(Unfit),
    /// A trigger suppressed a write. The text names the triggers that may have done it.
    Swallowed(String),
    /// The file was refused before SQLite was asked.
    Refused(StoreError),
}

impl From<Unfit> for Failure {
    fn from(unfit: Unfit) -> Self {
        Self::Unfit(unfit)
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl Failure {
    /// Another connection kept a lock for longer than this one was willing to wait.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::Sql(error) if matches!(primary_code(error), Some(code::BUSY | code::LOCKED)))
    }

    /// The statement was refused because of its content.
    pub(super) fn is_rejection(&self) -> bool {
        matches!(self, Self::Sql(error) if primary_code(error).is_some_and(code::is_of_content))
    }

    /// The disk, or the number of pages that the file may have, is used up.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Sql(error) if primary_code(error) == Some(code::FULL))
    }

    /// SQLite could not create the files beside the database that it needs for reading.
    pub(super) fn is_denied(&self) -> bool {
        let denied = [code::CANTOPEN, code::READONLY, code::PERM, code::IOERR];
        matches!(self, Self::Sql(error) if primary_code(error).is_some_and(|code| denied.contains(&code)))
    }

    /// Marks the failure as uncertain: an earlier statement of the same call has written, so the failure must not say
    /// that nothing happened (invariant I9).
    pub(super) fn after_a_write(self) -> Self {
        Self::AfterAWrite(Box::new(self))
    }

    pub(super) fn is_missing_table(&self) -> bool {
        matches!(self, Self::Sql(sqlx::Error::Database(error)) if error.message().starts_with("no such table"))
    }

    pub(super) fn in_file(self, file: &DatabaseFile) -> StoreError {
        let location = file.location().to_owned();
        match self {
            Self::Sql(error) => sql(&error, file),
            Self::Unreadable(detail) => StoreError::Unavailable { location, detail },
            Self::AfterAWrite(failure) => {
                StoreError::Unavailable { location, detail: failure.in_file(file).to_string() }
            }
            Self::Refused(error) => error,
            Self::Swallowed(triggers) => StoreError::Rejected {
                location,
                detail: format!(
                    "a row of tenure_session_lease was not written, and no error was raised: a trigger swallows it \
                     (RAISE(IGNORE)); look at {triggers}, and change it or DROP TRIGGER it"
                ),
            },
            Self::Unfit(unfit) => unfit.at(&location),
        }
    }
}

/// Primary result codes of SQLite (<https://www.sqlite.org/rescode.html>), which are the low byte of a result code.
mod code {
    pub(super) const ERROR: i32 = 1;
    pub(super) const PERM: i32 = 3;
    pub(super) const BUSY: i32 = 5;
    pub(super) const LOCKED: i32 = 6;
    pub(super) const NOMEM: i32 = 7;
    pub(super) const READONLY: i32 = 8;
    pub(super) const IOERR: i32 = 10;
    pub(super) const CORRUPT: i32 = 11;
    pub(super) const FULL: i32 = 13;
    pub(super) const CANTOPEN: i32 = 14;
    pub(super) const SCHEMA: i32 = 17;
    pub(super) const TOOBIG: i32 = 18;
    pub(super) const CONSTRAINT: i32 = 19;
    pub(super) const MISMATCH: i32 = 20;
    pub(super) const AUTH: i32 = 23;
    pub(super) const RANGE: i32 = 25;
    pub(super) const NOTADB: i32 = 26;
    /// An extended code: the file was moved or deleted while the connection was open. A new connection helps.
    pub(super) const READONLY_DBMOVED: i32 = 1032;

    /// Whether the statement was refused because of its content, so that repeating it would not help.
    pub(super) fn is_of_content(primary: i32) -> bool {
        matches!(primary, ERROR | CONSTRAINT | TOOBIG | MISMATCH | RANGE)
    }
}

fn result_code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

fn primary_code(error: &sqlx::Error) -> Option<i32> {
    result_code(error).map(|code| code & 0xff)
}

fn sql(error: &sqlx::Error, file: &DatabaseFile) -> StoreError {
    let location = file.location().to_owned();
    let message = match error {
        sqlx::Error::Database(error) => error.message().to_owned(),
        // sqlx could not start the connection's thread.
        sqlx::Error::Io(error) => limits::no_thread(error),
        other => other.to_string(),
    };
    if result_code(error) == Some(code::READONLY_DBMOVED) {
        return StoreError::Unavailable { location, detail: message };
    }
    match primary_code(error) {
        Some(code::BUSY | code::LOCKED | code::SCHEMA) => {
            StoreError::RolledBack { location, detail: format!("{message}; another connection is writing") }
        }
        Some(code::READONLY | code::PERM | code::AUTH) => StoreError::PermissionDenied {
            location,
            detail: match file.access() {
                Access::ReadOnly => format!("{message}; open it without mode=ro"),
                _ => format!("{message}; let this user write the file and its directory"),
            },
        },
        Some(code::CANTOPEN) => file.cannot_open(),
        Some(code::NOTADB | code::CORRUPT) => unusable(format!(
            "{location} is not a SQLite database, or a damaged one ({message}); name another file, or restore it"
        )),
        Some(code::FULL) => {
            StoreError::Unavailable { location, detail: format!("{message}; free some disk space") }
        }
        Some(code::ERROR) if message.starts_with("no such") => {
            StoreError::SchemaMissing { location, detail: message }
        }
        Some(of_content) if code::is_of_content(of_content) => {
            StoreError::Rejected { location, detail: message }
        }
        Some(code::IOERR) => StoreError::Unavailable {
            location,
            detail: format!(
                "{message}; check the free space and the health of the disk, and whether the log (-wal) was removed \
                 while a process had the file open"
            ),
        },
        Some(code::NOMEM) => StoreError::Unavailable {
            location,
            detail: format!("{message}: this process cannot get more memory; raise its limit (`ulimit -v`)"),
        },
        // For example a locking protocol error, or a crashed worker: the statement may have happened or not.
        _ => StoreError::Unavailable { location, detail: message },
    }
}
