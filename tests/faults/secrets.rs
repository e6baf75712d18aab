//! What is logged and said when things fail: never a password.

use std::{
    error::Error,
    fmt::Debug,
    io::{self, Write},
    sync::Mutex,
};

use tenure::SessionKey;
use tracing_subscriber::fmt::MakeWriter;

use super::{
    support::{
        postgres::Server,
        process::{Commands, Worker, say},
        proxy::Proxy,
    },
    *,
};

pub(super) const ROLE: &str = "secrets";
const PASSWORD: &str = "correct-horse-battery";
const WRONG: &str = "wrong-pony-accumulator";

/// In a process of its own, because only that can hear every thread.
#[tokio::test]
async fn no_password_is_ever_logged_or_said() {
    let server = Server::shared();
    let database = server.database().await;
    server.role_with_password("keyed", PASSWORD).await;
    tenure::migrate(&database.superuser_url()).await.unwrap();
    let grants = "GRANT USAGE ON SCHEMA tenure TO keyed; GRANT ALL ON ALL TABLES IN SCHEMA tenure TO keyed; \
                  GRANT ALL ON ALL SEQUENCES IN SCHEMA tenure TO keyed";
    sqlx::raw_sql(grants).execute(&mut database.admin().await).await.unwrap();

    let proxy = Proxy::start(server.address());
    let address = server.address().to_string();
    let proxied = database.url_as("keyed", PASSWORD).replace(&address, &proxy.address().to_string());
    let wrong = database.url_as("keyed", WRONG);
    let nowhere = format!("postgres://keyed:{PASSWORD}@{}/none", support::free_address());
    let mut program = Worker::spawn(ROLE, &[("URL", &proxied), ("WRONG", &wrong), ("NOWHERE", &nowhere)]);
    program.expect("holding").await;
    proxy.cut();
    program.expect("cut off").await;
    proxy.swallow();
    program.send("silence");
    let lines: usize = program.expect("lines ").await.parse().unwrap();
    assert!(lines > 100, "nothing was heard: {lines} lines");
    let leaks = program.expect("leaks ").await;
    assert_eq!(leaks, "[]");
}

pub(super) fn work(mut commands: Commands) {
    let heard = Heard::default();
    tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(heard.clone()).init();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(fail_in_every_way(&heard, &mut commands));
    let heard = heard.0.lock().expect("no writer panics");
    let text = String::from_utf8_lossy(&heard);
    let leaks: Vec<_> = text.lines().filter(|line| line.contains(PASSWORD) || line.contains(WRONG)).collect();
    say(format_args!("lines {}", text.lines().count()));
    say(format_args!("leaks {leaks:?}"));
}

async fn fail_in_every_way(heard: &Heard, commands: &mut Commands) {
    let env = |name| std::env::var(name).expect("the test sets it");
    let url = env("URL");
    let on_several = env("WRONG").replace('@', "@127.0.0.1:1,");
    let nowhere_else = env("NOWHERE").replace('@', "@127.0.0.1:1,");
    for bad in [
        env("WRONG"),
        env("NOWHERE"),
        url.replace(":", "::"),
        url.replace("postgres:", "mysql:"),
        on_several,
        nowhere_else,
    ] {
        let builder = LeaseSupervisor::builder(bad.clone()).ttl(Duration::from_secs(1));
        heard.shown(&builder);
        heard.error(builder.start().await.expect_err("it is bad"));
        heard.error(tenure::migrate(&bad).await.expect_err("it is bad"));
    }
    // Long enough for a machine at full load, whose every step is logged besides.
    let supervisor = supervisor(&url, Duration::from_secs(6)).await;
    heard.shown(&supervisor);
    heard.shown(&supervisor.location());
    let session = SessionKey::new("acct", "chat").expect("short");
    let run = supervisor.acquire(&session).await.expect("it is free");
    heard.shown(&run);
    say("holding");
    heard.shown(&run.cancelled().await);
    heard.error(supervisor.acquire(&session).await.expect_err("the database is away"));
    heard.error(supervisor.inspect(&session).await.expect_err("the database is away"));
    say("cut off");
    commands.next().await;
    heard.error(supervisor.acquire(&session).await.expect_err("the database is silent"));
    heard.error(supervisor.inspect(&session).await.expect_err("the database is silent"));
    drop(run);
    heard.shown(&supervisor.shutdown(supervisor.timing().stop_grace()).await);
}

/// All that was logged, and all that was said in errors.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<u8>>>);

impl Heard {
    fn error(&self, error: impl Error) {
        writeln!(&mut &*self, "{error}").expect("memory takes it");
        self.shown(&error);
    }

    fn shown(&self, value: &impl Debug) {
        writeln!(&mut &*self, "{value:?} {value:#?}").expect("memory takes it");
    }
}

impl Write for &Heard {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Heard {
    type Writer = &'a Heard;

    fn make_writer(&'a self) -> &'a Heard {
        self
    }
}
