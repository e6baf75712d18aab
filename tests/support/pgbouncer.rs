//! A throw-away PgBouncer in transaction mode, in front of a throw-away PostgreSQL.

use std::{
    env, fs,
    io::Write as _,
    net::{SocketAddr, TcpStream},
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use super::{
    free_address,
    postgres::{ROLE, Server, server_user},
    wait_until,
};

/// The most server sessions per database: fewer than connections in any test, so that they must take turns.
pub const POOL: usize = 3;

/// Ends PgBouncer when its own input ends: with the test, however that ends.
const KEEPER: &str = r#"
trap '' HUP INT QUIT TERM PIPE
"$1" "$2" </dev/null >"$3" 2>&1 &
read -r _
kill -s KILL "$!"
wait
"#;

/// A running PgBouncer; killed when this is dropped.
pub struct PgBouncer {
    keeper: Child,
    address: SocketAddr,
    _directory: TempDir,
}

impl PgBouncer {
    /// In front of `server`, for all of its databases. `None`, and a word on stderr, where it is not installed.
    pub fn start(server: &Server) -> Option<Self> {
        Self::start_with(server, "")
    }

    /// The same with more lines in its section of settings.
    pub fn start_with(server: &Server, settings: &str) -> Option<Self> {
        let Some(program) = program() else {
            // Past the capture of libtest: whoever reads the results shall know what they do not cover.
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED, for want of pgbouncer: run scripts/test, or install it"
            );
            return None;
        };
        let directory = tempfile::Builder::new()
            .prefix("tenure-pgbouncer-")
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir()
            .expect("there is room for a directory");
        let address = free_address();
        let (conf, log) = (directory.path().join("pgbouncer.ini"), directory.path().join("log"));
        fs::write(&conf, file(server.address(), address) + settings).expect("the directory is ours");
        let keeper = keep(&program, &conf, &log);
        wait_until("PgBouncer listens", || TcpStream::connect(address).is_ok());
        Some(Self { keeper, address, _directory: directory })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// After a log-in that failed PgBouncer would tell everybody so for 15 s, which is longer than a lease of the tests
/// lasts.
fn file(server: SocketAddr, own: SocketAddr) -> String {
    format!(
        "[databases]\n\
         * = host={} port={} user={ROLE}\n\
         [pgbouncer]\n\
         listen_addr = {}\n\
         listen_port = {}\n\
         unix_socket_dir =\n\
         auth_type = any\n\
         pool_mode = transaction\n\
         default_pool_size = {POOL}\n\
         server_login_retry = 0.2\n\
         max_client_conn = 200\n",
        server.ip(),
        server.port(),
        own.ip(),
        own.port()
    )
}

/// PgBouncer refuses to run as root, like PostgreSQL.
fn keep(program: &Path, conf: &Path, log: &Path) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", KEEPER, "keeper"]).args([program, conf, log]).stdin(Stdio::piped()).process_group(0);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    if let Some((uid, gid)) = server_user() {
        let directory = conf.parent().expect("the file is in a directory");
        for path in [directory, conf] {
            chown(path, Some(uid), Some(gid)).expect("root may give a file away");
        }
        command.uid(uid).gid(gid);
    }
    command.spawn().expect("sh starts")
}

fn program() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    // Not everybody has the directories of system programs in PATH.
    let usual = ["/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"].map(PathBuf::from);
    env::split_paths(&path).chain(usual).map(|dir| dir.join("pgbouncer")).find(|file| file.is_file())
}
