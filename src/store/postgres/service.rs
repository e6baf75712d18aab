//! A service of libpq: a named section of parameters in a file (`pg_service.conf`).

use std::{fs, path::PathBuf};

use super::{environment::expanded, uri::refused};
use crate::{
    store::StoreError,
    text::{printable, printable_path},
};

/// The name of a service, and the file that describes it.
#[derive(Debug, Clone)]
pub(super) struct Service {
    name: String,
    file: PathBuf,
}

impl Service {
    /// Finds the file that describes the service: the named file, or else the file of PGSERVICEFILE, or else the user's
    /// own file and then the system's.
    pub(super) fn find(
        name: String,
        named: Option<PathBuf>,
        variable: &impl Fn(&str) -> Option<String>,
    ) -> Result<Self, StoreError> {
        let named = match (named, variable("PGSERVICEFILE")) {
            (None, Some(file)) => Some(expanded("PGSERVICEFILE", &file)?),
            (named, _) => named,
        };
        if let Some(file) = named {
            return Ok(Self { name, file });
        }
        let system = variable("PGSYSCONFDIR").map(PathBuf::from).into_iter();
        let system = system.chain(SYSTEM.iter().map(PathBuf::from)).map(|dir| dir.join("pg_service.conf"));
        let own = std::env::home_dir().map(|home| home.join(".pg_service.conf"));
        let files: Vec<_> = own.into_iter().chain(system).collect();
        let known = |file: &&PathBuf| Self { name: name.clone(), file: (*file).clone() }.parameters().is_ok();
        let found = files.iter().find(known).or(files.iter().find(|file| file.exists())).cloned();
        match found {
            Some(file) => Ok(Self { name, file }),
            None => Err(refused(format!(
                "no file describes service={:?}; add it to ~/.pg_service.conf, or name a file with PGSERVICEFILE",
                printable(&name)
            ))),
        }
    }

    /// Names and values, in the order of the file.
    pub(super) fn parameters(&self) -> Result<Vec<(String, String)>, StoreError> {
        let text = fs::read_to_string(&self.file)
            .map_err(|error| self.refused(&format!("it cannot be read: {error}")))?;
        let header = format!("[{}]", self.name);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut lines = lines.skip_while(|line| *line != header);
        if lines.next().is_none() {
            return Err(self.refused(&format!("it has no section {:?}", printable(&header))));
        }
        let parameter = |line: &str| match line.split_once('=') {
            Some((name, value)) => Ok((name.trim_end().to_owned(), value.trim_start().to_owned())),
            // The error does not show the line, which may be a secret.
            None => Err(self.refused("one line of the service is not name=value")),
        };
        lines.take_while(|line| !line.starts_with('[')).map(parameter).collect()
    }

    /// The password that is in the file now.
    pub(super) fn password(&self) -> Option<String> {
        let parameters = self.parameters().ok()?;
        parameters.into_iter().rfind(|(name, _)| name == "password").map(|(_, value)| value)
    }

    pub(super) fn refused(&self, why: &str) -> StoreError {
        refused(format!("service={:?} in {}: {why}", printable(&self.name), printable_path(&self.file)))
    }
}

const SYSTEM: &[&str] = &["/etc/postgresql-common", "/etc/sysconfig/pgsql", "/etc"];
