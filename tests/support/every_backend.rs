//! The same promise on every backend that is built in.

/// Makes one test of each promise and backend. A promise is an `async fn(impl Backend)`.
macro_rules! on_every_backend {
    ($($promise:ident)*) => {
        #[cfg(feature = "postgres")]
        mod on_postgres {
            use crate::support::{postgres::Server, postgres_backend::PostgresBackend};

            $(
                #[tokio::test]
                async fn $promise() {
                    super::$promise(PostgresBackend::start(Server::shared(), "").await).await;
                }
            )*
        }

        #[cfg(feature = "sqlite")]
        mod on_sqlite {
            use crate::support::sqlite_backend::SqliteBackend;

            $(
                #[tokio::test]
                async fn $promise() {
                    super::$promise(SqliteBackend::start().await).await;
                }
            )*
        }
    };
}
