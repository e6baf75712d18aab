//! What `run` tells: a line per event, or a JSON object per line.

use std::{
    cell::OnceCell,
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::{Duration, SystemTime},
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use serde_json::{Value, json};
use tenure::{EndReason, Holder, Run, RunId, SessionKey, SessionStatus};

use crate::{exit::Failure, inherited, lines::Lines, show};

/// Nothing that keeps the lease ever waits for whoever reads events.
pub(crate) struct Events {
    lines: Lines,
    json: bool,
    quiet: bool,
    key: SessionKey,
    /// From the grant on.
    run_id: OnceCell<RunId>,
}

/// Something to tell.
pub(crate) enum Event<'a> {
    Acquired {
        run: &'a Run,
        holder: &'a str,
        ttl: Duration,
    },
    Busy {
        holder: &'a Holder,
    },
    AtRisk {
        trusted_for: Duration,
    },
    Recovered,
    Stopping {
        reason: &'a str,
        by: Option<&'a str>,
        why: Option<&'a str>,
    },
    Ended {
        reason: &'a str,
        why: Option<&'a str>,
        exit_code: u8,
        released: bool,
    },
    /// For people only.
    Note(&'a str),
    /// For people, even when only errors are wanted.
    Failed(&'a Failure),
}

impl Events {
    /// To stderr, to a file that is appended to, or to an open descriptor given by its number.
    pub(crate) fn open(to: Option<&Path>, json: bool, quiet: bool, key: SessionKey) -> io::Result<Self> {
        let output: Box<dyn Write + Send> = match to {
            None => Box::new(io::stderr()),
            Some(path) => match path.to_str().and_then(|text| text.parse::<u32>().ok()) {
                Some(descriptor) => Box::new(inherited::duplicate(descriptor)?),
                None => Box::new(open_to_append(path)?),
            },
        };
        Ok(Self { lines: Lines::to(output)?, json, quiet, key, run_id: OnceCell::new() })
    }

    pub(crate) fn tell(&self, event: &Event<'_>) {
        if let Event::Acquired { run, .. } = event {
            self.run_id.get_or_init(|| run.run_id());
        }
        let line = match (self.json, self.quiet) {
            (true, _) => match self.json_of(event) {
                Some(json) => json.to_string(),
                None => return,
            },
            (false, true) if !matches!(event, Event::Failed(_)) => return,
            (false, _) => format!("tenure: {}", self.sentence(event)),
        };
        self.lines.send((line + "\n").into_bytes());
    }

    /// Waits a little for what is still to be written.
    pub(crate) fn close(self) {
        self.lines.finish();
    }

    fn json_of(&self, event: &Event<'_>) -> Option<Value> {
        let now = show::rfc3339(SystemTime::now());
        let (name, at, more) = match event {
            Event::Acquired { run, holder, ttl } => (
                "acquired",
                show::rfc3339(run.acquired_at()),
                json!({ "fence": run.fence().as_i64(), "holder": holder, "ttl_ms": show::millis(*ttl) }),
            ),
            Event::Busy { holder } => {
                let status = SessionStatus::held(self.key.clone(), (*holder).clone());
                ("busy", now, json!({ "waiting": 0, "holder": show::session_json(&status) }))
            }
            Event::AtRisk { trusted_for } => {
                ("at_risk", now, json!({ "trusted_for_ms": show::millis(*trusted_for) }))
            }
            Event::Recovered => ("recovered", now, json!({})),
            Event::Stopping { reason, by, why } => {
                ("stopping", now, json!({ "reason": reason, "by": by, "why": why }))
            }
            Event::Ended { reason, why, exit_code, released } => (
                "ended",
                now,
                json!({ "reason": reason, "why": why, "exit_code": exit_code, "released": released }),
            ),
            Event::Failed(failure) => ("failed", now, failure.to_json()),
            Event::Note(_) => return None,
        };
        let mut json = json!({
            "event": name, "account": self.key.account(), "session": self.key.session(), "at": at,
        });
        if let (Value::Object(json), Value::Object(more)) = (&mut json, more) {
            json.extend(self.run_id.get().map(|run_id| ("run_id".to_owned(), json!(run_id.to_string()))));
            json.extend(more);
        }
        Some(json)
    }

    fn sentence(&self, event: &Event<'_>) -> String {
        let key = &self.key;
        match event {
            Event::Acquired { run, ttl, .. } => format!(
                "acquired {key} (run {}, fence {}, ttl {})",
                run.run_id(),
                run.fence(),
                humantime::format_duration(*ttl)
            ),
            Event::Busy { holder } => format!("{key} is busy: {}", show::held_by(holder)),
            Event::AtRisk { trusted_for } => {
                format!(
                    "at risk: the lease is not confirmed; CMD is stopped in {}",
                    show::short(*trusted_for)
                )
            }
            Event::Recovered => "recovered: the lease is confirmed again".to_owned(),
            Event::Stopping { reason, by: None, why: None } => format!("stopping ({reason})"),
            Event::Stopping { reason, by, why } => {
                format!("stopping ({reason}, asked{})", show::request(*by, *why))
            }
            Event::Ended { reason, exit_code, released, .. } => {
                let released = match (*released, *reason) {
                    (true, _) => "released",
                    (false, "superseded") => "is another run's, or its row was deleted",
                    (false, _) => "not released: it expires by itself",
                };
                format!("ended ({reason}, exit code {exit_code}), {key} {released}")
            }
            Event::Note(text) => (*text).to_owned(),
            Event::Failed(failure) => failure.to_string(),
        }
    }
}

/// A FIFO that nobody reads is an error: to wait for a reader would be to wait with nothing started, without end.
fn open_to_append(path: &Path) -> io::Result<File> {
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = OpenOptions::new().append(true).create(true).custom_flags(nonblocking).open(path)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Who asked for the end, and why, if somebody did.
pub(crate) fn request(reason: &EndReason) -> (Option<&str>, Option<&str>) {
    match reason {
        EndReason::Stopped { by, why } => (by.as_deref(), why.as_deref()),
        _ => (None, None),
    }
}

/// One word for scripts.
pub(crate) fn reason_word(reason: &EndReason) -> &'static str {
    match reason {
        EndReason::Completed => "completed",
        EndReason::Dropped => "dropped",
        EndReason::Panicked => "panicked",
        EndReason::Stopped { .. } => "stopped",
        EndReason::Shutdown => "shutdown",
        EndReason::TimedOut { .. } => "timed_out",
        EndReason::Superseded => "superseded",
        EndReason::Expired => "expired",
        EndReason::Unconfirmed => "unconfirmed",
        _ => "ended",
    }
}
