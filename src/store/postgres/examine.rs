//! The examination of PostgreSQL servers. `tenure doctor` shows its findings.
//!
//! These sessions set time-outs of their own and `jit`, and change no other setting. So they see the values of the role
//! and the database. Where they have set a time-out, they read the role's value (`reset_val`). All statements are sent
//! as text, so that a PgBouncer in between makes no difference.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{connect, doubt::Doubt, fault, schema, target::Target};
use crate::{
    clock::{Clock as _, SystemClock},
    store::finding::{ClockSample, Clocks, ExaminationPlan, Finding, Latency},
    store::{Bounds, StoreError},
};
use visit::Visit;

mod judge;
mod room;
mod trial;
mod visit;

/// All findings about the server that would grant leases, and one about each of the others.
pub(super) async fn examine(target: &Target, plan: ExaminationPlan) -> Result<Vec<Finding>, StoreError> {
    let (mut visits, mut refusals) = (Vec::new(), Vec::new());
    for server in target.in_order() {
        match Visit::begin(server, plan).await {
            Ok(visit) => visits.push(visit),
            Err(refusal) => refusals.push((server, refusal)),
        }
    }
    let mut findings = judge::servers(&visits, &refusals);
    findings.extend(target.remark().map(|remark| {
        Finding::warning("url", remark, "take them out of the URL, unless other programs need them in it")
    }));
    // If no server takes writes, a standby is examined.
    let is_authority = |visit: &Visit<'_>| matches!(visit.doubt, None | Some(Doubt::ReadOnlyRole));
    let chosen = visits.iter().position(is_authority).unwrap_or(0);
    if visits.is_empty() {
        return Err(connect::nobody(target, &refusals));
    }
    let mut visit = visits.swap_remove(chosen);
    let rights = examine_schema(&mut visit, &mut findings).await;
    let clocks = measure(&mut visit, plan, &mut findings).await;
    for other in &mut visits {
        let theirs = watch_clocks(other, ENOUGH_FOR_AN_OFFSET).await.ok();
        let theirs = theirs.and_then(|samples| Clocks::of(&samples));
        findings
            .extend(clocks.zip(theirs).and_then(|(ours, theirs)| judge::clocks_apart(other, ours, theirs)));
    }
    let settings = examine_settings(&mut visit, target).await;
    findings.extend(or_failure("settings", settings));
    let connections = examine_connections(&mut visit).await;
    findings.extend(or_failure("connections", connections.map(|finding| vec![finding])));
    let pooler = examine_pooler(&mut visit).await;
    findings.extend(or_failure("pooler", pooler.map(|finding| vec![finding])));
    if rights.to_look {
        let table = examine_table(&mut visit).await;
        findings.extend(or_failure("table", table));
        let history = examine_history(&mut visit).await;
        findings.extend(or_failure("history", history.map(|finding| vec![finding])));
    }
    if rights.suffice && visit.doubt.is_none() {
        findings.push(trial::of_the_table(&mut visit).await);
    }
    visit.end().await;
    Ok(findings)
}

/// The findings, or one finding that says why the check failed. The other findings stay.
fn or_failure(check: &'static str, found: Result<Vec<Finding>, StoreError>) -> Vec<Finding> {
    found.unwrap_or_else(|error| vec![Finding::failure(check, error)])
}

/// What a role may do with the schema. Nothing if there is none.
#[derive(Default)]
struct Rights {
    to_look: bool,
    /// Whether the role has all rights that leases need.
    suffice: bool,
}

/// Examines whether there is a schema that this release can use, and what the role may do with it.
async fn examine_schema(visit: &mut Visit<'_>, findings: &mut Vec<Finding>) -> Rights {
    const DOUBT: &str = concat!(include_str!("server.sql"), "SELECT doubt FROM server");
    // If there is no schema, or the role may not use it, the next statement finds that out.
    let doubt = visit.row(DOUBT).await.ok();
    let doubt = doubt.and_then(|row| visit.read::<Option<&str>>(&row, "doubt").ok().flatten().map(Doubt::of));
    if let Some(doubt) = doubt.filter(|doubt| doubt.hides_rows()) {
        findings.push(Finding::failure("visibility", doubt.error(visit.location())));
        return Rights::default();
    }
    let newest = visit.newest_schema().await;
    if let Err(error) = newest.and_then(|newest| {
        schema::check(newest, visit.location())?;
        findings.extend(newest.map(judge::schema));
        Ok(())
    }) {
        findings.push(Finding::failure("schema", error));
        return Rights::default();
    }
    examine_rights(visit, findings).await
}

async fn examine_rights(visit: &mut Visit<'_>, findings: &mut Vec<Finding>) -> Rights {
    let sufficient = visit.row(include_str!("examine/rights.sql")).await;
    let found = sufficient
        .and_then(|row| Ok((visit.read::<bool>(&row, "sufficient")?, visit.read::<bool>(&row, "may_look")?)));
    let (is_sufficient, may_look) = found.clone().unwrap_or_default();
    findings.push(match found {
        Ok(_) if is_sufficient => Finding::fine("rights", "all that leases need"),
        Ok(_) => {
            let found = if may_look {
                "this role may read leases, but not hold one"
            } else {
                "something is not granted"
            };
            let detail = format!("{found}; {}", fault::grants(&visit.server.naming));
            let location = visit.location().to_owned();
            Finding::failure("rights", StoreError::PermissionDenied { location, detail })
        }
        Err(error) => Finding::failure("rights", error),
    });
    if may_look {
        findings.push(Finding::fine("visibility", "no lease is hidden from this role"));
    }
    Rights { to_look: may_look, suffice: is_sufficient }
}

/// Measures how long a round trip and a commit take, and how the clocks run.
async fn measure(
    visit: &mut Visit<'_>,
    plan: ExaminationPlan,
    findings: &mut Vec<Finding>,
) -> Option<Clocks> {
    let samples = watch_clocks(visit, plan.lasting).await.unwrap_or_else(|error| {
        findings.push(Finding::failure("round_trip", error));
        Vec::new()
    });
    let round_trips = samples.iter().map(ClockSample::round_trip).collect();
    findings.extend(Latency::of(round_trips).map(|trips| trips.finding("round_trip", "the network between")));
    if visit.doubt.is_none() {
        findings.push(measure_commits(visit).await);
    }
    let clocks = Clocks::of(&samples);
    findings.extend(clocks.map(|clocks| clocks.finding()));
    clocks
}

async fn watch_clocks(visit: &mut Visit<'_>, lasting: Duration) -> Result<Vec<ClockSample>, StoreError> {
    const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS clock";
    // The first answer does not count, because it may have waited for a connection.
    visit.row(CLOCK).await?;
    let (until, mut samples) = (Instant::now() + lasting, Vec::new());
    loop {
        let sent = SystemClock.reading();
        let row = visit.row(CLOCK).await?;
        samples.push(ClockSample::ending_now(sent, visit.read(&row, "clock")?, TICK));
        if Instant::now() >= until && samples.len() >= LEAST_SAMPLES {
            return Ok(samples);
        }
        sleep(lasting / 50).await;
    }
}

/// How long a standby's clock is watched. Only its offset matters, not its rate.
const ENOUGH_FOR_AN_OFFSET: Duration = Duration::from_millis(100);
/// The resolution of PostgreSQL's clock.
const TICK: Duration = Duration::from_micros(1);
const LEAST_SAMPLES: usize = 10;
const COMMITS: usize = 10;

/// Measures commits. Each writes a message into the write-ahead log, which touches no table but waits for everything
/// that a commit waits for. `synchronous_commit` is turned on where tenure's own sessions would turn it on.
///
/// A primary that has lost its synchronous standby may never answer a commit. Then no lease can be held.
async fn measure_commits(visit: &mut Visit<'_>) -> Finding {
    const ADVICE: &str = "look at the server's log, at its disk, and whether its synchronous standbys are there: a \
                          grant and a renewal wait for the same things";
    const COMMIT: &str = "SELECT \
        set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') = 'off' \
            THEN 'on' ELSE current_setting('synchronous_commit') END, true), \
        pg_logical_emit_message(true, 'tenure', '')";
    let mut taken = Vec::new();
    for _ in 0..COMMITS {
        let sent = SystemClock.now();
        match visit.row(COMMIT).await {
            Ok(_) => taken.push(SystemClock.now().saturating_since(sent)),
            Err(StoreError::Unavailable { location, detail }) => {
                let detail = format!("a commit failed: {detail}; {ADVICE}");
                return Finding::failure("commit", StoreError::Unavailable { location, detail });
            }
            Err(error) => return Finding::warning("commit", error.to_string(), ADVICE),
        }
    }
    let latency = Latency::of(taken).expect("there were some");
    latency.finding("commit", "the server's disk and its synchronous standbys")
}

async fn examine_settings(visit: &mut Visit<'_>, target: &Target) -> Result<Vec<Finding>, StoreError> {
    let settings = visit.row(include_str!("examine/settings.sql")).await?;
    judge::settings(visit, &settings, target)
}

async fn examine_connections(visit: &mut Visit<'_>) -> Result<Finding, StoreError> {
    let connections = visit.row(include_str!("examine/connections.sql")).await?;
    room::connections(visit, &connections)
}

async fn examine_table(visit: &mut Visit<'_>) -> Result<Vec<Finding>, StoreError> {
    let table = visit.row(include_str!("examine/table.sql")).await?;
    judge::table(visit, &table)
}

async fn examine_history(visit: &mut Visit<'_>) -> Result<Finding, StoreError> {
    let row = visit.row(include_str!("examine/history.sql")).await?;
    let found = |column| visit.read::<bool>(&row, column);
    Ok(Finding::history(found("has_table")?, found("has_triggers")?, found("may_insert")?))
}

/// Examines whether there is a pooler. Two open connections share a server session only behind a pooler. A setting that
/// was sent at connection is missing only if something in between has dropped it.
async fn examine_pooler(visit: &mut Visit<'_>) -> Result<Finding, StoreError> {
    const SESSION: &str = "SELECT pg_backend_pid() AS pid, \
        (SELECT reset_val::bigint FROM pg_settings WHERE name = 'statement_timeout') AS statement_timeout";
    const ODD: Duration = Duration::from_millis(59_321);
    let bounds = Bounds { statement: ODD, lock: ODD };
    let mut second = Visit::of(visit.server, Some(bounds), visit.patience);
    let (mut shared, mut kept) = (false, true);
    for _ in 0..3 {
        let (one, other) = (visit.row(SESSION).await?, second.row(SESSION).await?);
        shared |= visit.read::<i32>(&one, "pid")? == second.read::<i32>(&other, "pid")?;
        kept &= u128::try_from(second.read::<i64>(&other, "statement_timeout")?) == Ok(ODD.as_millis());
    }
    second.end().await;
    Ok(judge::pooler(visit.server.pooled, shared, kept))
}
