//! Opens one connection, however slow the line is.

use std::time::Duration;

use futures::future::{Either, select};
use tokio::time::{Instant, timeout};

use crate::{
    actor::call::caught,
    store::{Bounds, LeaseConnection, SharedStore, StoreError, VerbKind},
};

/// A connection, and how long it took to open it.
pub(crate) struct Opened {
    pub(crate) connection: Box<dyn LeaseConnection>,
    pub(crate) took: Duration,
}

/// Connects, and prepares the statements of these verbs.
///
/// The network may have lost the first attempt and be back. So whenever no attempt was answered for `patience`,
/// another one is made beside the first, one at a time. The first attempt is never dropped for being slow. The caller
/// bounds the whole.
pub(crate) async fn connect(
    store: SharedStore,
    bounds: Bounds,
    patience: Duration,
    verbs: &'static [VerbKind],
) -> Result<Opened, StoreError> {
    let attempt = || Box::pin(open(store.clone(), bounds, verbs));
    let mut first = attempt();
    if let Ok(opened) = timeout(patience, &mut first).await {
        return opened;
    }
    loop {
        match select(first, Box::pin(timeout(patience, attempt()))).await {
            Either::Left((opened, _)) | Either::Right((Ok(opened), _)) => return opened,
            Either::Right((Err(_elapsed), unanswered)) => first = unanswered,
        }
    }
}

async fn open(store: SharedStore, bounds: Bounds, verbs: &'static [VerbKind]) -> Result<Opened, StoreError> {
    let began = Instant::now();
    let opening = async {
        let mut connection = store.connect(bounds).await?;
        connection.prepare(verbs).await?;
        Ok(Opened { connection, took: began.elapsed() })
    };
    caught(store.location(), opening).await
}
