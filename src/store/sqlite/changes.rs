//! Hints without a server. The listener checks several times a second whether another connection has written to the
//! file. It asks only the file system, and needs no connection.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use futures::future::BoxFuture;

use super::{
    file::DatabaseFile,
    standing::{FileIdentity, Standing},
};
use crate::{
    pulse::Pulse,
    store::{Hint, Listener, StoreError},
};

/// The time between two checks.
const PERIOD: Duration = Duration::from_millis(250);
/// How old a file's modification time must be, so that a later write is sure to change it. This is longer than one tick
/// of a local file system's clock. On a file system with longer ticks (FAT), a hint may be missed, and the next renewal
/// brings the request.
const SETTLED: Duration = Duration::from_millis(100);

pub(super) struct Changes {
    file: DatabaseFile,
    /// The file in which the runs were granted. `None` until a connection has opened it.
    granted: Option<FileIdentity>,
    files: Files,
    /// Whether the hint [`Replaced`](Hint::Replaced) has been given.
    is_told: bool,
    pulse: Pulse,
}

impl Changes {
    pub(super) fn of(file: DatabaseFile) -> Self {
        let granted = file.in_use().and_then(|open| open.file());
        let mut files = Files::of(file.path());
        // Only later writes count as changes.
        files.may_have_changed();
        Self { file, granted, files, is_told: false, pulse: Pulse::of_kernel(PERIOD) }
    }

    /// Whether the path leads to another file than the one in which the runs were granted. The connections of the store
    /// may have been closed since then, or may have opened the other file.
    fn is_elsewhere(&mut self) -> Result<bool, StoreError> {
        let Some(open) = self.file.in_use() else {
            return Ok(self.granted.is_some() && self.file.stands()? != self.granted);
        };
        if !matches!(self.file.look(&open)?, Standing::Same) {
            return Ok(true);
        }
        if self.is_told || self.granted.is_none() && open.file().is_some() {
            // The hint reached all runs of the earlier file, and the next runs are granted in this one.
            (self.granted, self.files, self.is_told) = (open.file(), Files::of(self.file.path()), false);
        }
        Ok(self.granted != open.file())
    }
}

impl Listener for Changes {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Hint>, StoreError>> {
        Box::pin(async move {
            self.pulse.next().await;
            if self.is_elsewhere()? {
                return Ok((!std::mem::replace(&mut self.is_told, true)).then_some(Hint::Replaced));
            }
            Ok(self.files.may_have_changed().then_some(Hint::Changed))
        })
    }

    fn check(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}

/// The file and its log, as the file system shows them.
struct Files {
    paths: [PathBuf; 2],
    seen: [Option<Seen>; 2],
    /// Whether the times were old enough at the last call for a later write to change them.
    was_settled: bool,
}

/// The properties of a file that a write changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    len: u64,
    modified: SystemTime,
}

impl Files {
    fn of(path: &Path) -> Self {
        // SQLite resolves links, and keeps the log beside the file itself.
        let own = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut log = own.as_os_str().to_owned();
        log.push("-wal");
        Self { paths: [own, log.into()], seen: [None; 2], was_settled: false }
    }

    /// Whether a connection may have written since the last call.
    fn may_have_changed(&mut self) -> bool {
        let found = self.paths.each_ref().map(|path| {
            let found = fs::metadata(path).ok()?;
            Some(Seen { len: found.len(), modified: found.modified().ok()? })
        });
        // A second write within one tick of the file system's clock may change neither the length nor the time.
        let is_old =
            |seen: &Seen| SystemTime::now().duration_since(seen.modified).is_ok_and(|age| age > SETTLED);
        let is_settled = found[1].is_some() && found.iter().flatten().all(is_old);
        let was_settled = std::mem::replace(&mut self.was_settled, is_settled);
        let is_same = std::mem::replace(&mut self.seen, found) == found;
        !(is_same && was_settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{
        Bounds,
        sqlite::{connection::Connection, file::Access},
    };

    const BOUNDS: Bounds = Bounds { statement: Duration::from_secs(5), lock: Duration::from_secs(5) };

    fn database(path: &Path) -> DatabaseFile {
        DatabaseFile::new(path.to_owned(), Access::Create)
    }

    async fn hear(changes: &mut Changes) -> Option<Hint> {
        changes.next().await.unwrap()
    }

    /// The hint that a listener gives after `make` has put another file at the path of the file in which its runs were
    /// granted.
    async fn told_of_the_second(make: impl AsyncFnOnce(&Path)) -> Option<Hint> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.db");
        let file = database(&path);
        let _lane = Connection::open(file.clone(), BOUNDS).await.unwrap();
        let mut changes = Changes::of(file);
        for name in ["t.db-wal", "t.db-shm"] {
            fs::remove_file(directory.path().join(name)).unwrap();
        }
        fs::rename(&path, directory.path().join("old.db")).unwrap();
        make(&path).await;
        hear(&mut changes).await
    }

    #[tokio::test]
    async fn anything_else_at_the_path_of_the_runs_file_is_told_of() {
        let another = async |path: &Path| {
            Connection::open(database(path), BOUNDS).await.unwrap().say_goodbye().await;
        };
        let told = Some(Hint::Replaced);
        assert_eq!(told_of_the_second(another).await, told);
        assert_eq!(told_of_the_second(async |path: &Path| fs::write(path, "").unwrap()).await, told);
        assert_eq!(
            told_of_the_second(async |path: &Path| fs::write(path, "no database").unwrap()).await,
            told
        );
        assert_eq!(told_of_the_second(async |path: &Path| fs::create_dir(path).unwrap()).await, told);
        assert_eq!(told_of_the_second(async |_: &Path| {}).await, told);
    }

    #[tokio::test]
    async fn a_file_that_all_connections_have_moved_to_is_told_of_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.db");
        let file = database(&path);
        let first = Connection::open(file.clone(), BOUNDS).await.unwrap();
        let mut changes = Changes::of(file.clone());
        fs::rename(&path, directory.path().join("old.db")).unwrap();
        for name in ["t.db-wal", "t.db-shm"] {
            fs::remove_file(directory.path().join(name)).unwrap();
        }
        drop(first);
        let second = Connection::open(file.clone(), BOUNDS).await.unwrap();
        assert_eq!(hear(&mut changes).await, Some(Hint::Replaced));
        assert_ne!(hear(&mut changes).await, Some(Hint::Replaced));
        second.say_goodbye().await;
        assert_ne!(
            hear(&mut changes).await,
            Some(Hint::Replaced),
            "no connection is open, and the file is the same"
        );
    }

    #[tokio::test]
    async fn a_second_write_in_the_same_tick_of_the_clock_is_not_missed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.db");
        fs::write(&path, "data").unwrap();
        let log = fs::File::create(directory.path().join("t.db-wal")).unwrap();
        let mut files = Files::of(&path);
        let now = SystemTime::now();
        log.set_modified(now).unwrap();
        assert!(files.may_have_changed());
        log.set_modified(now).unwrap();
        std::thread::sleep(2 * SETTLED);
        assert!(files.may_have_changed());
        assert!(!files.may_have_changed());
    }

    #[test]
    fn a_write_is_never_missed_and_a_file_that_nobody_writes_to_has_not_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.db");
        let log = directory.path().join("t.db-wal");
        let mut files = Files::of(&path);
        fs::write(&path, "data").unwrap();
        assert!(files.may_have_changed() && files.may_have_changed(), "without a log nothing is known");
        fs::write(&log, "one").unwrap();
        assert!(files.may_have_changed(), "it is new");
        let long_ago = SystemTime::now() - 2 * SETTLED;
        for one in [&path, &log] {
            fs::File::options().write(true).open(one).unwrap().set_modified(long_ago).unwrap();
        }
        assert!(files.may_have_changed(), "it is another");
        assert!(!files.may_have_changed(), "nobody has written");
        // The same length, as after a checkpoint.
        fs::write(&log, "two").unwrap();
        assert!(files.may_have_changed());
        let later = SystemTime::now() + 100 * SETTLED;
        fs::File::options().write(true).open(&log).unwrap().set_modified(later).unwrap();
        assert!(
            files.may_have_changed() && files.may_have_changed(),
            "a clock that was set back tells nothing"
        );
    }
}
