//! How a run has ended, as the tables of the history keep it: a word, and two texts.

use std::time::Duration;

use crate::{
    end::{EndReason, Limit},
    history::Ending,
};

/// Why a run was released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordedReason {
    pub(super) word: &'static str,
    /// Who asked the run to stop.
    pub(super) by: Option<String>,
    /// Why it was asked to stop, how it failed, or which limit it reached.
    pub(super) why: Option<String>,
}

impl From<&EndReason> for RecordedReason {
    fn from(reason: &EndReason) -> Self {
        let (word, by, why) = match reason {
            EndReason::Completed => ("completed", None, None),
            EndReason::Failed { reason } => ("failed", None, Some(reason.clone())),
            EndReason::Dropped => ("dropped", None, None),
            EndReason::Panicked => ("panicked", None, None),
            EndReason::Stopped { by, reason } => ("stopped", by.clone(), reason.clone()),
            EndReason::Shutdown => ("shutdown", None, None),
            EndReason::TimedOut { limit } => ("timed_out", None, Some(limit_to_text(*limit))),
            EndReason::Superseded => ("superseded", None, None),
            EndReason::Expired => ("expired", None, None),
            EndReason::Unconfirmed => ("unconfirmed", None, None),
        };
        Self { word, by, why }
    }
}

/// Reads how a run has ended.
pub(super) fn ending(how: &str, reason: Option<&str>, by: Option<String>, why: Option<String>) -> Ending {
    match how {
        "released" => Ending::Released { why: reason.and_then(|word| end_reason(word, by, why)) },
        "taken_over" => Ending::TakenOver,
        "broken" => Ending::Broken { by, reason: why },
        "swept" => Ending::Swept,
        "deleted" => Ending::Deleted { by },
        "changed" => Ending::Changed { by },
        other => Ending::Other { word: other.to_owned() },
    }
}

/// `None` for a reason that this release does not know.
fn end_reason(word: &str, by: Option<String>, why: Option<String>) -> Option<EndReason> {
    Some(match word {
        "completed" => EndReason::Completed,
        "failed" => EndReason::Failed { reason: why.unwrap_or_default() },
        "dropped" => EndReason::Dropped,
        "panicked" => EndReason::Panicked,
        "stopped" => EndReason::Stopped { by, reason: why },
        "shutdown" => EndReason::Shutdown,
        "timed_out" => EndReason::TimedOut { limit: limit_of_text(&why?)? },
        "superseded" => EndReason::Superseded,
        "expired" => EndReason::Expired,
        "unconfirmed" => EndReason::Unconfirmed,
        _ => return None,
    })
}

fn limit_to_text(limit: Limit) -> String {
    match limit {
        Limit::MaxDuration(limit) => format!("max_duration {} ms", limit.as_millis()),
        Limit::MaxSilence(limit) => format!("max_silence {} ms", limit.as_millis()),
    }
}

fn limit_of_text(text: &str) -> Option<Limit> {
    let (word, millis) = text.strip_suffix(" ms")?.split_once(' ')?;
    let limit = Duration::from_millis(millis.parse().ok()?);
    match word {
        "max_duration" => Some(Limit::MaxDuration(limit)),
        "max_silence" => Some(Limit::MaxSilence(limit)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_reads_back_from_its_record() {
        let text = || Some("it's over".to_owned());
        for reason in [
            EndReason::Completed,
            EndReason::Failed { reason: "no disk".to_owned() },
            EndReason::Dropped,
            EndReason::Panicked,
            EndReason::Stopped { by: text(), reason: None },
            EndReason::Stopped { by: None, reason: text() },
            EndReason::Shutdown,
            EndReason::TimedOut { limit: Limit::MaxDuration(Duration::from_millis(1_500)) },
            EndReason::TimedOut { limit: Limit::MaxSilence(Duration::from_secs(60)) },
            EndReason::Superseded,
            EndReason::Expired,
            EndReason::Unconfirmed,
        ] {
            let RecordedReason { word, by, why } = RecordedReason::from(&reason);
            assert_eq!(end_reason(word, by, why), Some(reason));
        }
        assert_eq!(end_reason("bored", None, None), None);
    }
}
