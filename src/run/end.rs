//! How far the end of a run has come. The state only moves forward.
//!
//! An end has two sides: the work ends, and the row is released or left to expire.
//!
//! ```text
//! work   Working ──► ToldToEnd ──► Killed ──► GivenUp ──► Ended
//! row    Held ──► NotAwaited ──► Known { released }
//! ```
//!
//! Each side may skip steps, and neither goes back. Work that ends by itself goes from `Working` to `ToldToEnd` and
//! `Ended` at once. After a loss the row is `Known` while the work is still ending. In every other case the work ends
//! first (invariant I6). One token is cancelled with `ToldToEnd` and one with `Killed`, for code that waits on a token.

use std::sync::OnceLock;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::end::EndReason;

/// How far the end of the work has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WorkStep {
    Working,
    /// The run is over for everybody. The work has its grace.
    ToldToEnd,
    /// The grace has passed, or there was none: the work is dropped or killed.
    Killed,
    /// The work has not ended, and nobody waits for it any more.
    GivenUp,
    /// The guard's work has ended, or its guard was dropped, and everything that it started has ended too.
    Ended,
}

/// What is known about the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RowStep {
    Held,
    /// The release was not confirmed in time. It may still be.
    NotAwaited,
    /// It is known that the session was released, or that this run will never release it.
    Known {
        released: bool,
    },
}

#[derive(Debug, Clone, Copy)]
struct Steps {
    work: WorkStep,
    row: RowStep,
    gave_up: bool,
    /// Another run may already hold the session (invariant I13). Usually set before the work is killed. A late answer
    /// may set it afterwards.
    overtaken: bool,
}

/// The end of one run, for everybody who waits for a step of it.
pub(super) struct End {
    steps: watch::Sender<Steps>,
    reason: OnceLock<EndReason>,
    told_to_end: CancellationToken,
    killed: CancellationToken,
}

impl End {
    /// `told_to_end` is a child of the supervisor's root token. When the supervisor dies, it is cancelled without a
    /// reason.
    pub(super) fn new(told_to_end: CancellationToken) -> Self {
        let start = Steps { work: WorkStep::Working, row: RowStep::Held, gave_up: false, overtaken: false };
        Self {
            steps: watch::Sender::new(start),
            reason: OnceLock::new(),
            told_to_end,
            killed: CancellationToken::new(),
        }
    }

    /// Sets the reason unless there is one already. Returns the first reason (invariant I3).
    pub(super) fn set_reason(&self, reason: EndReason) -> EndReason {
        self.reason.get_or_init(|| reason).clone()
    }

    /// Tells everybody that the run is over, by its token.
    pub(super) fn cancel(&self) {
        self.advance_work(WorkStep::ToldToEnd);
        self.told_to_end.cancel();
    }

    pub(super) fn kill(&self) {
        self.advance_work(WorkStep::Killed);
        self.killed.cancel();
    }

    pub(super) fn overtaken(&self) {
        self.steps.send_modify(|steps| steps.overtaken = true);
    }

    pub(super) fn give_up(&self) {
        self.steps.send_modify(|steps| {
            steps.gave_up = true;
            steps.work = steps.work.max(WorkStep::GivenUp);
        });
    }

    pub(super) fn work_ended(&self) {
        self.advance_work(WorkStep::Ended);
    }

    pub(super) fn await_row_no_longer(&self) {
        self.advance_row(RowStep::NotAwaited);
    }

    /// The first answer stays. A release that is confirmed later does not change what callers were told.
    pub(super) fn row_known(&self, released: bool) {
        self.advance_row(RowStep::Known { released });
    }

    pub(super) fn reason(&self) -> Option<&EndReason> {
        self.reason.get()
    }

    /// The reason of a run that is over. A run without a reason died with its supervisor.
    pub(super) fn first_reason(&self) -> EndReason {
        self.set_reason(EndReason::Panicked)
    }

    pub(super) fn is_told(&self) -> bool {
        self.told_to_end.is_cancelled()
    }

    pub(super) fn gave_up(&self) -> bool {
        self.steps.borrow().gave_up
    }

    pub(super) fn has_work_ended(&self) -> bool {
        self.steps.borrow().work == WorkStep::Ended
    }

    /// Whether the work has ended or was given up, so that only the release is still waited for.
    pub(super) fn is_work_over(&self) -> bool {
        self.steps.borrow().work >= WorkStep::GivenUp
    }

    pub(super) fn was_released(&self) -> bool {
        self.steps.borrow().row == RowStep::Known { released: true }
    }

    /// Cancelled when the run is over for everybody.
    pub(super) fn told_to_end(&self) -> &CancellationToken {
        &self.told_to_end
    }

    /// Cancelled when the work's grace has passed.
    pub(super) fn killed(&self) -> &CancellationToken {
        &self.killed
    }

    /// Waits until it is known whether the row was released.
    pub(super) async fn until_row_known(&self) {
        self.until(|steps| steps.row >= RowStep::Known { released: false }).await;
    }

    /// Waits until another run may hold the session. Never completes otherwise.
    pub(super) async fn until_overtaken(&self) {
        self.until(|steps| steps.overtaken).await;
    }

    /// Waits until the work has ended or was given up, and the release is confirmed or no longer waited for.
    pub(super) async fn until_over(&self) {
        self.until(|steps| steps.work >= WorkStep::GivenUp && steps.row >= RowStep::NotAwaited).await;
    }

    async fn until(&self, is_reached: impl Fn(&Steps) -> bool) {
        let mut steps = self.steps.subscribe();
        // The sender lives as long as `self` does.
        let _ = steps.wait_for(is_reached).await;
    }

    fn advance_work(&self, to: WorkStep) {
        self.steps.send_if_modified(|steps| {
            let advances = steps.work < to;
            if advances {
                steps.work = to;
            }
            advances
        });
    }

    fn advance_row(&self, to: RowStep) {
        self.steps.send_if_modified(|steps| {
            let advances = steps.row < to && !matches!(steps.row, RowStep::Known { .. });
            if advances {
                steps.row = to;
            }
            advances
        });
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn end() -> End {
        End::new(CancellationToken::new())
    }

    #[test]
    fn i3_the_first_reason_stays_and_no_step_goes_back() {
        let end = end();
        assert_eq!(end.set_reason(EndReason::Completed), EndReason::Completed);
        end.work_ended();
        assert_eq!(end.set_reason(EndReason::Superseded), EndReason::Completed);
        end.cancel();
        end.kill();
        end.give_up();
        assert!(end.has_work_ended() && end.gave_up());
        end.row_known(false);
        end.row_known(true);
        end.await_row_no_longer();
        assert!(!end.was_released(), "those who were told stay told");
    }

    #[test]
    fn an_end_is_over_when_its_work_is_and_its_row_is_not_awaited() {
        let end = end();
        end.row_known(false);
        assert!(end.until_row_known().now_or_never().is_some());
        assert!(end.until_over().now_or_never().is_none(), "after a loss the work is still ending");
        end.give_up();
        assert!(end.is_work_over() && !end.has_work_ended());
        assert!(end.until_over().now_or_never().is_some());
    }

    #[test]
    fn the_tokens_follow_the_steps() {
        let end = end();
        assert!(!end.told_to_end().is_cancelled() && !end.killed().is_cancelled());
        end.cancel();
        assert!(end.told_to_end().is_cancelled() && !end.killed().is_cancelled());
        end.kill();
        assert!(end.killed().is_cancelled());
    }
}
