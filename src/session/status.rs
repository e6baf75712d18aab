//! Who holds a session, and in which state the session is.

use std::{
    str::FromStr,
    time::{Duration, SystemTime},
};

#[cfg(feature = "serde")]
use super::wire;
use super::{
    key::{FencingToken, NodeId, RunId, SessionKey},
    texts::{Label, RunPhase},
};

/// The stage of a live run, as everybody can see it in the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum RunStage {
    /// The work goes on.
    #[default]
    Running,
    /// The work was told to end and has not ended yet.
    Stopping,
    /// The work has outlived its grace. The lease is kept until the work ends or trust ends (invariant I6).
    Stuck,
}

impl RunStage {
    /// The word in the row's `stage` column.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Stuck => "stuck",
        }
    }
}

/// A word that is not a stage. Something other than this release has written the row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a stage of a run")]
pub struct UnknownStage(String);

impl FromStr for RunStage {
    type Err = UnknownStage;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        [Self::Running, Self::Stopping, Self::Stuck]
            .into_iter()
            .find(|stage| stage.as_str() == word)
            .ok_or_else(|| UnknownStage(word.to_owned()))
    }
}

/// A request to stop a run. A run keeps the first request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct StopRequest {
    /// When it was made, by the database's clock.
    #[cfg_attr(
        feature = "serde",
        serde(serialize_with = "wire::rfc3339", deserialize_with = "wire::from_rfc3339")
    )]
    pub at: SystemTime,
    /// Who asked, for people.
    pub by: Option<String>,
    /// Why, for people.
    pub reason: Option<String>,
}

impl StopRequest {
    /// A request made at `at` by the database's clock.
    pub fn new(at: SystemTime, by: Option<String>, reason: Option<String>) -> Self {
        Self { at, by, reason }
    }
}

/// Who holds a session, or held it last. For people, and for the answer to a refused acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Holder {
    /// The run.
    pub run_id: RunId,
    /// Its supervisor.
    pub node: NodeId,
    /// The holder's own name for itself.
    pub label: Label,
    /// The run's fencing token.
    pub fence: FencingToken,
    /// Running, stopping or stuck.
    pub stage: RunStage,
    /// What the run says it is doing.
    pub phase: RunPhase,
    /// When the run acquired the session, by the database's clock.
    #[cfg_attr(
        feature = "serde",
        serde(serialize_with = "wire::rfc3339", deserialize_with = "wire::from_rfc3339")
    )]
    pub since: SystemTime,
    /// When the lease expires unless it is renewed, by the database's clock.
    #[cfg_attr(
        feature = "serde",
        serde(serialize_with = "wire::rfc3339", deserialize_with = "wire::from_rfc3339")
    )]
    pub expires_at: SystemTime,
    /// The time that was left when the row was read. Zero once the lease has expired.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "expires_in_ms",
            serialize_with = "wire::millis",
            deserialize_with = "wire::from_millis"
        )
    )]
    pub expires_in: Duration,
    /// A request to stop, if one was made.
    pub stop: Option<StopRequest>,
}

/// What a session's row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum SessionState {
    /// Nobody holds it.
    Idle,
    /// A run holds it, and works.
    Running,
    /// A run holds it, and was told to end.
    Stopping,
    /// A run holds it, and its work does not end.
    Stuck,
    /// A run held it, and neither renewed nor released it. The next acquire takes the lease over.
    Expired,
}

/// One session as the database showed it at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SessionStatus {
    /// Which session.
    pub key: SessionKey,
    /// What its row says.
    pub state: SessionState,
    /// Who holds it, or last held it when `state` is [`Expired`](SessionState::Expired). `None` when idle.
    pub holder: Option<Holder>,
    /// The standby that answered. Its answer may be out of date. `None` if the server that takes writes answered.
    pub standby: Option<Standby>,
}

impl SessionStatus {
    /// A session that nobody holds.
    pub fn idle(key: SessionKey) -> Self {
        Self { key, state: SessionState::Idle, holder: None, standby: None }
    }

    /// A session whose row names this holder.
    pub fn held(key: SessionKey, holder: Holder) -> Self {
        let state = match (holder.expires_in.is_zero(), holder.stage) {
            (true, _) => SessionState::Expired,
            (false, RunStage::Stuck) => SessionState::Stuck,
            (false, RunStage::Running) if holder.stop.is_none() => SessionState::Running,
            (false, _) => SessionState::Stopping,
        };
        Self { key, state, holder: Some(holder), standby: None }
    }

    /// A session that has this holder, or none.
    pub(crate) fn of(key: SessionKey, holder: Option<Holder>, standby: Option<Standby>) -> Self {
        let status = match holder {
            Some(holder) => Self::held(key, holder),
            None => Self::idle(key),
        };
        Self { standby, ..status }
    }

    /// Whether a run holds the session.
    pub fn is_held(&self) -> bool {
        !matches!(self.state, SessionState::Idle | SessionState::Expired)
    }
}

/// A server that takes no writes, but answered a supervisor that [only
/// looks](crate::LeaseSupervisorBuilder::looking_only).
///
/// Its answer may be out of date. It does not know what its primary has done since its last commit. A primary that was
/// demoted does not know what its successor has done.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Standby {
    /// Which server, for people. The text has no credentials in it.
    pub server: String,
    /// The age of the last commit that the server knows. Its answers are out of date by no more than that. `None` if
    /// the server cannot say.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "behind_ms",
            default,
            serialize_with = "wire::optional_millis",
            deserialize_with = "wire::from_optional_millis"
        )
    )]
    pub behind: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_reads_back_from_its_word() {
        for stage in [RunStage::Running, RunStage::Stopping, RunStage::Stuck] {
            assert_eq!(stage.as_str().parse(), Ok(stage));
        }
        assert!("paused".parse::<RunStage>().is_err());
    }
}
