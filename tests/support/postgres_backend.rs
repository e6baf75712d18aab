//! PostgreSQL for the conformance suite.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, PgConnection, Row};
use tenure::{
    SessionKey,
    store::{LeaseStore, PostgresStore, SharedStore},
};

use super::{
    backend::{Backend, Reachable},
    postgres::{Database, Server},
};

/// One database, migrated.
pub struct PostgresBackend {
    database: Database,
    store: SharedStore,
    parameters: String,
}

impl PostgresBackend {
    /// A database of its own on `server`; `parameters` go to the end of the store's URL.
    pub async fn start(server: &Server, parameters: &str) -> Self {
        Self::on(server.database().await, parameters).await
    }

    /// The same with a database that has something special.
    pub async fn on(database: Database, parameters: &str) -> Self {
        let store = PostgresStore::new(&format!("{}{parameters}", database.url())).expect("the URL is good");
        store.migrate().await.expect("its owner may migrate");
        Self { database, store: Arc::new(store), parameters: parameters.to_owned() }
    }

    /// The database.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// A superuser's connection.
    pub async fn admin(&self) -> PgConnection {
        self.database.admin().await
    }

    /// Statements of a superuser, written for the schema `tenure`.
    pub async fn execute(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(self.for_schema(sql)))
            .execute(&mut self.admin().await)
            .await
            .expect("the superuser may");
    }

    /// The same for the schema that the parameters name.
    fn for_schema(&self, sql: &str) -> String {
        let named = self.parameters.split(['?', '&']).find_map(|parameter| parameter.strip_prefix("schema="));
        sql.replace("tenure.", &format!("\"{}\".", named.unwrap_or("tenure")))
    }

    async fn write(&self, sql: &'static str, key: &SessionKey, first: &str, second: &str) {
        let query = sqlx::query(AssertSqlSafe(self.for_schema(sql)));
        let query = query.bind(key.account()).bind(key.session()).bind(first).bind(second);
        let written = query.execute(&mut self.admin().await).await.expect("the superuser may write");
        assert_eq!(written.rows_affected(), 1, "{key} has no row");
    }
}

impl Reachable for PostgresBackend {
    fn url(&self) -> String {
        format!("{}{}", self.database.url(), self.parameters)
    }
}

impl Backend for PostgresBackend {
    fn store(&self) -> SharedStore {
        self.store.clone()
    }

    async fn image(&self, key: &SessionKey) -> Option<String> {
        let sql = "SELECT concat_ws('|', ctid, xmin, xmax, l::text) FROM tenure.session_lease l \
                   WHERE account_id = $1 AND session_id = $2";
        let query = sqlx::query(AssertSqlSafe(self.for_schema(sql))).bind(key.account()).bind(key.session());
        let row = query.fetch_optional(&mut self.admin().await).await.expect("the superuser may read");
        row.map(|row| row.get(0))
    }

    async fn set_remaining(&self, key: &SessionKey, millis: i64) {
        let sql = "UPDATE tenure.session_lease \
                   SET expires_at = clock_timestamp() + ($3 || $4)::interval \
                   WHERE account_id = $1 AND session_id = $2";
        self.write(sql, key, &millis.to_string(), "milliseconds").await;
    }

    async fn request_stop(&self, key: &SessionKey, by: &str, reason: &str) {
        let sql = "UPDATE tenure.session_lease \
                   SET stop_requested_at = clock_timestamp(), stop_by = $3, stop_reason = $4 \
                   WHERE account_id = $1 AND session_id = $2";
        self.write(sql, key, by, reason).await;
    }

    async fn step_clock_back(&self, seconds: u32) -> i64 {
        self.execute(&format!(
            "UPDATE tenure.session_lease SET \
                fence = fence + {seconds} * 1000000::bigint, \
                acquired_at = acquired_at + {seconds} * interval '1 second', \
                expires_at = expires_at + {seconds} * interval '1 second'; \
             SELECT setval('tenure.fence_floor', last_value + {seconds} * 1000000::bigint) \
                FROM tenure.fence_floor"
        ))
        .await;
        i64::from(seconds) * 1_000_000
    }
}
