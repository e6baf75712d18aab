//! Texts that people choose. They are checked once, when they are made.

use std::{fmt, sync::Arc};

use crate::text::printable;

/// The name of a holder, for people: 1 to 255 bytes without NUL. Not an identity: two processes may share a label.
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
    #[non_exhaustive]
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
    #[non_exhaustive]
    Nul {
        /// Which text.
        what: &'static str,
        /// Where the NUL stands, in bytes from the start.
        at: usize,
    },
}

pub(super) fn checked(
    what: &'static str,
    text: &str,
    min: usize,
    max: usize,
) -> Result<Arc<str>, InvalidText> {
    if !(min..=max).contains(&text.len()) {
        return Err(InvalidText::Length { what, actual: text.len(), min, max });
    }
    match text.find('\0') {
        Some(at) => Err(InvalidText::Nul { what, at }),
        None => Ok(text.into()),
    }
}
