//! Counts the work under a run.

use std::sync::{Mutex, PoisonError};

/// How many pieces of work there are under a run, its guard included. Once the count is zero, nothing can enter.
pub(super) struct Works(Mutex<usize>);

impl Works {
    pub(super) fn of_guard() -> Self {
        Self(Mutex::new(1))
    }

    pub(super) fn enter(&self) -> bool {
        let mut count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open = *count > 0;
        *count += usize::from(is_open);
        is_open
    }

    /// Returns whether this was the last.
    pub(super) fn leave(&self) -> bool {
        let mut count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *count -= 1;
        *count == 0
    }
}
