//! One server: where it is, how to connect to it, and the settings of our sessions.

use std::{sync::Arc, time::Duration};

use sqlx::{ConnectOptions as _, postgres::PgConnectOptions};
use url::Url;

use super::{
    hosts::Address,
    login::LoginSource,
    naming::Naming,
    password::{Account, Passwords},
    pause::Pause,
    settings::ConnectionSettings,
    tls::Tls,
    turn::Turn,
    uri::{FORM, refused},
};
use crate::{
    store::{Bounds, StoreError},
    text::printable,
};

/// One of the servers that a URL names.
pub(super) struct Server {
    /// Everything except the log-in.
    pub(super) options: PgConnectOptions,
    /// Whether it is behind PgBouncer in transaction mode, so that each statement may reach another server session.
    pub(super) pooled: bool,
    /// Host and port, or the path of the socket, for people.
    pub(super) address: String,
    /// The address and the database, for people. Contains no secret.
    pub(super) location: Arc<str>,
    pub(super) database: String,
    pub(super) naming: Arc<Naming>,
    pub(super) turn: Turn,
    pub(super) tls: Tls,
    pub(super) passwords: Passwords,
    /// The program's function, which is asked instead of `passwords`.
    pub(super) login: Option<LoginSource>,
    pub(super) account: Account,
    pub(super) pause: Pause,
    /// Limits the wait for a connection. The caller's own time-out applies as well.
    pub(super) connect_timeout: Option<Duration>,
}

impl Server {
    pub(super) fn of(
        address: Address,
        turn: Turn,
        settings: &ConnectionSettings,
        naming: &Arc<Naming>,
        login: Option<LoginSource>,
    ) -> Result<Self, StoreError> {
        let mut tls = Tls::of(settings)?;
        if address.directory().is_some() {
            tls = tls.over_a_socket();
        } else if !tls.is_built_in() {
            return Err(refused(super::tls::MISSING.to_owned()));
        } else if tls.verifies_the_name() && address.at.as_ref().is_some_and(|at| *at != address.host) {
            return Err(refused(
                "a certificate cannot be verified by the host's name where hostaddr is given; leave hostaddr out"
                    .to_owned(),
            ));
        }
        let pooled = is_pooled(settings.value("pgbouncer"))?;
        let options = options(&address, settings, pooled)?;
        let user = settings.value("user").unwrap_or(options.get_username()).to_owned();
        let database = settings.value("dbname").unwrap_or(&user).to_owned();
        let shown = address.shown();
        let mut hosts = vec![address.host.clone()];
        hosts.extend(address.at.clone());
        hosts.extend(address.directory().map(|_| "localhost".to_owned()));
        Ok(Self {
            options: tls.apply(options).username(&user).database(&database),
            pooled,
            location: location(&shown, &database, naming),
            address: shown,
            database: database.clone(),
            naming: naming.clone(),
            turn,
            tls,
            passwords: Passwords::of(settings)?,
            login,
            account: Account { hosts, port: address.port, database, user },
            pause: Pause::default(),
            connect_timeout: connect_timeout(settings.value("connect_timeout"))?,
        })
    }

    /// The options for a session with these bounds. With `None`, the session gets none of our settings. The log-in is
    /// added later.
    pub(super) fn options(&self, bounds: Option<Bounds>) -> PgConnectOptions {
        let options = self.options.clone();
        let Some(bounds) = bounds.filter(|_| !self.pooled) else { return options };
        let options = options.options([
            ("statement_timeout", server_millis(bounds.statement)),
            ("lock_timeout", server_millis(bounds.lock)),
            // This concerns only migrations. No other transaction has more than one statement.
            ("idle_in_transaction_session_timeout", server_millis(bounds.statement)),
            ("default_transaction_isolation", "read committed".to_owned()),
        ]);
        options.options(SETTINGS.iter().copied())
    }

    /// How long a commit may wait for a standby, in milliseconds. After that it counts as unanswered. Negative if there
    /// is no other server to ask.
    pub(super) fn longest_commit(&self, bounds: Bounds) -> i64 {
        let millis = i64::try_from(bounds.lock.as_millis() / 2).unwrap_or(i64::MAX);
        if self.turn.has_others() { millis } else { -1 }
    }
}

/// The settings of our sessions, besides the bounds of a statement.
///
/// The plan of a statement, and so the time that it takes, must not depend on what a role or a database has set for
/// other work. Most of these values are the server's own defaults. `jit` is off, because compiling can take longer than
/// a short lease lasts. No statement waits for parallel workers.
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
    // If a policy would hide rows, the statement fails. A session that is held must not look idle.
    ("row_security", "off"),
    // A rejected statement must not end the session for the statements after it.
    ("exit_on_error", "off"),
];

/// The options that are the same for every connection to a server.
///
/// The driver accepts raw `options` only in a URL, and reads PGOPTIONS by itself. The URL has a password so that the
/// driver does not look for one.
fn options(
    address: &Address,
    settings: &ConnectionSettings,
    pooled: bool,
) -> Result<PgConnectOptions, StoreError> {
    let mut url = Url::parse("postgres:///").expect("it is one");
    url.query_pairs_mut().append_pair("password", "-");
    if let Some(raw) = settings.value("options") {
        url.query_pairs_mut().append_pair("options", raw);
    }
    if let Some(capacity) = settings.value("statement-cache-capacity") {
        url.query_pairs_mut().append_pair("statement-cache-capacity", capacity);
    }
    let options = PgConnectOptions::from_url(&url).map_err(|error| refused(explain(&error)))?;
    let options = options.disable_statement_logging().password("").port(address.port);
    let options = match address.directory() {
        Some(directory) => options.socket(directory),
        None => options.host(address.at.as_ref().unwrap_or(&address.host)),
    };
    let name = settings.value("application_name").or(settings.value("fallback_application_name"));
    let mut options = options.application_name(name.unwrap_or("tenure"));
    if !settings.of_the_server.is_empty() {
        options = options.options(settings.of_the_server.iter().map(|(name, value)| (name, value)));
    }
    Ok(match pooled {
        true => options.extra_float_digits(None).statement_cache_capacity(0),
        false => options,
    })
}

/// The cause alone. sqlx puts words of its own before it, sometimes twice.
fn explain(error: &sqlx::Error) -> String {
    let text = error.to_string();
    format!("{}; {FORM}", text.trim_start_matches("error with configuration: "))
}

fn is_pooled(parameter: Option<&str>) -> Result<bool, StoreError> {
    match parameter {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => Err(refused(format!(
            "pgbouncer={:?} is unknown; use pgbouncer=true or pgbouncer=false",
            printable(other)
        ))),
    }
}

/// Reads whole seconds. As in libpq, zero or less means no limit, and one means two.
fn connect_timeout(parameter: Option<&str>) -> Result<Option<Duration>, StoreError> {
    let Some(text) = parameter else { return Ok(None) };
    match text.trim().parse::<i64>() {
        Ok(seconds) => {
            Ok(u64::try_from(seconds).ok().filter(|s| *s > 0).map(|s| Duration::from_secs(s.max(2))))
        }
        Err(_) => Err(refused(format!(
            "connect_timeout={:?} is no number of seconds; write connect_timeout=5",
            printable(text)
        ))),
    }
}

/// Where the database is, for people.
pub(super) fn location(address: &str, database: &str, naming: &Naming) -> Arc<str> {
    let database = printable(database);
    match naming.is_default() {
        true => format!("{address}/{database}").into(),
        false => format!("{address}/{database}?schema={}", naming.name()).into(),
    }
}

/// At least 1, because PostgreSQL reads zero as "no limit". At most 31 bits, which is PostgreSQL's greatest value.
fn server_millis(duration: Duration) -> String {
    duration.as_millis().clamp(1, i32::MAX as u128).to_string()
}
