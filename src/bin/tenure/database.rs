//! Which database, and how it is opened: written by `run`, only read by those that look.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use tenure::{
    Connections, LeaseSupervisor, LeaseSupervisorBuilder, SessionKey, StoreError, printable_path, store,
};

use crate::{
    cli::{Global, SessionArgs},
    exit::{CONFIGURATION, Failure, UNAVAILABLE},
    show,
};

/// The database that the command works with.
pub(crate) struct Database {
    url: String,
    /// Nobody has named it: the embedded default.
    is_default: bool,
}

impl Database {
    /// `--database`, else `TENURE_DATABASE_URL`, else that of the run around this process, else the embedded default.
    pub(crate) fn of(global: &Global) -> Result<Self, Failure> {
        match global.database.clone() {
            // A variable that was to hold it and is not set: the local file would be somebody else's.
            Some(url) if url.trim_ascii().is_empty() => Err(Failure::new(CONFIGURATION, EMPTY)),
            Some(url) => {
                warn(global, &url);
                Ok(Self { url, is_default: false })
            }
            None => match around()? {
                Some(url) => Ok(Self { url, is_default: false }),
                None => Ok(Self { url: default_url()?, is_default: true }),
            },
        }
    }

    /// For a command that may create what is not there.
    pub(crate) fn writing(&self) -> Result<LeaseSupervisorBuilder, Failure> {
        self.make_directory()?;
        Ok(builder(&self.url))
    }

    /// Makes the directory of the embedded default, and of no other file.
    pub(crate) fn make_directory(&self) -> Result<(), Failure> {
        if let Some(file) = self.file()?
            && let Some(directory) = file.parent()
            && !directory.is_dir()
        {
            self.create(directory)?;
        }
        Ok(())
    }

    /// For a command that only looks: `None` when there is no such file, which is then not created.
    pub(crate) fn looking(&self) -> Result<Option<LeaseSupervisorBuilder>, Failure> {
        Ok(self.is_there()?.then(|| builder(&self.url).looking_only()))
    }

    /// For a command that changes what is there, and creates nothing: `None` when there is no such file.
    pub(crate) fn asking(&self) -> Result<Option<LeaseSupervisorBuilder>, Failure> {
        if !self.is_there()? {
            return Ok(None);
        }
        // An empty file is not made a database.
        #[cfg(feature = "sqlite")]
        if let Ok(file) = store::SqliteStore::new(&self.url) {
            let store = std::sync::Arc::new(file.without_creating());
            return Ok(Some(
                LeaseSupervisor::builder_on(store).connections(Connections::Shared).check_limits(false),
            ));
        }
        Ok(Some(builder(&self.url)))
    }

    /// By which a file that takes the place of this one is told from it.
    #[cfg(target_os = "linux")]
    pub(crate) fn mark(&self) -> Option<FileMark> {
        let path = self.file().ok()??;
        let id = id_of(&path)?;
        Some(FileMark { path, id })
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn is_file(&self) -> bool {
        self.file().is_ok_and(|file| file.is_some())
    }

    fn is_there(&self) -> Result<bool, Failure> {
        // One in a directory that is closed to this user may well be there.
        Ok(self.file()?.is_none_or(|file| file.try_exists().unwrap_or(true)))
    }

    pub(crate) fn is_default(&self) -> bool {
        self.is_default
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The URL for a process that may work in another directory.
    #[cfg(target_os = "linux")]
    pub(crate) fn absolute_url(&self) -> String {
        #[cfg(feature = "sqlite")]
        if let Some(url) = self.absolute_file_url() {
            return url;
        }
        self.url.clone()
    }

    #[cfg(all(target_os = "linux", feature = "sqlite"))]
    fn absolute_file_url(&self) -> Option<String> {
        let file = store::SqliteStore::new(&self.url).ok()?;
        let options = self.url.split_once('?').map_or(String::new(), |(_, options)| format!("?{options}"));
        Some(url_of_file(file.path().to_str()?) + &options)
    }

    /// For people: without a password.
    pub(crate) fn location(&self) -> Result<String, Failure> {
        Ok(store::open(&self.url)?.location().to_owned())
    }

    /// The file, if it is one.
    fn file(&self) -> Result<Option<PathBuf>, StoreError> {
        // Says what is wrong with a URL before any of it is believed.
        store::open(&self.url)?;
        #[cfg(feature = "sqlite")]
        if let Ok(file) = store::SqliteStore::new(&self.url) {
            return Ok(Some(file.path().to_owned()));
        }
        Ok(None)
    }

    fn create(&self, directory: &Path) -> Result<(), Failure> {
        let missing = |what: &str| {
            Failure::new(UNAVAILABLE, format!("the directory {} {what}", printable_path(directory)))
        };
        if !self.is_default {
            return Err(missing("does not exist; create it, or name a file elsewhere"));
        }
        fs::create_dir_all(directory).map_err(|error| {
            missing(&format!("cannot be created: {error}; name another file with --database"))
        })
    }
}

/// A file as it was at the start of a run.
#[cfg(target_os = "linux")]
pub(crate) struct FileMark {
    path: PathBuf,
    id: (u64, u64),
}

#[cfg(target_os = "linux")]
impl FileMark {
    /// What has become of the file, or of its log, if something has.
    pub(crate) fn change(&self) -> Option<String> {
        let file = printable_path(&self.path);
        match id_of(&self.path) {
            None => return Some(format!("the file {file} was deleted or renamed")),
            Some(id) if id != self.id => return Some(format!("the file {file} was replaced")),
            Some(_) => {}
        }
        let missing = ["-wal", "-shm"].into_iter().find(|end| {
            let mut name = self.path.as_os_str().to_owned();
            name.push(end);
            !Path::new(&name).exists()
        });
        missing.map(|end| format!("the file {file}{end} was deleted"))
    }
}

/// Device and number of a file, wherever links lead.
#[cfg(target_os = "linux")]
fn id_of(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;

    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// The database of the run around this process.
fn around() -> Result<Option<String>, Failure> {
    #[cfg(unix)]
    return crate::side::database();
    #[cfg(not(unix))]
    Ok(None)
}

/// What of the URL is left aside. The log says so, too, and a reader of JSON is told by `doctor`.
fn warn(global: &Global, url: &str) {
    let is_heard = global.verbose == 0 && !global.quiet && !global.json;
    if let Some(remark) = store::open(url).ok().and_then(|store| store.remark()).filter(|_| is_heard) {
        show::complain(format_args!("warning: {remark}"));
    }
}

/// One connection is enough for one run, and many such commands may share a database. The limits were checked when the
/// command began.
fn builder(url: &str) -> LeaseSupervisorBuilder {
    LeaseSupervisor::builder(url).connections(Connections::Shared).check_limits(false)
}

const EMPTY: &str = "the database URL (--database, or TENURE_DATABASE_URL) is empty: name a database, or leave it out \
    for the local file";

/// `sqlite://$XDG_STATE_HOME/tenure/tenure.db`.
#[cfg(feature = "sqlite")]
fn default_url() -> Result<String, Failure> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let Some(state) = state else {
        let message =
            "neither --database, TENURE_DATABASE_URL, XDG_STATE_HOME nor HOME says where the leases are";
        return Err(Failure::new(CONFIGURATION, message));
    };
    let file = state.join("tenure/tenure.db");
    let Some(file) = file.to_str() else {
        let message = format!("{} is not UTF-8; name a file with --database", printable_path(&file));
        return Err(Failure::new(CONFIGURATION, message));
    };
    Ok(url_of_file(file))
}

#[cfg(feature = "sqlite")]
fn url_of_file(path: &str) -> String {
    // What would mean something else in a URL.
    format!("sqlite://{}", path.replace('%', "%25").replace('?', "%3f").replace('#', "%23"))
}

#[cfg(not(feature = "sqlite"))]
fn default_url() -> Result<String, Failure> {
    let message = "name a database with --database or TENURE_DATABASE_URL: this build has no embedded one";
    let _ = env::var_os("HOME");
    Err(Failure::new(CONFIGURATION, message))
}

impl SessionArgs {
    pub(crate) fn key(&self) -> Result<SessionKey, Failure> {
        Ok(SessionKey::new(&self.account, &self.session)?)
    }
}
