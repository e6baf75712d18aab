//! `tenure status`: who holds a session.

use std::time::Duration;

use tenure::SessionStatus;

use crate::{
    cli::{Global, StatusArgs},
    database::Database,
    exit::{Failure, NOT_HELD},
    show, why,
};

pub(crate) async fn status(global: &Global, args: &StatusArgs) -> Result<u8, Failure> {
    let (database, key) = (Database::of(global)?, args.session.key()?);
    let (status, last) = match database.looking()? {
        Some(builder) => {
            let supervisor = builder.connect_timeout(global.connect_timeout).start().await?;
            let status = supervisor.inspect(&key).await?;
            let wants_last = status.holder.is_none() && !global.json;
            let last = match wants_last {
                // The answer is complete without it.
                true => supervisor.history(&key).limit(1).await.ok().as_ref().and_then(why::last_line),
                false => None,
            };
            supervisor.shutdown(Duration::ZERO).await;
            (status, last)
        }
        None => (SessionStatus::idle(key), None),
    };
    if global.json {
        show::print(format_args!("{}\n", show::session_json(&status)))?;
    } else {
        let last = last.map(|last| format!("{last}\n")).unwrap_or_default();
        show::print(format_args!("{}\n{last}", show::lines(&status, &database.location()?)))?;
    }
    Ok(if status.is_held() { 0 } else { NOT_HELD })
}
