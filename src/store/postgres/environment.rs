//! The environment of the process: variables, the home directory, and paths that begin with it.

use std::{
    env,
    path::{Path, PathBuf},
};

use super::uri::refused;
use crate::{store::StoreError, text::printable};

/// An environment variable. `None` if it is not set, or empty.
pub(super) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// A path in which `~/` stands for the home directory. `name` is the parameter or variable that gives the path.
pub(super) fn expanded(name: &str, path: &str) -> Result<PathBuf, StoreError> {
    match (path.strip_prefix("~/"), env::home_dir()) {
        (Some(below), Some(home)) => Ok(home.join(below)),
        (Some(_), None) => {
            let path = printable(path);
            Err(refused(format!(
                "{name}={path:?} is below no home directory; set HOME, or write the whole path"
            )))
        }
        (None, _) => Ok(Path::new(path).to_owned()),
    }
}
