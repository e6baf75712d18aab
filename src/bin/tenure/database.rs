//! Which database a command uses, and how it opens it: `run` may create the database, commands that look may not.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use tenure::{
    Connections, LeaseSupervisor, LeaseSupervisorBuilder, SessionKey, StoreError, store, text::printable_path,
};

use crate::{
    cli::{Global, SessionArgs},
    exit::{CONFIGURATION, Failure, UNAVAILABLE},
    show,
};

/// The database that the command works with.
pub(crate) struct Database {
    url: String,
    /// Whether no URL was given, so that this is the default file.
    is_default: bool,
}

impl Database {
    /// The URL is that of `--database`, else of `TENURE_DATABASE_URL`, else of the run around this process, else of the
    /// default file.
    pub(crate) fn of(global: &Global) -> Result<Self, Failure> {
        match global.database.clone() {
            // Likely a shell variable that is not set. The default file would be the wrong database.
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

    /// For a command that may create the database.
    pub(crate) fn writing(&self) -> Result<LeaseSupervisorBuilder, Failure> {
        self.make_directory()?;
        Ok(builder(&self.url))
    }

    /// Creates the directory of the default file. For another file, a missing directory is an error.
    pub(crate) fn make_directory(&self) -> Result<(), Failure> {
        if let Some(file) = self.file()?
            && let Some(directory) = file.parent()
            && !directory.is_dir()
        {
            self.create(directory)?;
        }
        Ok(())
    }

    /// For a command that only looks, and never creates a file: `None` when there is no such file.
    pub(crate) fn looking(&self) -> Result<Option<LeaseSupervisorBuilder>, Failure> {
        Ok(self.is_there()?.then(|| builder(&self.url).looking_only()))
    }

    /// For a command that changes an existing database, and creates none: `None` when there is no such file.
    pub(crate) fn asking(&self) -> Result<Option<LeaseSupervisorBuilder>, Failure> {
        if !self.is_there()? {
            return Ok(None);
        }
        // Without this, an empty file would get a schema.
        #[cfg(feature = "sqlite")]
        if let Ok(file) = store::SqliteStore::new(&self.url) {
            let store = std::sync::Arc::new(file.without_creating());
            return Ok(Some(for_one_run(LeaseSupervisor::builder_on(store))));
        }
        Ok(Some(builder(&self.url)))
    }

    /// Identifies the SQLite file, so that a later file at the same path can be told apart from it.
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
        // If this user may not search the directory, the file may exist.
        Ok(self.file()?.is_none_or(|file| file.try_exists().unwrap_or(true)))
    }

    pub(crate) fn is_default(&self) -> bool {
        self.is_default
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The URL, with an absolute path, for a process that may have another working directory.
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

    /// The database as it is shown to people: without a password.
    pub(crate) fn location(&self) -> Result<String, Failure> {
        Ok(store::open(&self.url)?.location().to_owned())
    }

    /// The path of the database if it is a SQLite file.
    fn file(&self) -> Result<Option<PathBuf>, StoreError> {
        // Reports a bad URL before any part of it is used.
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

/// The identity of a file at the start of a run.
#[cfg(target_os = "linux")]
pub(crate) struct FileMark {
    path: PathBuf,
    id: (u64, u64),
}

#[cfg(target_os = "linux")]
impl FileMark {
    /// Says what has happened to the file or its log since then; `None` if nothing has.
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

/// Device and inode number of a file. Symbolic links are followed.
#[cfg(target_os = "linux")]
fn id_of(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;

    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// The database of the run around this process, if there is such a run.
fn around() -> Result<Option<String>, Failure> {
    #[cfg(unix)]
    return crate::side::database();
    #[cfg(not(unix))]
    Ok(None)
}

/// Warns of parameters of the URL that are ignored. Prints nothing with `--quiet`. Nor with `-v`, because the log then
/// has the warning, nor with `--json`, where `tenure doctor` reports it as a finding.
fn warn(global: &Global, url: &str) {
    let is_heard = global.verbose == 0 && !global.quiet && !global.json;
    if let Some(remark) = store::open(url).ok().and_then(|store| store.remark()).filter(|_| is_heard) {
        show::complain(format_args!("warning: {remark}"));
    }
}

fn builder(url: &str) -> LeaseSupervisorBuilder {
    for_one_run(LeaseSupervisor::builder(url))
}

/// One connection is enough for one run. Many such commands may use one server, so each takes as few as it can. The
/// limits were checked when the command started.
fn for_one_run(builder: LeaseSupervisorBuilder) -> LeaseSupervisorBuilder {
    builder.connections(Connections::Shared).check_limits(false)
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
    // These characters have a meaning in a URL.
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
