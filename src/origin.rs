//! Tells whether a value belongs to this process, or was copied into it by a fork, and whether the process may end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

/// The process that made a value. A fork has a copy of the value, but none of the threads that serve it. Calls in a
/// fork therefore return at once, instead of waiting for ever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin(u32);

impl Origin {
    pub(crate) fn here() -> Self {
        Self(std::process::id())
    }

    /// Costs one cheap system call. Takes no lock, because another thread may have held it when the process forked.
    pub(crate) fn is_this_process(self) -> bool {
        std::process::id() == self.0
    }
}

/// Whether the last handle of a supervisor was dropped, so that the process may be about to end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Deserted(Arc<AtomicBool>);

impl Deserted {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// How long a drop waits for releases that are under way.
const LONGEST_FAREWELL: Duration = Duration::from_millis(500);

/// Hands out a sender and waits until it is dropped, but not for long. In a task it waits for nothing: that could keep
/// other work on the thread from ending, and so delay the release of that work's session.
pub(crate) fn farewell(send: impl FnOnce(mpsc::Sender<()>)) {
    if tokio::task::try_id().is_none() {
        let (released, are_released) = mpsc::channel();
        send(released);
        let _ = are_released.recv_timeout(LONGEST_FAREWELL);
    }
}
