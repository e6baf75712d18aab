//! Reads a URL: which file it names, and what connections may do with it.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use url::form_urlencoded;

use super::file::{Access, DatabaseFile, unusable};
use crate::{store::StoreError, text::printable};

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
}

/// The path, which is still percent-encoded, and the query.
fn after_scheme(url: &str) -> Result<(&str, &str), StoreError> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(unusable("it has no scheme; write sqlite://PATH"));
    };
    if !scheme.eq_ignore_ascii_case("sqlite") {
        // Only the scheme is shown, because the rest may contain a password.
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

/// The path with `~/` expanded as a shell would. `~user/` is refused, because only a shell knows the home directories
/// of other users.
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

#[cfg(test)]
mod tests {
    use std::path::Path;

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
