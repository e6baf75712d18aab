//! Exit codes, and the failures that cause them.

use std::fmt;

use serde_json::{Value, json};
use tenure::{
    AcquireError, BreakError, Closed, ConfigError, InvalidText, QueryError, StartError, StopError, StoreError,
};

/// `status` and `stop`: nobody holds the session.
pub(crate) const NOT_HELD: u8 = 1;
pub(crate) const USAGE: u8 = 64;
pub(crate) const UNAVAILABLE: u8 = 69;
/// The guardian was killed or did not answer: how CMD ended is not known.
#[cfg(target_os = "linux")]
pub(crate) const FAILED: u8 = 70;
/// Another run holds the session, or `stop --wait` ran out of time.
pub(crate) const BUSY: u8 = 75;
#[cfg(target_os = "linux")]
pub(crate) const LOST: u8 = 76;
#[cfg(target_os = "linux")]
pub(crate) const STOPPED: u8 = 77;
pub(crate) const CONFIGURATION: u8 = 78;
#[cfg(target_os = "linux")]
pub(crate) const TIMED_OUT: u8 = 124;
#[cfg(target_os = "linux")]
pub(crate) const CANNOT_EXECUTE: u8 = 126;
#[cfg(target_os = "linux")]
pub(crate) const NOT_FOUND: u8 = 127;

/// How this process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(u8),
    /// This process kills itself by this signal, so that a shell that runs a script stops as well.
    #[cfg(target_os = "linux")]
    Signal(i32),
}

impl Exit {
    /// The exit code that a shell shows.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            #[cfg(target_os = "linux")]
            Self::Signal(number) => by_signal(number),
        }
    }
}

#[cfg(target_os = "linux")]
pub(crate) fn by_signal(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(u8::MAX)
}

/// Why the command has not done what it was asked to. As text it is one sentence: what is wrong, and after a semicolon
/// what to do about it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    error: String,
    remedy: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: u8, sentence: impl fmt::Display) -> Self {
        let sentence = sentence.to_string();
        match sentence.split_once("; ") {
            Some((error, remedy)) => Self { code, error: error.to_owned(), remedy: Some(remedy.to_owned()) },
            None => Self { code, error: sentence, remedy: None },
        }
    }

    /// From the text of the command line's parser: the error, an empty line, and paragraphs of help. The one about the
    /// usage is no remedy.
    pub(crate) fn usage(text: &str) -> Self {
        let text = text.trim();
        let (error, remedy) = text.split_once("\n\n").unwrap_or((text, ""));
        let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let helpful =
            remedy.split("\n\n").map(one_line).filter(|paragraph| !paragraph.starts_with("Usage: "));
        let remedy = helpful.collect::<Vec<_>>().join(" ");
        let remedy = Some(remedy.trim_start_matches("tip: ").to_owned()).filter(|remedy| !remedy.is_empty());
        Self { code: USAGE, error: one_line(error.trim_start_matches("error: ")), remedy }
    }

    /// The JSON form of a failure, the same wherever it appears.
    pub(crate) fn to_json(&self) -> Value {
        json!({ "event": "failed", "code": self.code, "error": self.error, "remedy": self.remedy })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)?;
        self.remedy.iter().try_for_each(|remedy| write!(f, "; {remedy}"))
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let code = match error {
            StoreError::Url { .. } | StoreError::SchemaMissing { .. } | StoreError::SchemaTooNew { .. } => {
                CONFIGURATION
            }
            StoreError::Unstorable { .. } => USAGE,
            _ => UNAVAILABLE,
        };
        Self::new(code, error)
    }
}

impl From<QueryError> for Failure {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Store(error) => error.into(),
            other => Self::new(UNAVAILABLE, other),
        }
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Store(error) => error.into(),
            StartError::Config(error) => error.into(),
            StartError::Invalid(error) => error.into(),
            other => Self::new(UNAVAILABLE, other),
        }
    }
}

impl From<BreakError> for Failure {
    fn from(error: BreakError) -> Self {
        match error {
            BreakError::Store(error) => error.into(),
            BreakError::Invalid(error) => error.into(),
            other => Self::new(UNAVAILABLE, other),
        }
    }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Refused(error) => error.into(),
            AcquireError::Invalid(error) => error.into(),
            AcquireError::Busy(busy) => Self::new(BUSY, busy),
            other => Self::new(UNAVAILABLE, other),
        }
    }
}

impl From<StopError> for Failure {
    fn from(error: StopError) -> Self {
        match error {
            StopError::Store(error) => error.into(),
            StopError::Invalid(error) => error.into(),
            other => Self::new(UNAVAILABLE, other),
        }
    }
}

impl From<Closed> for Failure {
    fn from(closed: Closed) -> Self {
        Self::new(UNAVAILABLE, closed)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new(USAGE, error)
    }
}

impl From<InvalidText> for Failure {
    fn from(error: InvalidText) -> Self {
        Self::new(USAGE, error)
    }
}
