//! Decides what an error of the server or of the driver proves.
//!
//! [`StoreError::Unavailable`] says that what was asked may have happened. The other errors say that it certainly did
//! not. The caller's next step depends on this difference (invariant I9). In doubt, the error is `Unavailable`.

use std::error::Error as _;

use sqlx::{Error, postgres::PgDatabaseError};

use super::{doubt::ROW_SECURITY, naming::Naming, server::Server};
use crate::{limits, store::StoreError, text::printable};

/// The rights that holding leases needs, written for the default schema.
pub(super) const GRANTS: &str = "the role needs: GRANT USAGE ON SCHEMA tenure; GRANT SELECT ON tenure.migration; \
    GRANT SELECT, INSERT, UPDATE, DELETE ON tenure.session_lease; GRANT USAGE, UPDATE ON SEQUENCE \
    tenure.fence_floor; GRANT EXECUTE ON FUNCTION tenure.next_fence(bigint)";

/// The rights that reading leases needs.
pub(super) const GRANTS_TO_LOOK: &str = "to look, the role needs: GRANT USAGE ON SCHEMA tenure; GRANT SELECT ON \
    tenure.migration, tenure.session_lease";

/// The remedy when the server, the role or the database has no free connection.
const SLOTS: &str = "no connection is left: end some that are idle, raise max_connections, the role's limit (ALTER \
    ROLE … CONNECTION LIMIT) or the database's (ALTER DATABASE … CONNECTION LIMIT), or put a PgBouncer in between; \
    `tenure doctor` shows what is used";

/// Whether to send the same statement again. After a serialization failure or a deadlock it is likely to succeed.
pub(super) fn is_retried(error: &Error) -> bool {
    matches!(code(error).as_deref(), Some("40001" | "40P01"))
}

/// Whether the server's own time-out has ended the statement.
#[cfg(feature = "diagnosis")]
pub(super) fn is_timeout(error: &Error) -> bool {
    code(error).as_deref() == Some("57014")
}

/// The error of a connection that could not be opened. `remark` says why no password was found, if none was.
pub(super) fn on_connect(error: Error, server: &Server, remark: Option<String>) -> StoreError {
    let location = server.location.to_string();
    let detail = describe(&error);
    match code(&error).as_deref() {
        Some("3D000") => StoreError::Url {
            detail: format!(
                "{location}: {detail}; create it with CREATE DATABASE \"{}\"",
                printable(&server.database)
            ),
        },
        Some(code) if code.starts_with("28") => StoreError::PermissionDenied {
            location,
            detail: match remark {
                Some(remark) => format!("{detail}; {remark}"),
                None => format!(
                    "{detail}; check the user and the password in the URL, PGPASSWORD or the password file, and \
                     pg_hba.conf"
                ),
            },
        },
        Some("42501") => StoreError::PermissionDenied {
            location,
            detail: format!(
                "{detail}; the role needs: GRANT CONNECT ON DATABASE \"{}\"",
                printable(&server.database)
            ),
        },
        Some("0A000" | "08P01") if !server.pooled && is_of_start_up(&detail) => StoreError::Url {
            detail: format!(
                "{location} is a PgBouncer, or a proxy like it ({detail}); add pgbouncer=true to the URL's parameters"
            ),
        },
        Some("0A000" | "08P01") if is_of_start_up(&detail) => StoreError::Url {
            detail: format!(
                "{location} is a proxy that takes no options ({detail}); remove `options` from the URL, and PGOPTIONS"
            ),
        },
        Some("53300") => StoreError::Unavailable { location, detail: format!("{detail}; {SLOTS}") },
        Some(_) => on_use(error, &server.location, &server.naming),
        None if matches!(error, Error::Configuration(_)) => StoreError::Url { detail },
        None => StoreError::Unavailable { location, detail },
    }
}

/// [`GRANTS`] for the schema in question.
pub(super) fn grants(naming: &Naming) -> String {
    naming.text(GRANTS).into_owned()
}

/// The error of a statement that uses the schema.
pub(super) fn on_use(error: Error, location: &str, naming: &Naming) -> StoreError {
    on_statement(error, location, &grants(naming))
}

/// The error of a statement. `remedy` says what to do about a missing right.
pub(super) fn on_statement(error: Error, location: &str, remedy: &str) -> StoreError {
    let location = location.to_owned();
    let detail = describe(&error);
    let Some(code) = code(&error) else {
        return match error {
            Error::Encode(_) => StoreError::Rejected { location, detail },
            _ => StoreError::Unavailable { location, detail },
        };
    };
    match (code.as_str(), code.get(..2).unwrap_or_default()) {
        ("40001" | "40P01" | "55P03" | "40002", _) => StoreError::RolledBack { location, detail },
        ("42P01" | "42883" | "3F000" | "42703", _) => StoreError::SchemaMissing { location, detail },
        ("42501", _) if is_of_row_security(&error) => {
            StoreError::PermissionDenied { location, detail: format!("{detail}; {ROW_SECURITY}") }
        }
        ("42501", _) => StoreError::PermissionDenied { location, detail: format!("{detail}; {remedy}") },
        ("26000" | "42P05", _) => StoreError::Rejected {
            location,
            detail: format!("{detail}; behind PgBouncer, add pgbouncer=true to the URL's parameters"),
        },
        ("22P05" | "22021", _) => StoreError::Unstorable {
            location,
            detail: format!(
                "{detail}; use characters that the database's encoding has, or a database with ENCODING 'UTF8'"
            ),
        },
        ("25006", _) => StoreError::Unavailable {
            location,
            detail: format!(
                "it is read-only ({detail}); it may be a standby, or default_transaction_read_only is on for the role"
            ),
        },
        (_, "08" | "25" | "40" | "53" | "57" | "58" | "F0" | "XX") => {
            StoreError::Unavailable { location, detail }
        }
        _ => StoreError::Rejected { location, detail },
    }
}

/// The error when the server takes no writes and it is not known whether it is a standby.
pub(super) fn read_only(location: &str) -> StoreError {
    let detail = "it is read-only; it may be a standby, or default_transaction_read_only is on for the role (ALTER ROLE … \
                  RESET default_transaction_read_only), the database or the server";
    StoreError::Unavailable { location: location.to_owned(), detail: detail.to_owned() }
}

/// The error of a call that had already changed something. It is uncertain, whatever the cause.
pub(super) fn after_a_change(error: StoreError, location: &str) -> StoreError {
    match error {
        StoreError::Unavailable { .. } => error,
        other => StoreError::Unavailable { location: location.to_owned(), detail: other.to_string() },
    }
}

/// Whether row-level security is the cause. This goes by the routine in the server's source that raised the error,
/// because the message may be in any language.
fn is_of_row_security(error: &Error) -> bool {
    let error = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    let routine = error.and_then(PgDatabaseError::routine);
    // The first is raised when a policy would hide rows (with row_security off), the second when it refuses a write.
    matches!(routine, Some("check_enable_rls" | "ExecWithCheckOptions"))
}

/// Whether PgBouncer, or the proxy of a cloud provider, refuses the settings that are sent at connection.
fn is_of_start_up(detail: &str) -> bool {
    let detail = detail.to_ascii_lowercase();
    ["startup parameter", "start-up", "options", "startup"].iter().any(|word| detail.contains(word))
}

/// The error when the server's commits wait for a standby, which may have taken its place.
pub(super) fn awaits_standby(location: &str) -> StoreError {
    let detail =
        "its commits wait for a synchronous standby that does not answer, or has taken its place".to_owned();
    StoreError::Unavailable { location: location.to_owned(), detail }
}

/// Whether the server gave up waiting for a lock.
pub(super) fn is_lock_timeout(error: &Error) -> bool {
    code(error).as_deref() == Some("55P03")
}

fn code(error: &Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

/// The server's message and its SQLSTATE, or the driver's message with all its causes.
fn describe(error: &Error) -> String {
    if let Some(answer) = error.as_database_error() {
        return match answer.code() {
            Some(code) if code == "28000" && wants_tls(answer.message()) => {
                format!("{} (SQLSTATE {code}); {WANTS_TLS}", answer.message())
            }
            Some(code) => format!("{} (SQLSTATE {code})", answer.message()),
            None => answer.message().to_owned(),
        };
    }
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_words = cause.to_string();
        if !words.contains(&cause_words) {
            words = format!("{words}: {cause_words}");
        }
        source = cause.source();
    }
    if let Error::Io(error) = error
        && let Some(remedy) = limits::remedy(error)
    {
        words = format!("{words}; {remedy}");
    } else if let Some(remedy) = tls_remedy(&words) {
        words = format!("{words}; {remedy}");
    }
    words
}

const WANTS_TLS: &str = "the server may accept encrypted connections only: use sslmode=require or better";

fn wants_tls(message: &str) -> bool {
    ["no encryption", "SSL off"].iter().any(|end| message.ends_with(end))
}

/// What to do about an error of the TLS library.
fn tls_remedy(words: &str) -> Option<&'static str> {
    let is_said = |one: &str| words.contains(one);
    if is_said("does not support TLS") {
        Some(
            "the server offers no encryption: switch it on there (ssl = on), or, if nobody can listen on the way to it, \
             use sslmode=disable",
        )
    } else if is_said("UnknownIssuer") {
        Some(
            "no trusted authority has signed the server's certificate: name the one that has with sslrootcert=FILE",
        )
    } else if is_said("NotValidForName") || is_said("not valid for name") {
        Some(
            "the server's certificate is for another name: connect by a name that is in it, or use sslmode=verify-ca",
        )
    } else if is_said("certificate") && is_said("xpired") {
        Some("the server's certificate has expired: renew it there")
    } else {
        None
    }
}
