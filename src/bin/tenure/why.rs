//! `tenure why`: why a session is as it is, and what its last runs have come to.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::{
    Ending, History, PastRun, QueryError, SessionState, SessionStatus, StoreError, text::printable,
};

use crate::{
    cli::{Global, WhyArgs},
    database::Database,
    exit::Failure,
    show,
};

pub(crate) async fn why(global: &Global, args: &WhyArgs) -> Result<u8, Failure> {
    let (database, key) = (Database::of(global)?, args.session.key()?);
    let (status, history) = match database.looking()? {
        Some(builder) => {
            let supervisor = builder.connect_timeout(global.connect_timeout).start().await?;
            let status = supervisor.inspect(&key).await?;
            let history = match supervisor.history(&key).limit(args.limit).await {
                Ok(history) => Ok(history),
                // The present state can be told all the same.
                Err(QueryError::Store(error @ StoreError::PermissionDenied { .. })) => Err(error),
                Err(error) => return Err(error.into()),
            };
            supervisor.shutdown(Duration::ZERO).await;
            (status, history.map(Some))
        }
        None => (SessionStatus::idle(key), Ok(None)),
    };
    if let Err(error) = &history
        && !global.quiet
    {
        show::complain(error);
    }
    let history = history.ok().flatten();
    if global.json {
        show::print(format_args!("{}\n", to_json(&status, history.as_ref())))?;
    } else {
        let location = database.location()?;
        show::print(format_args!("{}\n", to_lines(&status, history.as_ref(), &location)))?;
    }
    Ok(0)
}

/// The session, with its history beside it. `history` is null where none can be read.
fn to_json(status: &SessionStatus, history: Option<&History>) -> Value {
    let mut json = show::session_json(status);
    let kept = history.filter(|history| history.is_kept);
    json["history"] = kept.map_or(Value::Null, |history| history.runs.iter().map(run_json).collect());
    json
}

fn run_json(run: &PastRun) -> Value {
    let (how, reason, by, why) = match &run.ending {
        Ending::Released { why, .. } => ("released", why.as_ref().map(show::reason_word), None, None),
        Ending::TakenOver => ("taken_over", None, None, None),
        Ending::Broken { by, reason, .. } => ("broken", None, by.as_deref(), reason.as_deref()),
        Ending::Swept => ("swept", None, None, None),
        Ending::Deleted { by, .. } => ("deleted", None, by.as_deref(), None),
        Ending::Changed { by, .. } => ("changed", None, by.as_deref(), None),
        Ending::Other { word, .. } => (word.as_str(), None, None, None),
        _ => ("other", None, None, None),
    };
    let (by, why) = match &run.ending {
        Ending::Released { why: Some(reason), .. } => show::by_and_why(reason),
        _ => (by.map(str::to_owned), why.map(str::to_owned)),
    };
    json!({
        "run_id": run.run_id.to_string(),
        "fence": run.fence.as_i64(),
        "holder": run.label.as_str(),
        "phase": run.phase.as_str(),
        "acquired_at": show::rfc3339(run.since),
        "ended_at": show::rfc3339(run.until),
        "how": how,
        "reason": reason,
        "by": by,
        "why": why,
        "stop_requested": run.stop.as_ref().map(show::stop_json),
        "waited_ms": run.waited.map(show::millis),
    })
}

fn to_lines(status: &SessionStatus, history: Option<&History>, location: &str) -> String {
    let last = history.and_then(|history| history.runs.first());
    let mut lines = vec![sentence(status, last, location)];
    if let Some(holder) = &status.holder {
        let phase = match holder.phase.as_str() {
            "" => String::new(),
            _ => format!(", {}", holder.phase),
        };
        lines.push(format!("  run {}, fence {}{phase}", holder.run_id, holder.fence));
    }
    match history {
        None => {}
        Some(history) if !history.is_kept => lines.push(
            "this database keeps no history of runs; `tenure migrate --with-history` turns it on".to_owned(),
        ),
        Some(history) if history.runs.is_empty() => lines.push("no earlier run of it is known".to_owned()),
        Some(history) => {
            lines.push("the runs before, newest first:".to_owned());
            lines.extend(history.runs.iter().map(past));
        }
    }
    lines.join("\n")
}

/// Why the session is as it is, in one sentence.
fn sentence(status: &SessionStatus, last: Option<&PastRun>, location: &str) -> String {
    let key = &status.key;
    let as_of = status.standby.as_ref().map(|by| format!(" ({})", show::standby(by))).unwrap_or_default();
    let Some(holder) = &status.holder else {
        let why = match last {
            Some(run) => format!("the run of {} {}", run.label, ended(run)),
            None => format!("nobody holds it (in {location})"),
        };
        return format!("{key} is idle{as_of}: {why}");
    };
    let (who, since) = (&holder.label, show::rfc3339(holder.since));
    let left = show::short(holder.expires_in);
    let asked = holder.stop.as_ref().map_or_else(
        || "nobody has asked it to stop".to_owned(),
        |stop| {
            let request = show::request(stop.by.as_deref(), stop.reason.as_deref());
            format!("it was asked to stop at {}{request}", show::rfc3339(stop.at))
        },
    );
    match status.state {
        SessionState::Expired => format!(
            "{key} has expired{as_of}: {who} had held it since {since}, and has neither renewed nor released it; the \
             lease ended at {}, and the next run takes it over",
            show::rfc3339(holder.expires_at)
        ),
        SessionState::Stuck => format!(
            "{key} is stuck{as_of}: {who} has held it since {since}, and its work does not end; {asked}; its lease ends \
             in {left} unless renewed"
        ),
        state => format!(
            "{key} is {}{as_of}: {who} has held it for {}, since {since}; {asked}; its lease ends in {left} unless renewed",
            show::state(state),
            show::held_for(holder)
        ),
    }
}

/// "ended at …: …"
fn ended(run: &PastRun) -> String {
    format!("ended at {}: {}", show::rfc3339(run.until), run.ending)
}

fn past(run: &PastRun) -> String {
    let lasted = show::short(run.until.duration_since(run.since).unwrap_or_default());
    let mut line = format!(
        "  {}  {} for {lasted}: {} (run {}, fence {})",
        show::rfc3339(run.since),
        run.label,
        run.ending,
        run.run_id,
        run.fence
    );
    // A run that was stopped says it itself.
    let is_told =
        matches!(&run.ending, Ending::Released { why: Some(tenure::EndReason::Stopped { .. }), .. });
    if let Some(stop) = run.stop.as_ref().filter(|_| !is_told) {
        line += &format!(", asked to stop{}", show::request(stop.by.as_deref(), stop.reason.as_deref()));
    }
    if !run.phase.as_str().is_empty() {
        line += &format!(", last: {}", printable(run.phase.as_str()));
    }
    if let Some(waited) = run.waited {
        line += &format!(", waited {}", show::short(waited));
    }
    line
}

/// The last line of the history, for `status` of an idle session.
pub(crate) fn last_line(history: &History) -> Option<String> {
    let run = history.runs.first()?;
    Some(format!("  last by  {}, {}", run.label, ended(run)))
}
