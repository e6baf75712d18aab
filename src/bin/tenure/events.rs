//! The events of `run`: one line, or one JSON object, for each.

use std::{
    cell::OnceCell,
    fmt,
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::{Duration, SystemTime},
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use serde_json::{Value, json};
use tenure::{
    EndReason, Holder, Run, RunId, SessionKey, SessionStatus,
    text::{printable, printable_path},
};

use crate::{exit::Failure, inherited, lines::Lines, show};

/// Writes events. It never blocks, so a slow reader cannot delay a renewal.
pub(crate) struct Events {
    lines: Lines,
    json: bool,
    quiet: bool,
    key: SessionKey,
    /// Set when the session is granted.
    run: OnceCell<RunId>,
}

/// An event.
pub(crate) enum Event<'a> {
    Acquired {
        run: &'a Run,
        holder: &'a str,
        ttl: Duration,
        /// The database's location, without a password.
        database: &'a str,
    },
    Busy {
        holder: &'a Holder,
    },
    AtRisk {
        trusted_for: Duration,
        confirmed_at: Option<SystemTime>,
        cause: Option<&'a str>,
    },
    Recovered,
    /// CMD was stopped, and this command stops next.
    Suspended {
        trusted_for: Duration,
    },
    Stopping(Why<'a>),
    Ended {
        why: Why<'a>,
        exit_code: u8,
        released: bool,
    },
    /// A process outlives the run, as `--leave` allows.
    Left {
        pid: u32,
        name: &'a str,
    },
    /// A remark for people. It has no JSON form.
    Note(&'a str),
    /// Written with `--quiet`, too.
    Failed(&'a Failure),
}

/// Why a run ends. Fields that do not apply are `None`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Why<'a> {
    /// The reason, as one word.
    pub(crate) reason: &'a str,
    /// Who asked the run to stop.
    pub(crate) by: Option<&'a str>,
    /// The reason that they gave.
    pub(crate) why: Option<&'a str>,
    /// The limit that was reached.
    pub(crate) limit: Option<Duration>,
    /// After a loss, when the last confirmed renewal was sent, by the local clock.
    pub(crate) confirmed_at: Option<SystemTime>,
    /// After a loss, the error of the last renewal.
    pub(crate) cause: Option<&'a str>,
}

impl Events {
    /// Writes to stderr, appends to a file, or writes to an open descriptor that is given by its number.
    pub(crate) fn open(to: Option<&Path>, json: bool, quiet: bool, key: SessionKey) -> io::Result<Self> {
        let output: Box<dyn Write + Send> = match to {
            None => Box::new(io::stderr()),
            Some(path) => Box::new(EventFile::open(path)?),
        };
        Ok(Self { lines: Lines::to(output), json, quiet, key, run: OnceCell::new() })
    }

    pub(crate) fn tell(&self, event: &Event<'_>) {
        if let Event::Acquired { run, .. } = event {
            let _ = self.run.set(run.run_id());
        }
        let line = match (self.json, self.quiet) {
            (true, _) => match self.json_of(event) {
                Some(json) => json.to_string(),
                None => return,
            },
            (false, true) if !matches!(event, Event::Failed(_)) => return,
            (false, _) => format!("tenure: {} {}", show::rfc3339(SystemTime::now()), self.sentence(event)),
        };
        self.lines.send((line + "\n").into_bytes());
    }

    /// Waits a little until all lines are written.
    pub(crate) fn flush(&self) {
        self.lines.finish();
    }

    fn json_of(&self, event: &Event<'_>) -> Option<Value> {
        let (word, mut fields) = fields_of(event, &self.key)?;
        let object = fields.as_object_mut()?;
        object.insert("event".to_owned(), json!(word));
        object.insert("account".to_owned(), json!(self.key.account()));
        object.insert("session".to_owned(), json!(self.key.session()));
        if let Some(run) = self.run.get() {
            object.insert("run_id".to_owned(), json!(run.to_string()));
        }
        object.entry("at").or_insert_with(|| json!(show::rfc3339(SystemTime::now())));
        Some(fields)
    }

    fn sentence(&self, event: &Event<'_>) -> String {
        let key = &self.key;
        match event {
            Event::Acquired { run, ttl, database, .. } => format!(
                "acquired {key} (run {}, fence {}, ttl {}) in {database}",
                run.run_id(),
                run.fence(),
                humantime::format_duration(*ttl)
            ),
            Event::Busy { holder } => format!("{key} is busy: {}", show::held_by(holder)),
            Event::AtRisk { trusted_for, confirmed_at, cause } => {
                let detail = unconfirmed(*confirmed_at, *cause);
                format!("at risk{detail}; CMD is stopped in {}", show::short(*trusted_for))
            }
            Event::Recovered => "recovered: the lease is confirmed again".to_owned(),
            Event::Suspended { trusted_for } => format!(
                "suspended: the lease lasts for {}, until {}; CMD is ended then, unless it is continued before (fg)",
                show::short(*trusted_for),
                show::rfc3339(SystemTime::now() + *trusted_for)
            ),
            Event::Stopping(why) => format!("stopping ({why})"),
            Event::Ended { why, exit_code, released } => {
                let released = match (*released, why.reason) {
                    (true, _) => "released",
                    (false, "superseded") => "is another run's, or its row was deleted",
                    (false, _) => "not released: it expires by itself",
                };
                format!("ended ({why}, exit code {exit_code}), {key} {released}")
            }
            Event::Left { pid, name } => {
                format!("left process {pid} ({}) running, as --leave says", printable(name))
            }
            Event::Note(text) => (*text).to_owned(),
            Event::Failed(failure) => failure.to_string(),
        }
    }
}

/// The name of an event and its own fields; `None` for a remark for people.
fn fields_of(event: &Event<'_>, key: &SessionKey) -> Option<(&'static str, Value)> {
    Some(match event {
        Event::Acquired { run, holder, ttl, database } => {
            let at = show::rfc3339(run.acquired_at());
            let (fence, ttl_ms) = (run.fence().as_i64(), show::millis(*ttl));
            let fields = json!({
                "fence": fence, "holder": holder, "ttl_ms": ttl_ms, "at": at, "database": database,
            });
            ("acquired", fields)
        }
        Event::Busy { holder } => {
            let holder = show::session_json(&SessionStatus::held(key.clone(), (*holder).clone()));
            ("busy", json!({ "holder": holder, "waiting": 0 }))
        }
        Event::AtRisk { trusted_for, confirmed_at, cause } => {
            let confirmed_at = confirmed_at.map(show::rfc3339);
            let trusted_for = show::millis(*trusted_for);
            let fields =
                json!({ "trusted_for_ms": trusted_for, "confirmed_at": confirmed_at, "cause": cause });
            ("at_risk", fields)
        }
        Event::Recovered => ("recovered", json!({})),
        Event::Suspended { trusted_for } => {
            ("suspended", json!({ "trusted_for_ms": show::millis(*trusted_for) }))
        }
        Event::Stopping(why) => ("stopping", why.fields()),
        Event::Ended { why, exit_code, released } => {
            let mut fields = why.fields();
            fields["exit_code"] = json!(exit_code);
            fields["released"] = json!(released);
            ("ended", fields)
        }
        Event::Left { pid, name } => ("left", json!({ "pid": pid, "name": name })),
        Event::Failed(failure) => ("failed", failure.to_json()),
        Event::Note(_) => return None,
    })
}

impl Why<'_> {
    fn fields(&self) -> Value {
        json!({
            "reason": self.reason, "by": self.by, "why": self.why, "limit_ms": self.limit.map(show::millis),
            "confirmed_at": self.confirmed_at.map(show::rfc3339), "cause": self.cause,
        })
    }
}

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason)?;
        if self.by.is_some() || self.why.is_some() {
            write!(f, ", asked{}", show::request(self.by, self.why))?;
        }
        if let Some(limit) = self.limit {
            write!(f, " after {}", humantime::format_duration(limit))?;
        }
        if self.confirmed_at.is_some() {
            f.write_str(&unconfirmed(self.confirmed_at, self.cause))?;
        }
        Ok(())
    }
}

/// Says since when no renewal was confirmed, and why.
fn unconfirmed(since: Option<SystemTime>, cause: Option<&str>) -> String {
    let since = since.map(|at| format!(" since {}", show::rfc3339(at))).unwrap_or_default();
    let cause = cause.map(|cause| format!(" ({})", printable(cause))).unwrap_or_default();
    format!(": no renewal of the lease was confirmed{since}{cause}")
}

/// The file or descriptor of `--events`. Says once on stderr that events are lost.
struct EventFile {
    file: File,
    /// Which file or descriptor, for people.
    name: String,
    has_failed: bool,
}

impl EventFile {
    fn open(path: &Path) -> io::Result<Self> {
        let (file, name) = match path.to_str().and_then(|text| text.parse::<u32>().ok()) {
            Some(descriptor) => {
                let file = inherited::duplicate(descriptor).map_err(|error| {
                    io::Error::other(format!("descriptor {descriptor} {error}; open it: {descriptor}>>FILE"))
                })?;
                (file, format!("descriptor {descriptor}"))
            }
            None => {
                let name = printable_path(path);
                let file = open_to_append(path)
                    .map_err(|error| io::Error::other(format!("{name} cannot be written: {error}")))?;
                (file, name)
            }
        };
        Ok(Self { file, name, has_failed: false })
    }
}

impl Write for EventFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes);
        if let Err(error) = &written
            && error.kind() != io::ErrorKind::Interrupted
            && !std::mem::replace(&mut self.has_failed, true)
        {
            show::complain(format_args!("--events: {} takes no events: {error}", self.name));
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Opens a file to append to. A FIFO without a reader is an error: otherwise the command would wait for a reader for
/// ever.
fn open_to_append(path: &Path) -> io::Result<File> {
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = OpenOptions::new().append(true).create(true).custom_flags(nonblocking).open(path)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Who asked the run to stop, and why, if somebody did.
pub(crate) fn request(reason: &EndReason) -> (Option<&str>, Option<&str>) {
    match reason {
        EndReason::Stopped { by, reason, .. } => (by.as_deref(), reason.as_deref()),
        _ => (None, None),
    }
}
