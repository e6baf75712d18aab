//! An actor-based lease supervisor: which run owns this session now, and for how long?

mod actor;
pub mod clock;
mod config;
mod error;
mod event;
mod lease;
#[cfg(unix)]
pub mod process;
mod run;
mod session;
pub mod store;
mod supervisor;
#[cfg(feature = "testing")]
pub mod testing;

pub use actor::registry::ShutdownReport;
pub use config::{ConfigError, Timing};
pub use error::{AcquireError, Busy, Closed, QueryError, ScopeError, StartError};
pub use event::{RunEvent, RunRef};
pub use lease::EndReason;
pub use run::{Ended, Run, RunContext};
pub use session::{
    FencingToken, Holder, InvalidText, Label, NodeId, Phase, RunId, SessionKey, SessionState, SessionStatus,
    Stage, StopRequest, UnknownStage,
};
pub use store::StoreError;
pub use supervisor::{AcquireRequest, Builder, ListRequest, Supervisor};

/// Applies the schema to the database of this URL, once, however many processes do so at the same time.
///
/// Runs on the current tokio runtime.
///
/// # Errors
/// [`StoreError`]; its text names the remedy.
pub async fn migrate(url: &str) -> Result<store::Migrated, StoreError> {
    store::open(url)?.migrate().await
}
