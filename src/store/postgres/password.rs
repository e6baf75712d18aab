//! Finds the password of a connection. It is looked up for each connection, because it may have changed.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use super::{
    environment::{expanded, variable},
    service::Service,
    settings::ConnectionSettings,
};
use crate::{store::StoreError, text::printable_path};

/// The places to look, in this order: the URL, the service, PGPASSWORD, the password file.
#[derive(Debug, Clone)]
pub(super) struct Passwords {
    given: Option<String>,
    service: Option<Service>,
    file: Option<PathBuf>,
}

/// The account whose password is looked for in a password file.
#[derive(Debug, Clone)]
pub(super) struct Account {
    /// The names of the server. A line may have any of them.
    pub(super) hosts: Vec<String>,
    pub(super) port: u16,
    pub(super) database: String,
    pub(super) user: String,
}

/// The result of a look-up.
#[derive(Default)]
pub(super) struct FoundPassword {
    pub(super) password: Option<String>,
    /// Why no password was found, for people. The server's refusal does not say this.
    pub(super) remark: Option<String>,
}

impl Passwords {
    pub(super) fn of(settings: &ConnectionSettings) -> Result<Self, StoreError> {
        let given = settings.value("password").map(str::to_owned);
        Ok(Self { given, service: settings.service.clone(), file: settings.path("passfile")? })
    }

    /// The password, if it is known without reading a file. `None` if a file has to be read.
    pub(super) fn without_files(&self) -> Option<FoundPassword> {
        let given = self.given.clone();
        let given = given.or_else(|| variable("PGPASSWORD").filter(|_| self.service.is_none()));
        given.map(|password| FoundPassword { password: Some(password), remark: None })
    }

    /// Looks in all places. This reads files, so it must not run on the thread that renews leases.
    pub(super) fn look_up(&self, account: &Account) -> FoundPassword {
        let given = self.given.clone().or_else(|| self.service.as_ref()?.password());
        match given.or_else(|| variable("PGPASSWORD")) {
            Some(password) => FoundPassword { password: Some(password), remark: None },
            None => self.look_into_the_file(account),
        }
    }

    fn look_into_the_file(&self, account: &Account) -> FoundPassword {
        let named = self.file.clone().or_else(|| expanded("PGPASSFILE", &variable("PGPASSFILE")?).ok());
        let Some(file) = named.clone().or_else(|| Some(std::env::home_dir()?.join(".pgpass"))) else {
            return FoundPassword::default();
        };
        let remark = |why: String| FoundPassword {
            password: None,
            remark: Some(format!("the password file {} {why}", printable_path(&file))),
        };
        match read(&file) {
            Ok(Text::Read(text)) => match text.lines().find_map(|line| password_of(line, account)) {
                Some(password) => FoundPassword { password: Some(password), remark: None },
                None => remark("has no line for this server, port, database and user".to_owned()),
            },
            Ok(Text::OpenToOthers(mode)) => remark(format!(
                "was not used, because others may read it (its mode is {mode:04o}); run chmod 600 on it"
            )),
            Ok(Text::NoFile) => remark("was not used, because it is no file".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound && named.is_none() => {
                FoundPassword::default()
            }
            Err(error) => remark(format!("cannot be read: {error}")),
        }
    }
}

enum Text {
    Read(String),
    OpenToOthers(u32),
    NoFile,
}

fn read(path: &Path) -> io::Result<Text> {
    // Before the file is opened, because opening a named pipe waits for its writer.
    if !fs::metadata(path)?.is_file() {
        return Ok(Text::NoFile);
    }
    let mut file = File::open(path)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;

        let mode = file.metadata()?.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Ok(Text::OpenToOthers(mode));
        }
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(Text::Read(text))
}

/// The password in `host:port:database:user:password`, if the line is for this account.
fn password_of(line: &str, account: &Account) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let mut rest = line;
    let mut field = || {
        let (field, after) = split_field(rest)?;
        rest = after;
        Some(field)
    };
    let (host, port, database, user) = (field()?, field()?, field()?, field()?);
    let is = |field: &str, wanted: &str| field == "*" || unescaped(field) == wanted;
    let matches = account.hosts.iter().any(|known| is(host, known))
        && is(port, &account.port.to_string())
        && is(database, &account.database)
        && is(user, &account.user);
    matches.then(|| unescaped(rest))
}

/// The text up to the next colon that is not escaped by a backslash, and the rest.
fn split_field(text: &str) -> Option<(&str, &str)> {
    let mut is_escaped = false;
    for (at, char) in text.char_indices() {
        match char {
            ':' if !is_escaped => return Some((&text[..at], &text[at + 1..])),
            _ => is_escaped = char == '\\' && !is_escaped,
        }
    }
    None
}

fn unescaped(field: &str) -> String {
    let mut text = String::with_capacity(field.len());
    let mut chars = field.chars();
    while let Some(char) = chars.next() {
        text.push(if char == '\\' { chars.next().unwrap_or(char) } else { char });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_for_the_account_that_all_its_fields_name() {
        let account = Account {
            hosts: vec!["::1".to_owned()],
            port: 5432,
            database: "chat".to_owned(),
            user: "a:b".to_owned(),
        };
        for (line, password) in [
            (r"*:*:*:*:p", Some("p")),
            (r"\:\:1:5432:chat:a\:b:p:q", Some("p:q")),
            (r"\:\:1:5432:chat:a\:b:p\\q\:", Some(r"p\q:")),
            (r"\:\:1:5432:chat:a\:b:", Some("")),
            (r"\:\:1:5433:chat:a\:b:p", None),
            (r"h:*:*:*:p", None),
            (r"*:*:*:a:p", None),
            (r"#*:*:*:*:p", None),
            (r"*:*:*", None),
            ("", None),
        ] {
            assert_eq!(password_of(line, &account).as_deref(), password, "{line}");
        }
    }
}
