//! Sessions whose statements the database has rejected, and how a batch with such a session is split.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::session::SessionKey;

/// The sessions that are kept apart from the others, and until when. A session leaves when the database accepts it, or
/// some time after its last rejection.
#[derive(Default)]
pub(super) struct Suspects(HashMap<SessionKey, Instant>);

/// How long after its last rejection a session is kept apart. A run that still wants the session asks again sooner.
const KEPT_APART: Duration = Duration::from_secs(60);

/// The number of parts that a rejected batch is split into. One bad item of 500 is found in three steps. With more
/// parts, each step takes more statements. With fewer parts, finding the item takes more steps, and in each step one
/// statement waits for the lock that the bad item waits for.
const PARTS: usize = 8;

impl Suspects {
    pub(super) fn rejected(&mut self, key: &SessionKey) {
        let now = Instant::now();
        self.0.retain(|_, until| now < *until);
        self.0.insert(key.clone(), now + KEPT_APART);
    }

    pub(super) fn accepted(&mut self, key: &SessionKey) {
        self.0.remove(key);
    }

    pub(super) fn contains(&self, key: &SessionKey) -> bool {
        self.0.get(key).is_some_and(|until| Instant::now() < *until)
    }
}

/// Splits a batch of at least two items. No part is empty, and the order stays.
pub(super) fn apart<T>(mut batch: Vec<T>) -> impl DoubleEndedIterator<Item = Vec<T>> {
    let size = batch.len().div_ceil(PARTS).max(1);
    let mut parts = Vec::with_capacity(PARTS);
    while !batch.is_empty() {
        let rest = batch.split_off(size.min(batch.len()));
        parts.push(std::mem::replace(&mut batch, rest));
    }
    parts.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_comes_apart_into_smaller_ones_that_are_the_whole() {
        for len in 2..=600 {
            let batch: Vec<_> = (0..len).collect();
            let parts: Vec<_> = apart(batch.clone()).collect();
            assert!(parts.len() <= PARTS && parts.iter().all(|part| !part.is_empty() && part.len() < len));
            assert_eq!(parts.concat(), batch);
        }
    }
}
