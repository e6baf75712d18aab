//! Processes whose wall clock can be stepped while they run, by Debian's package `faketime`.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use tempfile::TempDir;

/// A clock that is ahead of the machine's, or behind it, for all that are started with its [`env`](Self::env). Only the
/// wall clock: timers and the boot clock go on.
pub struct Clock {
    directory: TempDir,
    library: PathBuf,
}

impl Clock {
    /// `None`, said aloud, where the package is missing.
    pub fn start() -> Option<Self> {
        let Some(library) = library() else {
            eprintln!(
                "skipped: no libfaketime. Run scripts/test, which installs it, or install the package faketime"
            );
            return None;
        };
        let readable = fs::Permissions::from_mode(0o755);
        let directory = tempfile::Builder::new().permissions(readable).tempdir().expect("there is room");
        let clock = Self { directory, library };
        clock.set(0);
        Some(clock)
    }

    /// Sets it this many seconds ahead of the machine's.
    pub fn set(&self, seconds: i64) {
        // Who reads half a file gives up.
        let new = self.directory.path().join("new");
        fs::write(&new, format!("{seconds:+}\n")).expect("the directory is ours");
        fs::rename(new, self.file()).expect("the directory is ours");
    }

    /// What a process needs in its environment.
    pub fn env(&self) -> Vec<(String, String)> {
        [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file().display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("offset")
    }
}

fn library() -> Option<PathBuf> {
    let directories = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let here = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from);
    directories
        .chain(here)
        .map(|parent| parent.join("faketime/libfaketimeMT.so.1"))
        .find(|file| file.exists())
}
