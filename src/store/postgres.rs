//! The PostgreSQL store: the authority for many machines.
//!
//! Each verb is one autocommit statement for many items (`src/store/postgres/*.sql`), under read committed. An
//! acquire may need a second one, for items that lost a race which the first one's snapshot could not show.
//!
//! Connections are plain ones, not pooled: whoever opened one decides when it is used and when it is given up.
//!
//! # Several servers
//!
//! A URL may name a primary and its standbys, as libpq writes it: `postgres://user@h1:5432,h2:5433/database`. Every new
//! connection goes to the server that takes writes. The one that worked last is asked first, then the others; each gets
//! a fair share of the time. `target_session_attrs` may be `read-write`, `primary` or `any`. It makes no difference:
//! leases need a server that takes writes.
//!
//! A connection is given up when its server turns out to be read-only (SQLSTATE 25006), silent or gone. The next connection
//! asks all servers again, a silent one last. Meanwhile each run goes on for as long as its last answer may be trusted, and
//! no longer.
//!
//! That no two runs hold one session across a failover needs assumption A1: the new primary has what the old one
//! acknowledged. With asynchronous replication it may not. And while two servers take writes at the same time, nobody who
//! asks only one of them can notice.
//!
//! # Behind PgBouncer
//!
//! In transaction mode each message may reach another server session. With the URL parameter `pgbouncer=true`, each statement
//! is one message, and no session is given any settings. Then the role has to have them: the default isolation level,
//! `synchronous_commit` not off, time-outs for statements and locks (`ALTER ROLE … SET statement_timeout = …`, and the same
//! for `lock_timeout`), and `jit` off. `docs/postgres.md` has all the lines.
//!
//! # The schema's name
//!
//! The URL parameter `schema=name` puts everything into a schema of another name than `tenure`: 1 to 63 letters of
//! ASCII, which keep their case, digits, `_` and single `-`. Two schemas know nothing of each other.
//! `search_path` does not matter: every statement names the schema, and our sessions look for PostgreSQL's own functions
//! first.
//!
//! # Encodings
//!
//! A database whose encoding is not UTF8 lacks some characters. In texts for people these are escaped, as `\u{65e5}`, and a
//! text that becomes too long is cut. An acquire of a key that cannot be stored fails with [`StoreError::Unstorable`].
//! Everybody else finds the session of such a key idle.
//!
//! # Rights
//!
//! To migrate, a role needs CREATE on the database, or to own the schema. To use it: USAGE on the
//! schema, SELECT on `tenure.migration`, SELECT, INSERT, UPDATE and DELETE on `tenure.session_lease`, USAGE and UPDATE
//! on the sequence `tenure.fence_floor`, and EXECUTE on the function `tenure.next_fence(bigint)`, which everybody has
//! unless it was revoked. To [pin](crate::pin) a lease, some of these rights are enough.

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;

use super::{Bounds, LeaseConnection, LeaseStore, Listening, Migrated, StoreError};
use crate::session::NodeId;
use look::LookingConnection;
use target::Target;
use working::WorkingConnection;

mod acquire;
mod attempt;
mod connect;
mod connection;
mod conninfo;
mod doubt;
mod environment;
#[cfg(feature = "diagnosis")]
mod examine;
mod fault;
mod hosts;
mod listen;
mod login;
mod look;
mod naming;
mod parameter;
mod password;
mod pause;
mod read;
mod remove;
mod renew;
mod row;
mod schema;
mod server;
mod service;
mod settings;
mod statement;
mod stop;
mod swallow;
mod target;
mod tls;
mod turn;
mod uri;
mod wording;
mod working;

pub(super) use conninfo::is_conninfo;
pub(crate) use login::LoginSource;
pub use login::{Login, LoginRequest};
#[cfg(test)]
pub(super) use schema::SCHEMA;

/// Leases in PostgreSQL (14 to 18), in schema `tenure` of the database that a URL names.
///
/// The URL is `postgres://user:password@host:port/database`, as psql takes it. There may be several hosts, IPv6 addresses
/// are in brackets, and `?host=/run/postgresql` is a Unix socket. What the URL leaves out comes from a `service`, from the
/// usual `PG…` variables and from the password file. Of several servers, `postgres://h1:5432,h2:5433/database`, the one
/// that takes writes is used. `pgbouncer=true` is for a PgBouncer in transaction mode, and `schema=name` for a schema of
/// another name.
///
/// # Parameters
///
/// All parameters of libpq are known, and an unknown one is refused. Those of TLS mean what they mean to psql, and `~/` in a
/// path is the home directory. With `sslrootcert=FILE`, the authorities that the system trusts are trusted as well. Some
/// parameters ask for what cannot be done here. They are refused if they were to make the connection safer
/// (`channel_binding=require`, `require_auth`, `sslcrl`, …). The others are left aside, with one warning (`keepalives…`,
/// `sslsni`, …). `connect_timeout` bounds the wait for each server; the caller's own time-out applies as well.
///
/// # Passwords
///
/// A password that is not in the URL is looked up for each connection, so that a new one is used as soon as it is there. The
/// places are the service, PGPASSWORD and the password file (`passfile`, PGPASSFILE, `~/.pgpass`), in this order. Passwords
/// that last only for minutes can be [given by a function](Self::with_login). When the server refuses a log-in, none of the
/// store's connections repeats it before a pause, which is at most 5 s or the time of one attempt. Another password is
/// tried at once.
#[derive(Clone)]
pub struct PostgresStore {
    target: Arc<Target>,
}

impl PostgresStore {
    /// Reads the URL; connects nowhere.
    ///
    /// # Errors
    /// [`StoreError::Url`], which says what to change.
    pub fn new(url: &str) -> Result<Self, StoreError> {
        Self::with_source(url, None)
    }

    /// The same with a function that gives user and password for each connection.
    /// [`LeaseSupervisorBuilder::login`](crate::LeaseSupervisorBuilder::login) says what is expected of it.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_login<F, A, E>(url: &str, provider: F) -> Result<Self, StoreError>
    where
        F: Fn(LoginRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Login, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Self::with_source(url, Some(LoginSource::new(provider)))
    }

    pub(crate) fn with_source(url: &str, login: Option<LoginSource>) -> Result<Self, StoreError> {
        Ok(Self { target: Arc::new(Target::parse(super::url::checked(url)?, login)?) })
    }

    #[cfg(feature = "diagnosis")]
    pub(crate) async fn examine(
        &self,
        plan: super::finding::ExaminationPlan,
    ) -> Result<Vec<super::finding::Finding>, StoreError> {
        examine::examine(&self.target, plan).await
    }
}

/// Shows only where the database is, and never a password.
impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresStore").field(&self.target.location).finish()
    }
}

impl LeaseStore for PostgresStore {
    fn connect(&self, bounds: Bounds) -> BoxFuture<'static, Result<Box<dyn LeaseConnection>, StoreError>> {
        let target = self.target.clone();
        Box::pin(async move {
            let connection = connect::to_work(&target, bounds).await?;
            Ok(Box::new(WorkingConnection { connection }) as Box<dyn LeaseConnection>)
        })
    }

    fn connect_to_look(
        &self,
        bounds: Bounds,
    ) -> BoxFuture<'static, Result<Box<dyn LeaseConnection>, StoreError>> {
        let target = self.target.clone();
        Box::pin(async move {
            let connection = connect::to_look(&target, bounds).await?;
            Ok(Box::new(LookingConnection::new(connection, target, bounds)) as Box<dyn LeaseConnection>)
        })
    }

    fn migrate(&self) -> BoxFuture<'static, Result<Migrated, StoreError>> {
        let target = self.target.clone();
        Box::pin(async move {
            let mut connection = connect::to_migrate(&target).await?;
            let migrated = schema::migrate(&mut connection).await?;
            connection.close().await;
            Ok(migrated)
        })
    }

    /// Behind PgBouncer there is no listener: LISTEN would seem to succeed, and then disturb other clients.
    fn listen(&self, node: NodeId, bounds: Bounds) -> Option<Listening> {
        let target = self.target.clone();
        (!target.is_pooled())
            .then(|| Box::pin(async move { listen::open(&target, node, bounds).await }) as Listening)
    }

    fn server_in_use(&self) -> Option<usize> {
        self.target.server_in_use()
    }

    fn schema(&self) -> String {
        schema::script(&self.target.naming)
    }

    fn schema_name(&self) -> &str {
        self.target.naming.name()
    }

    fn location(&self) -> &str {
        &self.target.location
    }

    fn remark(&self) -> Option<String> {
        self.target.remark()
    }
}
