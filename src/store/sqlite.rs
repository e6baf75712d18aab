//! The SQLite store.

/// Leases in SQLite.
#[derive(Debug, Clone)]
pub struct SqliteStore;
