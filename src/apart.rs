//! Runs database work for callers that have no supervisor, in any async runtime.

use std::{future::Future, thread};

use futures::channel::oneshot;
use tokio::runtime;
use tokio_util::sync::CancellationToken;

use crate::{limits, store::StoreError};

/// Drives a future on a thread and a tokio runtime of its own. The caller's runtime may not be tokio, may lack timers,
/// or may have a paused clock, under which every time-out would fire at once.
///
/// # Errors
/// [`StoreError::Unavailable`] when no thread can be started, or the work panicked.
///
/// # Cancel safety
/// Dropping the future drops the work.
pub(crate) async fn run<T: Send + 'static>(
    location: &str,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, StoreError> {
    let failed = |detail| StoreError::Unavailable { location: location.to_owned(), detail };
    let (reply, answer) = oneshot::channel();
    let wanted = CancellationToken::new();
    let _unwanted = wanted.clone().drop_guard();
    let live = move || {
        let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return drop(reply.send(Err(limits::with_remedy(&error)))),
        };
        if let Some(done) = runtime.block_on(wanted.run_until_cancelled(work)) {
            let _ = reply.send(Ok(done));
        }
        // Do not wait for a DNS lookup: it blocks a thread of the runtime for as long as the resolver takes.
        runtime.shutdown_background();
    };
    let thread = thread::Builder::new().name("tenure-apart".to_owned()).spawn(live);
    thread.map_err(|error| failed(limits::no_thread(&error)))?;
    let panicked = |oneshot::Canceled| Err("it panicked".to_owned());
    answer.await.unwrap_or_else(panicked).map_err(failed)
}
