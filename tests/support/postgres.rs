//! A throw-away PostgreSQL, and what can go wrong with one.
//!
//! Tests that only use a database share [`Server::shared`]; tests that hurt the server start their own with
//! [`Server::start`], so that no neighbour is hurt with it.
//!
//! A server never outlives its test process, not even one that was killed: see `keeper.sh`.

use std::{
    env,
    fmt::{Display, Write as _},
    fs,
    io::{BufRead, BufReader, Write as _},
    net::SocketAddr,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    time::Duration,
};

use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, PgConnection,
    postgres::{PgConnectOptions, PgSslMode},
};

use super::{background, free_address, process_table};

/// The role that tests connect as: it owns its database and nothing else, like an application's.
pub const ROLE: &str = "app";

/// For [`Options::hba`] of a server that is to have a standby.
pub const REPLICATION: &str = "host replication postgres 127.0.0.1/32 trust\n";

/// Members of this role must show a password (scram) on TCP.
const PASSWORD_GROUP: &str = "with_password";

const REMEDY: &str = "no PostgreSQL server binaries (initdb, pg_ctl, postgres) were found: run scripts/test, \
    which installs them, or install PostgreSQL 15 or later, or set TENURE_PG_BIN to their directory";

/// A running server. Clones are handles of the same one; it stops when the last is dropped.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

/// How to start a server.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Whether commits are flushed to the disk. Without, they survive the death of every process of the server,
    /// not that of the machine; and everything is faster.
    pub fsync: bool,
    /// Lines that go before all others in `pg_hba.conf`.
    pub hba: String,
    /// Lines for `postgresql.conf`.
    pub conf: String,
    /// More variables of the server's environment.
    pub env: Vec<(String, String)>,
}

impl Server {
    /// The one that the tests of this binary share. Its faults are refused, for the neighbours' sake.
    pub fn shared() -> &'static Self {
        // Never dropped: the keeper notices the end of the process.
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| Self { inner: Arc::new(Inner::start(&Options::default(), true)) })
    }

    /// A server of the test's own. Blocks for about a second.
    pub fn start() -> Self {
        Self::start_with(&Options::default())
    }

    /// A server of the test's own with other settings. Blocks for about a second.
    pub fn start_with(options: &Options) -> Self {
        Self { inner: Arc::new(Inner::start(options, false)) }
    }

    /// A standby that streams from this server and has confirmed each commit before it is acknowledged. This server
    /// needs [`REPLICATION`] among its options; its superuser must not wait for a commit after the standby's end.
    pub async fn synchronous_standby(&self) -> Self {
        self.inner.not_shared("replicate");
        let primary = self.inner.clone();
        let standby = background::run_blocking(move || Inner::start_standby(&primary)).await;
        let admin = self.inner.admin_options("postgres");
        background::run(async move {
            let mut admin = admin.connect().await?;
            let set = "ALTER SYSTEM SET synchronous_standby_names = '*'";
            sqlx::query(set).execute(&mut admin).await?;
            sqlx::query("SELECT pg_reload_conf()").execute(&mut admin).await?;
            let is_synchronous = "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')";
            while !sqlx::query_scalar::<_, bool>(is_synchronous).fetch_one(&mut admin).await? {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            admin.close().await
        })
        .await
        .unwrap_or_else(|error: sqlx::Error| panic!("the standby does not become synchronous: {error}"));
        Self { inner: Arc::new(standby) }
    }

    /// A new, empty database, owned by [`ROLE`].
    pub async fn database(&self) -> Database {
        self.database_with("").await
    }

    /// A new, empty database with more options of `CREATE DATABASE`, such as
    /// `LOCALE_PROVIDER icu ICU_LOCALE 'en-US'` for a collation that is not that of the bytes.
    pub async fn database_with(&self, options: &str) -> Database {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed));
        // Nobody can connect to template0, so nobody can be in the way of copying it.
        self.execute(format!("CREATE DATABASE {name} OWNER {ROLE} TEMPLATE template0 {options}")).await;
        Database { server: self.clone(), name }
    }

    /// A role that must show its password on TCP. See [`Database::url_as`].
    pub async fn role_with_password(&self, role: &str, password: &str) {
        let password = password.replace('\'', "''");
        self.execute(format!(r#"CREATE ROLE "{role}" LOGIN PASSWORD '{password}' IN ROLE {PASSWORD_GROUP}"#))
            .await;
    }

    /// A superuser's connection to any database by name, on the runtime of the caller. It may write even while
    /// the server is read-only.
    pub async fn admin(&self, database: &str) -> PgConnection {
        self.inner.admin_options(database).connect().await.expect("the server accepts its superuser")
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.inner.address
    }

    /// The directory of its Unix socket.
    pub fn socket_dir(&self) -> &Path {
        &self.inner.home
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.inner.home.join("server.log")).unwrap_or_default()
    }

    /// The process id of the postmaster.
    pub fn pid(&self) -> i32 {
        self.inner.pid()
    }

    /// Every process of the server stands still: connections stay open, nothing answers.
    #[must_use = "dropping it thaws the server"]
    pub fn freeze(&self) -> Frozen {
        self.inner.not_shared("freeze");
        process_table::freeze_family(self.pid());
        Frozen { server: self.clone() }
    }

    /// Kills every process of the server at once and starts it again, on the same port. Commits that were
    /// acknowledged survive, all else is rolled back.
    pub async fn restart_immediate(&self) {
        self.control("restart").await;
    }

    /// Ends every session and stops; connections are refused until [`start_again`](Self::start_again).
    pub async fn stop(&self) {
        self.control("stop").await;
    }

    /// Kills every process of the server at once; connections are refused from then on.
    pub async fn crash(&self) {
        self.control("crash").await;
    }

    /// Ends every session and starts the server again as a standby, of no other server.
    pub async fn demote(&self) {
        self.control("demote").await;
    }

    /// Lets a standby take writes. Returns when it does.
    pub async fn promote(&self) {
        self.control("promote").await;
    }

    /// Starts a stopped server on its old port.
    pub async fn start_again(&self) {
        self.control("start").await;
    }

    /// Reads work and writes fail with SQLSTATE 25006, in sessions that are open, too: a demoted primary.
    pub async fn make_read_only(&self) {
        self.set_read_only(true).await;
    }

    /// Ends [`make_read_only`](Self::make_read_only).
    pub async fn make_writable(&self) {
        self.set_read_only(false).await;
    }

    async fn set_read_only(&self, read_only: bool) {
        self.inner.not_shared("make read-only");
        let value = if read_only { "on" } else { "off" };
        let admin = self.inner.admin_options("postgres");
        let ordinary = self.inner.options("postgres", "postgres");
        background::run(async move {
            let mut admin = admin.connect().await?;
            let mut probe = ordinary.connect().await?;
            let set = format!("ALTER SYSTEM SET default_transaction_read_only = {value}");
            sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut admin).await?;
            sqlx::query("SELECT pg_reload_conf()").execute(&mut admin).await?;
            for _ in 0..5_000 {
                let seen: String =
                    sqlx::query_scalar("SHOW default_transaction_read_only").fetch_one(&mut probe).await?;
                if seen == value {
                    // The postmaster signals all its children in one go, and answers no newcomer meanwhile:
                    // once it does, every open session has the signal.
                    return ordinary.connect().await?.close().await;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            panic!("a session did not follow the new setting within 5 s");
        })
        .await
        .unwrap_or_else(|error: sqlx::Error| panic!("cannot set the server read-only {value}: {error}"));
    }

    async fn execute(&self, sql: String) {
        let options = self.inner.admin_options("postgres");
        background::run(async move {
            let mut connection = options.connect().await?;
            sqlx::raw_sql(AssertSqlSafe(sql.as_str())).execute(&mut connection).await?;
            connection.close().await
        })
        .await
        .unwrap_or_else(|error| panic!("the superuser's statement failed: {error}"));
    }

    async fn control(&self, command: &'static str) {
        self.inner.not_shared(command);
        let inner = self.inner.clone();
        background::run_blocking(move || inner.command(command)).await;
    }
}

/// A server that stands still, until this is dropped.
pub struct Frozen {
    server: Server,
}

impl Frozen {
    /// Lets the server go on: it works through all that was sent to it meanwhile.
    pub fn thaw(self) {}
}

impl Drop for Frozen {
    fn drop(&mut self) {
        process_table::thaw_family(self.server.pid());
    }
}

/// A database of one test; dropped, as far as that is possible, with this.
pub struct Database {
    server: Server,
    name: String,
}

impl Database {
    /// Its name within the server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// How [`ROLE`] connects.
    pub fn url(&self) -> String {
        self.url_at(self.server.address())
    }

    /// The same through another address, such as a proxy's, or several.
    pub fn url_at(&self, address: impl Display) -> String {
        format!("postgres://{ROLE}@{address}/{}", self.name)
    }

    /// How another role connects with a password; neither may need escaping in a URL.
    pub fn url_as(&self, role: &str, password: &str) -> String {
        format!("postgres://{role}:{password}@{}/{}", self.server.address(), self.name)
    }

    /// How the superuser connects.
    pub fn superuser_url(&self) -> String {
        format!("postgres://postgres@{}/{}", self.server.address(), self.name)
    }

    /// A superuser's connection, on the runtime of the caller. It may write even while the server is read-only.
    pub async fn admin(&self) -> PgConnection {
        self.server.admin(&self.name).await
    }

    /// Ends every session of this database, waits for that, and answers how many there were.
    pub async fn terminate_backends(&self) -> u64 {
        let (options, name) = (self.server.inner.admin_options("postgres"), self.name.clone());
        background::run(async move {
            let mut connection = options.connect().await?;
            // Not in the WHERE clause, whose conditions may be tried in any order.
            let ended: Vec<(i32, bool)> = sqlx::query_as(
                "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1",
            )
            .bind(name)
            .fetch_all(&mut connection)
            .await?;
            let ended: Vec<i32> = ended.into_iter().map(|(pid, _)| pid).collect();
            // Not with the function's own time-out: it looks once in 100 ms, and at one session after the other.
            let left = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1)";
            while sqlx::query_scalar::<_, i64>(left).bind(&ended).fetch_one(&mut connection).await? > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok(ended.len() as u64)
        })
        .await
        .unwrap_or_else(|error: sqlx::Error| panic!("cannot end the sessions of a database: {error}"))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let options = self.server.inner.admin_options("postgres");
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        // Nobody waits for it: the server may be stopped or gone, and takes its databases along then.
        background::handle().spawn(async move {
            if let Ok(mut connection) = options.connect().await {
                let _ = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await;
            }
        });
    }
}

struct Inner {
    home: PathBuf,
    address: SocketAddr,
    shared: bool,
    keeper: Mutex<Keeper>,
}

struct Keeper {
    child: Child,
    /// `None` only while it is being dropped. Closed on exec, so no other child keeps it open.
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Inner {
    fn start(options: &Options, shared: bool) -> Self {
        let mut inner = Self::prepare(shared, &options.env);
        inner.command("init");
        inner.configure(options);
        inner.listen();
        inner.create_roles();
        inner
    }

    fn start_standby(primary: &Self) -> Self {
        let mut inner = Self::prepare(false, &[]);
        inner.command(&format!("copy {}", primary.address.port()));
        // It is to wait for nobody when it has been promoted.
        let conf = "synchronous_standby_names = ''".to_owned();
        inner.configure(&Options { hba: REPLICATION.to_owned(), conf, ..Options::default() });
        inner.listen();
        inner
    }

    /// A directory, and the keeper of what will be in it.
    fn prepare(shared: bool, env: &[(String, String)]) -> Self {
        let bin = server_binaries();
        let user = server_user();
        let home = tempfile::Builder::new()
            .prefix("tenure-pg-")
            .permissions(fs::Permissions::from_mode(0o700))
            // A Unix socket's path may be no longer than about 100 bytes, which TMPDIR may be.
            .tempdir_in("/tmp")
            .expect("/tmp takes a directory")
            .keep();
        if let Some((uid, gid)) = user {
            chown(&home, Some(uid), Some(gid)).expect("root may give a directory away");
        }
        let keeper = Mutex::new(Keeper::spawn(&bin, &home, user, env));
        Self { home, address: free_address(), shared, keeper }
    }

    fn configure(&self, options: &Options) {
        let data = self.home.join("data");
        let fsync = if options.fsync { "on" } else { "off" };
        let conf = format!(
            "listen_addresses = '127.0.0.1'\n\
             unix_socket_directories = '{home}'\n\
             max_connections = 200\n\
             fsync = {fsync}\n\
             log_line_prefix = '%m [%p] %u@%d '\n\
             {more}\n",
            home = self.home.display(),
            more = options.conf,
        );
        append(&data.join("postgresql.conf"), &conf);
        let mut hba = options.hba.clone();
        let _ = write!(
            hba,
            "\nhost all +{PASSWORD_GROUP} 127.0.0.1/32 scram-sha-256\n\
             host all all 127.0.0.1/32 trust\n\
             local all all trust\n"
        );
        fs::write(data.join("pg_hba.conf"), hba).expect("the data directory is ours");
    }

    fn listen(&mut self) {
        // Another process may take a free port before the server does.
        for _ in 0..5 {
            append(
                &self.home.join("data/postgresql.conf"),
                &format!("port = {port}\n", port = self.address.port()),
            );
            if self.try_command("start") {
                return;
            }
            self.address = free_address();
        }
        panic!("PostgreSQL did not start\n{}", self.logs());
    }

    fn create_roles(&self) {
        let sql = format!("CREATE ROLE {PASSWORD_GROUP} NOLOGIN; CREATE ROLE {ROLE} LOGIN");
        let options = self.admin_options("postgres");
        // The caller may be inside a runtime, where blocking on a future is forbidden.
        let (sender, receiver) = mpsc::channel();
        background::handle().spawn(async move {
            let created = async {
                let mut connection = options.connect().await?;
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
                connection.close().await
            };
            sender.send(created.await)
        });
        receiver.recv().expect("the task sends").expect("the superuser creates roles");
    }

    fn options(&self, role: &str, database: &str) -> PgConnectOptions {
        PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(self.address.port())
            .username(role)
            .database(database)
            .ssl_mode(PgSslMode::Disable)
            .disable_statement_logging()
    }

    fn admin_options(&self, database: &str) -> PgConnectOptions {
        self.options("postgres", database).options([("default_transaction_read_only", "off")])
    }

    fn pid(&self) -> i32 {
        let file = fs::read_to_string(self.home.join("data/postmaster.pid")).expect("the server runs");
        file.lines()
            .next()
            .and_then(|line| line.trim().parse().ok())
            .expect("its first line is the process id")
    }

    fn command(&self, command: &str) {
        assert!(self.try_command(command), "PostgreSQL: {command} failed\n{}", self.logs());
    }

    fn try_command(&self, command: &str) -> bool {
        self.keeper.lock().expect("no keeper's call panicked").command(command)
    }

    fn logs(&self) -> String {
        ["control.log", "server.log"]
            .map(|log| fs::read_to_string(self.home.join(log)).unwrap_or_default())
            .concat()
    }

    fn not_shared(&self, fault: &str) {
        assert!(!self.shared, "cannot {fault} the server that other tests share: use Server::start()");
    }
}

impl Keeper {
    fn spawn(bin: &Path, home: &Path, user: Option<(u32, u32)>, more: &[(String, String)]) -> Self {
        let mut command = Command::new("sh");
        command
            .args(["-c", include_str!("keeper.sh"), "keeper"])
            .args([bin, home])
            .current_dir(home)
            // Not the developer's PGPORT and PGDATA, nor a locale that the machine may lack.
            .env_clear()
            .env("PATH", env::var_os("PATH").unwrap_or_default())
            .envs(more.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Nothing of the server may keep the output of the tests open after their end.
            .stderr(Stdio::null())
            .process_group(0);
        if let Some((uid, gid)) = user {
            command.uid(uid).gid(gid);
        }
        let mut child = command.spawn().expect("sh starts");
        let commands = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, commands, answers }
    }

    fn command(&mut self, command: &str) -> bool {
        let commands = self.commands.as_mut().expect("open until the drop");
        writeln!(commands, "{command}").expect("the keeper reads until we close");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("the keeper answers in text");
        answer.trim_end() == "ok"
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.commands.take());
        let _ = self.child.wait();
    }
}

fn server_binaries() -> PathBuf {
    candidates().find(|dir| is_complete(dir)).unwrap_or_else(|| panic!("{REMEDY}"))
}

/// A tool of the servers' release, such as `pg_dump`. `None`, and said so, where only the servers are installed.
pub fn tool(name: &str) -> Option<PathBuf> {
    let tool = Some(server_binaries().join(name)).filter(|tool| tool.is_file());
    if tool.is_none() {
        eprintln!("skipped: there is no {name} beside the server's binaries");
    }
    tool
}

fn candidates() -> impl Iterator<Item = PathBuf> {
    let named = env::var_os("TENURE_PG_BIN").map(PathBuf::from);
    if let Some(dir) = &named {
        assert!(is_complete(dir), "TENURE_PG_BIN={} has no initdb, pg_ctl and postgres", dir.display());
    }
    // A link to `initdb` in PATH may point to where all of it is.
    let in_path: Vec<_> = env::split_paths(&env::var_os("PATH").unwrap_or_default())
        .filter_map(|dir| Some(fs::canonicalize(dir.join("initdb")).ok()?.parent()?.to_owned()))
        .collect();
    let by_config = Command::new("pg_config")
        .arg("--bindir")
        .output()
        .ok()
        .map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let usual = [
        ("/usr/lib/postgresql", "", "bin"),
        ("/usr", "pgsql-", "bin"),
        ("/opt/homebrew/opt", "postgresql@", "bin"),
        ("/usr/local/opt", "postgresql@", "bin"),
        ("/opt/local/lib", "postgresql", "bin"),
        ("/usr/local", "pgsql", "bin"),
        ("/usr/libexec", "postgresql", ""),
    ];
    named
        .into_iter()
        .chain(in_path)
        .chain(by_config)
        .chain(usual.into_iter().flat_map(|(parent, prefix, below)| newest_first(parent, prefix, below)))
}

/// The directories `parent/prefix<version>/below`, the highest version first.
fn newest_first(parent: &str, prefix: &str, below: &str) -> Vec<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = fs::read_dir(parent)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let version = name.strip_prefix(prefix)?.parse().unwrap_or(0);
            Some((version, Path::new(parent).join(name).join(below)))
        })
        .collect();
    found.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    found.into_iter().map(|(_, dir)| dir).collect()
}

fn is_complete(dir: &Path) -> bool {
    ["initdb", "pg_ctl", "postgres"].iter().all(|binary| dir.join(binary).is_file())
}

/// Whom a server runs as, when that is not ourselves: PostgreSQL refuses to run as root.
pub fn server_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").expect("root reads /etc/passwd");
    let ids = |user: &str| {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(user))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    Some(ids("postgres").or_else(|| ids("nobody")).expect("there is a user postgres or nobody"))
}

fn append(path: &Path, text: &str) {
    let mut file = fs::OpenOptions::new().append(true).open(path).expect("initdb wrote it");
    file.write_all(text.as_bytes()).expect("the data directory is ours");
}
