//! Which file a URL names, how it is opened, and whether it is still the same file.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use percent_encoding::percent_decode_str;
use url::form_urlencoded;

use crate::{store::StoreError, text::printable};

/// The file of one store, checked without touching the file system.
#[derive(Debug, Clone)]
pub(super) struct DatabaseFile {
    /// Absolute, so that a later change of the working directory does not lead to another database.
    path: Arc<Path>,
    /// The path as people see it.
    location: Arc<str>,
    access: Access,
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
        let (path, query) = after_scheme(url)?;
        let path = percent_decode_str(path)
            .decode_utf8()
            .map_err(|_| unusable("the path is not UTF-8 once its percent signs are decoded"))?;
        let access = access(query)?;
        if path.is_empty() {
            return Err(unusable("it names no file; write sqlite://PATH or sqlite:///ABSOLUTE/PATH"));
        }
        if path.contains('\0') {
            return Err(unusable("the path contains a NUL character; remove it"));
        }
        if path.starts_with(":memory:") || path.starts_with("file:") {
            return Err(in_memory());
        }
        let path = std::path::absolute(Path::new(&*path))
            .map_err(|error| unusable(format!("the working directory cannot be read: {error}")))?;
        Ok(Self::new(path, access))
    }

    pub(super) fn new(path: PathBuf, access: Access) -> Self {
        let location = printable(&path.to_string_lossy()).into();
        Self { path: path.into(), location, access }
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

    /// Which file stands at the path now; `None` where the platform cannot say.
    pub(super) fn identity(&self) -> io::Result<Option<Identity>> {
        identity(&self.path)
    }

    /// The same for the write-ahead log, which holds what was committed last.
    pub(super) fn log_identity(&self) -> io::Result<Option<Identity>> {
        let mut log = self.path.as_os_str().to_owned();
        log.push("-wal");
        identity(Path::new(&log))
    }

    /// Why SQLite could not open the file, as far as the file system tells.
    pub(super) fn cannot_open(&self) -> StoreError {
        let directory = self.path.parent().unwrap_or(&self.path);
        let denied = || StoreError::PermissionDenied {
            location: self.location.to_string(),
            detail: format!(
                "the file cannot be opened; let this user read and write it, and create files in its directory \
                 {}, where SQLite keeps its write-ahead log",
                shown(directory)
            ),
        };
        if self.path.is_dir() {
            return unusable(format!("{} is a directory; name a file in it", self.location));
        }
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
            Err(_) => return denied(),
        }
        match self.path.try_exists() {
            Ok(false) if self.access != Access::Create => unusable(format!(
                "{} does not exist, and its mode never creates it; use mode=rwc, or leave the mode out",
                self.location
            )),
            _ => denied(),
        }
    }
}

fn identity(path: &Path) -> io::Result<Option<Identity>> {
    let found = std::fs::metadata(path)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        Ok(Some(Identity { device: found.dev(), inode: found.ino() }))
    }
    #[cfg(not(unix))]
    {
        let _ = found;
        Ok(None)
    }
}

/// A file itself, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

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
        assert!(refusal("sqlite://x%00y").contains("NUL"));
        assert!(refusal("sqlite://x%ff").contains("UTF-8"));
    }
}
