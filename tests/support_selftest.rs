//! The harness does what it says: a fault that does nothing would let every test of it pass.

mod support;

use support::process;

#[test]
fn worker_entry() {
    process::enter(|role, commands| match role {
        "echo" => workers::echo(commands),
        "parent" => workers::parent(commands),
        "crowd" => workers::crowd(commands),
        #[cfg(feature = "testing")]
        "panics" => workers::panics(),
        #[cfg(feature = "postgres")]
        "server" => workers::server(commands),
        _ => panic!("no role {role}"),
    });
}

mod workers {
    use super::support::{
        background,
        process::{Commands, Worker, say},
    };

    pub(super) fn echo(mut commands: Commands) {
        say("ready");
        loop {
            let line = commands.next_blocking();
            if line == "end" {
                return;
            }
            say(format_args!("echo {line}"));
        }
    }

    /// A thread of it panics in the library, and nobody asks how it ended.
    #[cfg(feature = "testing")]
    pub(super) fn panics() {
        use std::sync::Arc;
        use tenure::{SessionKey, clock::SystemClock, store::MemoryStore};

        let swallowed = std::thread::spawn(|| {
            let key = SessionKey::new("acct", "chat").expect("it is a key");
            MemoryStore::new(Arc::new(SystemClock)).request_stop(&key, "", "nobody asks");
        });
        let _ = swallowed.join();
        say("nobody has noticed");
    }

    /// A test process with two workers of its own, one of them frozen.
    pub(super) fn parent(commands: Commands) {
        let mut workers = [Worker::spawn("crowd", &[]), Worker::spawn("crowd", &[])];
        for worker in &mut workers {
            background::handle().block_on(worker.expect("ready"));
        }
        let [awake, frozen] = &workers;
        frozen.freeze();
        say(format_args!("workers {} {}", awake.pid(), frozen.pid()));
        commands.stay()
    }

    pub(super) fn crowd(commands: Commands) {
        say("ready");
        commands.stay()
    }

    #[cfg(feature = "postgres")]
    pub(super) fn server(commands: Commands) {
        let server = super::support::postgres::Server::start();
        // Frozen, with the guard never dropped: the worst that a killed test can leave.
        std::mem::forget(server.freeze());
        say(format_args!("server {} {}", server.pid(), server.socket_dir().display()));
        commands.stay()
    }
}

mod processes {
    use std::time::Duration;

    use super::support::{
        process::{Worker, was_killed},
        process_table,
    };

    #[tokio::test]
    async fn a_worker_answers_line_by_line_and_ends_by_itself() {
        let mut worker = Worker::spawn("echo", &[]);
        worker.expect("ready").await;
        worker.send("one");
        worker.send("two");
        assert_eq!(worker.expect("echo ").await, "one");
        assert_eq!(worker.expect("echo ").await, "two");
        worker.send("end");
        assert!(worker.exit().await.success());
    }

    #[tokio::test]
    async fn a_frozen_worker_is_silent_until_it_is_thawed() {
        let mut worker = Worker::spawn("echo", &[]);
        worker.expect("ready").await;
        worker.freeze();
        assert_eq!(process_table::process(worker.pid()).unwrap().state, 'T');
        worker.send("late");
        worker.thaw();
        assert_eq!(worker.expect("echo ").await, "late");
    }

    #[tokio::test]
    async fn a_killed_worker_is_gone_at_once_even_when_frozen() {
        let mut worker = Worker::spawn("echo", &[]);
        worker.expect("ready").await;
        worker.freeze();
        worker.kill();
        assert!(!process_table::is_alive(worker.pid()));
        assert!(was_killed(worker.exit().await));
    }

    #[cfg(feature = "testing")]
    #[tokio::test]
    async fn a_panic_in_the_library_ends_a_test_process_though_nobody_looks() {
        use std::os::unix::process::ExitStatusExt as _;

        let status = Worker::spawn("panics", &[]).exit().await;
        assert_eq!(status.signal(), Some(rustix::process::Signal::ABORT.as_raw()), "{status:?}");
    }

    #[tokio::test]
    async fn the_workers_of_a_killed_test_process_end_even_when_frozen() {
        let mut parent = Worker::spawn("parent", &[]);
        let pids = parent.expect("workers ").await;
        parent.kill();
        for pid in pids.split_whitespace() {
            process_table::wait_until_gone(pid.parse().unwrap(), Duration::from_secs(20));
        }
    }
}

mod history {
    use std::{fs::OpenOptions, io::Write as _};

    use uuid::Uuid;

    use super::support::history::{Record, Summary, Violation, Writer, check, read, read_dir};

    fn record(session: &str, run: u128, fence: i64, at_nanos: u64) -> Record {
        let (pid, run_id) = (1, Uuid::from_u128(run));
        Record { pid, session: session.to_owned(), run_id, fence, at_nanos }
    }

    #[test]
    fn runs_that_follow_each_other_are_sound() {
        let records = [
            // In no order, as files of several processes give them.
            record("a", 2, 7, 30),
            record("a", 1, 3, 10),
            record("a", 1, 3, 20),
            record("a", 2, 7, 40),
            // Another session may overlap, and has fences of its own.
            record("b", 3, 1, 15),
        ];
        assert_eq!(check(&records), Ok(Summary { sessions: 2, runs: 3, records: 5 }));
    }

    #[test]
    fn an_overlap_is_found_and_names_both_runs_and_the_instants() {
        let records = [record("a", 1, 1, 10), record("a", 1, 1, 30), record("a", 2, 2, 25)];
        let violations = check(&records).unwrap_err();
        let [Violation::Overlap { earlier, later }] = &violations[..] else { panic!("{violations:?}") };
        assert_eq!((earlier.run_id, later.run_id), (Uuid::from_u128(1), Uuid::from_u128(2)));
        let message = violations[0].to_string();
        for part in [earlier.run_id.to_string(), later.run_id.to_string(), "from 10 to 30".into()] {
            assert!(message.contains(&part), "{message}");
        }
    }

    #[test]
    fn an_overlap_is_found_across_a_run_between() {
        let records = [
            record("a", 1, 1, 10),
            record("a", 1, 1, 100),
            record("a", 2, 2, 20),
            record("a", 2, 2, 30),
            record("a", 3, 3, 40),
        ];
        let overlaps = check(&records).unwrap_err();
        assert_eq!(overlaps.len(), 2, "{overlaps:?}");
    }

    #[test]
    fn the_same_instant_is_an_overlap() {
        let violations = check(&[record("a", 1, 1, 10), record("a", 2, 2, 10)]).unwrap_err();
        assert!(matches!(violations[..], [Violation::Overlap { .. }]), "{violations:?}");
    }

    #[test]
    fn a_fence_that_falls_or_repeats_is_found() {
        for fence in [4, 5] {
            let violations = check(&[record("a", 1, 5, 10), record("a", 2, fence, 20)]).unwrap_err();
            assert!(matches!(violations[..], [Violation::FenceNotRising { .. }]), "{violations:?}");
        }
    }

    #[test]
    fn a_run_keeps_its_fence() {
        let violations = check(&[record("a", 1, 5, 10), record("a", 1, 6, 20)]).unwrap_err();
        assert!(matches!(violations[..], [Violation::Changed { .. }]), "{violations:?}");
    }

    #[test]
    fn files_give_back_what_was_written_and_leave_a_torn_line_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1");
        let records = [record("quo\"te\nand 🦀", 1, -5, 10), record("a", 2, i64::MAX, u64::MAX)];
        let writer = Writer::open(&path).unwrap();
        for record in &records {
            writer.write(record).unwrap();
        }
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"[1,\"a").unwrap();
        assert_eq!(read(&path).unwrap(), records);
        assert_eq!(read_dir(dir.path()).unwrap(), records);
    }

    #[test]
    fn a_broken_line_within_a_file_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[1,\"a\n").unwrap();
        read(file.path()).unwrap_err();
    }

    #[test]
    fn only_a_held_run_is_recorded() {
        assert_eq!(Record::observe("a", Uuid::nil(), 1, || false), None);
        let (one, two) =
            (Record::observe("a", Uuid::nil(), 1, || true), Record::observe("a", Uuid::nil(), 1, || true));
        assert!(one.unwrap().at_nanos <= two.unwrap().at_nanos);
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use std::time::Duration;

    use sqlx::{Connection, PgConnection};
    use tokio::time::timeout;

    use super::support::{postgres::Server, process::Worker, process_table, proxy::Proxy};

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

    #[tokio::test]
    async fn the_server_of_a_killed_test_process_goes_with_its_files() {
        let mut worker = Worker::spawn("server", &[]);
        let said = worker.expect("server ").await;
        let (pid, home) = said.split_once(' ').unwrap();
        assert!(std::fs::exists(home).unwrap());
        worker.kill();
        process_table::wait_until_gone(pid.parse().unwrap(), Duration::from_secs(20));
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while std::fs::exists(home).unwrap() {
            assert!(std::time::Instant::now() < deadline, "{home} is still there");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_proxy_that_swallows_leaves_connections_open_and_silent() {
        let database = Server::shared().database().await;
        let proxy = Proxy::start(database.server().address());
        let mut open = PgConnection::connect(&proxy.url_for(&database)).await.unwrap();
        one(&mut open).await.unwrap();

        proxy.swallow();
        let under_way = proxy.next_request();
        timeout(SILENCE, one(&mut open)).await.unwrap_err();
        assert!(under_way.await.lost_requests > 0);
        timeout(SILENCE, PgConnection::connect(&proxy.url_for(&database))).await.unwrap_err();

        proxy.pass();
        let mut fresh = PgConnection::connect(&proxy.url_for(&database)).await.unwrap();
        one(&mut fresh).await.unwrap();
        timeout(SILENCE, one(&mut open)).await.expect_err("lost bytes are not made up for");
    }

    #[tokio::test]
    async fn a_request_whose_reply_is_swallowed_has_been_committed() {
        let database = Server::shared().database().await;
        let proxy = Proxy::start(database.server().address());
        let mut open = PgConnection::connect(&proxy.url_for(&database)).await.unwrap();
        proxy.swallow_replies();
        let lost = proxy.next_lost_reply();
        let mut statement = Box::pin(sqlx::raw_sql("CREATE TABLE t (id int)").execute(&mut open));
        tokio::select! {
            _ = &mut statement => panic!("the reply came"),
            _ = lost => {}
        }
        sqlx::query("SELECT * FROM t").execute(&mut database.admin().await).await.unwrap();
    }

    #[tokio::test]
    async fn a_cut_closes_and_refuses_until_it_is_healed() {
        let database = Server::shared().database().await;
        let proxy = Proxy::start(database.server().address());
        let mut open = PgConnection::connect(&proxy.url_for(&database)).await.unwrap();
        proxy.cut();
        let refused = tokio::net::TcpStream::connect(proxy.address()).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        // Healing at once must not save a connection that was cut.
        proxy.pass();
        one(&mut open).await.unwrap_err();
        PgConnection::connect(&proxy.url_for(&database)).await.unwrap();
    }

    #[tokio::test]
    async fn a_delay_is_added_in_both_directions() {
        let database = Server::shared().database().await;
        let proxy = Proxy::start(database.server().address());
        let mut open = PgConnection::connect(&proxy.url_for(&database)).await.unwrap();
        proxy.delay(Duration::from_millis(50));
        let before = std::time::Instant::now();
        one(&mut open).await.unwrap();
        assert!(before.elapsed() >= Duration::from_millis(100));
    }
}
