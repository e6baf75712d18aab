//! The judge of histories: traffic → faults → what every process saw → were two ever trusted at once?
//!
//! It knows nothing of the library but what is promised: for one session, the times in which different runs
//! were trusted are apart, and the fences rise in the order of those times. All instants are of the boot clock,
//! which the processes of one machine share.

use std::{
    collections::BTreeMap,
    fmt, fs,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::Path,
};

use serde_json::{Value, json};
use tenure::clock::{Clock as _, SystemClock};
use uuid::Uuid;

/// At this instant, this run was trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub pid: u32,
    pub session: String,
    pub run_id: Uuid,
    pub fence: i64,
    /// Nanoseconds of the boot clock.
    pub at_nanos: u64,
}

impl Record {
    /// A record of this process and this instant, if `is_held` says that the run is trusted.
    ///
    /// Trust never comes back once it has ended, so a run that is trusted now was so a moment ago: the clock is
    /// read first.
    pub fn observe(session: &str, run_id: Uuid, fence: i64, is_held: impl FnOnce() -> bool) -> Option<Self> {
        let at_nanos = SystemClock.now().as_nanos();
        is_held().then(|| Self {
            pid: std::process::id(),
            session: session.to_owned(),
            run_id,
            fence,
            at_nanos,
        })
    }

    fn to_line(&self) -> String {
        // JSON escapes line ends, so a session's name cannot tear a line.
        let Self { pid, session, run_id, fence, at_nanos } = self;
        format!("{}\n", json!([pid, session, run_id.to_string(), fence, at_nanos]))
    }

    fn from_line(line: &str) -> Option<Self> {
        let fields: [Value; 5] = serde_json::from_str::<Vec<Value>>(line).ok()?.try_into().ok()?;
        let [pid, session, run_id, fence, at_nanos] = fields;
        Some(Self {
            pid: pid.as_u64()?.try_into().ok()?,
            session: session.as_str()?.to_owned(),
            run_id: run_id.as_str()?.parse().ok()?,
            fence: fence.as_i64()?,
            at_nanos: at_nanos.as_u64()?,
        })
    }
}

/// What a sound history held: so that a test can also ask whether enough happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    pub sessions: usize,
    pub runs: usize,
    pub records: usize,
}

/// All that is known of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    pub session: String,
    pub run_id: Uuid,
    pub pid: u32,
    pub fence: i64,
    pub first_nanos: u64,
    pub last_nanos: u64,
}

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// Two runs of one session were trusted at the same time.
    Overlap { earlier: Span, later: Span },
    /// A later run's fence is not higher.
    FenceNotRising { earlier: Span, later: Span },
    /// One run with two fences, or in two processes.
    Changed { before: Record, after: Record },
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session: _, run_id, pid, fence, first_nanos, last_nanos } = self;
        write!(f, "run {run_id} (process {pid}, fence {fence}) trusted from {first_nanos} to {last_nanos} ns")
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlap { earlier, later } => {
                let both = earlier.last_nanos.min(later.last_nanos) - later.first_nanos;
                write!(f, "session {:?}: two at once for {both} ns: {earlier}; {later}", earlier.session)
            }
            Self::FenceNotRising { earlier, later } => {
                write!(f, "session {:?}: the fence did not rise: {earlier}; {later}", earlier.session)
            }
            Self::Changed { before, after } => {
                write!(f, "one run, two fences or processes: {before:?}; {after:?}")
            }
        }
    }
}

/// Judges a history, in whatever order its records are.
pub fn check(records: &[Record]) -> Result<Summary, Vec<Violation>> {
    let mut violations = Vec::new();
    let sessions = spans(records, &mut violations);
    for runs in sessions.values() {
        check_session(runs, &mut violations);
    }
    if !violations.is_empty() {
        return Err(violations);
    }
    let runs = sessions.values().map(Vec::len).sum();
    Ok(Summary { sessions: sessions.len(), runs, records: records.len() })
}

/// Judges a history and panics with everything that is wrong with it.
#[track_caller]
pub fn assert_sound(records: &[Record]) -> Summary {
    check(records).unwrap_or_else(|violations| {
        let lines: Vec<_> = violations.iter().map(ToString::to_string).collect();
        panic!("{} broken promises:\n{}", lines.len(), lines.join("\n"))
    })
}

/// The runs of each session, by their first instant.
fn spans<'a>(records: &'a [Record], violations: &mut Vec<Violation>) -> BTreeMap<&'a str, Vec<Span>> {
    let mut runs: BTreeMap<(&str, Uuid), (Span, &Record)> = BTreeMap::new();
    for record in records {
        let Record { pid, session, run_id, fence, at_nanos } = record;
        let span = || Span {
            session: session.clone(),
            run_id: *run_id,
            pid: *pid,
            fence: *fence,
            first_nanos: *at_nanos,
            last_nanos: *at_nanos,
        };
        let (span, first) = runs.entry((session, *run_id)).or_insert_with(|| (span(), record));
        if (span.fence, span.pid) != (*fence, *pid) {
            violations.push(Violation::Changed { before: (*first).clone(), after: record.clone() });
        }
        span.first_nanos = span.first_nanos.min(*at_nanos);
        span.last_nanos = span.last_nanos.max(*at_nanos);
    }
    let mut sessions: BTreeMap<&str, Vec<Span>> = BTreeMap::new();
    for ((session, _), (span, _)) in runs {
        sessions.entry(session).or_default().push(span);
    }
    for spans in sessions.values_mut() {
        spans.sort_by_key(|span| (span.first_nanos, span.fence));
    }
    sessions
}

fn check_session(runs: &[Span], violations: &mut Vec<Violation>) {
    let mut runs = runs.iter();
    let Some(mut longest) = runs.next() else { return };
    let mut highest = longest;
    for later in runs {
        // Against the one that lasted longest, not only the one before: it may reach over several.
        if later.first_nanos <= longest.last_nanos {
            violations.push(Violation::Overlap { earlier: longest.clone(), later: later.clone() });
        }
        if later.fence <= highest.fence {
            violations.push(Violation::FenceNotRising { earlier: highest.clone(), later: later.clone() });
        }
        if later.last_nanos > longest.last_nanos {
            longest = later;
        }
        if later.fence > highest.fence {
            highest = later;
        }
    }
}

/// Appends records to a file of one process.
pub struct Writer {
    file: File,
}

impl Writer {
    /// Opens or creates the file. One file a process: behind a torn line no other may write.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: OpenOptions::new().create(true).append(true).open(path)? })
    }

    /// Appends one record with one write: once this returns, the record survives a SIGKILL.
    pub fn write(&self, record: &Record) -> io::Result<()> {
        let line = record.to_line();
        let written = (&self.file).write(line.as_bytes())?;
        if written == line.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

/// Reads a file. A last line without its end was torn by a kill and is left out.
pub fn read(path: &Path) -> io::Result<Vec<Record>> {
    let bytes = fs::read(path)?;
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    String::from_utf8_lossy(&bytes[..whole])
        .lines()
        .map(|line| Record::from_line(line).ok_or_else(|| io::Error::other(format!("no record: {line:?}"))))
        .collect()
}

/// Reads every file of a directory into one history.
pub fn read_dir(dir: &Path) -> io::Result<Vec<Record>> {
    let mut records = Vec::new();
    for entry in fs::read_dir(dir)? {
        records.extend(read(&entry?.path())?);
    }
    Ok(records)
}
