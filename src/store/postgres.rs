//! The PostgreSQL store: the authority for many machines.
//!
//! Each verb is one autocommit statement for many items (`src/store/postgres/*.sql`), under read committed. An acquire
//! may need more statements, for items that lost a race: the snapshot of the first statement cannot show the winner.
//!
//! The store does not pool connections. The caller that opens a connection decides when to use it and when to close it.
//!
//! # Several servers
//!
//! A URL may name a primary and its standbys, as libpq writes it: `postgres://user@h1:5432,h2:5433/database`. Every new
//! connection goes to the server that takes writes. It asks the server that worked last first, and then the others.
//! Each server gets a fair share of the time. `target_session_attrs` may be `read-write`, `primary` or `any`. That
//! makes no difference, because leases need a server that takes writes.
//!
//! A connection is given up when its server turns out to be read-only (SQLSTATE 25006), silent or gone. The next
//! connection asks all servers again, and a silent server last. In the meantime each run continues as long as it can
//! trust its last answer, and no longer.
//!
//! The promise that no two runs hold one session across a failover needs assumption A1: the new primary has every
//! commit that the old one acknowledged. With asynchronous replication it may lack some. And while two servers take
//! writes at the same time, a client of only one of them cannot notice.
//!
//! # Behind PgBouncer
//!
//! In transaction mode, each message may reach another server session. With the URL parameter `pgbouncer=true`, each
//! statement is one message, and the store changes no setting of a session. So the role must have the settings: the
//! default isolation level, `synchronous_commit` not off, time-outs for statements and locks
//! (`ALTER ROLE … SET statement_timeout = …`, and the same for `lock_timeout`), and `jit` off. `docs/postgres.md` has
//! all the commands.
//!
//! # The schema's name
//!
//! The URL parameter `schema=name` puts everything into a schema with this name instead of `tenure`. A name has 1 to 63
//! characters: letters of ASCII, which keep their case, digits, `_` and single `-`. The leases of two schemas are
//! independent. `search_path` does not matter: every statement names the schema, and the store's sessions look for
//! PostgreSQL's own functions first.
//!
//! # Encodings
//!
//! A database whose encoding is not UTF8 lacks some characters. In texts for people they are escaped, as `\u{65e5}`,
//! and a text that becomes too long is cut. An acquire of a key that cannot be stored fails with
//! [`StoreError::Unstorable`]. All other verbs treat a session with such a key as idle.
//!
//! # Rights
//!
//! To migrate, a role needs CREATE on the database, or must own the schema. To hold leases, it needs USAGE on the
//! schema, SELECT on `tenure.migration`, SELECT, INSERT, UPDATE and DELETE on `tenure.session_lease`, USAGE and UPDATE
//! on the sequence `tenure.fence_floor`, and EXECUTE on the function `tenure.next_fence(bigint)`. Every role has
//! EXECUTE unless it was revoked. To [pin](crate::pin) a lease, some of these rights are enough.
//!
//! The history of runs needs no right: its triggers work with the rights of the table's owner. To read it, a role needs
//! SELECT on `tenure.run_history`; to sweep it, SELECT and DELETE.

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;

use super::{Bounds, KeepHistory, LeaseConnection, LeaseStore, Listening, Migrated, StoreError};
use crate::session::NodeId;
use look::LookingConnection;
use target::Target;
use working::WorkingConnection;

mod acquire;
mod attempt;
mod breaking;
mod connect;
mod connection;
mod conninfo;
mod doubt;
mod environment;
#[cfg(feature = "diagnosis")]
mod examine;
mod fault;
mod history;
mod hosts;
mod listen;
mod login;
mod look;
mod naming;
mod parameter;
mod password;
mod pause;
mod read;
mod release;
mod renew;
mod row;
mod schema;
mod server;
mod service;
mod settings;
mod statement;
mod stop;
mod swallow;
mod sweep;
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
/// The URL is `postgres://user:password@host:port/database`, as for psql. IPv6 addresses are in brackets, and
/// `?host=/run/postgresql` is a Unix socket. The parts that the URL leaves out come from a `service`, from the usual
/// `PG…` variables and from the password file. If there are several hosts, as in `postgres://h1:5432,h2:5433/database`,
/// the store uses the server that takes writes. `pgbouncer=true` is for a PgBouncer in transaction mode, and
/// `schema=name` for a schema with another name.
///
/// # Parameters
///
/// All parameters of libpq are known, and an unknown parameter is refused. The parameters for TLS mean what they mean
/// to psql. `~/` in a path is the home directory. With `sslrootcert=FILE`, the authorities that the system trusts are
/// trusted as well. Some parameters ask for something that this store cannot do. It refuses those that would make the
/// connection safer (`channel_binding=require`, `require_auth`, `sslcrl`, …). It ignores the others (`keepalives…`,
/// `sslsni`, …) and logs one warning. `connect_timeout` limits the wait for each server. The caller's own time-out
/// applies as well.
///
/// # Passwords
///
/// A password that is not in the URL is looked up for each connection, so that a new password is used at once. The
/// places are the service, PGPASSWORD and the password file (`passfile`, PGPASSFILE, `~/.pgpass`), in this order. [A
/// function](Self::with_login) can give passwords that are valid only for minutes. When the server has refused a
/// log-in, no connection of the store repeats it before a pause is over. The pause is at most 5 s, or the time of one
/// attempt if that is shorter. A different password is tried at once.
#[derive(Clone)]
pub struct PostgresStore {
    target: Arc<Target>,
}

impl PostgresStore {
    /// Reads the URL. This connects to no server.
    ///
    /// # Errors
    /// [`StoreError::Url`], which says what to change.
    pub fn new(url: &str) -> Result<Self, StoreError> {
        Self::with_source(url, None)
    }

    /// Like [`new`](Self::new), with a function that gives the user and the password for each connection.
    /// [`LeaseSupervisorBuilder::login`](crate::LeaseSupervisorBuilder::login) says what the function has to do.
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

/// Shows only where the database is. Never shows a password.
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
        self.migrate_with(KeepHistory::AsItIs)
    }

    fn migrate_with(&self, history: KeepHistory) -> BoxFuture<'static, Result<Migrated, StoreError>> {
        let target = self.target.clone();
        Box::pin(async move {
            let mut connection = connect::to_migrate(&target).await?;
            let migrated = schema::migrate(&mut connection, history).await?;
            connection.close().await;
            Ok(migrated)
        })
    }

    /// There is no listener behind PgBouncer. LISTEN would seem to succeed there, and would then disturb other clients.
    fn listen(&self, node: NodeId, bounds: Bounds) -> Option<Listening> {
        let target = self.target.clone();
        (!target.is_pooled())
            .then(|| Box::pin(async move { listen::open(&target, node, bounds).await }) as Listening)
    }

    fn listens_by_connection(&self) -> bool {
        true
    }

    fn server_in_use(&self) -> Option<usize> {
        self.target.server_in_use()
    }

    fn schema(&self) -> String {
        self.schema_with(KeepHistory::AsItIs)
    }

    fn schema_with(&self, history: KeepHistory) -> String {
        schema::script(&self.target.naming, history)
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
