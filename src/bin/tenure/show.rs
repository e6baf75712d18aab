//! Formats answers, and writes them: a session as JSON, as lines, or as a row of a table.

use std::{
    fmt::Display,
    io::{self, Write as _},
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};
use tenure::{
    EndReason, Holder, SessionKey, SessionState, SessionStatus, Standby, StopRequest,
    text::{printable, printable_name},
};

use crate::exit::{Failure, UNAVAILABLE};

/// Writes an answer to stdout. If the reader has gone (`tenure list | head`), that is no failure. Any other error is
/// one.
pub(crate) fn print(answer: impl Display) -> Result<(), Failure> {
    print_to_reader(answer).map(|_| ())
}

/// The same as [`print()`], but returns `false` when nobody reads stdout any more.
pub(crate) fn print_to_reader(answer: impl Display) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match write!(stdout, "{answer}").and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(UNAVAILABLE, format!("the answer cannot be written: {error}"))),
    }
}

/// Writes an event to stderr.
pub(crate) fn say(event: Value) {
    let _ = writeln!(io::stderr(), "{event}");
}

/// Writes a line to stderr. An error cannot be reported anywhere, and is ignored.
pub(crate) fn complain(complaint: impl Display) {
    let _ = writeln!(io::stderr(), "tenure: {complaint}");
}

/// The JSON form of a session, the same wherever it appears.
pub(crate) fn session_json(status: &SessionStatus) -> Value {
    let holder = status.holder.as_ref();
    let of = |value: fn(&Holder) -> Value| holder.map_or(Value::Null, value);
    json!({
        "account": status.key.account(),
        "session": status.key.session(),
        "state": state(status.state),
        "run_id": of(|holder| json!(holder.run_id.to_string())),
        "fence": of(|holder| json!(holder.fence.as_i64())),
        "holder": of(|holder| json!(holder.label.as_str())),
        "phase": of(|holder| json!(holder.phase.as_str())),
        "acquired_at": of(|holder| json!(rfc3339(holder.since))),
        "expires_at": of(|holder| json!(rfc3339(holder.expires_at))),
        "expires_in_ms": of(|holder| json!(millis(holder.expires_in))),
        "stop_requested": of(|holder| holder.stop.as_ref().map_or(Value::Null, stop_json)),
        "waiting": 0,
        "standby": status.standby.as_ref().map(standby_json),
    })
}

/// The JSON form of a session while the database does not answer. It never shows a holder that was known before.
pub(crate) fn unknown_json(key: &SessionKey) -> Value {
    let mut json = session_json(&SessionStatus::idle(key.clone()));
    json["state"] = json!("unknown");
    json
}

/// The standby that has answered, in JSON.
fn standby_json(standby: &Standby) -> Value {
    json!({ "server": standby.server, "behind_ms": standby.behind.map(millis) })
}

/// The standby that has answered, for people.
pub(crate) fn standby(standby: &Standby) -> String {
    let server = &standby.server;
    match standby.behind {
        Some(behind) => format!("as it was {} ago, by {server}, a standby", short(behind)),
        None => format!("as it was some time ago, by {server}, which takes no writes"),
    }
}

pub(crate) fn stop_json(stop: &StopRequest) -> Value {
    json!({ "at": rfc3339(stop.at), "by": stop.by, "reason": stop.reason })
}

/// The reason as one word, for scripts.
pub(crate) fn reason_word(reason: &EndReason) -> &'static str {
    match reason {
        EndReason::Completed => "completed",
        EndReason::Failed { .. } => "failed",
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

/// Who asked for the end, and why it came, if that is known.
pub(crate) fn by_and_why(reason: &EndReason) -> (Option<String>, Option<String>) {
    match reason {
        EndReason::Stopped { by, reason, .. } => (by.clone(), reason.clone()),
        EndReason::Failed { reason, .. } => (None, Some(reason.clone())),
        EndReason::TimedOut { limit, .. } => (None, Some(limit.to_string())),
        _ => (None, None),
    }
}

pub(crate) fn state(state: SessionState) -> &'static str {
    match state {
        SessionState::Idle => "idle",
        SessionState::Running => "running",
        SessionState::Stopping => "stopping",
        SessionState::Stuck => "stuck",
        SessionState::Expired => "expired",
        _ => "unknown",
    }
}

/// A session as lines for people. In texts from others, invisible characters are escaped.
pub(crate) fn lines(status: &SessionStatus, location: &str) -> String {
    let as_of = status.standby.as_ref().map(|by| format!("  seen     {}", standby(by)));
    let Some(holder) = &status.holder else {
        let idle = format!("{} is idle (in {location})", status.key);
        return [Some(idle), as_of].into_iter().flatten().collect::<Vec<_>>().join("\n");
    };
    let is_expired = status.state == SessionState::Expired;
    let (since, expires_at) = (rfc3339(holder.since), rfc3339(holder.expires_at));
    let mut lines = if is_expired {
        vec![
            format!("{} has expired: nobody holds it", status.key),
            format!("  last by  {}", holder.label),
            format!("  since    {since}"),
            format!("  expired  {expires_at}; the next run takes it over"),
        ]
    } else {
        vec![
            format!("{} is {}", status.key, state(status.state)),
            format!("  held by  {}", holder.label),
            format!("  since    {since} ({} ago)", held_for(holder)),
            format!("  expires  in {} unless renewed", short(holder.expires_in)),
        ]
    };
    lines.push(format!("  run      {}, fence {}", holder.run_id, holder.fence));
    if !holder.phase.as_str().is_empty() {
        lines.push(format!("  phase    {}", holder.phase));
    }
    if let Some(stop) = &holder.stop {
        let request = request(stop.by.as_deref(), stop.reason.as_deref());
        lines.push(format!("  stop     requested {}{request}", rfc3339(stop.at)));
    }
    lines.extend(as_of);
    lines.join("\n")
}

/// A session as one line, without the session's name.
pub(crate) fn line(status: &SessionStatus) -> String {
    let as_of = status.standby.as_ref().map(|by| format!(", {}", standby(by))).unwrap_or_default();
    let Some(holder) = &status.holder else { return format!("idle{as_of}") };
    let mut line = match status.state {
        SessionState::Expired => format!("expired: last held by {} (run {})", holder.label, holder.run_id),
        other => format!("{}: held by {} (run {})", state(other), holder.label, holder.run_id),
    };
    if !holder.phase.as_str().is_empty() {
        line.push_str(&format!(", {}", holder.phase));
    }
    if let Some(stop) = &holder.stop {
        let request = request(stop.by.as_deref(), stop.reason.as_deref());
        line.push_str(&format!(", asked to stop{request}"));
    }
    line + &as_of
}

/// " by …: …": who asked and why, as far as that is known.
pub(crate) fn request(by: Option<&str>, why: Option<&str>) -> String {
    let by = by.map(|by| format!(" by {}", printable(by))).unwrap_or_default();
    let why = why.map(|why| format!(": {}", printable(why))).unwrap_or_default();
    by + &why
}

pub(crate) fn table(sessions: &[SessionStatus]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["ACCOUNT", "SESSION", "STATE", "HELD BY", "FOR", "EXPIRES IN", "PHASE", "RUN"]);
    for status in sessions {
        let Some(holder) = &status.holder else { continue };
        table.add_row([
            printable_name(status.key.account()).into_owned(),
            printable_name(status.key.session()).into_owned(),
            state(status.state).to_owned(),
            holder.label.to_string(),
            held_for(holder),
            short(holder.expires_in),
            holder.phase.to_string(),
            holder.run_id.to_string(),
        ]);
    }
    table.trim_fmt()
}

/// "held by …, since …, expires in …"
pub(crate) fn held_by(holder: &Holder) -> String {
    let expires = match holder.expires_in.is_zero() {
        true => "has expired, but its work, or a transaction that pins it, has not ended".to_owned(),
        false => format!("expires in {}", short(holder.expires_in)),
    };
    format!("held by {}, since {}, {expires}", holder.label, rfc3339(holder.since))
}

pub(crate) fn rfc3339(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at).to_string()
}

pub(crate) fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

/// A duration, rounded for people: 0.4s, 27.1s, 3m 2s, 1day 2h.
pub(crate) fn short(duration: Duration) -> String {
    if duration < Duration::from_secs(60) {
        return format!("{:.1}s", duration.as_secs_f64());
    }
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
}

/// For how long a session has been held, by the database's clock: that clock's present time is the expiry minus the
/// time left. For an expired lease, this is how long the session was held until the lease expired.
pub(crate) fn held_for(holder: &Holder) -> String {
    let now = holder.expires_at.checked_sub(holder.expires_in).unwrap_or(holder.expires_at);
    short(now.duration_since(holder.since).unwrap_or_default())
}
