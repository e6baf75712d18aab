//! The connection that works with leases. It hands each verb to the module with its SQL.

use std::time::Duration;

use futures::future::BoxFuture;

use super::{acquire, breaking, connect, connection::Connection, history, read, release, renew, stop, sweep};
use crate::{
    history::PastRun,
    session::{Holder, SessionKey},
    store::{
        Acquire, AcquireOutcome, BreakLease, BreakOutcome, HistoryPage, LeaseConnection, Page, Release,
        ReleaseOutcome, Renew, RenewOutcome, StopOutcome, StopRun, StoreError, VerbKind,
    },
};

/// The connection behind [`LeaseConnection`].
pub(super) struct WorkingConnection {
    pub(super) connection: Connection,
}

impl WorkingConnection {
    /// Fails if a row is locked and commits on this server wait for a standby that does not answer: then the lock may
    /// never be released. If this call has written a row, commits are answered, and this does not ask.
    async fn believe<T>(
        &mut self,
        outcomes: Vec<T>,
        is_locked: impl Fn(&T) -> bool,
        is_written: impl Fn(&T) -> bool,
    ) -> Result<Vec<T>, StoreError> {
        if outcomes.iter().any(is_locked) && !outcomes.iter().any(is_written) {
            self.connection.refuse_if_awaiting().await?;
        }
        Ok(outcomes)
    }
}

impl LeaseConnection for WorkingConnection {
    fn acquire<'a>(
        &'a mut self,
        items: &'a [Acquire],
    ) -> BoxFuture<'a, Result<Vec<AcquireOutcome>, StoreError>> {
        Box::pin(async move {
            let outcomes = acquire::acquire(&mut self.connection, items).await?;
            let is_granted = |outcome: &_| matches!(outcome, AcquireOutcome::Granted(_));
            self.believe(outcomes, |outcome| matches!(outcome, AcquireOutcome::Locked), is_granted).await
        })
    }

    fn renew<'a>(&'a mut self, items: &'a [Renew]) -> BoxFuture<'a, Result<Vec<RenewOutcome>, StoreError>> {
        Box::pin(async move {
            let outcomes = renew::renew(&mut self.connection, items).await?;
            let is_renewed = |outcome: &_| matches!(outcome, RenewOutcome::Renewed(_));
            self.believe(outcomes, |outcome| matches!(outcome, RenewOutcome::Locked), is_renewed).await
        })
    }

    fn release<'a>(
        &'a mut self,
        items: &'a [Release],
    ) -> BoxFuture<'a, Result<Vec<ReleaseOutcome>, StoreError>> {
        Box::pin(async move {
            let outcomes = release::release(&mut self.connection, items).await?;
            let is_released = |outcome: &_| matches!(outcome, ReleaseOutcome::Released);
            self.believe(outcomes, |outcome| matches!(outcome, ReleaseOutcome::Locked), is_released).await
        })
    }

    fn request_stop<'a>(&'a mut self, item: &'a StopRun) -> BoxFuture<'a, Result<StopOutcome, StoreError>> {
        Box::pin(async move {
            let outcome = stop::request(&mut self.connection, item).await?;
            if matches!(outcome, StopOutcome::Locked(_)) {
                self.connection.refuse_if_awaiting().await?;
            }
            Ok(outcome)
        })
    }

    fn break_lease<'a>(
        &'a mut self,
        item: &'a BreakLease,
    ) -> BoxFuture<'a, Result<BreakOutcome, StoreError>> {
        Box::pin(async move {
            let outcome = breaking::break_lease(&mut self.connection, item).await?;
            if outcome == BreakOutcome::Locked {
                self.connection.refuse_if_awaiting().await?;
            }
            Ok(outcome)
        })
    }

    fn history<'a>(
        &'a mut self,
        page: &'a HistoryPage,
    ) -> BoxFuture<'a, Result<Option<Vec<PastRun>>, StoreError>> {
        Box::pin(history::history(&mut self.connection, page))
    }

    fn sweep_history(&mut self, keep: Duration, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(history::sweep(&mut self.connection, keep, limit))
    }

    fn inspect<'a>(
        &'a mut self,
        keys: &'a [SessionKey],
    ) -> BoxFuture<'a, Result<Vec<Option<Holder>>, StoreError>> {
        Box::pin(async move { read::inspect(&mut self.connection, &keys.iter().collect::<Vec<_>>()).await })
    }

    fn list<'a>(
        &'a mut self,
        page: &'a Page,
    ) -> BoxFuture<'a, Result<Vec<(SessionKey, Holder)>, StoreError>> {
        Box::pin(read::list(&mut self.connection, page))
    }

    fn sweep(&mut self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(sweep::sweep(&mut self.connection, limit, false))
    }

    fn sweep_in_turn(&mut self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(sweep::sweep(&mut self.connection, limit, true))
    }

    fn probe(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(connect::check(&mut self.connection))
    }

    /// Prepares statements, which a connection does once. Behind PgBouncer nothing is prepared, and this does nothing.
    fn prepare<'a>(&'a mut self, kinds: &'a [VerbKind]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            for kind in kinds {
                let statements: &[&'static str] = match kind {
                    VerbKind::Acquire => &[acquire::ACQUIRE, read::INSPECT],
                    VerbKind::Renew => &[renew::RENEW],
                    VerbKind::Release => &[release::RELEASE],
                };
                for statement in statements {
                    self.connection.prepare(statement).await?;
                }
            }
            Ok(())
        })
    }

    fn ping(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.connection.ping())
    }

    fn server(&self) -> usize {
        self.connection.server()
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(self.connection.close())
    }
}
