//! Who holds a session, and how it stands.

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

/// How a live run stands, as every device can see it in the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum RunStage {
    /// The work goes on.
    #[default]
    Running,
    /// The work was told to end and has not ended yet.
    Stopping,
    /// The work has outlived its grace; the lease is kept until it ends (invariant I6).
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

/// A word that is not a stage: the row was written by something else.
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

/// Somebody asked a run to stop. The first request is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct StopRequest {
    /// When, by the database's clock.
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

/// Who holds, or last held, a session: for people, and for the answer to whoever was refused.
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
    /// When the lease expires unless renewed, by the database's clock.
    #[cfg_attr(
        feature = "serde",
        serde(serialize_with = "wire::rfc3339", deserialize_with = "wire::from_rfc3339")
    )]
    pub expires_at: SystemTime,
    /// The time left when the row was read; zero once expired.
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
    /// A run holds it and works.
    Running,
    /// A run holds it and was told to end.
    Stopping,
    /// A run holds it and its work does not end.
    Stuck,
    /// A run held it, and neither renewed nor released it. The next acquire takes it over.
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
    /// The server that has said so, when it is not the one that takes writes: then this was so once.
    /// `None` when it is so now.
    pub standby: Option<Standby>,
}

impl SessionStatus {
    /// A session that nobody holds.
    pub fn idle(key: SessionKey) -> Self {
        Self { key, state: SessionState::Idle, holder: None, standby: None }
    }

    /// A session whose row says this.
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

/// A server that takes no writes and has answered all the same, as for a supervisor that
/// [only looks](crate::LeaseSupervisorBuilder::looking_only).
///
/// What it shows was so once: it knows nothing of what its primary has done since, and a primary that was demoted
/// nothing of its successor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Standby {
    /// Which server, for people: without credentials.
    pub server: String,
    /// How old the last commit is that it knows: what it shows is no older than that. `None` where the server cannot
    /// say.
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
