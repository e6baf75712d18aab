//! Tries what the first run would do if there is no database yet. Leaves nothing behind.

use std::path::{Path, PathBuf};

use sqlx::{ConnectOptions as _, Connection as _};
use tempfile::TempDir;

use super::{journal_mode, measure_commits};
use crate::{
    store::finding::{ExaminationPlan, Finding},
    store::{
        KeepHistory, StoreError,
        sqlite::{
            connection::{accept_writes, options},
            file::{Access, DatabaseFile},
            schema,
        },
    },
    text::printable_path,
};

/// Creates a trial database beside the file and sets it up as a run would. It is in a directory that is removed
/// afterwards.
pub(super) async fn beside(file: &DatabaseFile, plan: ExaminationPlan) -> Result<Vec<Finding>, StoreError> {
    let place = place(file, plan.makes_directory)?;
    let directory = directory_in(&place, file)?;
    let trial = DatabaseFile::new(directory.path().join("tenure.db"), Access::Create);
    // A failure names the file that the reader knows, not the trial database.
    let failed = |failure: super::Failure| failure.in_file(file);
    let opened = options(&trial, plan.patience).connect().await;
    let mut sqlite = opened.map_err(|error| failed(error.into()))?;
    schema::ensure(&mut sqlite, KeepHistory::AsItIs).await.map_err(failed)?;
    accept_writes(&mut sqlite).await.map_err(failed)?;
    let mode = journal_mode(&mut sqlite, trial.path()).await.map_err(failed)?;
    let commits = measure_commits(&mut sqlite).await.map_err(failed)?;
    let _ = sqlite.close().await;
    Ok(vec![mode, commits])
}

/// The directory that the file would be in. If missing directories will be created, the nearest directory above it that
/// exists.
fn place(file: &DatabaseFile, makes_directory: bool) -> Result<PathBuf, StoreError> {
    let directory = file.path().parent().unwrap_or(file.path());
    let there = match makes_directory {
        true => directory.ancestors().find(|above| above.exists()),
        false => Some(directory).filter(|directory| directory.exists()),
    };
    match there {
        Some(there) if there.is_dir() => Ok(there.to_owned()),
        Some(there) => Err(no_place(file, there, "is not a directory; name a file elsewhere")),
        None => Err(no_place(file, directory, "does not exist; create it, or name a file elsewhere")),
    }
}

fn directory_in(place: &Path, file: &DatabaseFile) -> Result<TempDir, StoreError> {
    tempfile::Builder::new().prefix(".tenure-doctor-").tempdir_in(place).map_err(|error| {
        let remedy = "let this user create files in it, or name a file elsewhere";
        // The library's own error names the trial directory.
        let cause = error
            .get_ref()
            .and_then(|error| error.source())
            .map_or(error.to_string(), |cause| cause.to_string());
        no_place(file, place, &format!("cannot be written ({cause}); {remedy}"))
    })
}

fn no_place(file: &DatabaseFile, directory: &Path, what: &str) -> StoreError {
    StoreError::Unavailable {
        location: file.location().to_owned(),
        detail: format!("the directory {} {what}", printable_path(directory)),
    }
}
