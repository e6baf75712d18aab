//! Examines how well a database can serve leases: what was found and measured, how good that is, and what to change.
//!
//! An [`Examination`] disturbs no lease. It writes a few times, to measure how long a commit takes. If a SQLite file
//! does not exist, it tries in a directory of its own whether one could be created. It leaves nothing behind, neither a
//! file nor a schema. Its findings are true for this moment and for this machine.
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

/// The examination of one database. [`run`](Self::run) carries it out.
#[must_use = "nothing is looked at until it is run"]
#[derive(Clone)]
pub struct Examination {
    url: String,
    plan: ExaminationPlan,
}

impl Examination {
    /// The longest time for which the clocks can be watched: one hour.
    pub const LONGEST: Duration = Duration::from_secs(3600);

    /// An examination of the database that a URL names. The URL is as for
    /// [`LeaseSupervisor::builder`](crate::LeaseSupervisor::builder).
    pub fn of(url: impl Into<String>) -> Self {
        let plan = ExaminationPlan {
            lasting: Duration::from_secs(3),
            patience: Duration::from_secs(5),
            makes_directory: false,
        };
        Self { url: url.into(), plan }
    }

    /// Sets how long the clocks are watched. Default 3 s. Times longer than [`LONGEST`](Self::LONGEST) are cut to it.
    /// The longer the time, the smaller the difference of the clocks' rates that it can show.
    pub fn lasting(mut self, time: Duration) -> Self {
        self.plan.lasting = time.min(Self::LONGEST);
        self
    }

    /// Sets the time-out for connecting to one server, and for each answer. Default 5 s.
    pub fn patience(mut self, time: Duration) -> Self {
        self.plan.patience = time;
        self
    }

    /// Says whether the program that starts runs creates the missing directory of a SQLite file, as `tenure run` does
    /// for its default file. If so, a missing directory that can be created is no failure. Default `false`.
    pub fn makes_directory(mut self, makes: bool) -> Self {
        self.plan.makes_directory = makes;
        self
    }

    /// Carries out the examination. It has a thread of its own, so it works in any async runtime.
    ///
    /// # Errors
    /// [`StoreError`] when nothing can be examined: no server can be reached, or the URL names no database. Everything
    /// else is a [`Finding`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn run(self) -> Result<Diagnosis, StoreError> {
        // Refuses a URL that no backend knows.
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

/// Shows only the plan, because the URL may contain a password.
impl std::fmt::Debug for Examination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Examination").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// The result of an examination.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Where the database is, for people. Contains no credentials.
    pub location: String,
    /// The findings, in the order in which they should be read.
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// The worst verdict of all findings.
    pub fn verdict(&self) -> Verdict {
        self.findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Fine)
    }

    /// The error that an attempt to hold a lease would get. `None` if no finding is a [`Verdict::Failure`].
    pub fn failure(&self) -> Option<&StoreError> {
        self.findings.iter().find_map(|finding| finding.as_failure())
    }
}
