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
//! connection goes to the server that takes writes: the one that worked last is asked first, then the others, each
//! within a fair share of the time there is. `target_session_attrs` may be `read-write`, `primary` or `any`; leases need
//! a server that takes writes, so that is what is looked for in any case.
//!
//! A connection whose server turns out to be read-only (SQLSTATE 25006), silent or gone is given up, and its successor
//! asks all servers again, a silent one last. Meanwhile each run goes on for as long as its last answer may be trusted, and no longer.
//! That one run never meets another one on both sides of a failover needs assumption A1: what the old primary
//! acknowledged, the new one has. With asynchronous replication it may not; and while two servers take writes at the same
//! time, nothing that asks only one of them can tell.
//!
//! # Behind PgBouncer
//!
//! In transaction mode the next message may reach another server session. The URL parameter `pgbouncer=true` makes
//! each statement one message, and does without settings of the session: the isolation level must then be the
//! default one, `synchronous_commit` must not be off, and the server bounds statements and locks only if the role
//! says so (`ALTER ROLE … SET statement_timeout = …`, and the same for `lock_timeout`). `jit` and what else decides how
//! long a statement takes is then the role's, too; `docs/postgres.md` has all lines.
//!
//! # The schema's name
//!
//! The URL parameter `schema=name` puts everything into a schema of another name than `tenure`: 1 to 63 letters of
//! ASCII, which keep their case, digits, `_` and single `-`. What is in two schemas has nothing to do with each other.
//! Every statement names the schema, and PostgreSQL's own functions come first in our sessions: `search_path` matters
//! nowhere.
//!
//! # Encodings
//!
//! A database whose encoding is not UTF8 lacks characters. Texts for people are stored with those escaped, as
//! `\u{65e5}`, and cut where they become too long. A key that cannot be stored is [`StoreError::Unstorable`] to an acquire;
//! to whoever looks, and to a request to stop, its session is idle.
//!
//! # Rights
//!
//! To migrate, a role needs CREATE on the database, or to own the schema. To use it: USAGE on the
//! schema, SELECT on `tenure.migration`, SELECT, INSERT, UPDATE and DELETE on `tenure.session_lease`, USAGE and UPDATE
//! on the sequence `tenure.fence_floor`, and EXECUTE on the function `tenure.next_fence(bigint)`, which everybody has
//! unless it was revoked. What it takes to [pin](crate::pin) a lease is a part of that.

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;

use super::{
    Acquire, AcquireOutcome, Bounds, LeaseConnection, LeaseStore, Listening, Migrated, Page, Release,
    ReleaseOutcome, Renew, RenewOutcome, StopOutcome, StopRun, StoreError, VerbKind,
};
use crate::session::{Holder, NodeId, SessionKey};
use statement::Session;
use target::Target;

mod acquire;
mod believe;
mod connect;
mod entry;
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
mod row;
mod schema;
mod service;
mod settings;
mod statement;
mod stop;
mod target;
mod tls;
mod turn;
mod uri;
mod verbs;
mod wording;

pub(crate) use login::LoginSource;
pub use login::{Login, LoginRequest};

/// Leases in PostgreSQL (14 to 18), in schema `tenure` of the database that a URL names.
///
/// The URL is `postgres://user:password@host:port/database`, as psql takes it: hosts may be a list and IPv6 addresses in
/// brackets, `?host=/run/postgresql` is a Unix socket, and what it leaves out comes from a `service`, from the usual
/// `PG…` variables and from the password file. Of several servers, `postgres://h1:5432,h2:5433/database`, the one that
/// takes writes is used. `pgbouncer=true` is for a PgBouncer in transaction mode, and `schema=name` for a schema of
/// another name.
///
/// # Parameters
///
/// All that libpq knows are known; an unknown one is refused. Those of TLS mean what they mean to psql, `~/` in a path
/// is the home directory, and with `sslrootcert=FILE` the authorities that the system trusts are trusted besides. What
/// cannot be done is refused where it was to make the connection safer (`channel_binding=require`, `require_auth`,
/// `sslcrl`, …), and left aside with one warning where it was not (`keepalives…`, `sslsni`, …).
/// `connect_timeout` bounds the wait for each server, besides the time that whoever connects has.
///
/// # Passwords
///
/// A password that is not in the URL is looked up for each connection, so that a changed one is used as soon as it is
/// there: in the service, in PGPASSWORD, in the password file (`passfile`, PGPASSFILE, `~/.pgpass`). What lasts for
/// minutes only can be [given by a function](Self::with_login). A log-in that the server refuses is not repeated before a
/// pause, by none of a store's connections: at most 5 s, or what one attempt may take; another password is tried at
/// once.
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

    /// The same, and a function gives user and password for each connection: as
    /// [`LeaseSupervisorBuilder::login`](crate::LeaseSupervisorBuilder::login), which says what is expected of it.
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

/// Only where it is: never a password.
impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresStore").field(&self.target.location).finish()
    }
}

impl LeaseStore for PostgresStore {
    fn connect(&self, bounds: Bounds) -> BoxFuture<'static, Result<Box<dyn LeaseConnection>, StoreError>> {
        let target = self.target.clone();
        Box::pin(async move {
            let session = connect::to_work(&target, bounds).await?;
            Ok(Box::new(PostgresConnection { session }) as Box<dyn LeaseConnection>)
        })
    }

    fn connect_to_look(
        &self,
        bounds: Bounds,
    ) -> BoxFuture<'static, Result<Box<dyn LeaseConnection>, StoreError>> {
        let target = self.target.clone();
        Box::pin(async move {
            let session = connect::to_look(&target, bounds).await?;
            Ok(Box::new(look::LookingConnection::new(session, target, bounds)) as Box<dyn LeaseConnection>)
        })
    }

    fn migrate(&self) -> BoxFuture<'static, Result<Migrated, StoreError>> {
        let target = self.target.clone();
        Box::pin(async move {
            let mut session = connect::to_migrate(&target).await?;
            let migrated = schema::migrate(&mut session).await?;
            session.close().await;
            Ok(migrated)
        })
    }

    /// Behind PgBouncer, LISTEN would seem to succeed, and then disturb others.
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

/// The connection behind [`LeaseConnection`].
struct PostgresConnection {
    session: Session,
}

impl PostgresConnection {
    /// A row may be locked by a commit that will never be answered; but not where another one just was.
    async fn believe<T>(
        &mut self,
        outcomes: Vec<T>,
        is_locked: impl Fn(&T) -> bool,
        is_written: impl Fn(&T) -> bool,
    ) -> Result<Vec<T>, StoreError> {
        if outcomes.iter().any(is_locked) && !outcomes.iter().any(is_written) {
            self.session.refuse_if_awaiting().await?;
        }
        Ok(outcomes)
    }
}

impl LeaseConnection for PostgresConnection {
    fn acquire<'a>(
        &'a mut self,
        items: &'a [Acquire],
    ) -> BoxFuture<'a, Result<Vec<AcquireOutcome>, StoreError>> {
        Box::pin(async move {
            let outcomes = acquire::acquire(&mut self.session, items).await?;
            let is_granted = |outcome: &_| matches!(outcome, AcquireOutcome::Granted(_));
            self.believe(outcomes, |outcome| matches!(outcome, AcquireOutcome::Locked), is_granted).await
        })
    }

    fn renew<'a>(&'a mut self, items: &'a [Renew]) -> BoxFuture<'a, Result<Vec<RenewOutcome>, StoreError>> {
        Box::pin(async move {
            let outcomes = verbs::renew(&mut self.session, items).await?;
            let is_renewed = |outcome: &_| matches!(outcome, RenewOutcome::Renewed(_));
            self.believe(outcomes, |outcome| matches!(outcome, RenewOutcome::Locked), is_renewed).await
        })
    }

    fn release<'a>(
        &'a mut self,
        items: &'a [Release],
    ) -> BoxFuture<'a, Result<Vec<ReleaseOutcome>, StoreError>> {
        Box::pin(async move {
            let outcomes = verbs::release(&mut self.session, items).await?;
            let is_released = |outcome: &_| matches!(outcome, ReleaseOutcome::Released);
            self.believe(outcomes, |outcome| matches!(outcome, ReleaseOutcome::Locked), is_released).await
        })
    }

    fn request_stop<'a>(&'a mut self, item: &'a StopRun) -> BoxFuture<'a, Result<StopOutcome, StoreError>> {
        Box::pin(async move {
            let outcome = stop::request(&mut self.session, item).await?;
            if matches!(outcome, StopOutcome::Locked(_)) {
                self.session.refuse_if_awaiting().await?;
            }
            Ok(outcome)
        })
    }

    fn inspect<'a>(
        &'a mut self,
        keys: &'a [SessionKey],
    ) -> BoxFuture<'a, Result<Vec<Option<Holder>>, StoreError>> {
        Box::pin(async move { verbs::inspect(&mut self.session, &keys.iter().collect::<Vec<_>>()).await })
    }

    fn list<'a>(
        &'a mut self,
        page: &'a Page,
    ) -> BoxFuture<'a, Result<Vec<(SessionKey, Holder)>, StoreError>> {
        Box::pin(verbs::list(&mut self.session, page))
    }

    fn sweep(&mut self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(verbs::sweep(&mut self.session, limit))
    }

    fn probe(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(connect::check(&mut self.session))
    }

    /// A statement is parsed once per connection. Behind PgBouncer it is parsed each time.
    fn prepare<'a>(&'a mut self, kinds: &'a [VerbKind]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            for kind in kinds {
                let statements: &[&'static str] = match kind {
                    VerbKind::Acquire => &[acquire::ACQUIRE, verbs::INSPECT],
                    VerbKind::Renew => &[verbs::RENEW],
                    VerbKind::Release => &[verbs::RELEASE],
                };
                for statement in statements {
                    self.session.prepare(statement).await?;
                }
            }
            Ok(())
        })
    }

    fn ping(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.session.ping())
    }

    fn server(&self) -> usize {
        self.session.server()
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(self.session.close())
    }
}
