//! Looking at a SQLite file and the place where it is: what `tenure doctor` shows.

use std::{path::Path, time::Duration};

use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};
use tokio::time::{Instant, sleep};

use super::{
    failure::Failure,
    file::{Access, DatabaseFile},
    options, schema,
};
use crate::{
    clock::{Clock as _, SystemClock},
    store::finding::{ClockSample, Clocks, ExaminationPlan, Finding, Latency},
};

#[cfg(unix)]
mod place;
mod trial;

/// Creates nothing: a file that is not there is a finding, too.
///
/// What cannot be looked at is one, too, and takes nothing away from what was found before.
pub(super) async fn examine(file: &DatabaseFile, plan: ExaminationPlan) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !file.path().exists() {
        #[cfg(unix)]
        findings.extend(place::around(file.path()));
        findings.extend(examine_absence(file, plan).await);
        return findings;
    }
    findings.push(Finding::fine("file", "there"));
    #[cfg(unix)]
    findings.extend(place::around(file.path()).into_iter().chain(place::of_the_file(file.path())));

    if let Err(error) = file.there() {
        // To open it would make a log beside this name, too.
        findings.push(Finding::failure("names", error));
        return findings;
    }
    let failed = |check, failure: Failure| Finding::failure(check, failure.in_file(file));
    let mut sqlite = match options(file, plan.patience).create_if_missing(false).connect().await {
        Ok(sqlite) => sqlite,
        Err(error) => {
            findings.push(failed("file", error.into()));
            return findings;
        }
    };
    let may_write = file.access() != Access::ReadOnly;
    let has_schema = examine_schema(&mut sqlite, file, &mut findings).await;
    let mode = journal_mode(&mut sqlite, file.path()).await;
    findings.push(mode.unwrap_or_else(|failure| failed("journal_mode", failure)));
    if !has_schema && file.access() == Access::Create {
        findings.extend(examine_room_for_schema(&mut sqlite, file, plan).await);
    }
    if has_schema && may_write {
        match super::accept_writes(&mut sqlite).await {
            Ok(()) => {
                let commits = measure_commits(&mut sqlite).await;
                findings.push(commits.unwrap_or_else(|failure| failed("commit", failure)));
            }
            Err(failure) => findings.push(failed("permissions", failure)),
        }
        let expired = long_expired(&mut sqlite).await;
        findings.push(expired.unwrap_or_else(|failure| failed("sweep", failure)));
    }
    let samples = watch_clock(&mut sqlite, plan.lasting).await.unwrap_or_else(|failure| {
        findings.push(failed("clock", failure));
        Vec::new()
    });
    let taken = samples.iter().map(ClockSample::round_trip).collect();
    findings.extend(Latency::of(taken).map(|taken| taken.finding("round_trip", "the disk")));
    findings.extend(Clocks::of(&samples).map(|clocks| clocks.finding_of_this_machine()));
    // Nothing was left to be written.
    let _ = sqlite.close().await;
    findings
}

/// What the first run would meet.
async fn examine_absence(file: &DatabaseFile, plan: ExaminationPlan) -> Vec<Finding> {
    if file.access() != Access::Create {
        return vec![Finding::failure("file", file.cannot_open())];
    }
    let there = Finding::fine("file", "not there yet: the first run creates it, with its schema");
    match trial::beside(file, plan).await {
        Ok(found) => std::iter::once(there).chain(found).collect(),
        Err(error) => vec![Finding::failure("file", error)],
    }
}

/// A file without the schema, which the first run applies.
async fn examine_room_for_schema(
    sqlite: &mut SqliteConnection,
    file: &DatabaseFile,
    plan: ExaminationPlan,
) -> Vec<Finding> {
    let locked = sqlx::raw_sql("BEGIN IMMEDIATE; ROLLBACK").execute(sqlite).await;
    match locked.map_err(Failure::from) {
        Err(failure) if !failure.is_busy() => {
            vec![Finding::failure("permissions", failure.in_file(file))]
        }
        _ => trial::beside(file, plan)
            .await
            .unwrap_or_else(|error| vec![Finding::failure("permissions", error)]),
    }
}

async fn examine_schema(
    sqlite: &mut SqliteConnection,
    file: &DatabaseFile,
    findings: &mut Vec<Finding>,
) -> bool {
    let checked = schema::check(sqlite).await;
    let finding = match (checked, schema::installed(sqlite).await) {
        (Ok(()), Ok(Some((version, from)))) => {
            findings.push(Finding::fine(
                "schema",
                format!("version {version}, for releases from schema version {from} on"),
            ));
            return true;
        }
        (Err(Failure::SchemaMissing(found)), _) if file.access() == Access::Create => {
            Finding::fine("schema", format!("{found}: the first run applies it"))
        }
        (Err(failure), _) | (_, Err(failure)) => Finding::failure("schema", failure.in_file(file)),
        (Ok(()), Ok(None)) => Finding::fine("schema", "it was removed just now"),
    };
    findings.push(finding);
    false
}

async fn journal_mode(sqlite: &mut SqliteConnection, file: &Path) -> Result<Finding, Failure> {
    if !schema::uses_wal(sqlite).await? {
        return Ok(Finding::warning(
            "journal_mode",
            "not write-ahead logging",
            "each commit flushes more, and readers hold up writers: run `tenure migrate`, or PRAGMA journal_mode = WAL, \
             while nobody else has the file open",
        ));
    }
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    let bytes = std::fs::metadata(log).map_or(0, |log| log.len());
    let found = format!("write-ahead logging with synchronous = NORMAL, {} KiB in the log", bytes / 1024);
    let finding = if bytes > GREATEST_LOG {
        Finding::warning(
            "journal_mode",
            found,
            "a reader that stays open keeps the log from being written back, and it grows: look for a process that \
             keeps a read transaction open",
        )
    } else {
        Finding::fine("journal_mode", found)
    };
    Ok(finding.measuring([("log_bytes", bytes as f64)]))
}

/// SQLite writes its log back at about 4 MB, if no reader is in the way.
const GREATEST_LOG: u64 = 64 * 1024 * 1024;

/// A row that comes and goes in one transaction. While it lasts, a few milliseconds, nobody else can write, as with
/// every write.
async fn measure_commits(sqlite: &mut SqliteConnection) -> Result<Finding, Failure> {
    const COMMIT: &str = "BEGIN IMMEDIATE; \
        INSERT INTO tenure_migration (version, compatible_from, applied_at) VALUES (1000000, 1, 0); \
        DELETE FROM tenure_migration WHERE version = 1000000; \
        COMMIT";
    sqlx::query("PRAGMA synchronous = NORMAL").execute(&mut *sqlite).await?;
    let mut taken = Vec::new();
    for _ in 0..COMMITS {
        let sent = SystemClock.now();
        if let Err(error) = sqlx::raw_sql(COMMIT).execute(&mut *sqlite).await {
            let _ = sqlx::raw_sql("ROLLBACK").execute(sqlite).await;
            return Ok(Finding::warning(
                "commit",
                error.to_string(),
                "a grant and a renewal wait for the same lock and the same disk: look for a process that keeps a write \
                 transaction open, and at the space on the disk",
            ));
        }
        taken.push(SystemClock.now().saturating_since(sent));
    }
    let latency = Latency::of(taken).expect("there were some");
    Ok(latency.finding("commit", "the disk, and at other processes that write to this file"))
}

async fn long_expired(sqlite: &mut SqliteConnection) -> Result<Finding, Failure> {
    let count = "SELECT count(*) FROM (SELECT 1 FROM tenure_session_lease \
        WHERE expires_at <= (unixepoch() - 3600) * 1000 LIMIT 100001)";
    let rows: Vec<i64> = sqlx::query_scalar(count).fetch_all(sqlite).await?;
    Ok(Finding::long_expired(rows.first().copied().unwrap_or_default()))
}

async fn watch_clock(sqlite: &mut SqliteConnection, lasting: Duration) -> Result<Vec<ClockSample>, Failure> {
    const CLOCK: &str = "SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000";
    let (until, mut samples) = (Instant::now() + lasting, Vec::new());
    loop {
        let sent = SystemClock.reading();
        let clock: Vec<i64> = sqlx::query_scalar(CLOCK).fetch_all(&mut *sqlite).await?;
        samples.extend(
            clock.first().map(|micros| ClockSample::ending_now(sent, *micros, Duration::from_millis(1))),
        );
        if Instant::now() >= until && samples.len() >= LEAST_SAMPLES {
            return Ok(samples);
        }
        sleep(lasting / 50).await;
    }
}

const LEAST_SAMPLES: usize = 10;
const COMMITS: usize = 10;
