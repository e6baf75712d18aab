//! Hints over LISTEN and NOTIFY, on a connection of their own.

use std::sync::Arc;

use futures::future::BoxFuture;
use sqlx::{
    Executor as _, Postgres, Row as _,
    pool::{Pool, PoolOptions},
    postgres::{PgListener, PgRow},
};
use tokio::runtime::Handle;

use super::{connect, doubt::Doubt, fault, naming::Naming, server::Server, target::Target};
use crate::{
    session::{NodeId, RunId},
    store::{Bounds, Hint, Listener, StoreError},
};

/// Begins to listen for a node, on the server that takes writes.
pub(super) async fn open(
    target: &Target,
    node: NodeId,
    bounds: Bounds,
) -> Result<Box<dyn Listener>, StoreError> {
    let channel = connect::search(target, bounds, |server| Channel::open(server, node, bounds)).await?;
    Ok(Box::new(channel))
}

struct Channel {
    /// `None` only while the channel is being dropped.
    listener: Option<PgListener>,
    pool: Pool<Postgres>,
    location: String,
    naming: Arc<Naming>,
    runtime: Handle,
}

impl Channel {
    async fn open(server: &Server, node: NodeId, bounds: Bounds) -> Result<Self, StoreError> {
        let attempt = server.log_in(Some(bounds)).await?;
        // The driver's listener needs a pool for its one connection. When the connection is lost, both are given up.
        let pool: Pool<Postgres> = PoolOptions::new()
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            .connect_lazy_with(attempt.options.clone());
        let listener = attempt.complete(PgListener::connect_with(&pool)).await?;
        let location = server.location.to_string();
        let naming = server.naming.clone();
        let mut channel =
            Self { listener: Some(listener), pool, location, naming, runtime: Handle::current() };
        channel.settle(server.longest_commit(bounds)).await?;
        channel.begin(node).await?;
        Ok(channel)
    }

    /// Checks the server and changes the session's settings, as for a connection that works with leases. A listener
    /// lives as long, and is idle for longer.
    async fn settle(&mut self, longest_commit: i64) -> Result<(), StoreError> {
        let probe = sqlx::query(self.naming.sql(connect::PROBE)).bind(true).bind(longest_commit);
        let answer = probe.persistent(false).fetch_one(&mut *self.listener()?).await;
        let read =
            |row: PgRow| Ok((row.try_get::<Option<String>, _>("doubt")?, row.try_get("awaits_standby")?));
        match answer.and_then(read).map_err(|error| fault::on_use(error, &self.location, &self.naming))? {
            (Some(doubt), _) => Err(Doubt::of(&doubt).error(&self.location)),
            (None, true) => Err(fault::awaits_standby(&self.location)),
            (None, false) => Ok(()),
        }
    }

    /// Fails if the server takes no writes, because requests to stop are written at the server that does.
    fn takes_writes(&self, read_only: Result<bool, sqlx::Error>) -> Result<(), StoreError> {
        match read_only.map_err(|error| fault::on_use(error, &self.location, &self.naming))? {
            true => Err(fault::read_only(&self.location)),
            false => Ok(()),
        }
    }

    /// Begins to listen, and then takes the lock by which `stop.sql` knows that there is a listener.
    async fn begin(&mut self, node: NodeId) -> Result<(), StoreError> {
        let (location, naming) = (self.location.clone(), self.naming.clone());
        let failed = |error| fault::on_use(error, &location, &naming);
        let listener = self.listener()?;
        listener.ignore_pool_close_event(true);
        listener.eager_reconnect(false);
        listener.listen(&channel(node)).await.map_err(failed)?;
        // The lock is shared, because an earlier connection of this node may be dead without the server having noticed.
        let lock = sqlx::query("SELECT pg_advisory_lock_shared($1)").bind(lock_key(node));
        lock.execute(&mut *listener).await.map_err(failed)?;
        Ok(())
    }

    fn listener(&mut self) -> Result<&mut PgListener, StoreError> {
        let location = &self.location;
        self.listener.as_mut().ok_or_else(|| lost(location))
    }
}

impl Listener for Channel {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Hint>, StoreError>> {
        Box::pin(async move {
            match self.listener()?.try_recv().await {
                Ok(Some(heard)) => {
                    Ok(Some(heard.payload().parse::<RunId>().map_or(Hint::Changed, Hint::Stop)))
                }
                Ok(None) => Err(lost(&self.location)),
                Err(error) => Err(fault::on_use(error, &self.location, &self.naming)),
            }
        })
    }

    fn check(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let answer = self.listener()?.fetch_one(sqlx::raw_sql(connect::READ_ONLY)).await;
            self.takes_writes(answer.and_then(|row| row.try_get(0)))
        })
    }

    fn close(mut self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            drop(self.listener.take());
            self.pool.close().await;
        })
    }
}

/// The driver's listener closes its connection in a task, for which it needs a runtime.
impl Drop for Channel {
    fn drop(&mut self) {
        let _entered = self.runtime.enter();
        drop(self.listener.take());
    }
}

/// The name of the channel. `stop.sql` builds the same.
fn channel(node: NodeId) -> String {
    format!("tenure_{}", node.as_uuid().simple())
}

/// The key of the lock: the first half of the node's id. `stop.sql` builds the same.
fn lock_key(node: NodeId) -> i64 {
    let (half, _) = node.as_uuid().as_u64_pair();
    i64::from_be_bytes(half.to_be_bytes())
}

fn lost(location: &str) -> StoreError {
    StoreError::Unavailable {
        location: location.to_owned(),
        detail: "the connection that listens was lost".to_owned(),
    }
}
