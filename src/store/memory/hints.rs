//! Hints within the process. They arrive as long as the test lets them.

use futures::{FutureExt, StreamExt, channel::mpsc, future::BoxFuture};

use super::{Fault, MemoryStore, State, unavailable};
use crate::{
    session::{Holder, RunId},
    store::{Hint, Listener, StoreError},
};

pub(super) struct MemoryListener {
    store: MemoryStore,
    hints: mpsc::UnboundedReceiver<RunId>,
}

impl MemoryListener {
    pub(super) fn new(store: MemoryStore, hints: mpsc::UnboundedReceiver<RunId>) -> Self {
        Self { store, hints }
    }
}

impl Listener for MemoryListener {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Hint>, StoreError>> {
        async {
            let heard = self.hints.next().await;
            heard.map(|run_id| Some(Hint::Stop(run_id))).ok_or_else(|| unavailable("connection reset"))
        }
        .boxed()
    }

    fn check(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store.execute(|_, _| ()).boxed()
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        async {}.boxed()
    }
}

impl State {
    /// Sends a hint to every listener of the holder's node.
    pub(super) fn hint(&mut self, holder: &Holder) {
        self.listeners.retain(|(_, listener)| !listener.is_closed());
        let reachable = !self.hints_lost && self.fault == Fault::None;
        for (_, listener) in self.listeners.iter().filter(|(node, _)| reachable && *node == holder.node) {
            // A listener that was dropped in the meantime needs no hint.
            let _ = listener.unbounded_send(holder.run_id);
        }
    }
}
