//! One connection to a store, asked for one thing at a time.

use std::time::Duration;

use tenure::{
    Holder, Label, NodeId, PastRun, RunId, RunPhase, RunStage, SessionKey,
    store::{
        Acquire, AcquireOutcome, Bounds, BreakLease, BreakOutcome, Grant, HistoryPage, LeaseConnection,
        LeaseStore, Reason, Release, ReleaseOutcome, Renew, RenewOutcome, Renewed, Requester, StopOutcome,
        StopRun,
    },
};

/// What tests ask for, unless they say otherwise.
pub const TTL: Duration = Duration::from_secs(30);
/// How long before expiry tests give up a lease.
pub const MARGIN: Duration = Duration::from_secs(6);
/// Long enough for a busy machine; a statement that waits for a lock it never gets fails all the same.
pub const BOUNDS: Bounds = Bounds { statement: Duration::from_secs(60), lock: Duration::from_secs(20) };

/// One connection.
pub struct Client {
    connection: Box<dyn LeaseConnection>,
}

impl Client {
    pub async fn connect(store: &dyn LeaseStore) -> Self {
        let connection = store.connect(BOUNDS).await.unwrap_or_else(|error| panic!("{error}"));
        Self { connection }
    }

    /// The connection itself, for batches.
    pub fn raw(&mut self) -> &mut dyn LeaseConnection {
        &mut *self.connection
    }

    pub async fn close(self) {
        self.connection.close().await;
    }

    pub async fn acquire(&mut self, item: Acquire) -> AcquireOutcome {
        one(self.connection.acquire(&[item]).await.unwrap_or_else(|error| panic!("{error}")))
    }

    pub async fn granted(&mut self, item: Acquire) -> Grant {
        match self.acquire(item).await {
            AcquireOutcome::Granted(grant) => grant,
            other => panic!("not granted: {other:?}"),
        }
    }

    pub async fn refused(&mut self, item: Acquire) -> Holder {
        match self.acquire(item).await {
            AcquireOutcome::Busy(holder) => *holder,
            other => panic!("not refused: {other:?}"),
        }
    }

    pub async fn renew(&mut self, item: Renew) -> RenewOutcome {
        one(self.connection.renew(&[item]).await.unwrap_or_else(|error| panic!("{error}")))
    }

    pub async fn renewed(&mut self, item: Renew) -> Renewed {
        match self.renew(item).await {
            RenewOutcome::Renewed(renewed) => renewed,
            other => panic!("not renewed: {other:?}"),
        }
    }

    pub async fn release(&mut self, key: &SessionKey, run_id: RunId) -> ReleaseOutcome {
        let item = Release { key: key.clone(), run_id, reason: None };
        one(self.connection.release(&[item]).await.unwrap_or_else(|error| panic!("{error}")))
    }

    pub async fn stop(&mut self, item: StopRun) -> StopOutcome {
        self.connection.request_stop(&item).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Who was asked, and whether for the first time.
    pub async fn asked(&mut self, item: StopRun) -> (Holder, bool) {
        match self.stop(item).await {
            StopOutcome::Asked { holder, first } => (*holder, first),
            other => panic!("nobody was asked: {other:?}"),
        }
    }

    pub async fn break_lease(&mut self, item: BreakLease) -> BreakOutcome {
        self.connection.break_lease(&item).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// The runs of a session that are over, newest first.
    pub async fn history(&mut self, key: &SessionKey) -> Vec<PastRun> {
        let page = HistoryPage { key: key.clone(), before: None, limit: 100 };
        let past = self.connection.history(&page).await.unwrap_or_else(|error| panic!("{error}"));
        past.expect("the database keeps a history")
    }

    pub async fn holder(&mut self, key: &SessionKey) -> Option<Holder> {
        let keys = std::slice::from_ref(key);
        one(self.connection.inspect(keys).await.unwrap_or_else(|error| panic!("{error}")))
    }
}

/// An ordinary request.
pub fn acquire(key: &SessionKey, run_id: RunId) -> Acquire {
    Acquire {
        key: key.clone(),
        run_id,
        node: NodeId::random(),
        label: Label::new("api-3").expect("short"),
        phase: RunPhase::new("starting").expect("short"),
        ttl: TTL,
        limit_per_account: None,
    }
}

/// An ordinary renewal.
pub fn renew(key: &SessionKey, run_id: RunId) -> Renew {
    Renew { key: key.clone(), run_id, ttl: TTL, safety_margin: MARGIN, stage: RunStage::Running, phase: None }
}

/// A request to stop.
pub fn stop(key: &SessionKey, run_id: Option<RunId>, by: &str, reason: &str) -> StopRun {
    let (by, reason) = (Requester::new(by).expect("short"), Reason::new(reason).expect("short"));
    StopRun { key: key.clone(), run_id, by: Some(by), reason: Some(reason) }
}

/// A key of the account that most tests use.
pub fn key(session: impl AsRef<str>) -> SessionKey {
    SessionKey::new("acct", session).expect("short")
}

fn one<T>(outcomes: Vec<T>) -> T {
    let [outcome] =
        outcomes.try_into().unwrap_or_else(|more: Vec<T>| panic!("{} outcomes for one", more.len()));
    outcome
}
