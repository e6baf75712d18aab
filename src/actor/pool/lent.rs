//! Connections in use.

use std::time::Duration;

use super::Pool;
use crate::store::{LeaseConnection, StoreError};

/// A connection in use. Dropped, it is given up, and its successor opened: it may be busy still with what was asked.
pub(crate) struct Lent {
    pub(super) connection: Option<Box<dyn LeaseConnection>>,
    pub(super) rested: Duration,
    pub(super) pool: Pool,
}

impl Lent {
    pub(crate) fn connection(&mut self) -> &mut dyn LeaseConnection {
        self.connection.as_mut().expect("there is one until it is given back").as_mut()
    }

    /// How long it had been at rest when it was lent.
    pub(crate) fn rested(&self) -> Duration {
        self.rested
    }

    /// It can be used again.
    pub(crate) fn give_back(mut self) {
        if let Some(connection) = self.connection.take() {
            if self.pool.inner.over.is_cancelled() {
                actix_rt::spawn(self.pool.inner.plan.goodbyes.track_future(connection.close()));
            } else {
                self.pool.put(connection);
            }
        }
    }

    /// Gives it back if it can be used again after this result.
    pub(crate) fn give_back_after<T>(self, result: &Result<T, StoreError>) {
        if !result.as_ref().is_err_and(StoreError::is_uncertain) {
            self.give_back();
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.inner.state.borrow_mut().lent -= 1;
        self.pool.keep();
        self.pool.inner.changed.notify_waiters();
    }
}
