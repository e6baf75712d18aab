//! Looking at PostgreSQL servers: what `tenure doctor` shows.
//!
//! The sessions here set nothing that they are to look at: what they see is what holds for the role and the database. All
//! statements are sent as text, so that it does not matter whether there is a PgBouncer in between.

use std::{future::Future, time::Duration};

use futures::future::OptionFuture;
use sqlx::{AssertSqlSafe, Decode, Executor as _, PgConnection, Postgres, Row as _, Type, postgres::PgRow};
use tokio::time::{Instant, sleep, timeout};

use super::{
    believe::Doubt,
    connect, fault, schema,
    target::{Server, Target},
};
use crate::{
    clock::{Clock as _, SystemClock},
    store::{
        Bounds, StoreError,
        finding::{ClockSample, Clocks, ExaminationPlan, Finding, Latency},
    },
};

mod judge;
mod room;

/// All findings about the server that leases would be asked of, and what the others are.
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
    // A standby tells something, too, if there is nothing better.
    let is_authority = |visit: &Visit<'_>| matches!(visit.doubt, None | Some(Doubt::ReadOnlyRole));
    let chosen = visits.iter().position(is_authority).unwrap_or(0);
    if visits.is_empty() {
        return Err(connect::nobody(target, &refusals));
    }
    let mut visit = visits.swap_remove(chosen);
    let has_schema = examine_schema(&mut visit, &mut findings).await;
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
    if has_schema {
        let table = examine_table(&mut visit).await;
        findings.extend(or_failure("table", table));
    }
    visit.end().await;
    Ok(findings)
}

/// What cannot be looked at takes nothing away from what was found before.
fn or_failure(check: &'static str, found: Result<Vec<Finding>, StoreError>) -> Vec<Finding> {
    found.unwrap_or_else(|error| vec![Finding::failure(check, error)])
}

/// Whether there is one, and the rights that its use needs.
async fn examine_schema(visit: &mut Visit<'_>, findings: &mut Vec<Finding>) -> bool {
    const DOUBT: &str = concat!(include_str!("server.sql"), "SELECT doubt FROM server");
    // Where there is no schema, or none that may be used, the next question tells.
    let doubt = visit.row(DOUBT).await.ok();
    let doubt = doubt.and_then(|row| visit.read::<Option<&str>>(&row, "doubt").ok().flatten().map(Doubt::of));
    if let Some(doubt) = doubt.filter(|doubt| doubt.hides_rows()) {
        findings.push(Finding::failure("visibility", doubt.error(visit.location())));
        return false;
    }
    let newest = visit.newest_schema().await;
    if let Err(error) = newest.and_then(|newest| {
        schema::check(newest, visit.location())?;
        findings.extend(newest.map(judge::schema));
        Ok(())
    }) {
        findings.push(Finding::failure("schema", error));
        return false;
    }
    let sufficient = visit.row(include_str!("examine/rights.sql")).await;
    let found = sufficient
        .and_then(|row| Ok((visit.read::<bool>(&row, "sufficient")?, visit.read::<bool>(&row, "may_look")?)));
    let (is_sufficient, may_look) = found.clone().unwrap_or_default();
    findings.push(match found {
        Ok(_) if is_sufficient => Finding::fine("rights", "all that leases need"),
        Ok(_) => {
            let found = if may_look {
                "this role may look, but not hold a lease"
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
    may_look
}

/// How long a round trip and a commit take, and how the clocks go.
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
    // The first answer may have had to wait for a session of its own.
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

/// What a standby is asked, whose rate is not what matters.
const ENOUGH_FOR_AN_OFFSET: Duration = Duration::from_millis(100);
const TICK: Duration = Duration::from_micros(1);
const LEAST_SAMPLES: usize = 10;
const COMMITS: usize = 10;
/// To set a time-out under another of 1 ms, on a busy server.
const ATTEMPTS: u32 = 50;

/// A message in the write-ahead log: a commit with a flush, and with whatever a commit waits for besides, that touches
/// no table. Where tenure's own sessions would turn synchronous_commit on, this does.
///
/// A commit may never be answered, by a primary that has lost its synchronous standby: then no lease can be held.
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

/// Two open connections never have the same server session, unless somebody in between hands them out; and a setting
/// that was sent at connection is there, unless somebody has dropped it.
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

/// A connection to one server, and its successors.
struct Visit<'a> {
    server: &'a Server,
    /// That are set for the session.
    bounds: Option<Bounds>,
    /// `None` before the first statement, and after one without an answer: what was sent next would wait for it.
    connection: Option<PgConnection>,
    patience: Duration,
    version: String,
    /// Why leases cannot be asked of it, as far as that has nothing to do with the schema.
    doubt: Option<Doubt>,
    /// How old the last commit is that a standby knows.
    behind: Option<Duration>,
}

impl<'a> Visit<'a> {
    /// Asks the server at once what it is.
    async fn begin(server: &'a Server, plan: ExaminationPlan) -> Result<Self, StoreError> {
        let mut visit = Self::of(server, None, plan.patience);
        let row = visit.row(include_str!("examine/server.sql")).await?;
        visit.version = visit.read(&row, "version")?;
        visit.doubt = visit.read::<Option<&str>>(&row, "doubt")?.map(Doubt::of);
        let behind = visit.read::<Option<i64>>(&row, "behind")?;
        visit.behind = behind.map(|micros| Duration::from_micros(micros.try_into().unwrap_or(0)));
        Ok(visit)
    }

    fn of(server: &'a Server, bounds: Option<Bounds>, patience: Duration) -> Self {
        Self { server, bounds, connection: None, patience, version: String::new(), doubt: None, behind: None }
    }

    /// The one that is there, or a new one.
    async fn take_connection(&mut self) -> Result<PgConnection, StoreError> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        let connection = timeout(self.patience, connect::open(self.server, self.bounds)).await;
        let mut connection =
            connection.map_err(|_elapsed| StoreError::silent(self.location(), self.patience))??;
        if !self.server.pooled {
            self.take_time(&mut connection).await?;
        }
        Ok(connection)
    }

    /// What a role's time-out cuts off could not be looked at; nor could what takes as long as it is compiled. tenure's
    /// other sessions send such settings at connection, where they would hide the role's.
    async fn take_time(&self, connection: &mut PgConnection) -> Result<(), StoreError> {
        let location = self.location();
        let millis = self.patience.as_millis().clamp(1, i32::MAX as u128);
        for attempt in 1.. {
            // The first is under the role's time-out itself.
            let set = format!(
                "SET statement_timeout = {millis}; SET jit = off; \
                 SELECT set_config(name, '0', false) FROM (VALUES ('idle_session_timeout')) AS later (name) \
                 WHERE current_setting(name, true) IS NOT NULL"
            );
            let set = timeout(self.patience, connection.execute(sqlx::raw_sql(AssertSqlSafe(set)))).await;
            match set.map_err(|_elapsed| StoreError::silent(location, self.patience))? {
                Err(error) if attempt < ATTEMPTS && fault::is_timeout(&error) => {}
                Err(error) => return Err(fault::on_use(error, location, &self.server.naming)),
                Ok(_) => break,
            }
        }
        Ok(())
    }

    /// As [`schema::newest`].
    async fn newest_schema(&mut self) -> Result<Option<(i32, i32)>, StoreError> {
        let mut connection = self.take_connection().await?;
        let newest = timeout(self.patience, schema::newest(&mut connection, &self.server.naming)).await;
        let newest = newest.map_err(|_elapsed| StoreError::silent(self.location(), self.patience))?;
        self.connection = Some(connection);
        newest.map_err(|error| fault::on_use(error, self.location(), &self.server.naming))
    }

    fn location(&self) -> &'a str {
        &self.server.location
    }

    /// The one row that a statement answers.
    async fn row(&mut self, sql: &'static str) -> Result<PgRow, StoreError> {
        let sql = self.server.naming.sql(sql);
        let mut connection = self.take_connection().await?;
        let answer = timeout(self.patience, connection.fetch_one(sqlx::raw_sql(sql))).await;
        let answer = answer.map_err(|_elapsed| StoreError::silent(self.location(), self.patience))?;
        let answer = answer.map_err(|error| fault::on_use(error, self.location(), &self.server.naming));
        if !answer.as_ref().is_err_and(StoreError::is_uncertain) {
            self.connection = Some(connection);
        }
        answer
    }

    fn read<'r, T>(&self, row: &'r PgRow, column: &'static str) -> Result<T, StoreError>
    where
        T: Decode<'r, Postgres> + Type<Postgres>,
    {
        row.try_get(column).map_err(|error| StoreError::Unavailable {
            location: self.location().to_owned(),
            detail: error.to_string(),
        })
    }

    fn end(self) -> impl Future<Output = ()> + Send {
        // The server notices a connection that merely ends, too.
        let goodbye = self.connection.map(sqlx::Connection::close);
        let goodbye = timeout(self.patience, OptionFuture::from(goodbye));
        async move { drop(goodbye.await) }
    }
}
