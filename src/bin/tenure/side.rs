//! The side channel: how a `tenure` command inside CMD speaks to the `tenure run` around it.
//!
//! The channel is a Unix socket in a directory that only this user may enter. Each connection carries one request: a
//! line with the verb, then its argument up to the end of the sending side. The answer is a line `ok` and then the
//! result, or the text of an error.
//!
//! The answer to a request for the database is its URL, with the password. So the password is in no environment of CMD
//! and on no command line, and no other user can get it. A process of this user can read it in the memory of `tenure`
//! anyway.

#[cfg(target_os = "linux")]
pub(crate) mod socket;

use std::{
    env,
    ffi::OsString,
    io::{self, Read as _, Write as _},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use crate::exit::{CONFIGURATION, Failure, UNAVAILABLE, USAGE};

/// The variable with the path of the socket, in CMD's environment. It is not set where there is no socket.
pub(crate) const SOCKET: &str = "TENURE_SOCKET";
/// The variable with the run's id, in CMD's environment.
pub(crate) const RUN_ID: &str = "TENURE_RUN_ID";

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(5);
const LONGEST_REQUEST: u64 = 4_096;
const LONGEST_ANSWER: u64 = 64 << 10;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SideRequest {
    /// Show this text as the phase of the run.
    Phase(String),
    /// Return the URL of the run's database.
    Database,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SideReply {
    /// The request was obeyed. The text is the result or a remark; it may be empty.
    Done(String),
    Refused(String),
}

impl SideRequest {
    fn to_text(&self) -> String {
        match self {
            Self::Phase(text) => format!("phase\n{text}"),
            Self::Database => "database\n".to_owned(),
        }
    }

    #[cfg(target_os = "linux")]
    fn parse(text: &str) -> Option<Self> {
        match text.split_once('\n')? {
            ("phase", text) => Some(Self::Phase(text.to_owned())),
            ("database", "") => Some(Self::Database),
            _ => None,
        }
    }
}

impl SideReply {
    #[cfg(target_os = "linux")]
    fn to_text(&self) -> String {
        match self {
            Self::Done(text) => format!("ok\n{text}"),
            Self::Refused(text) => text.clone(),
        }
    }

    fn parse(text: &str) -> Self {
        match text.split_once('\n') {
            Some(("ok", text)) => Self::Done(text.to_owned()),
            _ => Self::Refused(text.to_owned()),
        }
    }
}

/// Whether a `tenure run` is around this process.
pub(crate) fn is_inside() -> bool {
    variable(SOCKET).is_some() || variable(RUN_ID).is_some()
}

/// A variable of the environment. An empty one counts as one that is not set.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Asks the run around this process. The failure names no remedy, because the remedy depends on the request.
pub(crate) fn ask(request: &SideRequest) -> Result<String, Failure> {
    let Some(socket) = variable(SOCKET) else {
        return Err(match variable(RUN_ID) {
            Some(_) => Failure::new(
                UNAVAILABLE,
                "the `tenure run` around this program has no socket (it said why at its start)",
            ),
            None => Failure::new(
                USAGE,
                format!(
                    "{SOCKET} is not set: this works only inside a program that `tenure run` has started"
                ),
            ),
        });
    };
    let answer = exchange(Path::new(&socket), &request.to_text()).map_err(|error| {
        let has_ended = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
        let what = if has_ended { "has ended, or does not answer" } else { "does not answer" };
        Failure::new(UNAVAILABLE, format!("the `tenure run` around this program {what}: {error}"))
    })?;
    match SideReply::parse(&answer) {
        SideReply::Done(text) => Ok(text),
        SideReply::Refused(text) if text.is_empty() => {
            Err(Failure::new(UNAVAILABLE, "the `tenure run` around this program has ended"))
        }
        SideReply::Refused(text) => Err(Failure::new(USAGE, text)),
    }
}

/// The URL of the database of the run around this process; `None` outside of any run. If the run does not answer, this
/// is an error, and no other database is used instead: its leases would not keep other runs out of this one's sessions.
pub(crate) fn database() -> Result<Option<String>, Failure> {
    if !is_inside() {
        return Ok(None);
    }
    ask(&SideRequest::Database).map(Some).map_err(|failure| {
        let code = if failure.code == USAGE { CONFIGURATION } else { failure.code };
        Failure::new(code, format!("{failure}; name the database with --database or TENURE_DATABASE_URL"))
    })
}

fn exchange(socket: &Path, request: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.take(LONGEST_ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn every_word_reads_back() {
        for text in ["", "a", "two\nlines\n", "ok"] {
            let request = SideRequest::Phase(text.to_owned());
            assert_eq!(SideRequest::parse(&request.to_text()), Some(request));
            let answer = SideReply::Done(text.to_owned());
            assert_eq!(SideReply::parse(&answer.to_text()), answer);
        }
        assert_eq!(SideRequest::parse(&SideRequest::Database.to_text()), Some(SideRequest::Database));
        let refused = SideReply::Refused("a phase may have 64 bytes".to_owned());
        assert_eq!(SideReply::parse(&refused.to_text()), refused);
        for garbled in ["", "phase", "database\nx", "url\n"] {
            assert_eq!(SideRequest::parse(garbled), None);
        }
    }
}
