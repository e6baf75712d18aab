//! Watches whether the guardian answers its orders in time.

use std::{future::pending, sync::atomic::Ordering, time::Duration};

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::GivenOrders;

/// The wait for an answer is counted in steps of this length. Only steps during which this process runs count. However
/// long this process was frozen, that counts as one step.
const ANSWER_STEP: Duration = Duration::from_secs(1);
/// The guardian counts as lost after this many steps in a row without an answer, or after it was found stopped at this
/// many steps in a row. At each step it is sent SIGCONT.
const ANSWER_STEPS: u32 = 6;

/// How many orders the guardian has answered, and the wait for the next answer.
#[derive(Debug)]
pub(super) struct Answers {
    /// How many orders the guardian has heard.
    pub(super) heard: u64,
    /// The present wait, if an answer is due.
    wait: Option<Wait>,
}

/// The steps of one wait. With the wait ends its timer, which would wake this process for nothing.
#[derive(Debug)]
struct Wait {
    step: Interval,
    /// How many steps in a row.
    unanswered: u32,
    /// How many steps in a row.
    stopped: u32,
}

impl Wait {
    fn begin() -> Self {
        let mut step = interval_at(Instant::now() + ANSWER_STEP, ANSWER_STEP);
        step.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { step, unanswered: 0, stopped: 0 }
    }
}

impl Answers {
    pub(super) fn none_expected() -> Self {
        Self { heard: 0, wait: None }
    }

    /// Begins to wait if the guardian has an order to answer, or a tree to end, and ends the wait if it has not.
    pub(super) fn expect(&mut self, shared: &GivenOrders) {
        if !self.are_missing(shared) && !shared.is_stopping.load(Ordering::Relaxed) {
            self.wait = None;
        } else {
            self.wait.get_or_insert_with(Wait::begin);
        }
    }

    /// The next step of the wait. Without a wait there is none.
    ///
    /// # Cancel safety
    /// Dropping the future loses no step.
    pub(super) async fn step(&mut self) {
        match &mut self.wait {
            Some(wait) => {
                wait.step.tick().await;
            }
            None => pending().await,
        }
    }

    fn are_missing(&self, shared: &GivenOrders) -> bool {
        self.heard < shared.orders.load(Ordering::Relaxed)
    }

    /// Counts another step. Returns whether the guardian now counts as lost.
    pub(super) fn are_overdue(&mut self, shared: &GivenOrders, was_stopped: bool) -> bool {
        let is_missing = self.are_missing(shared);
        let wait = self.wait.get_or_insert_with(Wait::begin);
        wait.unanswered = if is_missing { wait.unanswered + 1 } else { 0 };
        wait.stopped = if was_stopped { wait.stopped + 1 } else { 0 };
        wait.unanswered.max(wait.stopped) >= ANSWER_STEPS
    }
}
