//! The database that a URL names: the servers that may have it, and how to connect to them.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::{
    hosts,
    login::LoginSource,
    naming::Naming,
    server::{Server, location},
    settings::ConnectionSettings,
    turn::Turn,
    uri::refused,
};
use crate::{store::StoreError, text::printable, trace};

/// The database: the servers that may have it, and how to connect to them.
pub(super) struct Target {
    /// In the order of the URL. There is at least one.
    servers: Vec<Server>,
    /// All servers and the database, for people. Contains no secret.
    pub(super) location: Arc<str>,
    pub(super) naming: Arc<Naming>,
    /// Parameters of the URL that are ignored.
    ignored: Vec<&'static str>,
    /// Whether the warning about them has been logged.
    is_told: AtomicBool,
}

impl Target {
    pub(super) fn parse(url: &str, login: Option<LoginSource>) -> Result<Self, StoreError> {
        let settings = ConnectionSettings::of(url)?;
        check_session_attrs(settings.value("target_session_attrs"))?;
        let naming = Arc::new(Naming::parse(settings.value("schema").map(str::to_owned))?);
        let addresses = hosts::addresses(&settings)?;
        let turns = Turn::among(addresses.len());
        let servers = addresses
            .into_iter()
            .zip(turns)
            .map(|(address, turn)| Server::of(address, turn, &settings, &naming, login.clone()));
        let servers = servers.collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<_> = servers.iter().map(|server| server.address.as_str()).collect();
        let location = location(&addresses.join(","), &servers[0].database, &naming);
        Ok(Self { servers, location, naming, ignored: settings.ignored, is_told: AtomicBool::new(false) })
    }

    /// As [`Server::pooled`]. It is the same for all servers of a URL.
    pub(super) fn is_pooled(&self) -> bool {
        self.servers.iter().any(|server| server.pooled)
    }

    /// All servers, in the order in which to ask them.
    pub(super) fn in_order(&self) -> Vec<&Server> {
        let (before, from) = self.servers.split_at(self.servers[0].turn.first());
        from.iter().chain(before).collect()
    }

    /// The number of the server that was last found to work.
    pub(super) fn server_in_use(&self) -> Option<usize> {
        Some(self.servers[0].turn.working())
    }

    /// Which parts of the URL have no effect, for people.
    pub(super) fn remark(&self) -> Option<String> {
        let names = self.ignored.join(", ");
        (!names.is_empty()).then(|| format!("{names} in the URL: no effect here, and none is needed"))
    }

    /// Logs the [`remark`](Self::remark), once.
    pub(super) fn warn(&self) {
        if let Some(remark) = self.remark()
            && !self.is_told.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(target: trace::STORE, database = &*self.location, "{remark}");
        }
    }
}

/// Accepts the values that can lead to a server that takes writes. Whichever is given, the store searches for such a
/// server, because leases need one.
fn check_session_attrs(parameter: Option<&str>) -> Result<(), StoreError> {
    match parameter {
        None | Some("any" | "read-write" | "primary") => Ok(()),
        Some(other) => Err(refused(format!(
            "target_session_attrs={:?} does not lead to a server that takes writes, which leases need; use read-write",
            printable(other)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sqlx::postgres::PgSslMode;

    use super::*;
    use crate::store::Bounds;

    fn parse(url: &str) -> Target {
        Target::parse(url, None).unwrap_or_else(|error| panic!("{error}"))
    }

    fn refusal(url: &str) -> String {
        Target::parse(url, None).err().unwrap_or_else(|| panic!("{url} is accepted")).to_string()
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
            ("postgres://me:50%s3cret@db/app", "%25"),
            ("postgres://me:s3cret%00@db/app", "password"),
            ("postgres://me:s3cret@db/app?connect_timeout=x", "connect_timeout=5"),
            ("postgres://me:s3cret@db/app?channel_binding=require", "sslmode=verify-full"),
            ("postgres://me:s3cret@db/app?sslrootcert=system&sslmode=require", "verify-full"),
            ("postgres://me:s3cret@db/app?sslnegotiation=direct", "sslmode=require"),
            ("postgres://me:s3cret@db/app?sslcert=c", "sslkey"),
            ("postgres://me:s3cret@db/app?hostaddr=10.0.0.1&sslmode=verify-full", "leave hostaddr out"),
            ("postgres://me:12/s3cret@db/app", "%2F"),
            ("postgres://me:12?s3cret@db/app", "%3F"),
            ("postgres://me:12#s3cret@db/app", "%23"),
            ("postgres://me:s3cret@db/app?pgbouncer=yes", "pgbouncer=true"),
            ("postgres://me:s3cret@db/app?sslmode=maybe", "maybe"),
            ("postgres://me:s3cret@h1,h2/app?schema=a%20b", "letters from A to Z"),
            ("postgres://me@db/app?sslpassword=s3cret", "sslpassword"),
            ("postgres://me:s3cret@db/app?port=x", "from 1 to 65535"),
            ("postgres://me:s3cret@h1,h2:x/app", "percent-encoded"),
            ("postgres://me:s3,cret/x@h1,h2/app", "percent-encoded"),
            ("postgres://me:1,2/s3cret@h1,h2/app", "%2F"),
            ("postgres://me:s3cret@h1,,h2/app", "empty"),
            ("postgres://me:s3cret@h1,h2/app?port=1,2,3", "3 ports for 2 hosts"),
            ("postgres://me:s3cret@h1,h2/app?target_session_attrs=standby", "use read-write"),
            ("postgres://me:s3cret@db/app?schema=", "leave the parameter out"),
            ("postgres://me:s3cret@db/a%0Ab", "dbname has a line break"),
            ("postgres://me:s3cret@db/a%1b[31m", "dbname has a line break or another control character"),
            ("postgres://m%0De:s3cret@db/app", "user has a line break"),
            ("postgres://me:s3cret@d%09b/app", "host has a line break"),
            ("postgres://me:s3cret@db/app?application_name=a%7F", "application_name has"),
            ("postgres://me:s3cret@db/app?options[geqo]=%0a", "options has"),
            ("postgres://me:s3cret@db/app?channel_binding=bogus", "use prefer or disable"),
            ("host=db dbname=app password=s3cret user=me", "postgres://me:PASSWORD@db/app"),
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
        assert_eq!(pooled.options(Some(BOUNDS)).get_options(), None);
        assert!(!parse("postgres://db/app?pgbouncer=false").servers[0].pooled);
    }

    #[test]
    fn all_servers_have_the_user_the_database_and_the_parameters_of_the_url() {
        let target = parse("postgres://me:a%2Cb@h1,h2:6001/app?application_name=x&sslmode=disable");
        for server in &target.servers {
            assert_eq!(server.options.get_username(), "me");
            assert_eq!(server.database, "app");
            assert_eq!(server.options.get_application_name(), Some("x"));
            let found = server.passwords.look_up(&server.account).password;
            assert_eq!(found.as_deref(), Some("a,b"), "it is decoded once");
        }
    }

    #[test]
    fn parameters_mean_what_they_mean_to_psql() {
        let server = |url: &str| parse(url).servers.remove(0);
        let one = server("postgres://me@[::1]:6000/app?fallback_application_name=f&connect_timeout=1");
        assert_eq!((one.options.get_host(), one.options.get_port()), ("::1", 6000));
        assert_eq!(one.options.get_application_name(), Some("f"));
        assert_eq!(one.connect_timeout, Some(Duration::from_secs(2)));
        assert_eq!(server("postgres://db/?connect_timeout=0").connect_timeout, None);
        assert_eq!(server("postgres://a+b@db/").database, "a+b");
        let options = server("postgres://db/app?options=-c%20geqo=off&options[jit]=off").options;
        assert!(options.get_options().unwrap().ends_with("-c geqo=off -c jit=off"), "{options:?}");

        for (parameters, mode) in [
            ("", PgSslMode::Prefer),
            ("?sslmode=allow", PgSslMode::Prefer),
            ("?ssl=true", PgSslMode::Require),
            ("?sslmode=require&sslrootcert=~/ca.pem", PgSslMode::VerifyCa),
            ("?sslrootcert=system", PgSslMode::VerifyFull),
            ("?sslnegotiation=direct&sslmode=require", PgSslMode::Require),
            ("?sslmode=require&host=/run/pg", PgSslMode::Disable),
        ] {
            let found = server(&format!("postgres://db/app{parameters}")).options.get_ssl_mode();
            assert_eq!(format!("{found:?}"), format!("{mode:?}"), "{parameters}");
        }
    }

    #[test]
    fn what_is_left_aside_is_told() {
        let target =
            parse("postgres://db/app?keepalives_idle=30&tcp_user_timeout=5&keepalives=1&gssencmode=disable");
        let remark = target.remark().unwrap();
        assert!(remark.contains("keepalives_idle, tcp_user_timeout in the URL"), "{remark}");
        assert_eq!(parse("postgres://db/app?sslmode=disable&keepalives=1").remark(), None);
    }

    #[test]
    fn a_bound_is_never_sent_as_no_bound() {
        let target = parse("postgres://db/app");
        let options = target.servers[0].options(Some(Bounds { statement: Duration::ZERO, ..BOUNDS }));
        let sent = options.get_options().unwrap();
        assert!(sent.contains("statement_timeout=1 "), "{sent}");
        assert!(sent.contains("lock_timeout=700 "), "{sent}");
        assert!(sent.contains(r"default_transaction_isolation=read\ committed"), "{sent}");
    }

    const BOUNDS: Bounds =
        Bounds { statement: Duration::from_millis(1500), lock: Duration::from_millis(700) };
}
