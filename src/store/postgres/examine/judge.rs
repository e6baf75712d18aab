//! Turns the servers' answers into findings: what they mean, and what to change.

use std::time::Duration;

use sqlx::postgres::PgRow;

use super::visit::Visit;
use crate::{
    config::{Settings, Timing},
    store::finding::{Clocks, Finding, millis},
    store::{
        StoreError,
        postgres::{connect, doubt::Doubt, server::Server, target::Target},
        schema::Applied,
    },
};

/// One finding for each server that the URL names.
pub(super) fn servers(visits: &[Visit<'_>], refusals: &[(&Server, StoreError)]) -> Vec<Finding> {
    let takes_writes = visits.iter().filter(|visit| visit.doubt.is_none()).count();
    let is_authority = |visit: &Visit<'_>| matches!(visit.doubt, None | Some(Doubt::ReadOnlyRole));
    let has_authority = visits.iter().any(is_authority);
    let mut findings: Vec<_> =
        visits.iter().map(|visit| server(visit, takes_writes, has_authority)).collect();
    findings.extend(refusals.iter().map(|(server, error)| {
        Finding::warning(
            "server",
            connect::shown(server, error),
            "while it cannot be reached, no failover can lead to it; take it out of the URL if it is gone for good",
        )
    }));
    findings
}

fn server(visit: &Visit<'_>, takes_writes: usize, has_authority: bool) -> Finding {
    let named = format!("{}: PostgreSQL {}", visit.server.address, visit.version);
    match visit.doubt {
        None if takes_writes == 1 => Finding::fine("server", format!("{named}, takes writes")),
        None => Finding::warning(
            "server",
            format!("{named}, takes writes, and so does another of these servers"),
            "two primaries grant the same session twice, and neither can notice: stop one of them now, or name only \
             servers of one cluster",
        ),
        Some(doubt) if doubt == Doubt::ReadOnlyRole || !has_authority => {
            Finding::failure("server", doubt.error(visit.location()))
        }
        Some(_) => match visit.behind {
            Some(behind) => {
                let found = format!("{named}, a standby, whose last commit is {} old", millis(behind));
                Finding::fine("server", found).measuring([("behind_ms", behind.as_secs_f64() * 1e3)])
            }
            None => Finding::fine("server", format!("{named}, a standby")),
        },
    }
}

/// Checks assumption A2 for the default ttl: a failover must not step the clock by more than a quarter of the safety
/// margin.
pub(super) fn clocks_apart(standby: &Visit<'_>, ours: Clocks, theirs: Clocks) -> Option<Finding> {
    let (apart, tolerated) = (ours.apart_from(&theirs), default_timing().safety_margin() / 4);
    (apart > tolerated).then(|| {
        Finding::warning(
            "standby_clock",
            format!("the clock of {} is {} from the primary's", standby.server.address, millis(apart)),
            format!(
                "after a failover to it, leases would expire too early or too late: keep both clocks in step (NTP), \
                 within a twentieth of the ttl ({tolerated:?} by default)"
            ),
        )
    })
}

pub(super) fn schema(Applied { version, compatible_from }: Applied) -> Finding {
    Finding::fine(
        "schema",
        format!("version {version}, for releases from schema version {compatible_from} on"),
    )
}

/// Judges the settings that a session of this role has by default. tenure's own sessions set what they need, except
/// behind PgBouncer.
pub(super) fn settings(visit: &Visit<'_>, row: &PgRow, target: &Target) -> Result<Vec<Finding>, StoreError> {
    let pooled = visit.server.pooled;
    let standbys: i64 = visit.read(row, "standbys")?;
    let others = standbys > 0 || target.in_order().len() > 1;
    Ok(vec![
        isolation(visit.read(row, "isolation")?, pooled),
        synchronous_commit(visit.read(row, "synchronous_commit")?, pooled),
        fsync(visit.read(row, "fsync")?),
        replication(visit.read(row, "synchronous_standbys")?, visit.read(row, "synchronous_commit")?, others),
        timeouts(
            pooled,
            visit.read(row, "statement_timeout")?,
            visit.read(row, "lock_timeout")?,
            visit.read(row, "idle_session_timeout")?,
        ),
    ])
}

fn isolation(level: &str, pooled: bool) -> Finding {
    match (level, pooled) {
        ("read committed", _) => Finding::fine("isolation", level),
        (_, false) => {
            Finding::fine("isolation", format!("{level}; tenure's own sessions use read committed"))
        }
        (_, true) => Finding::warning(
            "isolation",
            level,
            "behind PgBouncer tenure cannot set this for its sessions, and at this level a run that loses a race for a \
             session gets an error instead of an answer: ALTER ROLE … SET default_transaction_isolation = 'read \
             committed', or the same with ALTER DATABASE",
        ),
    }
}

fn synchronous_commit(value: &str, pooled: bool) -> Finding {
    match (value, pooled) {
        ("off", false) => {
            Finding::fine("synchronous_commit", "off; tenure's own sessions turn it on, as leases need")
        }
        ("off", true) => Finding::warning(
            "synchronous_commit",
            "off",
            "if the server crashed, it would lose leases that were granted just before, and grant them again; behind \
             PgBouncer tenure cannot turn it on for its sessions: ALTER ROLE … SET synchronous_commit = on",
        ),
        (other, _) => Finding::fine("synchronous_commit", other),
    }
}

fn fsync(on: bool) -> Finding {
    match on {
        true => Finding::fine("fsync", "on"),
        false => Finding::warning(
            "fsync",
            "off",
            "if the server's machine fails, leases that were granted are lost and granted again, if the database \
             survives at all: set fsync = on",
        ),
    }
}

/// Checks assumption A1: a standby that takes over has every acknowledged commit.
fn replication(synchronous_standbys: &str, synchronous_commit: &str, others: bool) -> Finding {
    let waits = !matches!(synchronous_commit, "local");
    match (synchronous_standbys, others) {
        ("", false) => Finding::fine("replication", "no standby"),
        (names, _) if !names.is_empty() && waits => {
            Finding::fine("replication", format!("synchronous ({names})"))
        }
        _ => Finding::warning(
            "replication",
            if waits { "asynchronous" } else { "asynchronous for this role (synchronous_commit = local)" },
            "a failover may lose leases that were granted or renewed just before it, and grant them again while their \
             runs still work: set synchronous_standby_names (and keep synchronous_commit at on), or let the resources \
             that runs write to check the fencing token",
        ),
    }
}

/// Judges the three time-outs, which are in milliseconds. Zero means that there is none.
fn timeouts(pooled: bool, statement: i64, lock: i64, idle_session: i64) -> Finding {
    let bound = |millis: i64| match millis {
        0 => "none".to_owned(),
        _ => format!("{millis} ms"),
    };
    let found = format!(
        "statement_timeout {}, lock_timeout {}, idle_session_timeout {}",
        bound(statement),
        bound(lock),
        bound(idle_session)
    );
    let (timing, own) = (default_timing(), "; tenure's own sessions set theirs");
    if pooled && (statement == 0 || lock == 0) {
        return Finding::warning(
            "timeouts",
            found,
            format!(
                "behind PgBouncer tenure cannot set them for its sessions, so a statement that tenure has given up may \
                 run, or wait for a lock, for ever: ALTER ROLE … SET statement_timeout = {}, SET lock_timeout = {}",
                timing.renew_timeout().as_millis(),
                timing.lock_timeout().as_millis()
            ),
        );
    }
    if pooled && statement < timing.renew_timeout().as_millis() as i64 {
        return Finding::warning(
            "timeouts",
            found,
            "the server gives up on statements sooner than tenure would: raise statement_timeout to ttl/10",
        );
    }
    if pooled && (1..LEAST_IDLE.as_millis() as i64).contains(&idle_session) {
        return Finding::warning(
            "timeouts",
            found,
            "the server would end connections between two statements, and the first statement after that would fail: \
             ALTER ROLE … SET idle_session_timeout = 0 for tenure's role",
        );
    }
    Finding::fine("timeouts", if pooled { found } else { found + own })
}

/// The longest time for which a connection that renews is idle, whatever the ttl.
const LEAST_IDLE: Duration = Duration::from_secs(30);

pub(super) fn pooler(declared: bool, shared: bool, kept: bool) -> Finding {
    match (declared, shared, kept) {
        (true, true, _) => Finding::fine("pooler", "in transaction mode, as the URL says"),
        (true, false, _) => Finding::fine(
            "pooler",
            "the URL says that there is one, but no connections share a server session at the moment. If there is \
             none, leave pgbouncer=true out: tenure then limits its statements on the server, too",
        ),
        (false, false, true) => Finding::fine("pooler", "none"),
        (false, true, _) => Finding::warning(
            "pooler",
            "server sessions are shared between connections, as by PgBouncer in transaction mode",
            "statements that were prepared in one server session fail in another: add pgbouncer=true to the URL",
        ),
        (false, false, false) => Finding::warning(
            "pooler",
            "something between here and the server drops the settings that are sent at connection",
            "without them the server does not limit tenure's statements, and may not use the isolation level that they \
             need: if it is PgBouncer, take \"options\" out of its ignore_startup_parameters and add pgbouncer=true to \
             the URL",
        ),
    }
}

pub(super) fn table(visit: &Visit<'_>, row: &PgRow) -> Result<Vec<Finding>, StoreError> {
    let count = |column| visit.read::<i64>(row, column);
    let mut findings = vec![
        updates(visit, count("updates")?, count("hot_updates")?, visit.read(row, "more_indexes")?),
        dead_rows(count("live")?, count("dead")?),
        Finding::long_expired(count("long_expired")?),
    ];
    if visit.read(row, "unlogged")? {
        findings.push(Finding::warning(
            "table",
            visit.server.naming.text("tenure.session_lease is UNLOGGED"),
            visit.server.naming.text(
                "after a crash it is empty, and every session that is held could be acquired again: ALTER TABLE \
                 tenure.session_lease SET LOGGED",
            ),
        ));
    }
    Ok(findings)
}

fn updates(visit: &Visit<'_>, updates: i64, hot: i64, more_indexes: Option<&str>) -> Finding {
    let ratio = if updates == 0 { 1.0 } else { hot as f64 / updates as f64 };
    let found = format!("{:.1} % of {updates} in place (HOT)", ratio * 100.0);
    let finding = match more_indexes {
        Some(names) => Finding::warning(
            "updates",
            format!("{found}; there are more indexes than the primary key: {names}"),
            "an index on a column that renewals change makes each of them write every index: drop it",
        ),
        None if updates >= 1_000 && ratio < 0.9 => Finding::warning(
            "updates",
            found,
            visit.server.naming.text(
                "renewals are meant to find room on their own page: see that the table has its fillfactor of 45 and \
                 that no transaction stays open for long (pg_stat_activity), then VACUUM FULL tenure.session_lease \
                 once at a quiet time",
            ),
        ),
        None => Finding::fine("updates", found),
    };
    finding.measuring([("updates", updates as f64), ("hot_ratio", ratio)])
}

fn dead_rows(live: i64, dead: i64) -> Finding {
    let found = format!("{dead} beside {live} live ones");
    let finding = if dead > 10_000 && dead > 10 * live {
        Finding::warning(
            "dead_rows",
            found,
            "vacuum does not keep up: look for transactions that stay open (pg_stat_activity, pg_prepared_xacts) and \
             for abandoned replication slots, which keep dead rows, and see that autovacuum is on",
        )
    } else {
        Finding::fine("dead_rows", found)
    };
    finding.measuring([("live", live as f64), ("dead", dead as f64)])
}

/// The durations of a supervisor with default settings.
fn default_timing() -> Timing {
    Settings::default().check().expect("the defaults work")
}
