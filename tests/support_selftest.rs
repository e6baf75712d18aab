//! The harness does what it says: a fault that does nothing would let every test of it pass.

mod support;

#[cfg(feature = "postgres")]
mod postgres {
    use std::time::Duration;

    use sqlx::{Connection, PgConnection};
    use tokio::time::timeout;

    use super::support::{postgres::Server, process_table};

    /// Far longer than any answer of a healthy server takes.
    const SILENCE: Duration = Duration::from_millis(300);

    async fn one(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
        sqlx::query_scalar("SELECT 1").fetch_one(connection).await
    }

    #[tokio::test]
    async fn databases_are_apart_and_belong_to_an_ordinary_role() {
        let (a, b) = (Server::shared().database().await, Server::shared().database().await);
        let mut in_a = PgConnection::connect(&a.url()).await.unwrap();
        sqlx::query("CREATE TABLE t (id int)").execute(&mut in_a).await.unwrap();
        let mut in_b = PgConnection::connect(&b.url()).await.unwrap();
        sqlx::query("SELECT * FROM t").execute(&mut in_b).await.unwrap_err();
        let superuser: String = sqlx::query_scalar("SHOW is_superuser").fetch_one(&mut in_b).await.unwrap();
        assert_eq!(superuser, "off");
    }

    #[tokio::test]
    async fn a_role_with_a_password_must_show_it() {
        let server = Server::shared();
        let database = server.database().await;
        server.role_with_password("keyed", "right").await;
        PgConnection::connect(&database.url_as("keyed", "right")).await.unwrap();
        PgConnection::connect(&database.url_as("keyed", "wrong")).await.unwrap_err();
    }

    #[tokio::test]
    async fn terminated_sessions_end_and_others_stay() {
        let (a, b) = (Server::shared().database().await, Server::shared().database().await);
        let mut ended = PgConnection::connect(&a.url()).await.unwrap();
        let mut stays = PgConnection::connect(&b.url()).await.unwrap();
        assert_eq!(a.terminate_backends().await, 1);
        one(&mut ended).await.unwrap_err();
        one(&mut stays).await.unwrap();
    }

    #[tokio::test]
    async fn faults_of_a_server_do_what_they_say_and_heal() {
        let server = Server::start();
        let database = server.database().await;

        let mut open = PgConnection::connect(&database.url()).await.unwrap();
        let frozen = server.freeze();
        let mut answer = Box::pin(one(&mut open));
        timeout(SILENCE, &mut answer).await.unwrap_err();
        timeout(SILENCE, PgConnection::connect(&database.url())).await.unwrap_err();
        frozen.thaw();
        assert_eq!(answer.await.unwrap(), 1);

        let sqlstate = |error: sqlx::Error| {
            error.as_database_error().and_then(|error| error.code()).map(|code| code.to_string())
        };
        server.make_read_only().await;
        one(&mut open).await.unwrap();
        let refused = sqlx::query("CREATE TABLE t (id int)").execute(&mut open).await.unwrap_err();
        assert_eq!(sqlstate(refused).as_deref(), Some("25006"));
        sqlx::query("CREATE TABLE by_admin (id int)").execute(&mut database.admin().await).await.unwrap();
        server.make_writable().await;
        sqlx::query("CREATE TABLE t (id int)").execute(&mut open).await.unwrap();

        let before = server.pid();
        server.restart_immediate().await;
        assert_ne!(server.pid(), before);
        one(&mut open).await.unwrap_err();
        let mut again = PgConnection::connect(&database.url()).await.unwrap();
        sqlx::query("SELECT * FROM t").execute(&mut again).await.unwrap();

        server.stop().await;
        one(&mut again).await.unwrap_err();
        PgConnection::connect(&database.url()).await.unwrap_err();
        server.start_again().await;
        PgConnection::connect(&database.url()).await.unwrap();
    }

    #[test]
    fn a_dropped_server_leaves_nothing_behind_even_when_frozen() {
        let server = Server::start();
        let (pid, home) = (server.pid(), server.socket_dir().to_owned());
        process_table::freeze_family(pid);
        drop(server);
        assert!(!process_table::is_alive(pid));
        assert!(!home.exists());
    }
}
