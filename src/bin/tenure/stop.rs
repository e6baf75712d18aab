//! `tenure stop`: asks the run that holds a session to stop.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::{Asked, Label, LeaseSupervisor, SessionStatus, StopAnswer};
use tokio::time::timeout;

use crate::{
    cli::{Global, StopArgs},
    database::Database,
    exit::{BUSY, Failure, NOT_HELD},
    show,
};

pub(crate) async fn stop(global: &Global, args: &StopArgs) -> Result<u8, Failure> {
    let (database, key) = (Database::of(global)?, args.session.key()?);
    let Some(builder) = database.asking()? else {
        return nobody(global, args, &SessionStatus::idle(key), &database);
    };
    let supervisor = builder.connect_timeout(global.connect_timeout).start().await?;
    let mut request = supervisor.stop(&key).by(Label::user_at_host().as_str());
    if let Some(run_id) = args.run {
        request = request.run(run_id);
    }
    if let Some(reason) = &args.reason {
        request = request.reason(reason);
    }
    let code = match request.await? {
        StopAnswer::Asked(asked) => wait(global, args, &asked, &supervisor).await,
        StopAnswer::Idle => nobody(global, args, &supervisor.inspect(&key).await?, &database),
    };
    supervisor.shutdown(Duration::ZERO).await;
    code
}

/// Answers that there is nothing to stop. If a run was named, another one may hold the session.
fn nobody(
    global: &Global,
    args: &StopArgs,
    found: &SessionStatus,
    database: &Database,
) -> Result<u8, Failure> {
    if global.json {
        show::print(format_args!("{}\n", show::session_json(found)))?;
    } else if let Some(run_id) = args.run.filter(|_| found.is_held()) {
        show::print(format_args!("run {run_id} does not hold {}; nothing to stop\n", found.key))?;
    } else {
        show::print(format_args!("{}; nothing to stop\n", show::lines(found, &database.location()?)))?;
    }
    Ok(NOT_HELD)
}

async fn wait(
    global: &Global,
    args: &StopArgs,
    asked: &Asked,
    supervisor: &LeaseSupervisor,
) -> Result<u8, Failure> {
    let (key, run_id) = (asked.key(), asked.holder().run_id);
    let Some(patience) = args.wait else {
        let status = SessionStatus::held(key.clone(), asked.holder().clone());
        tell(global, asked, show::session_json(&status), None)?;
        return Ok(0);
    };
    let has_ended = match timeout(patience, asked.stopped()).await {
        Ok(stopped) => stopped.map(|()| true)?,
        Err(_elapsed) => false,
    };
    let found = match supervisor.inspect(key).await {
        Ok(found) => found,
        Err(_unknown) if has_ended => {
            tell(global, asked, show::unknown_json(key), Some(true))?;
            return Ok(0);
        }
        Err(error) => return Err(error.into()),
    };
    // The run may have ended at the very end of the wait.
    let holder = found.holder.as_ref().filter(|holder| holder.run_id == run_id && found.is_held());
    tell(global, asked, show::session_json(&found), Some(holder.is_none()))?;
    let Some(holder) = holder else { return Ok(0) };
    if !global.quiet {
        let state = show::state(found.state);
        show::complain(format_args!("{key} is {state} after {patience:?}: {}", show::held_by(holder)));
    }
    Ok(BUSY)
}

/// Prints the answer, with the session as it is now. Another run may hold it, if the run that was asked has ended.
fn tell(global: &Global, asked: &Asked, mut session: Value, ended: Option<bool>) -> Result<(), Failure> {
    let (key, holder) = (asked.key(), asked.holder());
    if global.json {
        session["first"] = json!(asked.is_first());
        session["ended"] = json!(ended);
        return show::print(format_args!("{session}\n"));
    }
    let by = holder.stop.as_ref().and_then(|stop| stop.by.as_deref());
    match (ended, asked.is_first()) {
        (Some(true), _) => show::print(format_args!("{key}: the run of {} has ended\n", holder.label)),
        (_, true) => {
            show::print(format_args!("{key}: asked {} to stop (run {})\n", holder.label, holder.run_id))
        }
        (_, false) => show::print(format_args!(
            "{key}: {} had been asked to stop before{} (run {})\n",
            holder.label,
            by.map(|by| format!(", by {}", tenure::text::printable(by))).unwrap_or_default(),
            holder.run_id
        )),
    }
}
