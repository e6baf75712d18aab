//! The words of the protocol: which session, which run, which fence, who holds it.
//!
//! These are plain values. Text that people choose (keys, labels, phases) is checked once, when the
//! value is made; everything behind that point may rely on the bounds.

use std::{fmt, str::FromStr, sync::Arc, time::Duration, time::SystemTime};

use uuid::Uuid;

use crate::{
    text::{printable, printable_name},
    watch::Standby,
};

/// What runs contend for: one chat session of one account.
///
/// Both parts are 1 to 255 bytes of UTF-8 without NUL, compared byte for byte: no case folding, no
/// trimming, no Unicode normalisation. Cloning is cheap.
///
/// ```
/// # use tenure::SessionKey;
/// let key = SessionKey::new("acct-1", "chat-9")?;
/// assert_eq!(key.to_string(), "acct-1/chat-9");
/// assert!(SessionKey::new("acct-1", "").is_err());
/// # Ok::<(), tenure::InvalidText>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "RawKey", into = "RawKey"))]
pub struct SessionKey {
    account: Arc<str>,
    session: Arc<str>,
}

impl SessionKey {
    /// The longest account or session id, in bytes.
    pub const MAX_BYTES: usize = 255;

    /// Makes a key from its two parts.
    ///
    /// # Errors
    /// [`InvalidText`] when a part is empty, longer than 255 bytes or contains a NUL.
    pub fn new(account: impl AsRef<str>, session: impl AsRef<str>) -> Result<Self, InvalidText> {
        Ok(Self {
            account: checked("account id", account.as_ref(), 1, Self::MAX_BYTES)?,
            session: checked("session id", session.as_ref(), 1, Self::MAX_BYTES)?,
        })
    }

    /// The account's id.
    pub fn account(&self) -> &str {
        &self.account
    }

    /// The session's id within the account.
    pub fn session(&self) -> &str {
        &self.session
    }
}

/// `account/session`, each as [`printable_name`]: for people, not for parsing.
impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", printable_name(&self.account), printable_name(&self.session))
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionKey({self})")
    }
}

/// One execution of a session: a fresh random UUID (v4) per attempt. An identity, never an order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct RunId(Uuid);

/// One started supervisor: a random UUID (v4) per start, so that a restart under the same host name is
/// another node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct NodeId(Uuid);

macro_rules! uuid_id {
    ($name:ident) => {
        impl $name {
            /// A fresh random one.
            pub fn random() -> Self {
                Self(Uuid::new_v4())
            }

            /// The UUID itself.
            pub fn as_uuid(&self) -> Uuid {
                self.0
            }
        }

        impl From<Uuid> for $name {
            fn from(uuid: Uuid) -> Self {
                Self(uuid)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

uuid_id!(RunId);
uuid_id!(NodeId);

/// The ordered number that a resource checks to refuse a late writer.
///
/// Within one session every new run gets a strictly greater number than every run before it (invariant I8);
/// across sessions the numbers mean nothing. It is positive and fits a signed 64-bit column. A resource
/// keeps the greatest number it has seen per session and refuses a write that carries a smaller one: see
/// [`fence_gate`](crate::fence_gate).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct FencingToken(i64);

impl FencingToken {
    /// The number, as the database column holds it.
    pub fn as_i64(self) -> i64 {
        self.0
    }
}

impl From<i64> for FencingToken {
    fn from(fence: i64) -> Self {
        Self(fence)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FencingToken({})", self.0)
    }
}

/// The name of a holder for people: 1 to 255 bytes without NUL. Not an identity: two processes may share it.
#[derive(Clone, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
pub struct Label(Arc<str>);

/// What a run is doing, in a few words for people: 0 to 64 bytes without NUL.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
pub struct RunPhase(Arc<str>);

/// Who asks a run to stop, for people: 1 to 255 bytes without NUL. Not an identity.
#[derive(Clone, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
pub struct Requester(Arc<str>);

/// Why a run is asked to stop, for people: 1 to 1000 bytes without NUL.
#[derive(Clone, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
pub struct Reason(Arc<str>);

impl Label {
    /// The longest label, in bytes.
    pub const MAX_BYTES: usize = 255;
}

macro_rules! text {
    ($name:ident, $what:literal, $min:literal, $max:expr) => {
        impl $name {
            /// Checks the text and keeps it.
            ///
            /// # Errors
            /// [`InvalidText`] when the length is out of bounds or the text contains a NUL.
            pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidText> {
                checked($what, text.as_ref(), $min, $max).map(Self)
            }

            /// The text as it was given.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidText;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(text: $name) -> Self {
                text.0.as_ref().to_owned()
            }
        }

        /// As [`printable`].
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                printable(&self.0).fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}

text!(Label, "holder label", 1, Label::MAX_BYTES);
text!(RunPhase, "phase", 0, 64);
text!(Requester, "name of who asks to stop", 1, 255);
text!(Reason, "reason to stop", 1, 1_000);

/// A key, label, phase, requester or reason that cannot be stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidText {
    /// Too short or too long.
    #[error("the {what} is {actual} bytes long; use {min} to {max} bytes of UTF-8")]
    Length {
        /// Which text.
        what: &'static str,
        /// Its length in bytes.
        actual: usize,
        /// The least length in bytes.
        min: usize,
        /// The greatest length in bytes.
        max: usize,
    },
    /// Contains U+0000, which PostgreSQL cannot store.
    #[error("the {what} contains a NUL character at byte {at}; remove it")]
    Nul {
        /// Which text.
        what: &'static str,
        /// Where the NUL stands, in bytes from the start.
        at: usize,
    },
}

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
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct StopRequest {
    /// When, by the database's clock.
    #[cfg_attr(feature = "serde", serde(serialize_with = "rfc3339"))]
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
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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
    #[cfg_attr(feature = "serde", serde(serialize_with = "rfc3339"))]
    pub since: SystemTime,
    /// When the lease expires unless renewed, by the database's clock.
    #[cfg_attr(feature = "serde", serde(serialize_with = "rfc3339"))]
    pub expires_at: SystemTime,
    /// The time left when the row was read; zero once expired.
    #[cfg_attr(feature = "serde", serde(rename = "expires_in_ms", serialize_with = "millis"))]
    pub expires_in: Duration,
    /// A request to stop, if one was made.
    pub stop: Option<StopRequest>,
}

/// What a session's row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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

fn checked(what: &'static str, text: &str, min: usize, max: usize) -> Result<Arc<str>, InvalidText> {
    if !(min..=max).contains(&text.len()) {
        return Err(InvalidText::Length { what, actual: text.len(), min, max });
    }
    match text.find('\0') {
        Some(at) => Err(InvalidText::Nul { what, at }),
        None => Ok(text.into()),
    }
}

#[cfg(feature = "serde")]
#[derive(serde::Serialize, serde::Deserialize)]
struct RawKey {
    account: String,
    session: String,
}

#[cfg(feature = "serde")]
impl TryFrom<RawKey> for SessionKey {
    type Error = InvalidText;

    fn try_from(raw: RawKey) -> Result<Self, Self::Error> {
        Self::new(raw.account, raw.session)
    }
}

#[cfg(feature = "serde")]
impl From<SessionKey> for RawKey {
    fn from(key: SessionKey) -> Self {
        Self { account: key.account.as_ref().to_owned(), session: key.session.as_ref().to_owned() }
    }
}

#[cfg(feature = "serde")]
pub(crate) fn rfc3339<S: serde::Serializer>(at: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_millis(*at))
}

#[cfg(feature = "serde")]
pub(crate) fn millis<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(duration.as_millis().try_into().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_kept_byte_for_byte() {
        for text in ["a", " padded ", "émoji 🦀", "quo'te\"d", "new\nline", &"x".repeat(255)] {
            let key = SessionKey::new(text, text).unwrap();
            assert_eq!((key.account(), key.session()), (text, text));
        }
    }

    #[test]
    fn bad_keys_name_the_part_and_the_bound() {
        let error = SessionKey::new("", "s").unwrap_err().to_string();
        assert!(error.contains("account id") && error.contains("1 to 255"), "{error}");
        let error = SessionKey::new("a", "x".repeat(256)).unwrap_err().to_string();
        assert!(error.contains("session id") && error.contains("256"), "{error}");
        let error = SessionKey::new("a", "x\0y").unwrap_err().to_string();
        assert!(error.contains("NUL") && error.contains("byte 1"), "{error}");
    }

    #[test]
    fn keys_that_differ_look_different() {
        let key = |account, session| SessionKey::new(account, session).unwrap().to_string();
        assert_eq!(key("a\x1b[2J", "b\n"), "\"a\\u{1b}[2J\"/\"b\\n\"");
        assert_eq!((key("a/b", "c").as_str(), key("a", "b/c").as_str()), ("\"a/b\"/c", "a/\"b/c\""));
        assert_ne!(key("a", "sb"), key("a", "sb "));
    }

    #[test]
    fn every_stage_reads_back_from_its_word() {
        for stage in [RunStage::Running, RunStage::Stopping, RunStage::Stuck] {
            assert_eq!(stage.as_str().parse(), Ok(stage));
        }
        assert!("paused".parse::<RunStage>().is_err());
    }

    #[cfg(feature = "serde")]
    #[test]
    fn deserialising_checks_like_the_constructor() {
        let good: SessionKey = serde_json::from_str(r#"{"account":"a","session":"s"}"#).unwrap();
        assert_eq!(good, SessionKey::new("a", "s").unwrap());
        assert!(serde_json::from_str::<SessionKey>(r#"{"account":"","session":"s"}"#).is_err());
        assert!(serde_json::from_str::<RunPhase>(&format!("{:?}", "x".repeat(65))).is_err());
    }
}
