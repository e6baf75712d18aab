//! Which file a URL names, and how it is opened.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use percent_encoding::percent_decode_str;
use url::form_urlencoded;

use super::standing::{self, Identity, Opened, Standing, identity, if_there};
use crate::{limits, store::StoreError, text::printable};

/// The file of one store, checked without touching the file system.
#[derive(Debug, Clone)]
pub(super) struct DatabaseFile {
    /// Absolute, so that a later change of the working directory does not lead to another database.
    path: Arc<Path>,
    /// The path as people see it.
    location: Arc<str>,
    access: Access,
    /// What the connections of this store have open.
    open: Arc<Mutex<Weak<Opened>>>,
    /// One connection closes at a time. SQLite's last one removes the log; of two at once, each leaves that to the other.
    closing: Arc<tokio::sync::Mutex<()>>,
}

/// What a connection may do with the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Access {
    ReadOnly,
    /// Never creates the file, and never the schema unless asked to migrate.
    ReadWrite,
    #[default]
    Create,
}

impl DatabaseFile {
    pub(super) fn from_url(url: &str) -> Result<Self, StoreError> {
        let (path, query) = after_scheme(url.trim_ascii())?;
        let path = percent_decode_str(path)
            .decode_utf8()
            .map_err(|_| unusable("the path is not UTF-8 once its percent signs are decoded"))?;
        let access = access(query)?;
        if path.is_empty() {
            return Err(unusable("it names no file; write sqlite://PATH or sqlite:///ABSOLUTE/PATH"));
        }
        if let Some(control) = path.chars().find(|character| character.is_control()) {
            let name = if control == '\0' {
                "a NUL".to_owned()
            } else {
                format!("the control character {control:?}")
            };
            return Err(unusable(format!("the path contains {name}; remove it")));
        }
        if path.starts_with(":memory:") || path.starts_with("file:") {
            return Err(in_memory());
        }
        let path = std::path::absolute(at_home(&path)?)
            .map_err(|error| unusable(format!("the working directory cannot be read: {error}")))?;
        Ok(Self::new(path, access))
    }

    pub(super) fn new(path: PathBuf, access: Access) -> Self {
        let location = printable(&path.to_string_lossy()).into();
        Self { path: path.into(), location, access, open: Arc::default(), closing: Arc::default() }
    }

    /// To be held while a connection closes.
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

    /// The same file, which is not created when it is not there.
    pub(super) fn without_creating(&self) -> Self {
        let access = if self.access == Access::Create { Access::ReadWrite } else { self.access };
        Self { access, ..self.clone() }
    }

    /// Which file stands at the path, to be asked before it is opened; `None` when there is none, or when the platform
    /// cannot say.
    ///
    /// # Errors
    /// When it must not be opened now, or never by this name.
    pub(super) fn there(&self) -> Result<Option<Identity>, StoreError> {
        if let Some(opened) = self.open().upgrade() {
            match self.look(&opened)? {
                // A name that it was given since is not ours to answer for: who comes by that one is refused.
                Standing::Same => return Ok(opened.file()),
                // A connection that shares the memory of the others would take the new log for theirs.
                Standing::Torn => return Err(self.torn()),
                Standing::Other | Standing::Nothing => {}
            }
        }
        let unclear = |error| self.unclear(&error);
        let found = if_there(identity(&self.path)).map_err(unclear)?;
        #[cfg(unix)]
        if let Some(objection) = if_there(super::names::objection(&self.path)).map_err(unclear)?.flatten() {
            return Err(unusable(objection));
        }
        Ok(found.flatten())
    }

    pub(super) fn identity(&self) -> io::Result<Option<Identity>> {
        identity(&self.path)
    }

    pub(super) fn has_log(&self) -> bool {
        standing::has_log(&self.path)
    }

    /// What has been opened, when `there` stood at the path before.
    pub(super) fn opened(&self, there: Option<Identity>) -> Result<Arc<Opened>, StoreError> {
        let mut open = self.open();
        if let Some(opened) = open.upgrade()
            && matches!(self.look(&opened)?, Standing::Same)
        {
            return Ok(opened);
        }
        let opened = Arc::new(Opened::at(&self.path).map_err(|error| self.unclear(&error))?);
        if there.is_some() && there != opened.file() {
            return Err(self.replaced());
        }
        *open = Arc::downgrade(&opened);
        Ok(opened)
    }

    pub(super) fn look(&self, opened: &Opened) -> Result<Standing, StoreError> {
        opened.look().map_err(|error| self.unclear(&error))
    }

    /// Whether what the connections of this store have open is no longer what stands at the path.
    pub(super) fn is_elsewhere(&self) -> bool {
        let opened = self.open().upgrade();
        opened.is_some_and(|opened| opened.look().is_ok_and(|standing| !matches!(standing, Standing::Same)))
    }

    fn open(&self) -> MutexGuard<'_, Weak<Opened>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file system does not tell what stands at the path.
    fn unclear(&self, error: &io::Error) -> StoreError {
        match error.kind() {
            io::ErrorKind::PermissionDenied => self.denied(),
            _ => self.unavailable(limits::with_remedy(error)),
        }
    }

    pub(super) fn replaced(&self) -> StoreError {
        self.unavailable("the file was removed or replaced while it was open; connect again")
    }

    /// Nothing stands at the path of a file that was open.
    pub(super) fn removed(&self) -> StoreError {
        self.lost("the file was removed or renamed while it was open")
    }

    pub(super) fn torn(&self) -> StoreError {
        self.lost(
            "its write-ahead log or shared memory (-wal, -shm) was removed while it was in use, and what was committed \
             last with it; end every process that has the file open, then start again",
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
                shown(self.directory())
            ),
        }
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// Why SQLite could not open the file, as far as the file system tells.
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
            Ok(true) => return unusable(format!("{} is not a directory", shown(directory))),
            Ok(false) => {
                return unusable(format!(
                    "{} cannot be opened: the directory {} does not exist; create it",
                    self.location,
                    shown(directory)
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

/// For the database, its log, its shared memory, and a directory to be flushed.
const DESCRIPTORS: limits::Need = limits::Need { descriptors: 4, threads: 0, memory: 0 };

impl fmt::Display for DatabaseFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.location)
    }
}

/// The path, still encoded, and the query.
fn after_scheme(url: &str) -> Result<(&str, &str), StoreError> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(unusable("it has no scheme; write sqlite://PATH"));
    };
    if !scheme.eq_ignore_ascii_case("sqlite") {
        // Only the scheme is repeated: the rest may hold a password.
        return Err(unusable(format!(
            "{:?} is not the scheme of a SQLite file; write sqlite://PATH",
            printable(scheme)
        )));
    }
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    Ok(rest.split_once('?').unwrap_or((rest, "")))
}

fn access(query: &str) -> Result<Access, StoreError> {
    let mut access = Access::default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        access = match (&*name, &*value) {
            ("mode", "ro") => Access::ReadOnly,
            ("mode", "rw") => Access::ReadWrite,
            ("mode", "rwc") => Access::Create,
            ("mode", "memory") => return Err(in_memory()),
            ("mode", other) => {
                return Err(unusable(format!("mode={} is unknown; use ro, rw or rwc", printable(other))));
            }
            ("schema", _) => {
                return Err(unusable(
                    "a SQLite file has no schemas; leave schema= out, and give each environment a file of its own",
                ));
            }
            (other, _) => {
                return Err(unusable(format!(
                    "the option {:?} is unknown; only mode is understood",
                    printable(other)
                )));
            }
        };
    }
    Ok(access)
}

fn in_memory() -> StoreError {
    unusable(
        "a SQLite database in memory belongs to one connection, so it cannot rule between runs; name a file, \
         or for tests use the in-memory store of the feature `testing`",
    )
}

/// A path as a shell would take it. Of other users' directories only a shell knows.
fn at_home(path: &str) -> Result<PathBuf, StoreError> {
    if !path.starts_with('~') {
        return Ok(path.into());
    }
    match (path.strip_prefix("~/"), std::env::home_dir().filter(|home| home.is_absolute())) {
        (Some(below), Some(home)) => Ok(home.join(below)),
        (Some(_), None) => {
            Err(unusable("`~` cannot be expanded: HOME names no directory; write the whole path"))
        }
        (None, _) => Err(unusable(format!(
            "{:?}: only `~/` is expanded; write the whole path, or ./~… for a file of that name",
            printable(path)
        ))),
    }
}

pub(super) fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy()).into_owned()
}

pub(super) fn unusable(detail: impl Into<String>) -> StoreError {
    StoreError::Url { detail: detail.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_of(url: &str) -> String {
        DatabaseFile::from_url(url).unwrap().path().to_str().unwrap().to_owned()
    }

    fn refusal(url: &str) -> String {
        DatabaseFile::from_url(url).unwrap_err().to_string()
    }

    #[test]
    fn absolute_relative_and_encoded_paths_name_the_same_files_everywhere() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(path_of("sqlite:///var/lib/t.db"), "/var/lib/t.db");
        assert_eq!(path_of("sqlite:/var/lib/t.db?mode=rw"), "/var/lib/t.db");
        assert_eq!(path_of("SQLite:///a%20b%3Fc%23%F0%9F%A6%80.db"), "/a b?c#🦀.db");
        for url in ["sqlite://state/t.db", "sqlite:state/t.db"] {
            assert_eq!(Path::new(&path_of(url)), here.join("state/t.db"));
        }
    }

    #[test]
    fn blanks_and_line_breaks_around_a_url_are_no_part_of_it() {
        for url in ["sqlite:///a b.db\n", " \tsqlite:///a b.db?mode=rw\r\n"] {
            assert_eq!(path_of(url), "/a b.db");
        }
    }

    #[test]
    fn the_home_directory_is_expanded_at_the_beginning_only() {
        let home = std::env::home_dir().unwrap();
        for url in ["sqlite://~/s/t.db", "sqlite:~/s/t.db?mode=rw"] {
            assert_eq!(Path::new(&path_of(url)), home.join("s/t.db"));
        }
        let here = std::env::current_dir().unwrap();
        assert_eq!(Path::new(&path_of("sqlite://./~/t.db")), here.join("~/t.db"));
        assert_eq!(path_of("sqlite:///a/~/t.db"), "/a/~/t.db");
    }

    #[test]
    fn the_mode_decides_what_may_be_created() {
        for (query, access) in [
            ("", Access::Create),
            ("?mode=rwc", Access::Create),
            ("?mode=rw", Access::ReadWrite),
            ("?mode=ro", Access::ReadOnly),
        ] {
            assert_eq!(DatabaseFile::from_url(&format!("sqlite:///t.db{query}")).unwrap().access(), access);
        }
    }

    #[test]
    fn a_refused_url_names_the_remedy_and_never_a_password() {
        for url in ["sqlite::memory:", "sqlite://:memory:", "sqlite://x?mode=memory", "sqlite:file::memory:"]
        {
            assert!(refusal(url).contains("`testing`"), "{}", refusal(url));
        }
        let foreign = refusal("postgres://me:hunter2@db/x");
        assert!(foreign.contains("sqlite://PATH") && foreign.contains("postgres"), "{foreign}");
        assert!(!foreign.contains("hunter2"), "{foreign}");
        assert!(refusal("tenure.db").contains("sqlite://PATH"));
        assert!(refusal("sqlite://").contains("names no file"));
        assert!(refusal("sqlite://x?mode=rwx").contains("ro, rw or rwc"));
        assert!(refusal("sqlite://x?cache=shared").contains("only mode"));
        assert!(refusal("sqlite://x?schema=prod").contains("a file of its own"));
        for (url, name) in [
            ("sqlite://x%00y", "NUL"),
            ("sqlite://x%0a", "'\\n'"),
            ("sqlite:///a\nb", "'\\n'"),
            ("sqlite:///a\u{85}b", "'\\u{85}'"),
        ] {
            assert!(refusal(url).contains(name), "{}", refusal(url));
        }
        assert!(refusal("sqlite://~ann/t.db").contains("~ann/t.db"));
        assert!(refusal("sqlite://x%ff").contains("UTF-8"));
    }
}
