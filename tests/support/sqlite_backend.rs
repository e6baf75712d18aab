//! SQLite for the conformance suite.

use std::{sync::Arc, time::Duration};

use sqlx::{AssertSqlSafe, Connection, SqliteConnection};
use tempfile::TempDir;
use tenure::{
    SessionKey,
    store::{LeaseStore, SharedStore, SqliteStore},
};

use super::backend::{Backend, Reachable};

/// One file, migrated, in a directory of its own.
pub struct SqliteBackend {
    directory: TempDir,
    store: SharedStore,
}

impl SqliteBackend {
    /// A file of its own.
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().expect("there is room for a directory");
        let url = format!("sqlite://{}/tenure.db", directory.path().display());
        let store = SqliteStore::new(&url).expect("the URL is good");
        store.migrate().await.expect("the directory may be written");
        Self { directory, store: Arc::new(store) }
    }

    /// A connection that knows nothing of leases.
    pub async fn raw(&self) -> SqliteConnection {
        SqliteConnection::connect(&self.url()).await.expect("the file is there")
    }

    /// Statements on a connection of their own.
    pub async fn execute(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut self.raw().await)
            .await
            .expect("the statement is good");
    }

    async fn write(&self, sql: &'static str, key: &SessionKey, first: &str, second: &str) {
        let query = sqlx::query(sql).bind(key.account()).bind(key.session()).bind(first).bind(second);
        let written = query.execute(&mut self.raw().await).await.expect("the statement is good");
        assert_eq!(written.rows_affected(), 1, "{key} has no row");
    }
}

impl Reachable for SqliteBackend {
    fn url(&self) -> String {
        format!("sqlite://{}/tenure.db", self.directory.path().display())
    }
}

impl Backend for SqliteBackend {
    fn store(&self) -> SharedStore {
        self.store.clone()
    }

    async fn image(&self, key: &SessionKey) -> Option<String> {
        let sql =
            "SELECT concat_ws('|', run_id, fence, node, holder, phase, stage, acquired_at, expires_at, \
                                    stop_requested_at, stop_by, stop_reason)
                   FROM tenure_session_lease WHERE account_id = ?1 AND session_id = ?2";
        let query = sqlx::query_scalar(sql).bind(key.account()).bind(key.session());
        let row: Option<String> =
            query.fetch_optional(&mut self.raw().await).await.expect("the row can be read");
        // The log of the file tells of a write that left the row as it was. It is not opened, only asked for its
        // length and time: that takes no lock away.
        let log = self.directory.path().join("tenure.db-wal").metadata().ok();
        let written = log.map(|log| (log.len(), log.modified().expect("the platform knows")));
        row.map(|row| format!("{row} {written:?}"))
    }

    async fn set_remaining(&self, key: &SessionKey, millis: i64) {
        let sql = "UPDATE tenure_session_lease
                   SET expires_at = CAST(round(unixepoch('subsec') * 1000) AS INTEGER) + CAST(?3 AS INTEGER)
                   WHERE account_id = ?1 AND session_id = ?2 AND ?4 = ''";
        self.write(sql, key, &millis.to_string(), "").await;
    }

    async fn request_stop(&self, key: &SessionKey, by: &str, reason: &str) {
        let sql = "UPDATE tenure_session_lease
                   SET stop_requested_at = CAST(round(unixepoch('subsec') * 1000) AS INTEGER),
                       stop_by = ?3, stop_reason = ?4
                   WHERE account_id = ?1 AND session_id = ?2";
        self.write(sql, key, by, reason).await;
    }

    async fn step_clock_back(&self, seconds: u32) -> i64 {
        let millis = Duration::from_secs(seconds.into()).as_millis();
        self.execute(&format!(
            "UPDATE tenure_session_lease SET
                fence = fence + {millis} * 1000,
                acquired_at = acquired_at + {millis},
                expires_at = expires_at + {millis};
             UPDATE tenure_fence_floor SET floor = floor + {millis} * 1000"
        ))
        .await;
        i64::from(seconds) * 1_000_000
    }
}
