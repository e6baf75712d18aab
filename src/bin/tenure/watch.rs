//! `tenure watch`: prints a session now, and a line at every change.

use std::{
    pin::pin,
    time::{Duration, SystemTime},
};

use futures::StreamExt as _;
use serde_json::Value;
use tenure::{
    LeaseSupervisor, LeaseSupervisorBuilder, Observed, SessionKey, SessionStatus, StartError, StoreError,
};
use tokio::time::{sleep, timeout};

use crate::{
    cli::{Global, WatchArgs},
    database::Database,
    exit::Failure,
    show,
};

/// How often to look for a file that does not exist yet, or to ask a server that does not answer.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// After how long a server counts as one that does not answer.
const SILENT_AFTER: Duration = Duration::from_secs(2);
/// How often to check whether anybody reads the output (`tenure watch … | head -n 1`) while nothing changes.
const LOOK_FOR_READER: Duration = Duration::from_secs(1);

pub(crate) async fn watch(global: &Global, args: &WatchArgs) -> Result<u8, Failure> {
    let (database, key) = (Database::of(global)?, args.session.key()?);
    let Some(supervisor) = start(global, &key, &database).await? else { return Ok(0) };
    let (mut watching, mut is_wanted) = (supervisor.watch(&key), has_reader());
    while is_wanted {
        is_wanted = match timeout(LOOK_FOR_READER, watching.next()).await {
            Ok(Some(observed)) => tell(global, &key, &observed)?,
            Ok(None) => break,
            Err(_elapsed) => has_reader(),
        };
    }
    supervisor.shutdown(Duration::ZERO).await;
    Ok(0)
}

/// Waits for a database that does not exist yet or does not answer. An error that does not go away is returned. `None`
/// when nobody reads the output any more.
async fn start(
    global: &Global,
    key: &SessionKey,
    database: &Database,
) -> Result<Option<LeaseSupervisor>, Failure> {
    let mut waiting = AbsenceReport { global, key, since: SystemTime::now(), told: None };
    let mut was_missing = false;
    loop {
        let (absent, why) = match database.looking()? {
            None => (Absent::Missing, format!("{} does not exist yet; waiting for it", database.location()?)),
            Some(builder) => match waiting.start(builder).await? {
                Ok(supervisor) => return Ok(Some(supervisor)),
                // Another process has created the file and is still creating its schema.
                Err(StartError::Store(error @ StoreError::SchemaMissing { .. })) if was_missing => {
                    (Absent::Missing, error.to_string())
                }
                Err(StartError::Store(error)) if error.is_transient() => {
                    (Absent::Silent, format!("{error}; asking again"))
                }
                Err(error) => return Err(error.into()),
            },
        };
        was_missing |= absent == Absent::Missing;
        if !waiting.tell(absent, &why)? || !has_reader() {
            return Ok(None);
        }
        sleep(LOOK_AGAIN).await;
    }
}

/// Why there is nothing to watch yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Absent {
    /// The database does not exist yet, so nobody holds the session.
    Missing,
    /// The database does not answer, so it is not known who holds the session.
    Silent,
}

/// Reports why there is nothing to watch yet, once for each reason in a row.
struct AbsenceReport<'a> {
    global: &'a Global,
    key: &'a SessionKey,
    since: SystemTime,
    told: Option<Absent>,
}

impl AbsenceReport<'_> {
    async fn start(
        &mut self,
        builder: LeaseSupervisorBuilder,
    ) -> Result<Result<LeaseSupervisor, StartError>, Failure> {
        let mut starting = pin!(builder.connect_timeout(self.global.connect_timeout).start());
        if let Ok(started) = timeout(SILENT_AFTER, &mut starting).await {
            return Ok(started);
        }
        self.tell(Absent::Silent, "the database does not answer; waiting for it")?;
        Ok(starting.await)
    }

    /// Prints a line if the reason has changed. Returns `false` when nobody reads the output any more.
    fn tell(&mut self, absent: Absent, why: &str) -> Result<bool, Failure> {
        if self.told.replace(absent) == Some(absent) {
            return Ok(true);
        }
        if !self.global.quiet {
            show::complain(why);
        }
        let observed = match absent {
            Absent::Missing => Observed::Known(SessionStatus::idle(self.key.clone())),
            Absent::Silent => Observed::unknown(None, self.since),
        };
        tell(self.global, self.key, &observed)
    }
}

/// Whether somebody may still read stdout, as far as that can be known without writing.
#[cfg(unix)]
fn has_reader() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let stdout = std::io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_err()
        || !polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

#[cfg(not(unix))]
fn has_reader() -> bool {
    true
}

/// Prints what was observed. Returns `false` when nobody reads the output any more.
fn tell(global: &Global, key: &SessionKey, observed: &Observed) -> Result<bool, Failure> {
    let line = match global.json {
        true => json_of(key, observed).to_string(),
        false => sentence(key, observed),
    };
    show::print_to_reader(format_args!("{line}\n"))
}

fn json_of(key: &SessionKey, observed: &Observed) -> Value {
    match observed.known() {
        Some(status) => show::session_json(status),
        None => show::unknown_json(key),
    }
}

fn sentence(key: &SessionKey, observed: &Observed) -> String {
    let at = show::rfc3339(SystemTime::now());
    match observed {
        Observed::Known(status) => format!("{at} {key} {}", show::line(status)),
        Observed::Unknown { since, .. } => {
            format!("{at} {key} unknown: the database has not answered since {}", show::rfc3339(*since))
        }
        _ => format!("{at} {key} unknown"),
    }
}
