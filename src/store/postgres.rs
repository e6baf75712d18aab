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
//! long a statement takes is then the role's, too; `docs/operating.md` has all lines.
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
    ReleaseOutcome, Renew, RenewOutcome, StopOutcome, StopRun, StoreError,
};
use crate::{
    diagnosis::{Finding, Plan},
    session::{Holder, NodeId, SessionKey},
};
use statement::Session;
use target::Target;

mod acquire;
mod believe;
mod connect;
mod examine;
mod fault;
mod hosts;
mod listen;
mod look;
mod naming;
mod row;
mod schema;
mod statement;
mod stop;
mod target;
mod verbs;
mod wording;

/// Leases in PostgreSQL (14 to 18), in schema `tenure` of the database that a URL names.
///
/// The URL is `postgres://user:password@host:port/database`, or `postgres:///database?host=/run/postgresql` for a
/// Unix socket; what it leaves out comes from the usual `PG…` variables and password file. PGHOST and PGPORT may be lists;
/// PGHOSTADDR and the parameter `hostaddr` name one server only. Besides the parameters
/// that sqlx knows (`sslmode`, `sslrootcert`, `application_name`, `options`, …) there is `pgbouncer=true`, for a
/// PgBouncer in transaction mode, and `schema=name`, for a schema of another name. Of several servers, `postgres://h1:5432,h2:5433/database`, the one that takes writes
/// is used.
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
        Ok(Self { target: Arc::new(Target::parse(url)?) })
    }

    pub(crate) async fn examine(&self, plan: Plan) -> Result<Vec<Finding>, StoreError> {
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

    fn schema(&self) -> String {
        schema::script(&self.target.naming)
    }

    fn schema_name(&self) -> &str {
        self.target.naming.name()
    }

    fn location(&self) -> &str {
        &self.target.location
    }
}

/// The connection behind [`LeaseConnection`].
struct PostgresConnection {
    session: Session,
}

impl LeaseConnection for PostgresConnection {
    fn acquire<'a>(
        &'a mut self,
        items: &'a [Acquire],
    ) -> BoxFuture<'a, Result<Vec<AcquireOutcome>, StoreError>> {
        Box::pin(acquire::acquire(&mut self.session, items))
    }

    fn renew<'a>(&'a mut self, items: &'a [Renew]) -> BoxFuture<'a, Result<Vec<RenewOutcome>, StoreError>> {
        Box::pin(verbs::renew(&mut self.session, items))
    }

    fn release<'a>(
        &'a mut self,
        items: &'a [Release],
    ) -> BoxFuture<'a, Result<Vec<ReleaseOutcome>, StoreError>> {
        Box::pin(verbs::release(&mut self.session, items))
    }

    fn request_stop<'a>(&'a mut self, item: &'a StopRun) -> BoxFuture<'a, Result<StopOutcome, StoreError>> {
        Box::pin(stop::request(&mut self.session, item))
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

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(self.session.close())
    }
}
