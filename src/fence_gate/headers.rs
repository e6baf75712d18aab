//! A fence in the headers of an HTTP request, for any client and server.
//!
//! ```
//! # use tenure::{FencingToken, SessionKey, fence_gate::headers};
//! # let (key, fence) = (SessionKey::new("acct 1", "chat/9").unwrap(), FencingToken::new(7).unwrap());
//! # struct Request; impl Request { fn header(self, _: &str, _: String) -> Self { self } }
//! # let request = Request;
//! // The client's two lines:
//! let request = request
//!     .header(headers::FENCE, fence.to_string())
//!     .header(headers::SESSION, headers::session(&key));
//! ```

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::session::{FencingToken, SessionKey};

/// The header with the writer's fence, in decimal digits. In a refusal it carries the greatest fence that was seen, or
/// the least that is admitted.
pub const FENCE: &str = "Tenure-Fence";

/// The header with the writer's session: see [`session`].
pub const SESSION: &str = "Tenure-Session";

/// The characters that are escaped. A slash is one of them, because a slash separates the two parts.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The value of [`SESSION`]: account and session, each percent-encoded, with a slash between them.
pub fn session(key: &SessionKey) -> String {
    let encoded = |text| utf8_percent_encode(text, ESCAPED);
    format!("{}/{}", encoded(key.account()), encoded(key.session()))
}

/// Reads the values of [`SESSION`] and [`FENCE`].
///
/// # Errors
/// [`InvalidHeader`], which says what was expected.
pub fn read(session: &str, fence: &str) -> Result<(SessionKey, FencingToken), InvalidHeader> {
    let fence = fence.parse().map_err(|_| InvalidHeader::Fence)?;
    let (account, session) = session.split_once('/').ok_or(InvalidHeader::Session)?;
    let decoded = |text| percent_decode_str(text).decode_utf8().map_err(|_| InvalidHeader::Session);
    let key = SessionKey::new(decoded(account)?, decoded(session)?).map_err(|_| InvalidHeader::Session)?;
    Ok((key, fence))
}

/// A header that is not a fence, or not a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidHeader {
    /// The header [`FENCE`].
    #[error("the header Tenure-Fence is no fence; send the run's fence in decimal digits")]
    Fence,
    /// The header [`SESSION`].
    #[error(
        "the header Tenure-Session is no session; send ACCOUNT/SESSION, each percent-encoded and 1 to 255 bytes long"
    )]
    Session,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_comes_back_from_its_header_and_none_can_add_a_line() {
        for text in ["a", " padded ", "émoji 🦀", "quo'te\"d", "new\r\nline: x", "a/b%2Fc", &"x".repeat(255)]
        {
            let key = SessionKey::new(text, text).unwrap();
            let value = session(&key);
            assert!(value.bytes().all(|byte| byte.is_ascii_graphic()), "{value}");
            assert_eq!(read(&value, "7"), Ok((key, FencingToken::new(7).unwrap())));
        }
    }

    #[test]
    fn what_is_no_fence_or_no_session_is_refused() {
        for fence in ["", "0", "-1", "+7", " 7", "7.0", "99999999999999999999", "٧"] {
            assert_eq!(read("a/s", fence), Err(InvalidHeader::Fence), "{fence:?}");
        }
        for session in ["", "a", "/s", "a/", "a/%ff", "a/%00"] {
            assert_eq!(read(session, "7"), Err(InvalidHeader::Session), "{session:?}");
        }
    }
}
