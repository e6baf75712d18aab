//! `tenure list`: shows all sessions.

use std::time::Duration;

use serde_json::Value;

use crate::{
    cli::{Global, ListArgs},
    database::Database,
    exit::Failure,
    show,
};

pub(crate) async fn list(global: &Global, args: &ListArgs) -> Result<u8, Failure> {
    let database = Database::of(global)?;
    let sessions = match database.looking()? {
        Some(builder) => {
            let supervisor = builder.connect_timeout(global.connect_timeout).start().await?;
            let mut request = supervisor.list();
            if let Some(account) = &args.account {
                request = request.account(account);
            }
            if args.expired {
                request = request.include_expired();
            }
            let sessions = request.await?;
            let standby = supervisor.standby().await?;
            if let Some(standby) = standby.filter(|_| !global.quiet) {
                show::complain(format_args!("this is {}", show::standby(&standby)));
            }
            supervisor.shutdown(Duration::ZERO).await;
            sessions
        }
        None => Vec::new(),
    };
    if global.json {
        show::print(format_args!("{}\n", Value::from_iter(sessions.iter().map(show::session_json))))?;
    } else if sessions.is_empty() {
        show::print(format_args!("no sessions (in {})\n", database.location()?))?;
    } else {
        show::print(format_args!("{}\n", show::table(&sessions)))?;
    }
    Ok(0)
}
