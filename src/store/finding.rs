//! What looking at a database found, and how good that is. [`diagnosis`](crate::diagnosis) is its public face.

use std::time::Duration;

use super::error::StoreError;

mod measure;

#[cfg(feature = "postgres")]
pub(crate) use measure::millis;
pub(crate) use measure::{ClockSample, Clocks, Latency};

/// How long the parts of an examination may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExaminationPlan {
    /// The clocks are watched for this long.
    pub(crate) lasting: Duration,
    /// For connecting to one server, and for one statement.
    pub(crate) patience: Duration,
    /// The directory of a SQLite file may be made by whoever starts runs.
    pub(crate) makes_directory: bool,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Finding {
    /// What was looked at: a word for programs, the same in every release.
    pub check: &'static str,
    /// How good it is.
    pub verdict: Verdict,
    /// What was found, for people.
    pub found: String,
    /// What to change, and why; `None` when it is fine.
    pub advice: Option<String>,
    /// The numbers in it, by name. The name ends in the unit: `_ms`, `_ppm`, `_bytes`; none is a count or a ratio.
    pub measured: Vec<(&'static str, f64)>,
    failure: Option<StoreError>,
}

/// How good a finding is; a greater one is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// As it should be.
    Fine,
    /// Leases can be held, with a risk or a cost that is better avoided.
    Warning,
    /// As things are, no lease can be held.
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

    /// The error that an attempt to hold a lease would meet; only with [`Verdict::Failure`].
    pub(crate) fn as_failure(&self) -> Option<&StoreError> {
        self.failure.as_ref()
    }

    /// Rows that a sweep would remove.
    pub(crate) fn long_expired(rows: i64) -> Self {
        let found = format!("{rows} rows that expired more than an hour ago");
        let finding = if rows > 10_000 {
            Self::warning("sweep", found, "they do no harm but take room: run `tenure sweep` now and then")
        } else {
            Self::fine("sweep", found)
        };
        finding.measuring([("long_expired", rows as f64)])
    }

    pub(crate) fn measuring(mut self, measured: impl IntoIterator<Item = (&'static str, f64)>) -> Self {
        self.measured.extend(measured);
        self
    }
}
