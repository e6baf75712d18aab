//! What the environment of the process says: variables, the home directory, and paths as people read them.

use std::{
    env,
    path::{Path, PathBuf},
};

use super::uri::refused;
use crate::{store::StoreError, text::printable};

/// A variable of the environment that is not empty.
pub(super) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// A path; `~/` is the home directory. `name` is of the parameter or the variable that gives it.
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
