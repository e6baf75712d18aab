//! Which of several servers is asked first.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The place of one server in the order in which servers are asked.
#[derive(Clone)]
pub(super) struct Turn {
    /// The index of the server to ask first. Connections may change it at the same time; every result is valid.
    first: Arc<AtomicUsize>,
    /// The index of the server that was last found to work.
    working: Arc<AtomicUsize>,
    index: usize,
    servers: usize,
}

impl Turn {
    /// The turns of this many servers.
    pub(super) fn among(servers: usize) -> impl Iterator<Item = Self> {
        let (first, working) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        (0..servers).map(move |index| Self { first: first.clone(), working: working.clone(), index, servers })
    }

    /// The index of the server to ask first.
    pub(super) fn first(&self) -> usize {
        self.first.load(Ordering::Relaxed)
    }

    /// Whether there is another server to ask.
    pub(super) fn has_others(&self) -> bool {
        self.servers > 1
    }

    /// Records that this server works, so that it is asked first from now on.
    pub(super) fn prefer(&self) {
        self.first.store(self.index, Ordering::Relaxed);
        self.working.store(self.index, Ordering::Relaxed);
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// The index of the server that was last found to work.
    pub(super) fn working(&self) -> usize {
        self.working.load(Ordering::Relaxed)
    }

    /// Records that this server is silent. Silence takes time to notice, so the next server is asked first from now on.
    pub(super) fn pass_over(&self) {
        let next = (self.index + 1) % self.servers;
        let _ = self.first.compare_exchange(self.index, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// A guard to hold while an answer is awaited. If it is dropped before the answer, the caller has stopped waiting,
    /// and this server is passed over.
    pub(super) fn awaited(&self) -> Awaited {
        Awaited(Some(self.clone()))
    }
}

/// A guard for an answer that is still to come.
pub(super) struct Awaited(Option<Turn>);

impl Awaited {
    /// Records that there was an answer, whatever it was.
    pub(super) fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        if let Some(turn) = &self.0 {
            turn.pass_over();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_that_worked_is_asked_first_and_a_silent_one_last() {
        let turns: Vec<_> = Turn::among(3).collect();
        let first = || turns[0].first();
        assert_eq!(first(), 0);
        turns[1].prefer();
        assert_eq!(first(), 1);
        turns[0].pass_over();
        assert_eq!(first(), 1, "it was not the first");
        turns[1].pass_over();
        assert_eq!(first(), 2);
        turns[2].pass_over();
        assert_eq!(first(), 0);
    }
}
