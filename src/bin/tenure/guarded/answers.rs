//! Watches whether the guardian answers its orders in time.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::{Interval, MissedTickBehavior, interval};

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
    pub(super) step: Interval,
}

/// Numbers of steps in a row.
#[derive(Debug, Clone, Copy, Default)]
struct Wait {
    unanswered: u32,
    stopped: u32,
}

impl Answers {
    pub(super) fn none_expected() -> Self {
        let mut step = interval(ANSWER_STEP);
        step.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { heard: 0, wait: None, step }
    }

    /// Whether the guardian has an order to answer, or a tree to end.
    pub(super) fn are_due(&mut self, shared: &GivenOrders) -> bool {
        if !self.are_missing(shared) && !shared.is_stopping.load(Ordering::Relaxed) {
            self.wait = None;
        } else if self.wait.is_none() {
            self.wait = Some(Wait::default());
            self.step.reset();
        }
        self.wait.is_some()
    }

    fn are_missing(&self, shared: &GivenOrders) -> bool {
        self.heard < shared.orders.load(Ordering::Relaxed)
    }

    /// Counts another step. Returns whether the guardian now counts as lost.
    pub(super) fn are_overdue(&mut self, shared: &GivenOrders, was_stopped: bool) -> bool {
        let is_missing = self.are_missing(shared);
        let wait = self.wait.get_or_insert_default();
        wait.unanswered = if is_missing { wait.unanswered + 1 } else { 0 };
        wait.stopped = if was_stopped { wait.stopped + 1 } else { 0 };
        wait.unanswered.max(wait.stopped) >= ANSWER_STEPS
    }
}
