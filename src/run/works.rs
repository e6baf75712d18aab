//! How many still work under a run.

use std::sync::{Mutex, PoisonError};

/// How many work under a run, its guard included. Once there is nobody left, nobody gets in any more.
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

    /// Answers whether that was the last.
    pub(super) fn leave(&self) -> bool {
        let mut count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *count -= 1;
        *count == 0
    }
}
