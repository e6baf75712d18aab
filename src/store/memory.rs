//! The In-memory store.

/// Leases in In-memory.
#[derive(Debug, Clone)]
pub struct MemoryStore;
