//! Whether the guardian answers its orders, and in time.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::{Interval, MissedTickBehavior, interval};

use super::GivenOrders;

/// An order that is not answered after this long is waited for in steps of this length, each lived through by this
/// process: time that it was itself frozen for counts as one.
const ANSWER_STEP: Duration = Duration::from_secs(1);
/// So many steps without an answer, or at which it was found stopped, and the guardian counts as lost. It is continued at
/// each.
const ANSWER_STEPS: u32 = 6;

/// Whether the guardian answers.
#[derive(Debug)]
pub(super) struct Answers {
    /// Orders that it has heard.
    pub(super) heard: u64,
    /// Of the wait for it, when there is something to wait for.
    wait: Option<Wait>,
    pub(super) step: Interval,
}

/// In steps, in a row.
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

    /// Whether the guardian has something to answer or to do.
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

    /// After another step.
    pub(super) fn are_overdue(&mut self, shared: &GivenOrders, was_stopped: bool) -> bool {
        let is_missing = self.are_missing(shared);
        let wait = self.wait.get_or_insert_default();
        wait.unanswered = if is_missing { wait.unanswered + 1 } else { 0 };
        wait.stopped = if was_stopped { wait.stopped + 1 } else { 0 };
        wait.unanswered.max(wait.stopped) >= ANSWER_STEPS
    }
}
