//! A runtime of the harness's own, so that its work goes on whatever the runtime of a test does: stands
//! still, is blocked, or runs on paused time.

use std::{future::Future, panic::resume_unwind, sync::OnceLock, time::Duration};

use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::{JoinError, JoinHandle},
};

/// The harness's runtime. It lives on its own threads until the process ends.
pub fn handle() -> &'static Handle {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME
        .get_or_init(|| {
            Builder::new_multi_thread()
                .worker_threads(2)
                .thread_name("harness")
                .enable_all()
                .build()
                .expect("the harness needs two threads")
        })
        .handle()
}

/// Runs a future there; a panic comes out here.
pub async fn run<F>(future: F) -> F::Output
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    joined(handle().spawn(future).await)
}

/// Runs a call that blocks its thread there; a panic comes out here.
pub async fn run_blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    joined(handle().spawn_blocking(call).await)
}

/// Real time passes, also for a caller whose own runtime is on paused time.
pub async fn sleep(duration: Duration) {
    let mut task = AbortOnDrop(handle().spawn(tokio::time::sleep(duration)));
    joined((&mut task.0).await);
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn joined<T>(result: Result<T, JoinError>) -> T {
    // The harness aborts no task that is still waited for, so an error is a panic.
    result.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}
