//! The store of a supervisor that only looks.

use futures::future::BoxFuture;

use crate::store::{Bounds, LeaseConnection, LeaseStore, Migrated, SharedStore, StoreError};

/// A store that opens its connections to look: they may be to a standby, and are used only to read.
pub(super) struct OnlyLooking(pub(super) SharedStore);

impl crate::store::sealed::Sealed for OnlyLooking {}

impl LeaseStore for OnlyLooking {
    fn connect(&self, bounds: Bounds) -> BoxFuture<'static, Result<Box<dyn LeaseConnection>, StoreError>> {
        self.0.connect_to_look(bounds)
    }

    fn migrate(&self) -> BoxFuture<'static, Result<Migrated, StoreError>> {
        self.0.migrate()
    }

    fn schema(&self) -> String {
        self.0.schema()
    }

    fn location(&self) -> &str {
        self.0.location()
    }

    fn remark(&self) -> Option<String> {
        self.0.remark()
    }
}
