//! One track of a lane: what waits for the next statement, and when that may be sent.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures::channel::oneshot;
use tokio::time::Instant;

use super::{LaneAnswer, Sent, Verb, backoff};
use crate::{actor::pool::Pool, store::StoreError};

pub(super) struct Track<V: Verb> {
    pub(super) queue: VecDeque<Request<V>>,
    /// Of rejected batches: each goes before the queue, as one statement.
    pub(super) parts: VecDeque<Vec<Request<V>>>,
    /// The most requests in one statement, now and ever.
    pub(super) width: usize,
    pub(super) widest: usize,
    pub(super) pool: Pool,
    /// A statement, or the wait for a connection.
    pub(super) in_flight: bool,
    /// Statements in a row that got no answer.
    pub(super) failures: u32,
    pub(super) not_before: Option<Instant>,
}

pub(super) struct Request<V: Verb> {
    pub(super) item: V::Item,
    /// In a statement of its own.
    pub(super) alone: bool,
    pub(super) sent: Arc<AtomicBool>,
    pub(super) reply: oneshot::Sender<LaneAnswer<V::Outcome>>,
}

impl<V: Verb> Track<V> {
    pub(super) fn new(width: usize, pool: Pool) -> Self {
        Self {
            queue: VecDeque::new(),
            parts: VecDeque::new(),
            width,
            widest: width,
            pool,
            in_flight: false,
            failures: 0,
            not_before: None,
        }
    }

    /// Takes what fits into one statement: whoever still waits, each key once, in the order of asking.
    pub(super) fn gather(&mut self) -> Vec<Request<V>> {
        while let Some(mut part) = self.parts.pop_front() {
            part.retain(|request| !request.reply.is_canceled());
            if !part.is_empty() {
                return part;
            }
        }
        let mut batch = Vec::new();
        let mut keys = HashSet::new();
        let mut left = VecDeque::new();
        while let Some(request) = self.queue.pop_front() {
            if request.reply.is_canceled() {
                continue;
            }
            let is_full = batch.len() == self.width || (request.alone && !batch.is_empty());
            if is_full {
                left.push_back(request);
                break;
            }
            if request.alone {
                batch.push(request);
                break;
            }
            match keys.insert(V::key(&request.item).clone()) {
                true => batch.push(request),
                false => left.push_back(request),
            }
        }
        left.append(&mut self.queue);
        self.queue = left;
        batch
    }

    /// Counts attempts without an answer, spaces the next one out, and makes it smaller: what was too much at once
    /// may be done in parts.
    pub(super) fn note(&mut self, failed: bool, sent: usize, longest: Duration) {
        self.width = match failed {
            true => (sent / 2).clamp(1, self.widest),
            false => (self.width * 2).min(self.widest),
        };
        self.failures = if failed { self.failures.saturating_add(1) } else { 0 };
        self.not_before = failed.then(|| Instant::now() + backoff(self.failures, longest));
    }
}

impl<V: Verb> Request<V> {
    pub(super) fn answer(self, sent: Sent, outcome: Result<V::Outcome, StoreError>) {
        // Whoever does not wait any more has dropped the receiver.
        let _ = self.reply.send(LaneAnswer { sent_at: sent.at, sent: sent.was_sent, outcome });
    }
}
