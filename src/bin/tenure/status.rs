//! `tenure status`: who holds a session.

use std::time::Duration;

use tenure::SessionStatus;

use crate::{
    cli::{Global, StatusArgs},
    database::Database,
    exit::{Failure, NOT_HELD},
    show,
};

pub(crate) async fn status(global: &Global, args: &StatusArgs) -> Result<u8, Failure> {
    let (database, key) = (Database::of(global)?, args.session.key()?);
    let status = match database.looking()? {
        Some(builder) => {
            let supervisor = builder.connect_timeout(global.connect_timeout).start().await?;
            let status = supervisor.inspect(&key).await?;
            supervisor.shutdown(Duration::ZERO).await;
            status
        }
        None => SessionStatus::idle(key),
    };
    if global.json {
        show::print(format_args!("{}\n", show::session_json(&status)))?;
    } else {
        show::print(format_args!("{}\n", show::lines(&status, &database.location()?)))?;
    }
    Ok(if status.is_held() { 0 } else { NOT_HELD })
}
