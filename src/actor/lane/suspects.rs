//! Sessions whose statements the database has rejected, and how a batch that holds one of them is taken apart.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::session::SessionKey;

/// Who is kept apart from the others: until the database accepts it, or has not been asked about it for a while.
#[derive(Default)]
pub(super) struct Suspects(HashMap<SessionKey, Instant>);

/// How long after its last rejection a session is kept apart. Whoever still wants it asks again sooner.
const KEPT_APART: Duration = Duration::from_secs(60);

/// Into how many parts a rejected batch is taken apart. One bad item of 500 is found in three steps: with more parts
/// there would be more statements, with fewer more of them would wait for a lock that the bad item waits for.
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

/// The parts of a batch of at least two, none of them empty, in its order.
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
