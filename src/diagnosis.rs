//! How fit a database is to judge leases: what was measured and found, how good that is, and what to change.
//!
//! An [`Examination`] disturbs no lease. It writes once in a while, to see how long a commit takes, and tries in a
//! directory of its own whether a SQLite file that is not there could be made; it leaves nothing behind, neither a file nor a
//! schema. What it finds is of this moment, and seen from this machine.
//!
//! ```no_run
//! use std::time::Duration;
//! use tenure::diagnosis::{Examination, Verdict};
//!
//! # async fn example() -> Result<(), tenure::StoreError> {
//! let diagnosis = Examination::of("postgres://app@db.internal/chat").lasting(Duration::from_secs(3)).run().await?;
//! for finding in diagnosis.findings.iter().filter(|finding| finding.verdict > Verdict::Fine) {
//!     println!("{}: {} {}", finding.check, finding.found, finding.advice.as_deref().unwrap_or_default());
//! }
//! # Ok(()) }
//! ```

use std::time::Duration;

pub use crate::store::finding::{Finding, Verdict};
use crate::{
    apart,
    store::{self, StoreError, finding::ExaminationPlan},
};

/// A look at one database, to be taken by [`run`](Self::run).
#[must_use = "nothing is looked at until it is run"]
#[derive(Clone)]
pub struct Examination {
    url: String,
    plan: ExaminationPlan,
}

impl Examination {
    /// The longest time for which clocks are watched: an hour.
    pub const LONGEST: Duration = Duration::from_secs(3600);

    /// Of the database that a URL names, as for [`LeaseSupervisor::builder`](crate::LeaseSupervisor::builder).
    pub fn of(url: impl Into<String>) -> Self {
        let plan = ExaminationPlan {
            lasting: Duration::from_secs(3),
            patience: Duration::from_secs(5),
            makes_directory: false,
        };
        Self { url: url.into(), plan }
    }

    /// For how long the clocks are watched. Default 3 s, at most [`LONGEST`](Self::LONGEST), which more is taken for;
    /// the longer, the finer the difference in their rates that shows.
    pub fn lasting(mut self, time: Duration) -> Self {
        self.plan.lasting = time.min(Self::LONGEST);
        self
    }

    /// How long to wait for one server to be connected, and for each answer. Default 5 s.
    pub fn patience(mut self, time: Duration) -> Self {
        self.plan.patience = time;
        self
    }

    /// Whoever starts runs makes the directory of a SQLite file that is not there, as `tenure run` does for its own: then
    /// a missing directory is no failure where it can be made. Default `false`.
    pub fn makes_directory(mut self, makes: bool) -> Self {
        self.plan.makes_directory = makes;
        self
    }

    /// Looks. Works in any async runtime: it has a thread of its own.
    ///
    /// # Errors
    /// [`StoreError`] when there is nothing to look at: no server can be reached, or the URL is no database's. All
    /// else is a [`Finding`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn run(self) -> Result<Diagnosis, StoreError> {
        // Refuses what no backend knows.
        let location = store::open(&self.url)?.location().to_owned();
        let findings = apart::run(&location, self.look()).await??;
        Ok(Diagnosis { location, findings })
    }

    async fn look(self) -> Result<Vec<Finding>, StoreError> {
        match &self.url {
            #[cfg(feature = "sqlite")]
            file if file.to_ascii_lowercase().starts_with("sqlite:") => {
                Ok(store::SqliteStore::new(file)?.examine(self.plan).await)
            }
            #[cfg(feature = "postgres")]
            servers => store::PostgresStore::new(servers)?.examine(self.plan).await,
            #[cfg(not(feature = "postgres"))]
            _ => Ok(Vec::new()),
        }
    }
}

/// Only the lengths: the URL may carry a password.
impl std::fmt::Debug for Examination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Examination").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// All that was found.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Where the database is, for people: without credentials.
    pub location: String,
    /// In the order in which they should be read.
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// The worst of the findings.
    pub fn verdict(&self) -> Verdict {
        self.findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Fine)
    }

    /// What an attempt to hold a lease would meet, if any finding is a [`Verdict::Failure`].
    pub fn failure(&self) -> Option<&StoreError> {
        self.findings.iter().find_map(|finding| finding.as_failure())
    }
}
