//! The side channel: how what runs inside CMD speaks to the `tenure run` around it.
//!
//! A Unix socket in a directory that only this user may enter. One request a connection: a line that says what is
//! wanted, what belongs to it, and the end of the sending side. The answer is `ok` and a line of its own for what was
//! asked for, or what is wrong.
//!
//! Whoever asks for the database gets its URL with the password in it. So it stands in no environment and on no command
//! line, and is told to no other user; a process of this user could read it out of the memory of `tenure` as well.

#[cfg(target_os = "linux")]
pub(crate) mod socket;

use std::{
    env,
    io::{self, Read as _, Write as _},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use crate::exit::{CONFIGURATION, Failure, UNAVAILABLE, USAGE};

/// Names the socket, in the environment of CMD; missing where there is none.
pub(crate) const SOCKET: &str = "TENURE_SOCKET";
/// Names the run, in the environment of CMD.
pub(crate) const RUN_ID: &str = "TENURE_RUN_ID";

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(5);
const LONGEST_REQUEST: u64 = 4_096;
const LONGEST_ANSWER: u64 = 64 << 10;

/// What may be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SideRequest {
    /// To show this as what the run is doing.
    Phase(String),
    /// The URL of the run's database.
    Database,
}

/// What comes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SideReply {
    /// Done, and what was asked for, or what there is to remark.
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

/// Whether this process is inside a CMD.
pub(crate) fn is_inside() -> bool {
    env::var_os(SOCKET).is_some() || env::var_os(RUN_ID).is_some()
}

/// Asks the run around this process. The failure names no remedy, which depends on what was asked for.
pub(crate) fn ask(request: &SideRequest) -> Result<String, Failure> {
    let Some(socket) = env::var_os(SOCKET) else {
        return Err(match env::var_os(RUN_ID) {
            Some(_) => Failure::new(
                UNAVAILABLE,
                "the `tenure run` around this program has no socket (it has said why)",
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

/// The URL of the database of the run around this process; `None` outside of any run. Never another database: what
/// holds a session there would be no authority here.
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
