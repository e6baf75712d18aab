//! The connection that only reads. It may go to a standby while no server that takes writes can be reached.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{connect, connection::Connection, target::Target, working::WorkingConnection};
use crate::{
    history::PastRun,
    session::{Holder, SessionKey},
    store::{
        Acquire, AcquireOutcome, Bounds, BreakLease, BreakOutcome, HistoryPage, LeaseConnection, Page,
        Release, ReleaseOutcome, Renew, RenewOutcome, StopOutcome, StopRun, StoreError,
    },
    watch::Standby,
};

pub(super) struct LookingConnection {
    inner: WorkingConnection,
    target: Arc<Target>,
    bounds: Bounds,
    search: Search,
}

/// The search for the server that takes writes, while a standby answers. No read waits for it.
enum Search {
    NotBefore(Instant),
    UnderWay(AbortOnDropHandle<Result<Connection, StoreError>>),
}

/// The pause between two searches.
const PAUSE: Duration = Duration::from_secs(2);

impl LookingConnection {
    pub(super) fn new(connection: Connection, target: Arc<Target>, bounds: Bounds) -> Self {
        let search = Search::NotBefore(Instant::now() + PAUSE);
        Self { inner: WorkingConnection { connection }, target, bounds, search }
    }

    /// Switches to the server that a search has found, or begins a search if a standby answers.
    fn prefer_the_authority(&mut self) {
        let servers = self.target.in_order().len();
        match &mut self.search {
            Search::UnderWay(search) => {
                let Some(found) = search.now_or_never() else { return };
                self.search = Search::NotBefore(Instant::now() + PAUSE);
                if let Ok(Ok(connection)) = found
                    && connection.standby().is_none()
                {
                    self.inner.connection = connection;
                }
            }
            Search::NotBefore(at) => {
                if servers > 1 && self.inner.connection.standby().is_some() && Instant::now() >= *at {
                    let (target, bounds) = (self.target.clone(), self.bounds);
                    let search = async move { connect::to_look(&target, bounds).await };
                    self.search = Search::UnderWay(AbortOnDropHandle::new(tokio::spawn(search)));
                }
            }
        }
    }
}

/// Verbs that write are sent, too. A server that takes no writes refuses them itself.
impl LeaseConnection for LookingConnection {
    fn acquire<'a>(
        &'a mut self,
        items: &'a [Acquire],
    ) -> BoxFuture<'a, Result<Vec<AcquireOutcome>, StoreError>> {
        self.inner.acquire(items)
    }

    fn renew<'a>(&'a mut self, items: &'a [Renew]) -> BoxFuture<'a, Result<Vec<RenewOutcome>, StoreError>> {
        self.inner.renew(items)
    }

    fn release<'a>(
        &'a mut self,
        items: &'a [Release],
    ) -> BoxFuture<'a, Result<Vec<ReleaseOutcome>, StoreError>> {
        self.inner.release(items)
    }

    fn request_stop<'a>(&'a mut self, item: &'a StopRun) -> BoxFuture<'a, Result<StopOutcome, StoreError>> {
        self.inner.request_stop(item)
    }

    fn break_lease<'a>(
        &'a mut self,
        item: &'a BreakLease,
    ) -> BoxFuture<'a, Result<BreakOutcome, StoreError>> {
        self.inner.break_lease(item)
    }

    fn history<'a>(
        &'a mut self,
        page: &'a HistoryPage,
    ) -> BoxFuture<'a, Result<Option<Vec<PastRun>>, StoreError>> {
        self.prefer_the_authority();
        self.inner.history(page)
    }

    fn sweep_history(&mut self, keep: Duration, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.inner.sweep_history(keep, limit)
    }

    fn inspect<'a>(
        &'a mut self,
        keys: &'a [SessionKey],
    ) -> BoxFuture<'a, Result<Vec<Option<Holder>>, StoreError>> {
        self.prefer_the_authority();
        self.inner.inspect(keys)
    }

    fn list<'a>(
        &'a mut self,
        page: &'a Page,
    ) -> BoxFuture<'a, Result<Vec<(SessionKey, Holder)>, StoreError>> {
        self.prefer_the_authority();
        self.inner.list(page)
    }

    fn standby(&self) -> Option<Standby> {
        self.inner.connection.standby().cloned()
    }

    fn sweep(&mut self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.inner.sweep(limit)
    }

    fn probe(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.probe()
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(self.inner.connection.close())
    }
}
