//! `tenure break`: ends the lease of a run that is known to be dead.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::{BreakAnswer, BrokenLease, Label, SessionStatus};

use crate::{
    cli::{BreakArgs, Global},
    database::Database,
    exit::{BUSY, Failure, NOT_HELD},
    show,
};

pub(crate) async fn break_lease(global: &Global, args: &BreakArgs) -> Result<u8, Failure> {
    let (database, key) = (Database::of(global)?, args.session.key()?);
    let Some(builder) = database.asking()? else {
        return not_held(global, args, &SessionStatus::idle(key), &database);
    };
    let supervisor = builder.connect_timeout(global.connect_timeout).start().await?;
    let mut request = supervisor.break_lease(&key, args.run).by(Label::user_at_host().as_str());
    if let Some(reason) = &args.reason {
        request = request.reason(reason);
    }
    if let Some(interval) = args.renew_interval {
        request = request.renew_interval(interval);
    }
    if !global.quiet && !global.json {
        show::complain(format_args!("watching whether run {} still renews its lease", args.run));
    }
    let code = match request.await? {
        BreakAnswer::Broken(broken) => tell(global, &broken, &supervisor.inspect(&key).await?),
        BreakAnswer::Renewing(holder) => {
            let status = SessionStatus::held(key.clone(), *holder);
            print_json(global, &status, false, Value::Null)?;
            let who = status.holder.as_ref().map(|holder| holder.label.to_string()).unwrap_or_default();
            Err(Failure::new(
                BUSY,
                format!(
                    "{key}: the run of {who} is alive: it has just renewed; ask it to end with `tenure stop`, and stop its \
                     machine or its process if it does not"
                ),
            ))
        }
        BreakAnswer::NotHeld(status) => not_held(global, args, &status, &database),
        other => unreachable!("this release knows every answer: {other:?}"),
    };
    supervisor.shutdown(Duration::ZERO).await;
    code
}

/// The session as it is now, and whether its lease was broken.
fn print_json(
    global: &Global,
    status: &SessionStatus,
    broken: bool,
    may_act_until: Value,
) -> Result<(), Failure> {
    if !global.json {
        return Ok(());
    }
    let mut session = show::session_json(status);
    session["broken"] = json!(broken);
    session["may_act_until"] = may_act_until;
    show::print(format_args!("{session}\n"))
}

fn tell(global: &Global, broken: &BrokenLease, now: &SessionStatus) -> Result<u8, Failure> {
    let BrokenLease { key, holder, may_act_until, .. } = broken;
    let until = may_act_until.map(show::rfc3339);
    print_json(global, now, true, json!(until))?;
    if global.json {
        return Ok(0);
    }
    show::print(format_args!(
        "{key}: the lease of {} has ended (run {}, fence {}); the next run gets a greater fence\n",
        holder.label, holder.run_id, holder.fence
    ))?;
    if let Some(until) = until {
        show::print(format_args!(
            "if that run is alive after all, and only cut off from the database, it may work until {until}, beside the next \
             run; only a resource that checks fences refuses it\n"
        ))?;
    }
    Ok(0)
}

/// Answers that there is nothing to break. Another run may hold the session.
fn not_held(
    global: &Global,
    args: &BreakArgs,
    found: &SessionStatus,
    database: &Database,
) -> Result<u8, Failure> {
    print_json(global, found, false, Value::Null)?;
    if global.json {
        return Ok(NOT_HELD);
    }
    if found.is_held() {
        show::print(format_args!("run {} does not hold {}; nothing to break\n", args.run, found.key))?;
    } else {
        show::print(format_args!("{}; nothing to break\n", show::lines(found, &database.location()?)))?;
    }
    Ok(NOT_HELD)
}
