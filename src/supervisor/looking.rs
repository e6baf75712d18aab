//! The store of a supervisor that only looks.

use futures::future::BoxFuture;

use crate::store::{Bounds, KeepHistory, LeaseConnection, LeaseStore, Migrated, SharedStore, StoreError};

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

    fn migrate_with(&self, history: KeepHistory) -> BoxFuture<'static, Result<Migrated, StoreError>> {
        self.0.migrate_with(history)
    }

    fn schema(&self) -> String {
        self.0.schema()
    }

    fn schema_with(&self, history: KeepHistory) -> String {
        self.0.schema_with(history)
    }

    fn location(&self) -> &str {
        self.0.location()
    }

    fn remark(&self) -> Option<String> {
        self.0.remark()
    }
}
