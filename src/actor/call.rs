//! One call of the database: it always ends with an answer or an error.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use tokio::time::timeout;

use crate::store::StoreError;

/// Waits for the answer to a call for at most `within`. A time-out and a panic become a [`StoreError`].
pub(crate) async fn answer<T>(
    location: &str,
    within: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let answered = timeout(within, caught(location, call)).await;
    answered.unwrap_or_else(|_elapsed| Err(StoreError::silent(location, within)))
}

/// Like [`answer`], without a time-out, for a caller that has its own.
pub(crate) async fn caught<T>(
    location: &str,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let called = AssertUnwindSafe(call).catch_unwind().await;
    called.unwrap_or_else(|_panic| Err(StoreError::panicked(location)))
}
