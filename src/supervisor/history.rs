//! Asks for the runs of a session that are over.

use std::future::IntoFuture;

use futures::future::BoxFuture;

use super::LeaseSupervisor;
use crate::{
    actor::query::Query, error::QueryError, history::History, session::FencingToken, store::HistoryPage,
};

/// A request to read the runs of a session that are over. Await it to send it.
#[must_use = "a request does nothing until it is awaited"]
#[derive(Debug, Clone)]
pub struct HistoryBuilder {
    pub(super) supervisor: LeaseSupervisor,
    pub(super) page: HistoryPage,
}

impl HistoryBuilder {
    pub(super) const DEFAULT_LIMIT: u32 = 20;
    /// One statement reads no more, so that it does not keep a connection busy for long.
    const GREATEST_LIMIT: u32 = 1_000;

    /// At most this many runs, and at most 1,000. Default: 20.
    pub fn limit(mut self, limit: u32) -> Self {
        self.page.limit = limit.min(Self::GREATEST_LIMIT);
        self
    }

    /// Only runs before the one with this fence: the next page after a page that ended with it.
    pub fn before(mut self, fence: FencingToken) -> Self {
        self.page.before = Some(fence);
        self
    }

    async fn read(self) -> Result<History, QueryError> {
        self.supervisor.inner()?.queries.ask(|reply| Query::History(self.page, reply)).await
    }
}

impl IntoFuture for HistoryBuilder {
    type Output = Result<History, QueryError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.read())
    }
}
