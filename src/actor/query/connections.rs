//! The connections that queries go over: one at rest.

use std::{cell::RefCell, panic::AssertUnwindSafe, time::Duration};

use futures::{FutureExt, future::join_all};
use tokio::time::{Instant, timeout, timeout_at};

use crate::store::{Bounds, LeaseConnection, SharedStore, StoreError};

/// How long more connections than one are kept when nobody needs them.
pub(super) const LINGER: Duration = Duration::from_secs(5);
/// A connection that was idle for so long may have died without a word, as behind a router that has forgotten it.
const MAY_HAVE_DIED: Duration = Duration::from_secs(5);
/// How long a goodbye to the server may take.
const GOODBYE: Duration = Duration::from_millis(300);

pub(super) struct Connections {
    store: SharedStore,
    bounds: Bounds,
    /// For one question, however often it is asked.
    attempt_timeout: Duration,
    /// Those that nobody uses, the one that was used last at the end.
    idle: RefCell<Vec<Idle>>,
}

struct Idle {
    connection: Box<dyn LeaseConnection>,
    since: Instant,
}

impl Connections {
    pub(super) fn new(
        store: SharedStore,
        bounds: Bounds,
        attempt_timeout: Duration,
        first: Box<dyn LeaseConnection>,
    ) -> Self {
        let idle = RefCell::new(vec![Idle { connection: first, since: Instant::now() }]);
        Self { store, bounds, attempt_timeout, idle }
    }

    /// Also answers whether all the time has passed without an answer, or the driver has panicked.
    pub(super) async fn ask<T>(
        &self,
        call: impl AsyncFn(&mut dyn LeaseConnection) -> Result<T, StoreError>,
    ) -> (Result<T, StoreError>, bool) {
        let until = Instant::now() + self.attempt_timeout;
        if let Some(Idle { connection, since }) = self.take() {
            // So that there is time for a fresh one.
            let spared =
                if since.elapsed() > MAY_HAVE_DIED { self.attempt_timeout / 3 } else { Duration::ZERO };
            match self.exchange(async || Ok(connection), &call, until - spared).await {
                (Err(error), false) if error.is_uncertain() => {
                    tracing::debug!(%error, "asking once more, on a fresh connection");
                    // What died with it will not be any better.
                    self.idle.borrow_mut().clear();
                }
                (Err(_), true) if Instant::now() < until => self.idle.borrow_mut().clear(),
                answered => return answered,
            }
        }
        self.exchange(async || self.store.connect(self.bounds).await, &call, until).await
    }

    async fn exchange<T>(
        &self,
        open: impl AsyncFnOnce() -> Result<Box<dyn LeaseConnection>, StoreError>,
        call: &impl AsyncFn(&mut dyn LeaseConnection) -> Result<T, StoreError>,
        until: Instant,
    ) -> (Result<T, StoreError>, bool) {
        let exchange = async {
            let mut connection = open().await?;
            let result = call(connection.as_mut()).await;
            // After an uncertain end the connection may still be busy with the statement: never use it again.
            if !result.as_ref().is_err_and(StoreError::is_uncertain) {
                self.put_back(connection);
            }
            result
        };
        let location = self.store.location();
        match timeout_at(until, AssertUnwindSafe(exchange).catch_unwind()).await {
            Ok(Ok(result)) => (result, false),
            Ok(Err(_panic)) => (Err(StoreError::panicked(location)), true),
            Err(_elapsed) => (Err(StoreError::silent(location, self.attempt_timeout)), true),
        }
    }

    fn take(&self) -> Option<Idle> {
        self.idle.borrow_mut().pop()
    }

    fn put_back(&self, connection: Box<dyn LeaseConnection>) {
        self.idle.borrow_mut().push(Idle { connection, since: Instant::now() });
        if self.idle.borrow().first().is_some_and(|oldest| oldest.since.elapsed() > LINGER) {
            self.close_spare();
        }
    }

    pub(super) fn has_spare(&self) -> bool {
        self.idle.borrow().len() > 1
    }

    /// Closes all but the one that was used last.
    pub(super) fn close_spare(&self) {
        let mut idle = self.idle.borrow_mut();
        let spare = idle.len().saturating_sub(1);
        for Idle { connection, .. } in idle.drain(..spare) {
            actix_rt::spawn(timeout(GOODBYE, connection.close()));
        }
    }

    pub(super) async fn close(&self) {
        let idle = std::mem::take(&mut *self.idle.borrow_mut());
        join_all(idle.into_iter().map(|idle| idle.connection.close())).await;
    }
}
