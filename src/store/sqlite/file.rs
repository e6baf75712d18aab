//! The file of one store: what connections may do with it, and whether it is still the file that was opened.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use super::standing::{self, FileIdentity, OpenFiles, Standing, identity, if_there};
use crate::{limits, store::StoreError, text::printable_path};

/// The file of one store, checked without touching the file system.
#[derive(Debug, Clone)]
pub(super) struct DatabaseFile {
    /// Absolute, so that a later change of the working directory does not lead to another database.
    path: Arc<Path>,
    /// The path, for people.
    location: Arc<str>,
    access: Access,
    /// The files that the connections of this store have open.
    open: Arc<Mutex<Weak<OpenFiles>>>,
    /// Only one connection closes at a time. The last connection removes the log. If two closed at the same time, each
    /// would leave that to the other.
    closing: Arc<tokio::sync::Mutex<()>>,
}

/// What a connection may do with the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Access {
    ReadOnly,
    /// Never creates the file. Creates the schema only when asked to migrate.
    ReadWrite,
    #[default]
    Create,
}

impl DatabaseFile {
    pub(super) fn new(path: PathBuf, access: Access) -> Self {
        let location = printable_path(&path).into();
        Self { path: path.into(), location, access, open: Arc::default(), closing: Arc::default() }
    }

    /// Waits for the turn to close a connection. The caller holds the guard while the connection closes.
    pub(super) async fn turn_to_close(&self) -> tokio::sync::OwnedMutexGuard<()> {
        self.closing.clone().lock_owned().await
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn location(&self) -> &str {
        &self.location
    }

    pub(super) fn access(&self) -> Access {
        self.access
    }

    /// The same file, which is not created if it does not exist.
    pub(super) fn without_creating(&self) -> Self {
        let access = if self.access == Access::Create { Access::ReadWrite } else { self.access };
        Self { access, ..self.clone() }
    }

    /// The identity of the file at the path. Ask before the file is opened. `None` if there is no file, or if the
    /// platform cannot tell.
    ///
    /// # Errors
    /// The file must not be opened: not now, or not under this name.
    pub(super) fn there(&self) -> Result<Option<FileIdentity>, StoreError> {
        if let Some(opened) = self.in_use() {
            match self.look(&opened)? {
                // The file may have been given a second name since then. A connection that uses the second name is
                // refused.
                Standing::Same => return Ok(opened.file()),
                // A new connection would share memory with the old ones, and would take the new log for theirs.
                Standing::Torn => return Err(self.torn()),
                Standing::Other | Standing::Nothing => {}
            }
        }
        let found = self.stands()?;
        #[cfg(unix)]
        if let Some(objection) =
            if_there(super::names::objection(&self.path)).map_err(|error| self.unclear(&error))?.flatten()
        {
            return Err(unusable(objection));
        }
        Ok(found)
    }

    pub(super) fn identity(&self) -> io::Result<Option<FileIdentity>> {
        identity(&self.path)
    }

    /// The identity of the file at the path, even if the file must not be opened. `None` if there is no file, or if the
    /// platform cannot tell.
    pub(super) fn stands(&self) -> Result<Option<FileIdentity>, StoreError> {
        Ok(if_there(self.identity()).map_err(|error| self.unclear(&error))?.flatten())
    }

    pub(super) fn has_log(&self) -> bool {
        standing::has_log(&self.path)
    }

    /// Records which files a new connection has opened. Fails if the file is not the one that was `there` before.
    pub(super) fn opened(&self, there: Option<FileIdentity>) -> Result<Arc<OpenFiles>, StoreError> {
        let mut open = self.open();
        if let Some(opened) = open.upgrade()
            && matches!(self.look(&opened)?, Standing::Same)
        {
            return Ok(opened);
        }
        let opened = Arc::new(OpenFiles::at(&self.path).map_err(|error| self.unclear(&error))?);
        if there.is_some() && there != opened.file() {
            return Err(self.replaced());
        }
        *open = Arc::downgrade(&opened);
        Ok(opened)
    }

    pub(super) fn look(&self, opened: &OpenFiles) -> Result<Standing, StoreError> {
        opened.look().map_err(|error| self.unclear(&error))
    }

    /// The files that the connections of this store have open, if there is any connection.
    pub(super) fn in_use(&self) -> Option<Arc<OpenFiles>> {
        self.open().upgrade()
    }

    fn open(&self) -> MutexGuard<'_, Weak<OpenFiles>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error when the file system cannot tell what is at the path.
    fn unclear(&self, error: &io::Error) -> StoreError {
        match error.kind() {
            io::ErrorKind::PermissionDenied => self.denied(),
            _ => self.unavailable(limits::with_remedy(error)),
        }
    }

    pub(super) fn replaced(&self) -> StoreError {
        self.unavailable("the file was removed or replaced while it was open; connect again")
    }

    /// The error when the file was open and there is none at its path any more.
    pub(super) fn removed(&self) -> StoreError {
        self.lost("the file was removed or renamed while it was open")
    }

    pub(super) fn torn(&self) -> StoreError {
        self.lost(
            "the file and its write-ahead log or shared memory (-wal, -shm) do not belong together any more: one was \
             removed or replaced without the others while they were in use, and what was committed last may be lost; end \
             every process that has the file open, then start again",
        )
    }

    fn lost(&self, detail: &str) -> StoreError {
        StoreError::Lost { location: self.location.to_string(), detail: detail.to_owned() }
    }

    fn unavailable(&self, detail: impl Into<String>) -> StoreError {
        StoreError::Unavailable { location: self.location.to_string(), detail: detail.into() }
    }

    fn denied(&self) -> StoreError {
        StoreError::PermissionDenied {
            location: self.location.to_string(),
            detail: format!(
                "the file cannot be opened; let this user read and write it, and create files in its directory {}, where \
                 SQLite keeps its write-ahead log",
                printable_path(self.directory())
            ),
        }
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// Why SQLite could not open the file, as far as the file system can tell.
    pub(super) fn cannot_open(&self) -> StoreError {
        if let Err(shortage) = DESCRIPTORS.check() {
            return self.unavailable(shortage.to_string());
        }
        if self.path.is_dir() {
            return unusable(format!("{} is a directory; name a file in it", self.location));
        }
        let directory = self.directory();
        match directory.try_exists() {
            Ok(true) if directory.is_dir() => {}
            Ok(true) => return unusable(format!("{} is not a directory", printable_path(directory))),
            Ok(false) => {
                return unusable(format!(
                    "{} cannot be opened: the directory {} does not exist; create it",
                    self.location,
                    printable_path(directory)
                ));
            }
            Err(_) => return self.denied(),
        }
        match self.path.try_exists() {
            Ok(false) if self.access != Access::Create => unusable(format!(
                "{} does not exist, and its mode never creates it; use mode=rwc, or leave the mode out",
                self.location
            )),
            _ => self.denied(),
        }
    }
}

/// A connection needs descriptors for the database, its log, its shared memory, and a directory that it flushes.
const DESCRIPTORS: limits::Need = limits::Need { descriptors: 4, threads: 0, memory: 0 };

impl fmt::Display for DatabaseFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.location)
    }
}

pub(super) fn unusable(detail: impl Into<String>) -> StoreError {
    StoreError::Url { detail: detail.into() }
}
