//! Whether this process has what a run needs (invariant I11): a line that is quick enough, and the open connections
//! that will renew and release it.
//!
//! Usually all of this is there before the supervisor has started. A supervisor that starts lazily gets it in the
//! background. Until then no request goes to the database.

use futures::future::try_join_all;
use tokio::sync::watch;

use super::pool::Pool;
use crate::store::StoreError;

/// What must be there before a session is granted.
#[derive(Clone)]
pub(crate) struct Means {
    /// The pools of the connections that a request and its run need.
    pub(crate) keepers: Vec<Pool>,
    pub(crate) preparation: Preparation,
}

/// What became of the first connections: `None` before the first answer.
pub(crate) type Preparation = watch::Receiver<Option<Result<(), StoreError>>>;

impl Means {
    /// Waits until all is there.
    ///
    /// # Errors
    /// Why something is not there. The attempts to get it go on.
    pub(crate) async fn ready(&self) -> Result<(), StoreError> {
        let mut preparation = self.preparation.clone();
        match preparation.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(prepared)) => prepared.clone()?,
            _ => return Err(self.ended()),
        }
        try_join_all(self.keepers.iter().map(Pool::ready)).await.map(drop)
    }

    fn ended(&self) -> StoreError {
        let location = self.keepers.first().map_or("", Pool::location).to_owned();
        StoreError::Unavailable { location, detail: "the supervisor has ended".to_owned() }
    }
}

/// Whether the first connections were opened, and found good.
pub(crate) fn is_prepared(preparation: &Preparation) -> bool {
    matches!(*preparation.borrow(), Some(Ok(())))
}
