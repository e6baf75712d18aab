//! What a URL says about where to connect, and how.

use std::{sync::Arc, time::Duration};

use sqlx::{ConnectOptions, postgres::PgConnectOptions};
use tracing::subscriber::NoSubscriber;
use url::Url;

use crate::{
    session::printable,
    store::{Bounds, StoreError},
};

/// The server and the database, and how to speak to them.
pub(super) struct Target {
    options: PgConnectOptions,
    /// Behind PgBouncer in transaction mode: no two statements need reach the same server session.
    pub(super) pooled: bool,
    /// For people, without any secret.
    pub(super) location: Arc<str>,
    pub(super) database: String,
}

impl Target {
    pub(super) fn parse(text: &str) -> Result<Self, StoreError> {
        let mut url = Url::parse(text).map_err(unreadable)?;
        check_shape(&url)?;
        let pooled = take_pgbouncer(&mut url)?;
        check_parameters(&url)?;
        // sqlx warns of a malformed line in the password file by showing it.
        let options =
            tracing::subscriber::with_default(NoSubscriber::default(), || PgConnectOptions::from_url(&url));
        let options = options.map_err(|error| refused(explain(&error)))?;
        let database = options.get_database().unwrap_or(options.get_username()).to_owned();
        let location = location(&options, &database).into();
        Ok(Self { options, pooled, location, database })
    }

    pub(super) fn options(&self, bounds: Bounds) -> PgConnectOptions {
        let mut options = self.options.clone().disable_statement_logging();
        if options.get_application_name().is_none() {
            options = options.application_name("tenure");
        }
        if self.pooled {
            return options.extra_float_digits(None).statement_cache_capacity(0);
        }
        options.options([
            ("statement_timeout", server_millis(bounds.statement)),
            ("lock_timeout", server_millis(bounds.lock)),
            // Only a migration has a transaction of more than one statement.
            ("idle_in_transaction_session_timeout", server_millis(bounds.statement)),
            ("default_transaction_isolation", "read committed".to_owned()),
        ])
    }
}

/// Refuses what other libraries would take for something else, above all a password whose special characters
/// are not percent-encoded: a part of it would pass for a port, a path or a parameter, and be shown.
fn check_shape(url: &Url) -> Result<(), StoreError> {
    if !matches!(url.scheme(), "postgres" | "postgresql") {
        return Err(refused(format!(
            "the scheme {:?} is not PostgreSQL's; use postgres:// or postgresql://",
            url.scheme()
        )));
    }
    let misplaced = url.fragment().is_some()
        || url.path().contains('@')
        || url.query_pairs().any(|(name, _)| name.contains('@'));
    if misplaced {
        return Err(refused(
            "it has an '@' or a '#' where none belongs; percent-encode special characters in the password \
             (/ is %2F, ? is %3F, # is %23, @ is %40)"
                .to_owned(),
        ));
    }
    Ok(())
}

/// What sqlx understands. It would log the others, with their values.
const PARAMETERS: &[&str] = &[
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
];

fn check_parameters(url: &Url) -> Result<(), StoreError> {
    let is_known = |name: &str| PARAMETERS.contains(&name) || name.starts_with("options[");
    match url.query_pairs().find(|(name, _)| !is_known(name)) {
        Some((name, _)) => Err(refused(format!(
            "the parameter {:?} is unknown; remove it, or use one of pgbouncer, {}",
            printable(&name),
            PARAMETERS.join(", ")
        ))),
        None => Ok(()),
    }
}

/// sqlx wraps its errors in their own words, more than once.
fn explain(error: &sqlx::Error) -> String {
    let text = error.to_string();
    let text = text.trim_start_matches("error with configuration: ");
    format!(
        "{text}; write it as postgres://user:password@host:port/database, special characters percent-encoded"
    )
}

/// Takes the parameter that is ours out of the URL.
fn take_pgbouncer(url: &mut Url) -> Result<bool, StoreError> {
    let (ours, others): (Vec<_>, Vec<_>) =
        url.query_pairs().into_owned().partition(|(name, _)| name == "pgbouncer");
    let pooled = match ours.last().map(|(_, value)| value.as_str()) {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => {
            return Err(refused(format!(
                "pgbouncer={other:?} is unknown; use pgbouncer=true or pgbouncer=false"
            )));
        }
    };
    url.set_query(None);
    if !others.is_empty() {
        url.query_pairs_mut().extend_pairs(others);
    }
    Ok(pooled)
}

fn location(options: &PgConnectOptions, database: &str) -> String {
    let port = options.get_port();
    match options.get_socket() {
        Some(directory) => format!("{}/.s.PGSQL.{port}/{database}", directory.display()),
        None if options.get_host().starts_with('/') => {
            format!("{}/.s.PGSQL.{port}/{database}", options.get_host())
        }
        None => format!("{}:{port}/{database}", options.get_host()),
    }
}

/// PostgreSQL takes zero for "no bound" and no more than 31 bits.
fn server_millis(duration: Duration) -> String {
    duration.as_millis().clamp(1, i32::MAX as u128).to_string()
}

fn unreadable(error: url::ParseError) -> StoreError {
    refused(match error {
        url::ParseError::EmptyHost => {
            format!("{error}; for a Unix socket write postgres:///database?host=/run/postgresql&user=name")
        }
        _ => format!(
            "{error}; write it as postgres://user:password@host:port/database, special characters in the \
             password percent-encoded"
        ),
    })
}

fn refused(detail: String) -> StoreError {
    StoreError::Url { detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Target {
        Target::parse(url).unwrap_or_else(|error| panic!("{error}"))
    }

    fn refusal(url: &str) -> String {
        Target::parse(url).err().unwrap_or_else(|| panic!("{url} is accepted")).to_string()
    }

    #[test]
    fn a_location_names_the_server_and_no_secret() {
        for (url, location) in [
            ("postgres://me:s3cret@db.example:6000/app", "db.example:6000/app"),
            ("postgresql://me:s3cret@db.example/app?sslmode=disable", "db.example:5432/app"),
            ("postgres:///app?host=/run/pg&port=6000&user=me&password=s3cret", "/run/pg/.s.PGSQL.6000/app"),
            ("postgres://me:s3cret@%2Frun%2Fpg/app", "/run/pg/.s.PGSQL.5432/app"),
            ("postgres://db/?user=me&password=s3cret&dbname=app", "db:5432/app"),
        ] {
            let store = crate::store::PostgresStore::new(url).unwrap();
            assert_eq!(*store.target.location, *location, "{url}");
            assert_eq!(format!("{store:?}"), format!("PostgresStore({location:?})"));
        }
    }

    #[test]
    fn a_refused_url_names_the_remedy_and_no_secret() {
        for (url, remedy) in [
            ("mysql://me:s3cret@db/app", "use postgres://"),
            ("s3cret", "postgres://user:password@host:port/database"),
            ("postgres://me:s3cret/x@db/app", "percent-encoded"),
            ("postgres://me:s3cret@/app?host=/run/pg", "postgres:///database?host="),
            ("postgres://me:12/s3cret@db/app", "%2F"),
            ("postgres://me:12?s3cret@db/app", "%3F"),
            ("postgres://me:12#s3cret@db/app", "%23"),
            ("postgres://me:s3cret@db/app?pgbouncer=yes", "pgbouncer=true"),
            ("postgres://me:s3cret@db/app?sslmode=maybe", "maybe"),
            ("postgres://me@db/app?sslpassword=s3cret", "sslpassword"),
            ("postgres://me:s3cret@db/app?port=x", "postgres://user:password@host:port/database"),
        ] {
            let refusal = refusal(url);
            assert!(refusal.contains(remedy), "{url}: {refusal}");
            assert!(!refusal.contains("s3cret"), "{url}: {refusal}");
        }
    }

    #[test]
    fn the_pgbouncer_parameter_is_ours_and_the_others_stay() {
        let pooled = parse("postgres://db/app?pgbouncer=true&application_name=a%20b");
        assert!(pooled.pooled);
        assert_eq!(pooled.options.get_application_name(), Some("a b"));
        assert_eq!(pooled.options(BOUNDS).get_options(), None);
        assert!(!parse("postgres://db/app?pgbouncer=false").pooled);
    }

    #[test]
    fn a_bound_is_never_sent_as_no_bound() {
        let options = parse("postgres://db/app").options(Bounds { statement: Duration::ZERO, ..BOUNDS });
        let sent = options.get_options().unwrap();
        assert!(sent.contains("statement_timeout=1 "), "{sent}");
        assert!(sent.contains("lock_timeout=700 "), "{sent}");
        assert!(sent.contains(r"default_transaction_isolation=read\ committed"), "{sent}");
    }

    const BOUNDS: Bounds =
        Bounds { statement: Duration::from_millis(1500), lock: Duration::from_millis(700) };
}
