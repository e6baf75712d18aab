//! Connections in use.

use std::time::Duration;

use super::Pool;
use crate::store::{LeaseConnection, StoreError};

/// A connection in use. Dropping it closes the connection, because it may still be busy with a statement. The pool then
/// opens another if it needs one.
pub(crate) struct Lent {
    pub(super) connection: Option<Box<dyn LeaseConnection>>,
    pub(super) rested: Duration,
    pub(super) pool: Pool,
}

impl Lent {
    pub(crate) fn connection(&mut self) -> &mut dyn LeaseConnection {
        self.connection.as_mut().expect("there is one until it is given back").as_mut()
    }

    /// How long the connection had been idle when it was lent.
    pub(crate) fn rested(&self) -> Duration {
        self.rested
    }

    /// Gives the connection back to the pool, to be used again.
    pub(crate) fn give_back(mut self) {
        if let Some(connection) = self.connection.take() {
            if self.pool.inner.over.is_cancelled() {
                actix_rt::spawn(self.pool.inner.plan.goodbyes.track_future(connection.close()));
            } else {
                self.pool.put(connection);
            }
        }
    }

    /// Gives the connection back if it can be used again after this result, and drops it otherwise.
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
