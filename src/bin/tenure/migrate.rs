//! `tenure migrate` and `tenure sweep`: maintenance of the database.

use std::time::Duration;

use serde_json::json;
use tenure::store::{self, KeepHistory};
use tokio::time::timeout;

use crate::{
    cli::{Global, MigrateArgs},
    database::Database,
    exit::{Failure, UNAVAILABLE},
    show,
};

pub(crate) async fn migrate(global: &Global, args: &MigrateArgs) -> Result<u8, Failure> {
    let database = Database::of(global)?;
    let store = store::open(database.url())?;
    let history = match (args.with_history, args.without_history) {
        (true, _) => KeepHistory::Yes,
        (_, true) => KeepHistory::No,
        _ => KeepHistory::AsItIs,
    };
    if args.print {
        show::print(store.schema_with(history))?;
        return Ok(0);
    }
    database.make_directory()?;
    // This bounds the wait for the server. The server's time-outs bound the migration's wait for locks.
    let bound = global.connect_timeout + MIGRATION_BOUND;
    let migrated = timeout(bound, store.migrate_with(history)).await.map_err(|_elapsed| {
        Failure::new(
            UNAVAILABLE,
            format!("the database {} gave no answer within {bound:?}", store.location()),
        )
    })??;
    if global.json {
        show::print(format_args!(
            "{}\n",
            json!({ "database": store.location(), "from": migrated.from, "to": migrated.to })
        ))?;
    } else if migrated.from == migrated.to {
        show::print(format_args!("{} has schema version {} already\n", store.location(), migrated.to))?;
    } else {
        show::print(format_args!("{} has schema version {} now\n", store.location(), migrated.to))?;
    }
    Ok(0)
}

pub(crate) async fn sweep(global: &Global) -> Result<u8, Failure> {
    let database = Database::of(global)?;
    let removed = match database.asking()? {
        Some(builder) => {
            let supervisor = builder.connect_timeout(global.connect_timeout).start().await?;
            let removed = supervisor.sweep().await?;
            supervisor.shutdown(Duration::ZERO).await;
            removed
        }
        None => 0,
    };
    if global.json {
        show::print(format_args!("{}\n", json!({ "removed": removed })))?;
    } else {
        show::print(format_args!("removed {removed} long-expired rows (in {})\n", database.location()?))?;
    }
    Ok(0)
}

/// How long a migration may take. It waits for other migrations, and for transactions that use the table.
const MIGRATION_BOUND: std::time::Duration = std::time::Duration::from_secs(60);
