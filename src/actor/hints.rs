//! Listens for requests to stop while this process has a session or asks for one.
//!
//! A hint says only that there is something to read. Nothing depends on hints: without one, a request reaches its run
//! with the next renewal. Whenever hints may have been lost, the rows of all runs are read once.

use std::time::Duration;

use actix::Addr;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    actor::registry::{ConfirmAll, LookForStops, Registry},
    backoff::backoff,
    session::NodeId,
    store::{Bounds, Hint, Listener, SharedStore, StoreError},
    trace,
};

/// The task that listens, and what it works with.
pub(crate) struct Hints {
    pub(crate) store: SharedStore,
    pub(crate) node: NodeId,
    pub(crate) bounds: Bounds,
    /// How long connecting may take.
    pub(crate) connect_timeout: Duration,
    /// How long the server may take to answer.
    pub(crate) patience: Duration,
    /// How long the connection may be silent before it is checked.
    pub(crate) silence: Duration,
    /// How long there must have been a session, or a request for one, before a connection is opened to listen. A
    /// request to stop that comes earlier waits this long at most.
    pub(crate) listen_after: Duration,
    /// How long the connection is kept without a session.
    pub(crate) rest_after: Duration,
    pub(crate) registry: Addr<Registry>,
    pub(crate) is_busy: watch::Receiver<bool>,
}

/// The longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long closing the connection may take.
const GOODBYE: Duration = Duration::from_millis(300);

impl Hints {
    /// Listens until the supervisor ends.
    pub(crate) async fn serve(mut self, over: CancellationToken) {
        let mut failures = 0;
        while let Some(true) = over.run_until_cancelled(self.until_busy()).await {
            if self.store.listens_by_connection() && !self.listen_after.is_zero() {
                if over.run_until_cancelled(sleep(self.listen_after)).await.is_none() {
                    return;
                }
                if !*self.is_busy.borrow() {
                    continue;
                }
            }
            let Some(opened) = over.run_until_cancelled(self.open()).await else { return };
            let lost = match opened {
                Ok(None) => return,
                Ok(Some(mut listener)) => {
                    failures = 0;
                    let heeded = over.run_until_cancelled(self.heed(&mut *listener)).await;
                    if !matches!(heeded, Some(Err(_))) {
                        let _ = timeout(GOODBYE, listener.close()).await;
                    }
                    match heeded {
                        Some(Err(lost)) => lost,
                        Some(Ok(())) => continue,
                        None => return,
                    }
                }
                Err(error) => error,
            };
            if matches!(lost, StoreError::Lost { .. }) {
                self.registry.do_send(ConfirmAll);
            }
            tracing::debug!(target: trace::STORE, error = %lost, "not listening for requests to stop");
            failures += 1;
            if over.run_until_cancelled(sleep(backoff(failures, LONGEST_PAUSE))).await.is_none() {
                return;
            }
        }
    }

    /// Waits until there is a session. `false` when the registry has ended.
    async fn until_busy(&mut self) -> bool {
        self.is_busy.wait_for(|is_busy| *is_busy).await.is_ok()
    }

    async fn open(&self) -> Result<Option<Box<dyn Listener>>, StoreError> {
        let Some(opening) = self.store.listen(self.node, self.bounds) else { return Ok(None) };
        let within = self.connect_timeout;
        let silent = |_elapsed| Err(StoreError::silent(self.store.location(), within));
        timeout(within, opening).await.unwrap_or_else(silent).map(Some)
    }

    /// Follows the hints until the connection fails, or until there has been no session for a while.
    async fn heed(&mut self, listener: &mut dyn Listener) -> Result<(), StoreError> {
        // Requests may have been recorded while nobody listened.
        self.look(None).await;
        loop {
            if !*self.is_busy.borrow_and_update() {
                if timeout(self.rest_after, self.until_busy()).await.is_err() {
                    return Ok(());
                }
                self.check(listener).await?;
            }
            match timeout(self.silence, listener.next()).await {
                Ok(Ok(None)) => {}
                Ok(Ok(Some(Hint::Changed))) => self.look(None).await,
                Ok(Ok(Some(Hint::Replaced))) => self.registry.do_send(ConfirmAll),
                // Many runs may be asked to stop at once, so do not wait until this one's row is read.
                Ok(Ok(Some(Hint::Stop(run_id)))) => self.registry.do_send(LookForStops(Some(run_id))),
                Ok(Err(error)) => return Err(error),
                Err(_elapsed) => self.check(listener).await?,
            }
        }
    }

    async fn look(&self, which: Option<crate::session::RunId>) {
        // A registry that has ended has no runs.
        let _ = self.registry.send(LookForStops(which)).await;
    }

    async fn check(&self, listener: &mut dyn Listener) -> Result<(), StoreError> {
        timeout(self.patience, listener.check()).await.unwrap_or_else(|_elapsed| Err(self.silent()))
    }

    fn silent(&self) -> StoreError {
        StoreError::silent(self.store.location(), self.patience)
    }
}
