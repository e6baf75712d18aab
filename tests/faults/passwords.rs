//! Passwords that change, last for minutes, or are wrong.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Mutex,
};

use sqlx::AssertSqlSafe;
use tempfile::TempDir;
use tenure::store::{LeaseStore as _, Login, LoginRequest, PostgresStore, StoreError};

use super::{
    failover::renewed_after,
    support::{
        client::BOUNDS,
        postgres::{Database, Server},
    },
    *,
};

const TTL: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
async fn i9_a_password_that_changes_under_a_supervisor_costs_no_run() {
    let keyed = Keyed::start("changing").await;
    let supervisor = supervisor(&keyed.url(), TTL).await;
    let runs = held_all(&supervisor, 3).await;
    // First the file, then the server: what is in the file is wrong for a moment.
    keyed.write("second");
    keyed.change("second").await;
    keyed.go_on(&supervisor, &runs).await;
    // First the server, and the file not before everybody has been refused.
    keyed.change("third").await;
    keyed.database.terminate_backends().await;
    at_last("refused", async || match keyed.refusals() {
        0 => Err("nobody was".to_owned()),
        _ => Ok(()),
    })
    .await;
    keyed.write("third");
    keyed.go_on(&supervisor, &runs).await;
}

/// A server may lock an account out, or be slowed down by every attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_in_that_is_refused_is_repeated_after_pauses_that_all_connections_share() {
    let keyed = Keyed::start("refused").await;
    let supervisor = supervisor(&keyed.url(), TTL).await;
    let runs = held_all(&supervisor, 50).await;
    keyed.change("second").await;
    keyed.database.terminate_backends().await;
    let until = SystemClock.now() + TTL / 3;
    while SystemClock.now() < until {
        supervisor.acquire(&key("new")).await.expect_err("nobody can log in");
        background::sleep(Duration::from_millis(5)).await;
    }
    // Each of the five connections at first, then one at a time, ever more rarely.
    let refusals = keyed.refusals();
    assert!((1..=20).contains(&refusals), "{refusals} log-ins in {:?}", TTL / 3);
    keyed.write("second");
    keyed.go_on(&supervisor, &runs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_who_logs_in_is_asked_for_each_connection_on_a_thread_apart() {
    let keyed = Keyed::start("token").await;
    keyed.write("not this one");
    let token = Arc::new(Mutex::new("first"));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let provider = {
        let (token, asked) = (token.clone(), asked.clone());
        move |request: LoginRequest| {
            let token = *token.lock().expect("nobody panics");
            let thread = thread::current().name().map(str::to_owned);
            asked.lock().expect("nobody panics").push((request, thread));
            async move {
                match token {
                    "none" => Err("the vault is closed"),
                    token => Ok(Login::with_password(token).as_user("token")),
                }
            }
        }
    };
    let url = keyed.url().replace("token@", "nobody@");
    let builder = LeaseSupervisor::builder(url).ttl(TTL).login(provider);
    let supervisor = builder.start().await.unwrap_or_else(|error| panic!("{error}"));
    let runs = held_all(&supervisor, 3).await;

    *token.lock().unwrap() = "none";
    keyed.change("second").await;
    keyed.database.terminate_backends().await;
    let error = supervisor.acquire(&key("new")).await.expect_err("there is no token").to_string();
    assert!(error.contains("the vault is closed"), "{error}");
    *token.lock().unwrap() = "second";
    keyed.go_on(&supervisor, &runs).await;

    let asked = asked.lock().unwrap();
    let address = keyed.database.server().address();
    for (request, thread) in &*asked {
        assert_eq!((request.host.as_str(), request.port), ("127.0.0.1", address.port()));
        assert_eq!((request.user.as_str(), request.database.as_str()), ("nobody", keyed.database.name()));
        assert_eq!(thread.as_deref(), Some("tenure-login"));
    }
}

#[tokio::test]
async fn a_password_file_that_is_not_used_is_named_with_the_reason() {
    let keyed = Keyed::start("file").await;
    let refusal = async || {
        let store = PostgresStore::new(&keyed.url()).unwrap();
        let error = store.connect(BOUNDS).await.err().expect("no password is shown");
        assert!(matches!(error, StoreError::PermissionDenied { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&*keyed.file.to_string_lossy()) && !text.contains("first"), "{text}");
        text
    };
    fs::set_permissions(&keyed.file, fs::Permissions::from_mode(0o644)).unwrap();
    let open = refusal().await;
    assert!(open.contains("0644") && open.contains("chmod 600"), "{open}");
    fs::set_permissions(&keyed.file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&keyed.file, "elsewhere:*:*:*:first\n").unwrap();
    let missing = refusal().await;
    assert!(missing.contains("no line"), "{missing}");
    fs::remove_file(&keyed.file).unwrap();
    let gone = refusal().await;
    assert!(gone.contains("cannot be read"), "{gone}");
}

#[tokio::test]
async fn a_service_is_found_and_its_password_read_for_each_connection() {
    let keyed = Keyed::start("service").await;
    let (address, name) = (keyed.database.server().address(), keyed.database.name());
    let file = keyed.directory.path().join("services.conf");
    let write = |password| {
        let port = address.port();
        let other = "[other]\nhost=nowhere\n";
        let ours = format!("# ours\n[chat]\nhost = 127.0.0.1\nport={port}\nuser=service\nkeepalives_idle=30");
        fs::write(&file, format!("{other}{ours}\ndbname=wrong\npassword={password}\n{other}")).unwrap();
    };
    write("first");
    let url = format!("postgresql:///{name}?service=chat&servicefile={}", file.display());
    let store = PostgresStore::new(&url).unwrap();
    assert_eq!(store.location(), format!("{address}/{name}"), "the URL goes before the service");
    assert!(store.remark().unwrap().contains("keepalives_idle"));
    store.connect(BOUNDS).await.unwrap_or_else(|error| panic!("{error}")).close().await;
    keyed.change("second").await;
    assert!(store.connect(BOUNDS).await.is_err());
    write("second");
    store.connect(BOUNDS).await.unwrap_or_else(|error| panic!("{error}")).close().await;
    let unknown = PostgresStore::new(&url.replace("service=chat", "service=chad")).unwrap_err().to_string();
    assert!(unknown.contains("chad") && unknown.contains("services.conf"), "{unknown}");
}

#[tokio::test]
async fn a_socket_is_found_beside_a_user_without_a_host_and_a_missing_certificate_is_named() {
    let keyed = Keyed::start("socket").await;
    let server = keyed.database.server();
    let (socket, port, name) =
        (server.socket_dir().display(), server.address().port(), keyed.database.name());
    let url = format!("postgresql://socket:x@/{name}?host={socket}&port={port}&sslmode=require");
    let store = PostgresStore::new(&url).unwrap();
    store.connect(BOUNDS).await.unwrap_or_else(|error| panic!("{error}")).close().await;
    for parameter in ["sslrootcert=/no/such.pem", "sslcert=/no/such.pem&sslkey=/no/such.key"] {
        let store = PostgresStore::new(&format!("{}&sslmode=prefer&{parameter}", keyed.url())).unwrap();
        let error = store.connect(BOUNDS).await.err().expect("it is missing");
        assert!(
            matches!(&error, StoreError::Url { detail, .. } if detail.contains("/no/such.pem")),
            "{error:?}"
        );
    }
}

/// What PgBouncer, and the proxies of some clouds, answer to settings that are sent at connection.
#[tokio::test]
async fn a_proxy_that_takes_no_options_is_told_the_remedy() {
    for (code, text, parameter, remedy) in [
        ("08P01", "unsupported startup parameter: options", "", "add pgbouncer=true"),
        ("0A000", "Feature not supported: command-line options", "", "add pgbouncer=true"),
        ("0A000", "command-line options", "&pgbouncer=true&options=-c%20geqo=off", "remove `options`"),
    ] {
        let proxy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = proxy.local_addr().unwrap();
        let answering = thread::spawn(move || refuse(&proxy, code, text));
        let url = format!("postgres://app@{address}/chat?sslmode=disable{parameter}");
        let error = PostgresStore::new(&url).unwrap().connect(BOUNDS).await.err().expect("it is refused");
        answering.join().unwrap();
        assert!(matches!(error, StoreError::Url { .. }), "{error:?}");
        let said = error.to_string();
        assert!(said.contains(text) && said.contains(remedy), "{said}");
    }
}

/// Answers the first message of one connection with an error.
fn refuse(proxy: &TcpListener, code: &str, text: &str) {
    let (mut client, _) = proxy.accept().unwrap();
    let _ = client.read(&mut [0; 1024]).unwrap();
    let fields = format!("SFATAL\0VFATAL\0C{code}\0M{text}\0\0");
    let length = u32::try_from(fields.len() + 4).unwrap().to_be_bytes();
    client.write_all(&[b"E", &length[..], fields.as_bytes()].concat()).unwrap();
}

/// A database with a role that must show its password, which a file has.
struct Keyed {
    database: Database,
    role: &'static str,
    directory: TempDir,
    file: PathBuf,
}

impl Keyed {
    /// The first password is `first`.
    async fn start(role: &'static str) -> Self {
        let server = Server::shared();
        let database = server.database().await;
        server.role_with_password(role, "first").await;
        tenure::migrate(&database.superuser_url()).await.unwrap();
        let grants = format!(
            "GRANT USAGE ON SCHEMA tenure TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA tenure TO {role}; \
             GRANT ALL ON ALL SEQUENCES IN SCHEMA tenure TO {role}"
        );
        sqlx::raw_sql(AssertSqlSafe(grants)).execute(&mut database.admin().await).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("passwords");
        let keyed = Self { database, role, directory, file };
        keyed.write("first");
        keyed
    }

    fn url(&self) -> String {
        let url =
            format!("postgres://{}@{}/{}", self.role, self.database.server().address(), self.database.name());
        format!("{url}?passfile={}", self.file.display())
    }

    /// As people do: a new file in the place of the old one.
    fn write(&self, password: &str) {
        let new: &Path = &self.file.with_extension("new");
        fs::write(new, format!("# passwords\n127.0.0.1:*:*:{}:{password}\n", self.role)).unwrap();
        fs::set_permissions(new, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(new, &self.file).unwrap();
    }

    async fn change(&self, password: &str) {
        let change = format!("ALTER ROLE {} PASSWORD '{password}'", self.role);
        sqlx::raw_sql(AssertSqlSafe(change)).execute(&mut self.database.admin().await).await.unwrap();
    }

    /// How many log-ins the server has refused.
    fn refusals(&self) -> usize {
        let line = format!("password authentication failed for user \"{}\"", self.role);
        self.database.server().log().matches(&line).count()
    }

    /// With no connection left, all runs are renewed over new ones, and others begin.
    async fn go_on(&self, supervisor: &LeaseSupervisor, runs: &[Run]) {
        self.database.terminate_backends().await;
        let ended = SystemClock.now();
        for run in runs {
            tokio::select! {
                () = renewed_after(run, ended, supervisor.timing()) => assert!(run.is_held()),
                reason = run.cancelled() => panic!("{run:?} ended: {reason}"),
            }
        }
        drop(held_at_last(supervisor, "another").await);
    }
}
