//! Inspect and list: the verbs that only read.

use sqlx::postgres::PgRow;

use super::{
    connection::Connection,
    row,
    statement::{Statement, Value},
};
use crate::{
    session::{Holder, SessionKey},
    store::{Page, StoreError},
};

pub(super) const INSPECT: &str = concat!(include_str!("server.sql"), include_str!("inspect.sql"));
const LIST: &str = concat!(include_str!("server.sql"), include_str!("list.sql"));

pub(super) async fn inspect(
    connection: &mut Connection,
    keys: &[&SessionKey],
) -> Result<Vec<Option<Holder>>, StoreError> {
    let mut found = Vec::with_capacity(keys.len());
    let mut open = vec![keys];
    while let Some(keys) = open.pop() {
        match read_rows(connection, keys).await {
            // No run can hold a session with such a key. The other keys are read without it.
            Err(StoreError::Unstorable { .. }) if keys.len() == 1 => found.push(None),
            Err(StoreError::Unstorable { .. }) => {
                let (first, second) = keys.split_at(keys.len() / 2);
                open.extend([second, first]);
            }
            rows => {
                for row in rows? {
                    found.push(row.map(|row| row::holder(connection, &row)).transpose()?);
                }
            }
        }
    }
    Ok(found)
}

/// The rows of these sessions, in the order of the keys.
pub(super) async fn read_rows(
    connection: &mut Connection,
    keys: &[&SessionKey],
) -> Result<Vec<Option<PgRow>>, StoreError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let accounts = keys.iter().map(|key| key.account()).collect();
    let sessions = keys.iter().map(|key| key.session()).collect();
    let statement = Statement::new(INSPECT, vec![Value::Texts(accounts), Value::Texts(sessions)]);
    let mut found: Vec<_> = keys.iter().map(|_| None).collect();
    for row in connection.fetch(&statement).await? {
        connection.heed(&row)?;
        if row::is_there(connection, &row)? {
            let item = row::item(connection, &row, keys.len())?;
            found[item] = Some(row);
        }
    }
    Ok(found)
}

pub(super) async fn list(
    connection: &mut Connection,
    page: &Page,
) -> Result<Vec<(SessionKey, Holder)>, StoreError> {
    // No part of a key is empty, so the empty text comes before all of them.
    let first = (page.account.as_deref().unwrap_or_default(), "");
    let after = page.after.as_ref().map_or(first, |key| first.max((key.account(), key.session())));
    let statement = Statement::new(
        LIST,
        vec![
            Value::Text(Some(after.0)),
            Value::Text(Some(after.1)),
            Value::Text(page.account.as_deref()),
            Value::Flag(page.expired),
            Value::Number(page.limit.into()),
        ],
    )
    .planned_anew();
    let mut found = Vec::new();
    let rows = match connection.fetch(&statement).await {
        // No run can hold a session of such an account.
        Err(StoreError::Unstorable { .. }) => return Ok(found),
        answered => answered?,
    };
    for row in &rows {
        connection.heed(row)?;
        if row::is_there(connection, row)? {
            found.push((row::key(connection, row)?, row::holder(connection, row)?));
        }
    }
    Ok(found)
}
