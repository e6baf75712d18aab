//! The run's side of the side channel.
//!
//! The directory of the socket is locked as long as its run lives. So the next run recognises the directory of a killed
//! run, and removes it. Programs that clean up temporary directories by age skip a locked one.

use std::{
    env,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{fs::OFlags, process::geteuid};
use tenure::RunContext;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    time::timeout,
};

use super::{LONGEST_REQUEST, PATIENCE, SideReply, SideRequest};

/// How long `tenure phase` waits until others can see the new phase, before it says that they cannot yet.
const SHOWN_WITHIN: Duration = Duration::from_secs(3);
/// The directory's name is this and the run's id.
const PREFIX: &str = "tenure-";
const NAME: &str = "socket";

/// The socket of one run, if it could be created. Dropping this removes the socket.
pub(crate) struct SideSocket {
    directory: Option<PathBuf>,
    /// Also `None` while the socket was removed and cannot be created again.
    bound: Option<BoundSocket>,
}

struct BoundSocket {
    listener: UnixListener,
    /// Identifies the socket's file.
    inode: u64,
    /// The directory, which is locked as long as this is open.
    _lock: File,
}

impl SideSocket {
    /// Creates the socket. Needs a tokio runtime. The error says why there is no socket.
    pub(crate) fn open(run: &tenure::Run) -> (Self, Option<io::Error>) {
        let name = format!("{PREFIX}{}", run.run_id().as_uuid().simple());
        let mut why = None;
        for parent in parents() {
            sweep(&parent);
            // A sweep of another run may remove the new directory before it is locked. So there is a second try.
            let directory = parent.join(&name);
            match BoundSocket::make(&directory).or_else(|_| BoundSocket::make(&directory)) {
                Ok(bound) => return (Self { directory: Some(directory), bound: Some(bound) }, None),
                Err(error) => {
                    why = Some(io::Error::new(error.kind(), format!("{}: {error}", parent.display())));
                }
            }
        }
        (Self { directory: None, bound: None }, why)
    }

    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.directory.as_ref().map(|directory| directory.join(NAME))
    }

    /// Creates the socket again if it was removed.
    pub(crate) fn restore(&mut self) {
        let Some(directory) = &self.directory else { return };
        let there = fs::symlink_metadata(directory.join(NAME)).ok();
        if let (Some(bound), Some(file)) = (&self.bound, there)
            && bound.inode == file.ino()
        {
            return;
        }
        // Drops the old lock, so that the new socket can take it.
        self.bound = None;
        remove(directory);
        match BoundSocket::make(directory) {
            Ok(bound) => self.bound = Some(bound),
            Err(error) => tracing::debug!(%error, "the socket of this run cannot be made again yet"),
        }
    }

    /// The next connection.
    pub(crate) async fn accept(&self) -> UnixStream {
        let Some(bound) = &self.bound else { return std::future::pending().await };
        loop {
            match bound.listener.accept().await {
                Ok((stream, _)) => return stream,
                // For example, there are no free descriptors at the moment.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

impl Drop for SideSocket {
    fn drop(&mut self) {
        self.directory.iter().for_each(|directory| remove(directory));
    }
}

impl BoundSocket {
    fn make(directory: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().mode(0o700).create(directory)?;
        Self::in_directory(directory).inspect_err(|_| remove(directory))
    }

    fn in_directory(directory: &Path) -> io::Result<Self> {
        let lock = open_own(directory)?;
        lock.try_lock()?;
        let socket = directory.join(NAME);
        let listener = UnixListener::bind(&socket)?;
        Ok(Self { listener, inode: fs::symlink_metadata(&socket)?.ino(), _lock: lock })
    }
}

/// The directories in which the socket may be, the best one first.
///
/// XDG_RUNTIME_DIR may be another user's after `su`, may not exist in a job of a scheduler, or may be too long. A
/// variable that is empty or has a relative path is ignored: CMD may have another working directory.
fn parents() -> impl Iterator<Item = PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let temporary = absolute("TMPDIR").unwrap_or_else(|| PathBuf::from("/tmp"));
    absolute("XDG_RUNTIME_DIR").into_iter().chain([temporary])
}

/// Removes the sockets of killed runs from a directory.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_run = entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX))
            .is_some_and(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if is_run && open_own(&entry.path()).is_ok_and(|directory| directory.try_lock().is_ok()) {
            remove(&entry.path());
        }
    }
}

/// Opens a directory that belongs to this user, and is no symbolic link.
fn open_own(directory: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(directory)?;
    match opened.metadata()?.uid() == geteuid().as_raw() {
        true => Ok(opened),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

fn remove(directory: &Path) {
    let _ = fs::remove_file(directory.join(NAME));
    let _ = fs::remove_dir(directory);
}

/// Reads one request and answers it. A request that is too slow or too long gets no answer.
pub(crate) async fn hear(mut stream: UnixStream, run: RunContext, database: String) {
    let read = async {
        let mut text = String::new();
        (&mut stream).take(LONGEST_REQUEST).read_to_string(&mut text).await.map(|_| text)
    };
    let request = match timeout(PATIENCE, read).await {
        Ok(Ok(text)) => SideRequest::parse(&text),
        Ok(Err(error)) => return tracing::debug!(%error, "a request was not heard"),
        Err(_elapsed) => return,
    };
    let answer = match request {
        Some(SideRequest::Phase(text)) => show(&run, &text).await,
        Some(SideRequest::Database) => SideReply::Done(database),
        None => SideReply::Refused(
            "the `tenure run` around this program does not know what is asked for".to_owned(),
        ),
    };
    let _ = timeout(PATIENCE, stream.write_all(answer.to_text().as_bytes())).await;
}

/// Sets the phase, and answers when others can see it.
async fn show(run: &RunContext, text: &str) -> SideReply {
    if let Err(error) = run.set_phase(text) {
        return SideReply::Refused(error.to_string());
    }
    match timeout(SHOWN_WITHIN, run.phase_shown()).await {
        Ok(()) => SideReply::Done(String::new()),
        Err(_elapsed) => {
            SideReply::Done("the database has not confirmed it yet; others see it when it does".to_owned())
        }
    }
}
