//! The PostgreSQL store: the authority for many machines.
//!
//! Each verb is one autocommit statement for many items (`src/store/postgres/*.sql`), under read committed. An
//! acquire may need a second one, for items that lost a race which the first one's snapshot could not show.
//!
//! Connections are plain ones, not pooled: whoever opened one decides when it is used and when it is given up.
//!
//! # Behind PgBouncer
//!
//! In transaction mode the next message may reach another server session. The URL parameter `pgbouncer=true` makes
//! each statement one message, and does without settings of the session: the isolation level must then be the
//! default one, `synchronous_commit` must not be off, and the server bounds statements and locks only if the role
//! says so (`ALTER ROLE … SET statement_timeout = …, SET lock_timeout = …`).
//!
//! # Rights
//!
//! To migrate, a role needs CREATE on the database, or to own an empty schema `tenure`. To use it: USAGE on the
//! schema, SELECT on `tenure.migration`, SELECT, INSERT, UPDATE and DELETE on `tenure.session_lease`, and USAGE and
//! UPDATE on the sequence `tenure.fence_floor`.

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;
use sqlx::{ConnectOptions, PgConnection};

use super::{
    Acquire, AcquireOutcome, Bounds, LeaseConnection, LeaseStore, Listening, Migrated, Page, Release,
    ReleaseOutcome, Renew, RenewOutcome, StopOutcome, StopRun, StoreError,
};
use crate::session::{Holder, NodeId, SessionKey};
use statement::{Session, Statement, Value};
use target::Target;

mod acquire;
mod fault;
mod listen;
mod row;
mod schema;
mod statement;
mod stop;
mod target;
mod verbs;

/// Leases in PostgreSQL, in schema `tenure` of the database that a URL names.
///
/// The URL is `postgres://user:password@host:port/database`, or `postgres:///database?host=/run/postgresql` for a
/// Unix socket; what it leaves out comes from the usual `PG…` variables and password file. Besides the parameters
/// that sqlx knows (`sslmode`, `sslrootcert`, `application_name`, `options`, …) there is `pgbouncer=true`, for a
/// PgBouncer in transaction mode.
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
            let mut session = open(&target, bounds).await?;
            check(&mut session).await?;
            Ok(Box::new(PostgresConnection { session }) as Box<dyn LeaseConnection>)
        })
    }

    fn migrate(&self) -> BoxFuture<'static, Result<Migrated, StoreError>> {
        let target = self.target.clone();
        Box::pin(async move {
            let mut session = open(&target, schema::BOUNDS).await?;
            let migrated = schema::migrate(&mut session).await?;
            session.close().await;
            Ok(migrated)
        })
    }

    /// Behind PgBouncer, LISTEN would seem to succeed, and then disturb others.
    fn listen(&self, node: NodeId, bounds: Bounds) -> Option<Listening> {
        let target = self.target.clone();
        (!target.pooled)
            .then(|| Box::pin(async move { listen::open(&target, node, bounds).await }) as Listening)
    }

    fn schema(&self) -> String {
        schema::script()
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
        Box::pin(check(&mut self.session))
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(self.session.close())
    }
}

async fn open(target: &Target, bounds: Bounds) -> Result<Session, StoreError> {
    let connection: PgConnection =
        target.options(bounds).connect().await.map_err(|error| fault::on_connect(error, target))?;
    Ok(Session::new(connection, target))
}

/// One round trip: whether the server takes writes, and whether its schema fits.
async fn check(session: &mut Session) -> Result<(), StoreError> {
    let keeps_settings = !session.is_pooled();
    let probe = Statement::new(include_str!("postgres/probe.sql"), vec![Value::Flag(keeps_settings)]);
    let row = session.fetch_one(&probe).await?;
    if session.read(&row, "read_only")? {
        return Err(session.unavailable("it is read-only: a standby, or a primary that was demoted"));
    }
    let newest = match session.read::<Option<i32>>(&row, "version")? {
        Some(version) => Some((version, session.read(&row, "compatible_from")?)),
        None => None,
    };
    schema::check(newest, session.location())
}
