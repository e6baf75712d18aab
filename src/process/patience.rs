//! How long a thread waits, and how another thread can end the waiting.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

/// A limit to waiting. It ends at an instant, when a token is cancelled, or never.
#[derive(Debug, Clone, Default)]
pub(super) struct Patience {
    pub(super) until: Option<Instant>,
    pub(super) unless: Option<CancellationToken>,
}

impl Patience {
    pub(super) fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
            || self.unless.as_ref().is_some_and(CancellationToken::is_cancelled)
    }

    /// Blocks the thread until there is an answer. `None` if the patience is over first. The thread that makes an
    /// answer possible must unpark this one.
    pub(super) fn wait_for<T>(&self, mut answer: impl FnMut() -> Option<T>) -> Option<T> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let cancelled = async {
            match &self.unless {
                Some(token) => token.cancelled().await,
                None => std::future::pending().await,
            }
        };
        let mut cancelled = pin!(cancelled);
        loop {
            if let Some(answer) = answer() {
                return Some(answer);
            }
            // This polls each time, so that the token always has the waker.
            if cancelled.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Ready(()) {
                return None;
            }
            match self.until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return None,
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any test.
    const LONG: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_token_ends_a_long_pause_of_another_thread() {
        let token = CancellationToken::new();
        let patience = Patience { until: Some(Instant::now() + LONG), unless: Some(token.clone()) };
        let waiting = thread::spawn(move || patience.wait_for(|| None::<()>));
        token.cancel();
        assert_eq!(waiting.join().unwrap(), None);
    }

    #[test]
    fn a_pause_ends_by_the_clock() {
        let until = Instant::now() + Duration::from_millis(10);
        let patience = Patience { until: Some(until), unless: Some(CancellationToken::new()) };
        assert_eq!(patience.wait_for(|| None::<()>), None);
        assert!(Instant::now() >= until && patience.is_over());
    }
}
