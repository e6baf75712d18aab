//! Identifiers: session keys, run ids, node ids and fencing tokens.

use std::{fmt, str::FromStr, sync::Arc};

use uuid::Uuid;

use super::texts::{InvalidText, checked};
use crate::text::{printable_name, printable_start};

/// What runs contend for: one chat session of one account.
///
/// Both parts are 1 to 255 bytes of UTF-8 without NUL. They are compared byte for byte, without case folding, trimming
/// or Unicode normalisation. Cloning is cheap.
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

    /// A key of these two parts.
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

/// The id of one execution of a session: a fresh random UUID (v4) per acquire. All attempts of an acquire use the same
/// id. Run ids have no order that means anything.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct RunId(Uuid);

/// The id of one started supervisor: a random UUID (v4) per start. A restart under the same host name is another node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct NodeId(Uuid);

macro_rules! uuid_id {
    ($name:ident) => {
        impl $name {
            /// A fresh random id.
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
/// Within one session, every new run gets a strictly greater number than every earlier run (invariant I8). Numbers of
/// different sessions cannot be compared. The number is positive and fits a signed 64-bit column. A resource keeps the
/// greatest number that it has seen per session, and refuses a write that carries a smaller one: see
/// [`fence_gate`](crate::fence_gate).
///
/// As text it is decimal digits and nothing else, in JSON a number.
///
/// ```
/// # use tenure::FencingToken;
/// let fence = FencingToken::new(7)?;
/// assert_eq!(fence, "7".parse()?);
/// assert!(FencingToken::new(0).is_err() && "+7".parse::<FencingToken>().is_err());
/// # Ok::<(), tenure::InvalidFence>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "i64", into = "i64"))]
pub struct FencingToken(i64);

impl FencingToken {
    /// The least token.
    pub(crate) const LEAST: Self = Self(1);

    /// The token of this number.
    ///
    /// # Errors
    /// [`InvalidFence`] when the number is not positive.
    pub fn new(number: i64) -> Result<Self, InvalidFence> {
        if number > 0 { Ok(Self(number)) } else { Err(InvalidFence(number.to_string())) }
    }

    /// The token of this number, or the least token if the number is not positive.
    pub(crate) fn at_least(number: i64) -> Self {
        Self(number).max(Self::LEAST)
    }

    /// The number, as the database column holds it.
    pub fn as_i64(self) -> i64 {
        self.0
    }
}

impl TryFrom<i64> for FencingToken {
    type Error = InvalidFence;

    fn try_from(number: i64) -> Result<Self, Self::Error> {
        Self::new(number)
    }
}

impl From<FencingToken> for i64 {
    fn from(fence: FencingToken) -> Self {
        fence.0
    }
}

impl FromStr for FencingToken {
    type Err = InvalidFence;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_number);
        number
            .and_then(|number| Self::new(number).ok())
            .ok_or_else(|| InvalidFence(printable_start(text, 40)))
    }
}

/// A number or a text that is no [`FencingToken`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no fence; a fence is a whole number from 1 to 9223372036854775807 in decimal digits")]
pub struct InvalidFence(String);

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
    fn a_fence_is_a_positive_number_wherever_it_comes_from() {
        for number in [1, 7, i64::MAX] {
            let fence = FencingToken::new(number).unwrap();
            assert_eq!((fence.as_i64(), i64::from(fence)), (number, number));
            assert_eq!((fence.to_string().parse(), number.try_into()), (Ok(fence), Ok(fence)));
        }
        for number in [0, -1, i64::MIN] {
            let error = FencingToken::new(number).unwrap_err();
            assert!(error.to_string().contains(&format!("{number}")), "{error}");
            assert_eq!(
                (number.to_string().parse::<FencingToken>(), FencingToken::try_from(number)),
                (Err(error.clone()), Err(error)),
                "{number}"
            );
        }
        for text in
            ["", "+7", " 7", "7.0", "0x7", "9223372036854775808", "99999999999999999999", "٧", "\u{1b}[2J"]
        {
            let error = text.parse::<FencingToken>().unwrap_err().to_string();
            assert!(error.contains("from 1 to 9223372036854775807") && !error.contains('\u{1b}'), "{error}");
        }
        assert_eq!(
            (FencingToken::at_least(-3), FencingToken::at_least(3)),
            (FencingToken::LEAST, FencingToken(3))
        );
    }

    #[test]
    #[cfg(feature = "serde")]
    fn a_fence_is_read_from_json_with_the_same_checks() {
        let read = serde_json::from_str::<FencingToken>;
        assert_eq!(read("7").unwrap(), FencingToken(7));
        assert_eq!(serde_json::to_string(&FencingToken(7)).unwrap(), "7");
        for json in ["0", "-1", "7.5", "9223372036854775808", "1e30", "\"7\"", "null"] {
            assert!(read(json).is_err(), "{json}");
        }
    }

    #[test]
    fn keys_that_differ_look_different() {
        let key = |account, session| SessionKey::new(account, session).unwrap().to_string();
        assert_eq!(key("a\x1b[2J", "b\n"), "\"a\\u{1b}[2J\"/\"b\\n\"");
        assert_eq!((key("a/b", "c").as_str(), key("a", "b/c").as_str()), ("\"a/b\"/c", "a/\"b/c\""));
        assert_ne!(key("a", "sb"), key("a", "sb "));
    }
}
