//! Hints without a server. The listener checks several times a second whether another connection has written to the
//! file.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::future::BoxFuture;
use tokio::time::sleep;

use super::{
    connection::Connection,
    failure::Failure,
    file::DatabaseFile,
    standing::{OpenFiles, Standing},
};
use crate::store::{Bounds, Hint, Listener, StoreError};

/// The time between two looks.
const PERIOD: Duration = Duration::from_millis(200);
/// How old a file's modification time must be before an unchanged file counts as not written to. This is longer than
/// one tick of a local file system's clock. On a file system with longer ticks (FAT), a hint may be missed, and the
/// next renewal brings the request.
const SETTLED: Duration = Duration::from_millis(100);

pub(super) async fn open(file: DatabaseFile, bounds: Bounds) -> Result<Box<dyn Listener>, StoreError> {
    let granted = file.in_use();
    Ok(Box::new(beside(granted, file, bounds).await?))
}

/// `granted` is the file in which the runs of this listener were granted.
async fn beside(
    granted: Option<Arc<OpenFiles>>,
    file: DatabaseFile,
    bounds: Bounds,
) -> Result<Changes, StoreError> {
    let changes = Changes::of(&file, bounds).await;
    // This check comes after the connection is open, because the file at the path may have been replaced in the
    // meantime.
    let is_elsewhere = granted
        .is_some_and(|granted| granted.look().is_ok_and(|standing| !matches!(standing, Standing::Same)));
    match changes {
        Ok(changes) => Ok(Changes { is_elsewhere, ..changes }),
        Err(error @ StoreError::Lost { .. }) => Err(error),
        // The file at the path may have no schema, or be no database. The runs are lost in any case.
        Err(_) if is_elsewhere => Err(file.removed()),
        Err(error) => Err(error),
    }
}

struct Changes {
    connection: Connection,
    /// The file's version at the last check.
    seen: i64,
    files: Files,
    /// Whether the path now leads to another file than when the runs were granted.
    is_elsewhere: bool,
    /// Whether the hint [`Replaced`](Hint::Replaced) has been given.
    is_told: bool,
}

impl Changes {
    async fn of(file: &DatabaseFile, bounds: Bounds) -> Result<Self, StoreError> {
        // The listener serves runs, so their file existed. If there is none now, it was removed.
        if file.there()?.is_none() {
            return Err(file.removed());
        }
        let opened = Connection::open(file.clone(), bounds).await;
        let mut connection = opened.map_err(|failure| failure.in_file(file))?;
        // The files are looked at before the version is read. So a write in between is seen as new.
        let mut files = Files::of(file.path());
        files.may_have_changed();
        let seen = version(&mut connection).await?;
        Ok(Self { connection, seen, files, is_elsewhere: false, is_told: false })
    }
}

impl Listener for Changes {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Hint>, StoreError>> {
        Box::pin(async move {
            sleep(PERIOD).await;
            self.is_elsewhere |= !matches!(self.connection.look()?, Standing::Same);
            if self.is_elsewhere && !std::mem::replace(&mut self.is_told, true) {
                return Ok(Some(Hint::Replaced));
            }
            if !self.files.may_have_changed() {
                return Ok(None);
            }
            let version = version(&mut self.connection).await?;
            let is_new = std::mem::replace(&mut self.seen, version) != version;
            Ok(is_new.then_some(Hint::Changed))
        })
    }

    fn check(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.connection.say_goodbye().await;
        })
    }
}

/// The file and its log, as the file system shows them. This check is cheap: it needs no other thread, as a query of
/// the connection does.
struct Files {
    paths: [PathBuf; 2],
    seen: [Option<Seen>; 2],
}

/// The properties of a file that a write changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    len: u64,
    modified: SystemTime,
}

impl Files {
    fn of(path: &Path) -> Self {
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        Self { paths: [path.to_owned(), log.into()], seen: [None; 2] }
    }

    /// Whether a connection may have written since the last call.
    fn may_have_changed(&mut self) -> bool {
        let found = self.paths.each_ref().map(|path| {
            let found = fs::metadata(path).ok()?;
            Some(Seen { len: found.len(), modified: found.modified().ok()? })
        });
        // A second write within one tick of the file system's clock may change neither the length nor the time.
        let is_settled =
            |seen: Seen| SystemTime::now().duration_since(seen.modified).is_ok_and(|age| age > SETTLED);
        let is_known = found[1].is_some() && found.iter().flatten().all(|seen| is_settled(*seen));
        let is_same = std::mem::replace(&mut self.seen, found) == found;
        !(is_same && is_known)
    }
}

/// A number that changes when another connection, of any process, has committed. Reading it takes only a few bytes of
/// shared memory, and no row.
async fn version(connection: &mut Connection) -> Result<i64, StoreError> {
    let version = sqlx::query_scalar("PRAGMA data_version").fetch_one(&mut connection.sqlite).await;
    connection.answer(version.map_err(Failure::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::file::Access;

    const BOUNDS: Bounds = Bounds { statement: Duration::from_secs(5), lock: Duration::from_secs(5) };

    fn database(path: &Path) -> DatabaseFile {
        DatabaseFile::new(path.to_owned(), Access::Create)
    }

    /// The listener of runs that were granted in one file. Before it opens the file, `make` puts another one at the
    /// path.
    async fn listener_of_the_second(make: impl AsyncFnOnce(&Path)) -> Result<Changes, StoreError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.db");
        let file = database(&path);
        let _lane = Connection::open(file.clone(), BOUNDS).await.unwrap();
        let granted = file.in_use();
        assert!(granted.is_some());
        for name in ["t.db-wal", "t.db-shm"] {
            fs::remove_file(directory.path().join(name)).unwrap();
        }
        fs::rename(&path, directory.path().join("old.db")).unwrap();
        make(&path).await;
        let mut changes = beside(granted, file.without_creating(), BOUNDS).await?;
        assert_eq!(changes.next().await.unwrap(), Some(Hint::Replaced));
        Ok(changes)
    }

    #[tokio::test]
    async fn a_file_that_was_replaced_while_the_listener_opened_it_is_told_of() {
        let another = async |path: &Path| {
            Connection::open(database(path), BOUNDS).await.unwrap().say_goodbye().await;
        };
        assert!(listener_of_the_second(another).await.is_ok());
    }

    #[tokio::test]
    async fn a_file_without_a_schema_in_the_place_of_the_runs_own_is_a_loss() {
        let lost = |found: Result<Changes, StoreError>| matches!(found, Err(StoreError::Lost { .. }));
        assert!(lost(listener_of_the_second(async |path: &Path| fs::write(path, "").unwrap()).await));
        assert!(lost(
            listener_of_the_second(async |path: &Path| fs::write(path, "no database").unwrap()).await
        ));
        assert!(lost(listener_of_the_second(async |path: &Path| fs::create_dir(path).unwrap()).await));
        assert!(lost(listener_of_the_second(async |_: &Path| {}).await));
    }

    #[test]
    fn a_write_is_never_missed_and_a_file_that_nobody_writes_to_is_not_asked_about() {
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
