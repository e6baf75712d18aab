//! The examination of a SQLite file and of its directory. `tenure doctor` shows its findings.

use std::{path::Path, time::Duration};

use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, SqliteConnection};
use tokio::time::{Instant, sleep};

use super::{
    connection::{accept_writes, options},
    failure::Failure,
    file::{Access, DatabaseFile},
    history, schema, swallow,
};
use crate::{
    clock::{Clock as _, SystemClock},
    store::finding::{ClockSample, Clocks, ExaminationPlan, Finding, Latency},
    store::schema::{Applied, Unfit},
};

#[cfg(unix)]
mod place;
mod trial;

/// Creates nothing that stays. If the file does not exist, or something cannot be examined, that is a finding.
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
        // The file is not opened, because that would create a log under this name.
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
    match examine_schema(&mut sqlite, file).await {
        Ok((schema, has_schema)) => {
            findings.push(schema);
            findings.extend(examine_use(&mut sqlite, file, plan, has_schema).await);
        }
        // Every other check would fail for the same reason, and one cause is one finding.
        Err(failure) => findings.push(failed("schema", failure)),
    }
    // Nothing is left to write, so an error here does not matter.
    let _ = sqlite.close().await;
    findings
}

/// What a run would find in a file that can be read.
async fn examine_use(
    sqlite: &mut SqliteConnection,
    file: &DatabaseFile,
    plan: ExaminationPlan,
    has_schema: bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let failed = |check, failure: Failure| Finding::failure(check, failure.in_file(file));
    let mode = journal_mode(sqlite, file.path()).await;
    findings.push(mode.unwrap_or_else(|failure| failed("journal_mode", failure)));
    if !has_schema && file.access() == Access::Create {
        findings.extend(examine_room_for_schema(sqlite, file, plan).await);
    }
    if has_schema && file.access() != Access::ReadOnly {
        findings.extend(examine_writes(sqlite, file).await);
        let expired = long_expired(sqlite).await;
        findings.push(expired.unwrap_or_else(|failure| failed("sweep", failure)));
    }
    if has_schema {
        let history = history::examine(sqlite).await;
        findings.push(history.unwrap_or_else(|failure| failed("history", failure)));
    }
    let samples = watch_clock(sqlite, plan.lasting).await.unwrap_or_else(|failure| {
        findings.push(failed("clock", failure));
        Vec::new()
    });
    let taken = samples.iter().map(ClockSample::round_trip).collect();
    findings.extend(Latency::of(taken).map(|taken| taken.finding("round_trip", "the disk")));
    findings.extend(Clocks::of(&samples).map(|clocks| clocks.finding_of_this_machine()));
    findings
}

async fn examine_writes(sqlite: &mut SqliteConnection, file: &DatabaseFile) -> Vec<Finding> {
    let failed = |check, failure: Failure| Finding::failure(check, failure.in_file(file));
    if let Err(failure) = accept_writes(sqlite).await {
        return vec![failed("permissions", failure)];
    }
    let commits = match measure_commits(sqlite).await {
        Ok(commits) => commits,
        // The trial commits nothing. So it could succeed even now, on a full disk for example.
        Err(failure) => return vec![failed("commit", failure)],
    };
    let trial = try_a_row(sqlite).await.unwrap_or_else(|failure| match failure {
        // A trigger may have refused only this row, because of its key.
        passing if may_pass(&passing) => {
            Finding::warning("trial", passing.in_file(file).to_string(), REFUSED)
        }
        other => failed("trial", other),
    });
    vec![commits, trial]
}

/// Whether a lease may be granted although a write of the examination failed: it met another connection's lock, or the
/// content of its row was refused.
fn may_pass(failure: &Failure) -> bool {
    failure.is_busy() || failure.is_rejection()
}

/// What the first run would find if there is no file yet.
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

/// Whether the first run could apply the schema, in a file that has none.
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

/// The finding about the schema, and whether there is one that this release can work with.
///
/// # Errors
/// The file cannot be read.
async fn examine_schema(
    sqlite: &mut SqliteConnection,
    file: &DatabaseFile,
) -> Result<(Finding, bool), Failure> {
    Ok(match schema::check(sqlite).await {
        Ok(Applied { version, compatible_from }) => {
            let found = format!("version {version}, for releases from schema version {compatible_from} on");
            (Finding::fine("schema", found), true)
        }
        Err(Failure::Unfit(Unfit::Missing(found))) if file.access() == Access::Create => {
            (Finding::fine("schema", format!("{found}: the first run applies it")), false)
        }
        Err(failure @ Failure::Unfit(_)) => (Finding::failure("schema", failure.in_file(file)), false),
        Err(failure) => return Err(failure),
    })
}

async fn journal_mode(sqlite: &mut SqliteConnection, file: &Path) -> Result<Finding, Failure> {
    if !schema::uses_wal(sqlite).await? {
        return Ok(Finding::warning(
            "journal_mode",
            "not write-ahead logging",
            "each commit flushes more, and readers delay writers: run `tenure migrate`, or PRAGMA journal_mode = WAL, \
             while no other process has the file open",
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

/// In bytes. SQLite writes its log back at about 4 MB, unless a reader prevents it.
const GREATEST_LOG: u64 = 64 * 1024 * 1024;

/// Measures commits, each of which inserts and deletes a row. As with every write, no other connection can write during
/// these few milliseconds.
///
/// # Errors
/// No commit can succeed now, for example because the disk is full.
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
            let (text, failure) = (error.to_string(), Failure::from(error));
            if !may_pass(&failure) {
                return Err(failure);
            }
            return Ok(Finding::warning(
                "commit",
                text,
                "a grant and a renewal wait for the same lock: look for a process that keeps a write transaction open, \
                 and at the triggers of the tables",
            ));
        }
        taken.push(SystemClock.now().saturating_since(sent));
    }
    let latency = Latency::of(taken).expect("there were some");
    Ok(latency.finding("commit", "the disk, and at other processes that write to this file"))
}

const REFUSED: &str = "a row that would have been taken back was refused: if sessions are refused for the same reason, no \
    run can hold them; look at the triggers of the table, and for a process that keeps a write transaction open";

/// Does to the table what a lease does: inserts, updates and deletes a row, and then rolls back. Triggers may do
/// anything to a row, and only a real row shows what they do.
async fn try_a_row(sqlite: &mut SqliteConnection) -> Result<Finding, Failure> {
    const OWN: &str = "account_id = 'tenure doctor' AND session_id = 'trial'";
    let statements = [
        "INSERT INTO tenure_session_lease \
         (account_id, session_id, run_id, fence, node, holder, phase, stage, acquired_at, expires_at) \
         VALUES ('tenure doctor', 'trial', printf('%036d', 0), 1, printf('%036d', 0), 'tenure doctor', '', 'running', 0, 0)"
            .to_owned(),
        format!("UPDATE tenure_session_lease SET phase = 'trial' WHERE {OWN}"),
        format!("DELETE FROM tenure_session_lease WHERE {OWN}"),
    ];
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut *sqlite).await?;
    let mut written = Ok(0);
    for statement in statements {
        let done = sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *sqlite).await;
        written = written.and_then(|written| Ok(written + done?.rows_affected()));
    }
    let undone = sqlx::raw_sql("ROLLBACK").execute(&mut *sqlite).await;
    // After some errors SQLite has rolled back already, and refuses to do it again.
    let written = written.map_err(Failure::Sql)?;
    undone?;
    match written {
        3 => Ok(Finding::fine("trial", "a row was written, changed, removed, and all of it taken back")),
        _ => Err(Failure::Swallowed(swallow::suspects(sqlite).await?.unwrap_or_default())),
    }
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
