//! Inspect and list: the verbs that only read.

use serde_json::json;
use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};

use super::{batch::batch, failure::Failure, row};
use crate::{
    session::{Holder, SessionKey},
    store::Page,
};

pub(super) const INSPECT: &str = include_str!("inspect.sql");
/// Two statements instead of one with a switch, so that each can seek in the primary key.
const LIST_ALL: &str = include_str!("list_all.sql");
const LIST_ACCOUNT: &str = include_str!("list_account.sql");

pub(super) async fn inspect(
    sqlite: &mut SqliteConnection,
    keys: &[SessionKey],
) -> Result<Vec<Option<Holder>>, Failure> {
    let mut holders = vec![None; keys.len()];
    if keys.is_empty() {
        return Ok(holders);
    }
    let found = sqlx::query(INSPECT)
        .bind(batch(keys.iter().map(|key| json!({ "account": key.account(), "session": key.session() }))))
        .fetch_all(sqlite)
        .await?;
    for found in &found {
        holders[found.try_get::<u32, _>("item")? as usize] = Some(row::holder(found)?);
    }
    Ok(holders)
}

pub(super) async fn list(
    sqlite: &mut SqliteConnection,
    page: &Page,
) -> Result<Vec<(SessionKey, Holder)>, Failure> {
    let after = page.after.as_ref().map_or(("", ""), |key| (key.account(), key.session()));
    let found = match &page.account {
        None => {
            sqlx::query(LIST_ALL)
                .bind(page.expired)
                .bind(page.limit)
                .bind(after.0)
                .bind(after.1)
                .fetch_all(sqlite)
                .await?
        }
        Some(account) if after.0 > account.as_str() => Vec::new(),
        Some(account) => {
            let after = if after.0 == account { after.1 } else { "" };
            sqlx::query(LIST_ACCOUNT)
                .bind(page.expired)
                .bind(page.limit)
                .bind(account)
                .bind(after)
                .fetch_all(sqlite)
                .await?
        }
    };
    found.iter().map(|row| Ok((key(row)?, row::holder(row)?))).collect()
}

fn key(row: &SqliteRow) -> Result<SessionKey, Failure> {
    SessionKey::new(row.try_get::<&str, _>("account_id")?, row.try_get::<&str, _>("session_id")?)
        .map_err(|error| row::unreadable("account_id or session_id", error))
}
