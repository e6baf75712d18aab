//! The PostgreSQL store.

/// Leases in PostgreSQL.
#[derive(Debug, Clone)]
pub struct PostgresStore;
