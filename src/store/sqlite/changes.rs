//! Hints without a server. Several times a second the file is asked whether anybody has written to it.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::sleep;

use super::{connection::Connection, failure::Failure, file::DatabaseFile, standing::Standing};
use crate::store::{Bounds, Hint, Listener, StoreError};

/// The time between two looks.
const PERIOD: Duration = Duration::from_millis(200);

pub(super) async fn open(file: DatabaseFile, bounds: Bounds) -> Result<Box<dyn Listener>, StoreError> {
    // It listens for runs, and their file was there.
    let was_elsewhere = file.is_elsewhere();
    if file.there()?.is_none() {
        return Err(file.removed());
    }
    let opened = Connection::open(file.clone(), bounds).await;
    let mut connection = opened.map_err(|failure| failure.in_file(&file))?;
    let seen = version(&mut connection).await?;
    Ok(Box::new(Changes { connection, seen, is_elsewhere: was_elsewhere, is_told: false }))
}

struct Changes {
    connection: Connection,
    /// The file's version when it was looked at last.
    seen: i64,
    /// The path leads to another file now than when the runs were granted.
    is_elsewhere: bool,
    is_told: bool,
}

impl Listener for Changes {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Hint>, StoreError>> {
        Box::pin(async move {
            sleep(PERIOD).await;
            self.is_elsewhere |= !matches!(self.connection.look()?, Standing::Same);
            if self.is_elsewhere && !std::mem::replace(&mut self.is_told, true) {
                return Ok(Some(Hint::Replaced));
            }
            let version = version(&mut self.connection).await?;
            let is_new = std::mem::replace(&mut self.seen, version) != version;
            Ok(is_new.then_some(Hint::Changed))
        })
    }

    fn check(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.connection.say_goodbye().await;
        })
    }
}

/// A number that changes when another connection, of any process, has committed. To read it takes a few bytes of shared
/// memory, and no row.
async fn version(connection: &mut Connection) -> Result<i64, StoreError> {
    let version = sqlx::query_scalar("PRAGMA data_version").fetch_one(&mut connection.sqlite).await;
    connection.answer(version.map_err(Failure::from))
}
