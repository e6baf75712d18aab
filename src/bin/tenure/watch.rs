//! `tenure watch`: a session now, and a line at every change.

use std::{
    io::{self, Write as _},
    time::{Duration, SystemTime},
};

use futures::StreamExt as _;
use serde_json::{Value, json};
use tenure::{Observed, SessionKey, SessionStatus, StartError, StoreError};
use tokio::time::{sleep, timeout};

use crate::{
    cli::{Global, Watch},
    database::Database,
    exit::{Failure, UNAVAILABLE},
    show,
};

/// How often to look for a file that is not there yet.
const LOOK_FOR_FILE: Duration = Duration::from_secs(1);
/// How often to see whether anybody reads (`tenure watch … | head -n 1`), when there is nothing to say.
const LOOK_FOR_READER: Duration = Duration::from_secs(1);

pub(crate) async fn watch(global: &Global, args: &Watch) -> Result<u8, Failure> {
    let (database, key) = (Database::of(global)?, args.session.key()?);
    let mut is_wanted = true;
    let mut builder = database.reading()?;
    let was_missing = builder.is_none();
    if was_missing {
        // What is not there has no sessions; whoever makes it may be about to.
        is_wanted = tell(global, &key, &Observed::Known(SessionStatus::idle(key.clone())))?;
    }
    while builder.is_none() && is_wanted {
        sleep(LOOK_FOR_FILE).await;
        builder = database.reading()?;
        is_wanted = has_reader();
    }
    let Some(builder) = builder else { return Ok(0) };
    let builder = builder.connect_timeout(global.connect_timeout);
    let mut started = builder.clone().start().await;
    while was_missing && matches!(started, Err(StartError::Store(StoreError::SchemaMissing { .. }))) {
        // Whoever makes it is not done yet.
        sleep(LOOK_FOR_FILE).await;
        started = builder.clone().start().await;
    }
    let supervisor = started?;
    let mut watching = supervisor.watch(&key);
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

/// Whether somebody may still read what is written, as far as can be known without writing.
#[cfg(unix)]
fn has_reader() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let stdout = io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_err()
        || !polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

#[cfg(not(unix))]
fn has_reader() -> bool {
    true
}

/// `false` when nobody reads any more.
fn tell(global: &Global, key: &SessionKey, observed: &Observed) -> Result<bool, Failure> {
    let line = match global.json {
        true => json_of(key, observed).to_string(),
        false => sentence(key, observed),
    };
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(UNAVAILABLE, format!("the answer cannot be written: {error}"))),
    }
}

fn json_of(key: &SessionKey, observed: &Observed) -> Value {
    match observed.known() {
        Some(status) => show::session_json(status),
        None => {
            // Never what was known before, as if it were so still.
            let mut json = show::session_json(&SessionStatus::idle(key.clone()));
            json["state"] = json!("unknown");
            json
        }
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
