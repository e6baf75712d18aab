//! Checks whether the path of a database still leads to the files that were opened there.
//!
//! A connection works with the files that it has open, but the next process opens the files that are at the path. When
//! the two are no longer the same, the open file is no authority any more: the next run is granted in the other file
//! (invariant I1). A database has three files: the file itself, the write-ahead log with the last commits, and the
//! shared memory with the locks.

use std::{
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// The files that the connections of one store have open.
#[derive(Debug)]
pub(super) struct OpenFiles {
    path: PathBuf,
    file: Option<FileIdentity>,
    log: Aside,
    memory: Aside,
}

/// What is at the path now.
#[derive(Debug)]
pub(super) enum Standing {
    /// The files that were opened.
    Same,
    /// Another file.
    Other,
    /// No file. The next process creates a new one.
    Nothing,
    /// The file that was opened, without the log or the shared memory that was opened with it; or another file, beside
    /// that log. For the next process that opens it, the last commits are lost, or mixed with the content of the other
    /// file.
    Torn,
}

/// A file that SQLite keeps beside the database. SQLite may create it only with the first statement, so its identity is
/// remembered from the first time that it is seen.
#[derive(Debug)]
struct Aside {
    path: PathBuf,
    seen: OnceLock<Option<FileIdentity>>,
}

impl OpenFiles {
    /// Remembers the files that are at the path. Call this right after a connection has opened them.
    ///
    /// # Errors
    /// The error of the file system, also if there is no file.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        let file = identity(path)?;
        // SQLite resolves links, and names the files beside the database after the database's own name.
        let own = path.canonicalize()?;
        let opened = Self {
            path: path.to_owned(),
            file,
            log: Aside::of(&own, "-wal"),
            memory: Aside::of(&own, "-shm"),
        };
        opened.log.is_same()?;
        opened.memory.is_same()?;
        Ok(opened)
    }

    pub(super) fn file(&self) -> Option<FileIdentity> {
        self.file
    }

    /// Compares the files at the path with those that were opened.
    ///
    /// # Errors
    /// The error of the file system, if it cannot tell.
    pub(super) fn look(&self) -> io::Result<Standing> {
        let Some(found) = if_there(identity(&self.path))? else { return Ok(Standing::Nothing) };
        if found != self.file {
            return Ok(if self.has_our_log()? { Standing::Torn } else { Standing::Other });
        }
        Ok(match self.log.is_same()? && self.memory.is_same()? {
            true => Standing::Same,
            false => Standing::Torn,
        })
    }
}

impl OpenFiles {
    /// Whether the other file at the path is beside the log that belongs to our file.
    fn has_our_log(&self) -> io::Result<bool> {
        let Some(own) = if_there(self.path.canonicalize())? else { return Ok(false) };
        let log = Aside::of(&own, "-wal");
        Ok(log.path == self.log.path && self.log.is_there_still()?)
    }
}

impl Aside {
    fn of(database: &Path, suffix: &str) -> Self {
        let mut path = database.as_os_str().to_owned();
        path.push(OsStr::new(suffix));
        Self { path: path.into(), seen: OnceLock::new() }
    }

    fn is_there_still(&self) -> io::Result<bool> {
        let found = if_there(identity(&self.path))?;
        Ok(self.seen.get().is_some_and(|seen| seen.is_some() && found == Some(*seen)))
    }

    fn is_same(&self) -> io::Result<bool> {
        let found = if_there(identity(&self.path))?;
        Ok(match (self.seen.get(), found) {
            (Some(seen), found) => found == Some(*seen),
            (None, Some(found)) => *self.seen.get_or_init(|| found) == found,
            (None, None) => true,
        })
    }
}

/// The identity of a file, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
}

/// The identity of the file that a path leads to. `None` where the platform cannot tell.
pub(super) fn identity(path: &Path) -> io::Result<Option<FileIdentity>> {
    let found = std::fs::metadata(path)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        Ok(Some(FileIdentity { device: found.dev(), inode: found.ino() }))
    }
    #[cfg(not(unix))]
    {
        let _ = found;
        Ok(None)
    }
}

/// Whether the log of this database is there.
pub(super) fn has_log(database: &Path) -> bool {
    database.canonicalize().is_ok_and(|own| Aside::of(&own, "-wal").path.exists())
}

/// Turns the error that means "it does not exist" into `None`.
pub(super) fn if_there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if is_absent(&error) => Ok(None),
        found => found.map(Some),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;

    use super::*;

    /// The files as they are while a connection is open.
    fn database() -> (tempfile::TempDir, PathBuf, OpenFiles) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d/t.db");
        fs::create_dir(dir.path().join("d")).unwrap();
        for suffix in ["", "-wal", "-shm"] {
            fs::write(beside(&path, suffix), suffix).unwrap();
        }
        let opened = OpenFiles::at(&path).unwrap();
        (dir, path, opened)
    }

    fn beside(path: &Path, suffix: &str) -> PathBuf {
        Aside::of(path, suffix).path
    }

    fn look(opened: &OpenFiles) -> String {
        format!("{:?}", opened.look().unwrap())
    }

    #[test]
    fn what_is_written_to_or_copied_stays_the_same() {
        let (dir, path, opened) = database();
        fs::copy(&path, dir.path().join("copy.db")).unwrap();
        fs::write(&path, "more").unwrap();
        fs::write(beside(&path, "-wal"), "").unwrap();
        assert_eq!(look(&opened), "Same");
    }

    #[test]
    fn another_file_nothing_and_a_missing_part_are_told_apart() {
        let (dir, path, opened) = database();
        let moved = dir.path().join("moved");
        for suffix in ["-wal", "-shm"] {
            fs::rename(beside(&path, suffix), &moved).unwrap();
            assert_eq!(look(&opened), "Torn", "{suffix}");
            fs::write(beside(&path, suffix), "new").unwrap();
            assert_eq!(look(&opened), "Torn", "{suffix}");
            fs::rename(&moved, beside(&path, suffix)).unwrap();
            assert_eq!(look(&opened), "Same", "{suffix}");
        }
        fs::rename(&path, &moved).unwrap();
        assert_eq!(look(&opened), "Nothing");
        fs::write(&path, "new").unwrap();
        assert_eq!(look(&opened), "Torn", "the log is not of that file");
        fs::rename(beside(&path, "-wal"), dir.path().join("log")).unwrap();
        assert_eq!(look(&opened), "Other");
        fs::rename(dir.path().join("log"), beside(&path, "-wal")).unwrap();
        fs::rename(&moved, &path).unwrap();
        fs::rename(dir.path().join("d"), &moved).unwrap();
        assert_eq!(look(&opened), "Nothing");
        fs::write(dir.path().join("d"), "no directory").unwrap();
        assert_eq!(look(&opened), "Nothing");
    }

    #[test]
    fn a_link_that_leads_elsewhere_now_leads_to_another_file() {
        let (dir, path, _) = database();
        let (link, other) = (dir.path().join("link.db"), dir.path().join("other.db"));
        fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let opened = OpenFiles::at(&link).unwrap();
        assert_eq!(look(&opened), "Same");
        fs::rename(beside(&path, "-wal"), dir.path().join("moved")).unwrap();
        assert_eq!(look(&opened), "Torn", "the log is beside the file, not beside the link");
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&other, &link).unwrap();
        assert_eq!(look(&opened), "Other");
    }
}
