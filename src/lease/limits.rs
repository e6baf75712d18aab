//! Limits on how long a run may last, and on how long its work may be silent.

use std::time::Duration;

use super::{Lease, State};
use crate::{
    clock::BootInstant,
    end::{EndReason, Limit},
};

/// How long the work may go without a beat, and when it last beat.
#[derive(Debug, Clone, Copy)]
pub(super) struct Silence {
    longest: Duration,
    since: BootInstant,
}

impl Lease {
    /// Limits the run, counted from `now`. No renewal moves the limit.
    pub(crate) fn limit_to(&mut self, limit: Limit, now: BootInstant) {
        match limit {
            Limit::MaxDuration(duration) => self.over_at = Some((now + duration, limit)),
            Limit::MaxSilence(longest) => self.silence = Some(Silence { longest, since: now }),
        }
    }

    /// The work has said at this instant that it advances.
    pub(crate) fn on_beat(&mut self, at: BootInstant) {
        if let Some(silence) = &mut self.silence {
            silence.since = silence.since.max(at);
        }
    }

    pub(super) fn check_limits(&mut self, now: BootInstant) {
        if self.state == State::Held
            && let Some((_, limit)) = self.next_limit().filter(|(at, _)| now >= *at)
        {
            self.on_stop(EndReason::TimedOut { limit }, None, now);
        }
    }

    /// The limit that is reached first if the work does not beat, and when.
    pub(super) fn next_limit(&self) -> Option<(BootInstant, Limit)> {
        let silent =
            self.silence.map(|Silence { longest, since }| (since + longest, Limit::MaxSilence(longest)));
        [self.over_at, silent].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}
