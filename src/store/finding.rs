//! What an examination of a database has found, and how good that is. The public API is
//! [`diagnosis`](crate::diagnosis).

use std::time::Duration;

use super::error::StoreError;

mod measure;

#[cfg(feature = "postgres")]
pub(crate) use measure::millis;
pub(crate) use measure::{ClockSample, Clocks, Latency};

/// The parameters of an examination.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExaminationPlan {
    /// How long the clocks are watched.
    pub(crate) lasting: Duration,
    /// The time-out for connecting to one server, and for one statement.
    pub(crate) patience: Duration,
    /// Whether a program that starts runs would create the missing directory of a SQLite file.
    pub(crate) makes_directory: bool,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Finding {
    /// The name of the check: a word for programs, the same in every release.
    pub check: &'static str,
    /// How good it is.
    pub verdict: Verdict,
    /// What was found, for people.
    pub found: String,
    /// What to change, and why. `None` when nothing has to be changed, or when `found` already says what to change.
    pub advice: Option<String>,
    /// The numbers that were measured, by name. A name ends in its unit: `_ms`, `_ppm`, `_bytes`. A name without a unit
    /// is a count or a ratio.
    pub measured: Vec<(&'static str, f64)>,
    failure: Option<StoreError>,
}

/// How good a finding is. A greater verdict is worse. There will never be a fourth one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// All is as it should be.
    Fine,
    /// Leases can be held, but with a risk or a cost that is better avoided.
    Warning,
    /// No lease can be held until this is changed.
    Failure,
}

impl Finding {
    pub(crate) fn fine(check: &'static str, found: impl Into<String>) -> Self {
        let found = found.into();
        Self { check, verdict: Verdict::Fine, found, advice: None, measured: Vec::new(), failure: None }
    }

    pub(crate) fn warning(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        let advice = Some(advice.into());
        Self { verdict: Verdict::Warning, advice, ..Self::fine(check, found) }
    }

    /// The error says what was found, and the remedy.
    pub(crate) fn failure(check: &'static str, error: StoreError) -> Self {
        let found = error.to_string();
        Self { verdict: Verdict::Failure, failure: Some(error), ..Self::fine(check, found) }
    }

    /// The error that an attempt to hold a lease would get. Only a [`Verdict::Failure`] has one.
    pub(crate) fn as_failure(&self) -> Option<&StoreError> {
        self.failure.as_ref()
    }

    /// How many rows a sweep would delete.
    pub(crate) fn long_expired(rows: i64) -> Self {
        let found = format!("{rows} rows that expired more than an hour ago");
        let finding = if rows > 10_000 {
            Self::warning("sweep", found, "they do no harm, but take space: run `tenure sweep` now and then")
        } else {
            Self::fine("sweep", found)
        };
        finding.measuring([("long_expired", rows as f64)])
    }

    /// Whether runs that are over are recorded. If they are not, no lease suffers.
    pub(crate) fn history(has_table: bool, has_triggers: bool, may_insert: bool) -> Self {
        let anew = "`tenure migrate --without-history`, then `tenure migrate --with-history`, make it anew";
        match (has_table, has_triggers) {
            (true, true) if may_insert => Self::fine("history", "runs that are over are recorded"),
            (false, false) => Self::fine(
                "history",
                "no runs that are over are recorded; `tenure migrate --with-history` turns that on",
            ),
            (true, true) => Self::warning(
                "history",
                "runs that are over are not recorded: the owner of the triggers may not write",
                "grant INSERT on the table of the history to the owner of the triggers' functions",
            ),
            (true, false) => Self::warning(
                "history",
                "runs that are over are not all recorded: a trigger is missing, or disabled",
                anew,
            ),
            (false, true) => Self::warning(
                "history",
                "runs that are over are not recorded: the table of the history is missing",
                "`tenure migrate --with-history` creates it again, and `tenure migrate --without-history` turns the \
                 history off",
            ),
        }
    }

    pub(crate) fn measuring(mut self, measured: impl IntoIterator<Item = (&'static str, f64)>) -> Self {
        self.measured.extend(measured);
        self
    }
}
