//! The in-memory store for the conformance suite, in real time.

use std::{sync::Arc, time::Duration};

use tenure::{
    SessionKey,
    clock::SystemClock,
    store::{MemoryStore, SharedStore},
};

use super::backend::Backend;

/// One database in memory.
pub struct MemoryBackend {
    store: MemoryStore,
}

impl MemoryBackend {
    /// An empty one.
    pub async fn start() -> Self {
        Self { store: MemoryStore::new(Arc::new(SystemClock)) }
    }
}

impl Backend for MemoryBackend {
    fn store(&self) -> SharedStore {
        Arc::new(self.store.clone())
    }

    async fn image(&self, key: &SessionKey) -> Option<String> {
        // What is left of the lease is no part of what is stored.
        self.store.row(key).map(|mut row| {
            row.expires_in = Duration::ZERO;
            format!("{row:?}")
        })
    }

    async fn set_remaining(&self, key: &SessionKey, millis: i64) {
        self.store.set_remaining_millis(key, millis);
    }

    async fn request_stop(&self, key: &SessionKey, by: &str, reason: &str) {
        self.store.request_stop(key, by, reason);
    }

    async fn step_clock_back(&self, seconds: u32) -> i64 {
        self.store.step_clock_back(Duration::from_secs(seconds.into()));
        0
    }
}
