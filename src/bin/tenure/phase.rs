//! `tenure phase`: what a run is doing, said from inside CMD to the `tenure run` around it.
//!
//! Over a Unix socket in a directory that only this user may enter. The text is all that is sent, up to the end of
//! the sending side; the answer is `ok`, or what is wrong with it.

use std::{
    env, fs,
    io::{self, Read as _, Write as _},
    net::Shutdown,
    os::unix::{fs::DirBuilderExt as _, net::UnixStream as StdStream},
    path::{Path, PathBuf},
    time::Duration,
};

use tenure::RunPhase;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    time::timeout,
};

use crate::{
    cli,
    exit::{Failure, UNAVAILABLE, USAGE},
};

pub(crate) const SOCKET: &str = "TENURE_SOCKET";

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn phase(args: &cli::Phase) -> Result<u8, Failure> {
    let phase = RunPhase::new(&args.text)?;
    let Some(socket) = env::var_os(SOCKET) else {
        let message =
            "TENURE_SOCKET is not set: this works only inside a program that `tenure run` has started";
        return Err(Failure::new(USAGE, message));
    };
    let answer = say(Path::new(&socket), phase.as_str()).map_err(|error| {
        let message = format!("the `tenure run` around this program does not answer: {error}");
        Failure::new(UNAVAILABLE, message)
    })?;
    match answer.trim() {
        "ok" => Ok(0),
        "" => Err(Failure::new(UNAVAILABLE, "the `tenure run` around this program has ended")),
        refusal => Err(Failure::new(USAGE, refusal)),
    }
}

fn say(socket: &Path, text: &str) -> io::Result<String> {
    let mut stream = StdStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(text.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.take(1_024).read_to_string(&mut answer)?;
    Ok(answer)
}

/// The socket of one run. Dropping it removes it.
pub(crate) struct PhaseSocket {
    listener: UnixListener,
    directory: PathBuf,
}

impl PhaseSocket {
    /// Needs a tokio runtime.
    pub(crate) fn open(run: &tenure::Run) -> io::Result<Self> {
        let name = format!("tenure-{}", run.run_id().as_uuid().simple());
        // The first may be another user's after `su`, be missing in a job of a scheduler, or be too long a path.
        let parents = [env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from), Some(env::temp_dir())];
        let mut tried = Err(io::ErrorKind::NotFound.into());
        for parent in parents.into_iter().flatten() {
            tried = Self::open_in(parent.join(&name));
            if tried.is_ok() {
                break;
            }
        }
        tried
    }

    fn open_in(directory: PathBuf) -> io::Result<Self> {
        fs::DirBuilder::new().mode(0o700).create(&directory)?;
        let listener = UnixListener::bind(directory.join("socket"));
        match listener {
            Ok(listener) => Ok(Self { listener, directory }),
            Err(error) => {
                let _ = fs::remove_dir(&directory);
                Err(error)
            }
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.join("socket")
    }

    /// Somebody who has something to say.
    pub(crate) async fn accept(&self) -> UnixStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => return stream,
                // Out of descriptors, at worst: they may come back.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

impl Drop for PhaseSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.path());
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Hears one phase out and answers; whoever is too slow or too long is not heard.
pub(crate) async fn hear(mut stream: UnixStream, set_phase: impl FnOnce(&str) -> Result<(), String>) {
    let exchange = async {
        let mut text = String::new();
        (&mut stream).take(4_096).read_to_string(&mut text).await?;
        let answer = set_phase(&text).map_or_else(|refusal| refusal, |()| "ok".to_owned());
        stream.write_all(answer.as_bytes()).await
    };
    if let Ok(Err(error)) = timeout(PATIENCE, exchange).await {
        tracing::debug!(%error, "a phase was not heard");
    }
}
