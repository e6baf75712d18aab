//! What a URL says about where to connect, and how.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use sqlx::{ConnectOptions, postgres::PgConnectOptions};
use tracing::subscriber::NoSubscriber;
use url::Url;

use super::{hosts, naming::Naming};
use crate::{
    store::{Bounds, StoreError},
    text::printable,
};

/// The database: the servers that may have it, and how to speak to them.
pub(super) struct Target {
    /// In the order of the URL; at least one.
    servers: Vec<Server>,
    /// The index of the one to ask first. Connections of several lanes change it at the same time; no order is wrong.
    first: Arc<AtomicUsize>,
    /// For people, without any secret: all servers and the database.
    pub(super) location: Arc<str>,
    pub(super) naming: Arc<Naming>,
}

/// One server of a [`Target`].
pub(super) struct Server {
    options: PgConnectOptions,
    /// Behind PgBouncer in transaction mode: no two statements need reach the same server session.
    pub(super) pooled: bool,
    /// For people: host and port, or the path of the socket.
    pub(super) address: String,
    /// For people, without any secret: the address and the database.
    pub(super) location: Arc<str>,
    pub(super) database: String,
    pub(super) naming: Arc<Naming>,
    pub(super) turn: Turn,
}

/// Where one server stands among those to ask.
#[derive(Clone)]
pub(super) struct Turn {
    first: Arc<AtomicUsize>,
    index: usize,
    servers: usize,
}

impl Target {
    pub(super) fn parse(text: &str) -> Result<Self, StoreError> {
        let (mut urls, first) = (hosts::split(text)?, Arc::new(AtomicUsize::new(0)));
        // One URL says it of all.
        let schemas: Vec<_> = urls.iter_mut().map(|url| hosts::take(url, "schema")).collect();
        let naming = Arc::new(Naming::parse(schemas.into_iter().next().flatten())?);
        let turn = |index| Turn { first: first.clone(), index, servers: urls.len() };
        let servers =
            urls.iter().enumerate().map(|(index, url)| Server::parse(url.clone(), &naming, turn(index)));
        let servers = servers.collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<_> = servers.iter().map(|server| server.address.as_str()).collect();
        let location = location(&addresses.join(","), &servers[0].database, &naming);
        Ok(Self { servers, first, location, naming })
    }

    /// As [`Server::pooled`], which one URL says of all.
    pub(super) fn is_pooled(&self) -> bool {
        self.servers.iter().any(|server| server.pooled)
    }

    /// All servers, the one to ask first before the others.
    pub(super) fn in_order(&self) -> Vec<&Server> {
        let (before, from) = self.servers.split_at(self.first.load(Ordering::Relaxed));
        from.iter().chain(before).collect()
    }
}

impl Turn {
    /// This server works: it is asked first from now on.
    pub(super) fn prefer(&self) {
        self.first.store(self.index, Ordering::Relaxed);
    }

    /// This one is silent, which takes time to notice: the one after it is asked first from now on.
    pub(super) fn pass_over(&self) {
        let next = (self.index + 1) % self.servers;
        let _ = self.first.compare_exchange(self.index, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// To be held while an answer is awaited: it is passed over if nobody waits any longer.
    pub(super) fn awaited(&self) -> Awaited {
        Awaited(Some(self.clone()))
    }
}

/// An answer that is still to come.
pub(super) struct Awaited(Option<Turn>);

impl Awaited {
    /// Whatever the answer was.
    pub(super) fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        if let Some(turn) = &self.0 {
            turn.pass_over();
        }
    }
}

impl Server {
    fn parse(mut url: Url, naming: &Arc<Naming>, turn: Turn) -> Result<Self, StoreError> {
        check_shape(&url)?;
        let pooled = is_pooled(hosts::take(&mut url, "pgbouncer"))?;
        check_session_attrs(hosts::take(&mut url, "target_session_attrs"))?;
        check_parameters(&url)?;
        // sqlx warns of a malformed line in the password file by showing it.
        let options =
            tracing::subscriber::with_default(NoSubscriber::default(), || PgConnectOptions::from_url(&url));
        let options = options.map_err(|error| refused(explain(&error)))?;
        let database = options.get_database().unwrap_or(options.get_username()).to_owned();
        let address = address(&options);
        let location = location(&address, &database, naming);
        Ok(Self { options, pooled, address, location, database, naming: naming.clone(), turn })
    }

    pub(super) fn options(&self, bounds: Bounds) -> PgConnectOptions {
        let options = self.plain_options();
        if self.pooled {
            return options;
        }
        options
            .options([
                ("statement_timeout", server_millis(bounds.statement)),
                ("lock_timeout", server_millis(bounds.lock)),
                // Only a migration has a transaction of more than one statement.
                ("idle_in_transaction_session_timeout", server_millis(bounds.statement)),
                ("default_transaction_isolation", "read committed".to_owned()),
                // An error instead of rows that a policy hides: no session that is held may look idle.
                ("row_security", "off".to_owned()),
            ])
            .options(SETTINGS.iter().copied())
    }

    /// Without any setting of ours.
    pub(super) fn plain_options(&self) -> PgConnectOptions {
        let mut options = self.options.clone().disable_statement_logging();
        if options.get_application_name().is_none() {
            options = options.application_name("tenure");
        }
        match self.pooled {
            true => options.extra_float_digits(None).statement_cache_capacity(0),
            false => options,
        }
    }
}

/// Besides what bounds a statement. A plan, and with it how long a statement takes, must not depend on what a role or a
/// database has set for other work; these are the server's own defaults, but that nothing is compiled (`jit`), which
/// takes longer than a short lease lasts, and that no statement waits for worker processes. Nor must what is seen.
pub(super) const SETTINGS: &[(&str, &str)] = &[
    ("jit", "off"),
    ("max_parallel_workers_per_gather", "0"),
    ("plan_cache_mode", "auto"),
    ("enable_nestloop", "on"),
    ("enable_hashjoin", "on"),
    ("enable_mergejoin", "on"),
    ("enable_indexscan", "on"),
    ("enable_indexonlyscan", "on"),
    ("enable_bitmapscan", "on"),
    ("enable_sort", "on"),
    ("enable_hashagg", "on"),
    ("enable_material", "on"),
    ("seq_page_cost", "1"),
    ("random_page_cost", "4"),
    // An error instead of rows that a policy hides: no session that is held may look idle.
    ("row_security", "off"),
    // A statement that the server rejects must not end the session of its neighbours.
    ("exit_on_error", "off"),
];

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
            "the parameter {:?} is unknown; remove it, or use one of pgbouncer, schema, target_session_attrs, {}",
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

fn is_pooled(parameter: Option<String>) -> Result<bool, StoreError> {
    match parameter.as_deref() {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => Err(refused(format!(
            "pgbouncer={:?} is unknown; use pgbouncer=true or pgbouncer=false",
            printable(other)
        ))),
    }
}

/// A lease needs a server that takes writes, so that is what is looked for whichever of these is given.
fn check_session_attrs(parameter: Option<String>) -> Result<(), StoreError> {
    match parameter.as_deref() {
        None | Some("any" | "read-write" | "primary") => Ok(()),
        Some(other) => Err(refused(format!(
            "target_session_attrs={:?} leads to no server that takes writes, as leases need; use read-write",
            printable(other)
        ))),
    }
}

/// For people.
fn location(address: &str, database: &str, naming: &Naming) -> Arc<str> {
    match naming.is_default() {
        true => format!("{address}/{database}").into(),
        false => format!("{address}/{database}?schema={}", naming.name()).into(),
    }
}

fn address(options: &PgConnectOptions) -> String {
    let port = options.get_port();
    match options.get_socket() {
        Some(directory) => format!("{}/.s.PGSQL.{port}", directory.display()),
        None if options.get_host().starts_with('/') => format!("{}/.s.PGSQL.{port}", options.get_host()),
        None => format!("{}:{port}", options.get_host()),
    }
}

/// PostgreSQL takes zero for "no bound" and no more than 31 bits.
fn server_millis(duration: Duration) -> String {
    duration.as_millis().clamp(1, i32::MAX as u128).to_string()
}

pub(super) fn unreadable(error: url::ParseError) -> StoreError {
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

pub(super) fn refused(detail: String) -> StoreError {
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
            ("postgres://me:s3cret@h1:6000,h2/app", "h1:6000,h2:5432/app"),
            ("postgres://me:s3,cret@h1,h2:6001,[::1]:6002/app", "h1:5432,h2:6001,[::1]:6002/app"),
            ("postgres:///app?host=h1,h2&port=6000,6001&user=me&password=s3cret", "h1:6000,h2:6001/app"),
            ("postgres:///app?host=/run/a,h2&port=6000&user=me", "/run/a/.s.PGSQL.6000,h2:6000/app"),
            ("postgres://h1,h2/app?port=6000,6001&target_session_attrs=any", "h1:6000,h2:6001/app"),
            ("postgres://h1:6000,h2/?dbname=app&target_session_attrs=primary", "h1:6000,h2:5432/app"),
            ("postgres://h1,h2/app?schema=Prod", "h1:5432,h2:5432/app?schema=Prod"),
            ("postgres://h1/app?schema=tenure", "h1:5432/app"),
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
            ("postgres://me:s3cret@h1,h2/app?schema=a%20b", "letters from A to Z"),
            ("postgres://me@db/app?sslpassword=s3cret", "sslpassword"),
            ("postgres://me:s3cret@db/app?port=x", "postgres://user:password@host:port/database"),
            ("postgres://me:s3cret@h1,h2:x/app", "percent-encoded"),
            ("postgres://me:s3,cret/x@h1,h2/app", "percent-encoded"),
            ("postgres://me:1,2/s3cret@h1,h2/app", "%2F"),
            ("postgres://me:s3cret@h1,,h2/app", "empty"),
            ("postgres://me:s3cret@h1,h2/app?port=1,2,3", "3 ports for 2 hosts"),
            ("postgres://me:s3cret@h1,h2/app?target_session_attrs=standby", "use read-write"),
        ] {
            let refusal = refusal(url);
            assert!(refusal.contains(remedy), "{url}: {refusal}");
            assert!(!refusal.contains("s3cret"), "{url}: {refusal}");
        }
    }

    #[test]
    fn the_pgbouncer_parameter_is_ours_and_the_others_stay() {
        let pooled = parse("postgres://db/app?pgbouncer=true&application_name=a%20b");
        let pooled = &pooled.servers[0];
        assert!(pooled.pooled);
        assert_eq!(pooled.options.get_application_name(), Some("a b"));
        assert_eq!(pooled.options(BOUNDS).get_options(), None);
        assert!(!parse("postgres://db/app?pgbouncer=false").servers[0].pooled);
    }

    #[test]
    fn all_servers_have_the_user_the_database_and_the_parameters_of_the_url() {
        let target = parse("postgres://me:a%2Cb@h1,h2:6001/app?application_name=x&sslmode=disable");
        for server in &target.servers {
            assert_eq!(server.options.get_username(), "me");
            assert_eq!(server.database, "app");
            assert_eq!(server.options.get_application_name(), Some("x"));
            assert!(
                server.options.to_url_lossy().as_str().contains(":a%2Cb@"),
                "the password is decoded once"
            );
        }
    }

    #[test]
    fn the_server_that_worked_is_asked_first_and_a_silent_one_last() {
        let target = parse("postgres://h1,h2,h3/app");
        let order = || {
            target
                .in_order()
                .iter()
                .map(|server| server.address.trim_end_matches(":5432").to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(order(), ["h1", "h2", "h3"]);
        target.servers[1].turn.prefer();
        assert_eq!(order(), ["h2", "h3", "h1"]);
        target.servers[0].turn.pass_over();
        assert_eq!(order(), ["h2", "h3", "h1"], "it was not the first");
        target.servers[1].turn.pass_over();
        assert_eq!(order(), ["h3", "h1", "h2"]);
        target.servers[2].turn.pass_over();
        assert_eq!(order(), ["h1", "h2", "h3"]);
    }

    #[test]
    fn a_bound_is_never_sent_as_no_bound() {
        let target = parse("postgres://db/app");
        let options = target.servers[0].options(Bounds { statement: Duration::ZERO, ..BOUNDS });
        let sent = options.get_options().unwrap();
        assert!(sent.contains("statement_timeout=1 "), "{sent}");
        assert!(sent.contains("lock_timeout=700 "), "{sent}");
        assert!(sent.contains(r"default_transaction_isolation=read\ committed"), "{sent}");
    }

    const BOUNDS: Bounds =
        Bounds { statement: Duration::from_millis(1500), lock: Duration::from_millis(700) };
}
