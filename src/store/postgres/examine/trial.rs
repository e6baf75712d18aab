//! Tries on the table what a lease does. Triggers may do anything to a row, and only a real row shows what they do.

use super::visit::Visit;
use crate::{
    store::finding::Finding,
    store::{StoreError, postgres::swallow},
};

pub(super) async fn of_the_table(visit: &mut Visit<'_>) -> Finding {
    match is_written(visit).await {
        Ok(true) => Finding::fine("trial", "a row was written, changed, removed, and all of it taken back"),
        Ok(false) => Finding::failure("trial", swallowed(visit).await.unwrap_or_else(|error| error)),
        Err(error @ StoreError::Unavailable { .. }) => Finding::failure("trial", error),
        // A trigger may have refused only this row, because of its key.
        Err(error) => Finding::warning("trial", error.to_string(), ADVICE),
    }
}

const ADVICE: &str = "a row that would have been taken back was refused: if sessions are refused for the same reason, no \
    run can hold them; look at the triggers of the table";

/// Whether all three writes of the trial changed a row. If one did not, and there was no error, something suppressed
/// it.
async fn is_written(visit: &mut Visit<'_>) -> Result<bool, StoreError> {
    Ok(visit.affected(include_str!("trial.sql")).await? == 3)
}

async fn swallowed(visit: &mut Visit<'_>) -> Result<StoreError, StoreError> {
    let row = visit.row(swallow::TRIGGERS).await?;
    let names = visit.read::<Option<&str>>(&row, "names")?.unwrap_or("its rules");
    Ok(swallow::refusal(visit.location(), &visit.server.naming, names))
}
