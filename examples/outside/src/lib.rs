//! A host of agents that uses `tenure` from outside.

#[cfg(feature = "actix-web")]
pub mod on_actix_web;
#[cfg(feature = "axum")]
pub mod on_axum;

use std::{error::Error, fmt, time::Duration};

use actix::{Actor, Context, Handler};
use futures::StreamExt;
use tenure::{
    AcquireError, EndReason, Ended, Holder, LeaseSupervisor, Observed, QueryError, RunContext, RunEvent,
    ScopeError, ScopeHandle, SessionKey, SessionState, StartError, StopAnswer, StopError, StoreError,
};

/// Starts a supervisor on the database of this URL.
///
/// # Errors
/// Why it did not start, and what to do.
pub async fn start(url: &str) -> Result<LeaseSupervisor, String> {
    let builder = LeaseSupervisor::builder(url).holder_label("outside").ttl(Duration::from_secs(30));
    builder.start().await.map_err(|error| match error {
        StartError::Config(error) => format!("mend the durations: {error}"),
        StartError::Store(StoreError::SchemaMissing { location, .. }) => format!("migrate {location}"),
        StartError::Store(error) if error.is_transient() => format!("try again: {error}"),
        error => error.to_string(),
    })
}

/// The databases that this program can use.
pub const URLS: &[&str] = &[
    #[cfg(feature = "postgres")]
    "postgres://app@db.internal/chat",
    #[cfg(feature = "sqlite")]
    "sqlite://leases.db",
];

/// Why a turn has no reply.
#[derive(Debug)]
pub enum Failure {
    /// Ask again after this time, if at all.
    Busy { holder: Box<Holder>, after: Duration },
    /// Nothing was done.
    NotBegun { again: Option<Duration> },
    /// It is not known whether the session was acquired.
    Unknown,
    /// The run ended early. What the work returned all the same must not be sent.
    Cut { ended: Ended, late: Option<String> },
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Busy(busy) => {
                Self::Busy { after: busy.retry_after(), holder: Box::new(busy.holder().clone()) }
            }
            error if error.is_certain() => Self::NotBegun { again: error.retry_after() },
            _ => Self::Unknown,
        }
    }
}

impl From<ScopeError<String>> for Failure {
    fn from(error: ScopeError<String>) -> Self {
        let (ended, late) = error.into_parts();
        Self::Cut { ended, late }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { holder, .. } => write!(f, "{} works on it: {}", holder.label, holder.phase),
            Self::NotBegun { .. } => f.write_str("not begun"),
            Self::Unknown => f.write_str("unknown"),
            Self::Cut { ended, .. } => write!(f, "cut short: {}", why(&ended.reason)),
        }
    }
}

impl Error for Failure {}

fn why(reason: &EndReason) -> String {
    match reason {
        EndReason::Stopped { by: Some(by), .. } => format!("{by} stopped it"),
        EndReason::TimedOut { limit, .. } => format!("it {limit}"),
        reason if reason.is_loss() => "another run may have it".to_owned(),
        reason => reason.to_string(),
    }
}

/// A turn that borrows, on the caller's task.
///
/// # Errors
/// [`Failure`].
pub async fn turn(supervisor: &LeaseSupervisor, key: &SessionKey, prompt: &str) -> Result<String, Failure> {
    let run = supervisor.acquire(key).phase("thinking").max_duration(Duration::from_secs(600)).await?;
    Ok(run.scope(async |ctx| reply(&ctx, prompt).await).await?)
}

async fn reply(ctx: &RunContext, prompt: &str) -> String {
    let loud = ctx.spawn(std::future::ready(prompt.to_uppercase()));
    tokio::select! {
        reason = ctx.cancelled() => format!("interrupted: {reason}"),
        loud = loud => match loud {
            Ok(loud) if ctx.is_held() => format!("{loud} under fence {}", ctx.fence()),
            Ok(_) => "lost".to_owned(),
            Err(reason) => reason.to_string(),
        },
    }
}

/// A turn whose value cannot leave its thread or outlive what it borrows, with `?` for every error.
///
/// # Errors
/// Whatever has failed.
pub async fn short_turn(
    supervisor: &LeaseSupervisor,
    prompt: &str,
) -> Result<usize, Box<dyn Error + Send + Sync>> {
    let run = supervisor.acquire(&SessionKey::new("acct-1", "short")?).await?;
    let words = run.scope(async |_| prompt.split_whitespace()).await.map_err(ScopeError::erase)?;
    Ok(words.count())
}

/// Work that goes on when its caller has gone, and whose value is not `Clone`.
///
/// # Errors
/// [`Failure`].
pub async fn begin(supervisor: &LeaseSupervisor, key: &SessionKey) -> Result<ScopeHandle<Report>, Failure> {
    let run = supervisor.acquire(key).max_silence(Duration::from_secs(60)).await?;
    Ok(run.spawn_scope(|ctx| async move {
        ctx.beat();
        Report { pages: vec![ctx.key().to_string()] }
    }))
}

/// Of which there is one.
#[derive(Debug)]
pub struct Report {
    pub pages: Vec<String>,
}

/// The report of work that was begun in this process, for the one who asks first.
pub async fn report(supervisor: &LeaseSupervisor, key: &SessionKey) -> Option<Report> {
    let work = supervisor.local(key).await?.scope_handle::<Report>()?;
    work.join().await.ok()
}

/// Who works on the sessions of an account.
///
/// # Errors
/// [`QueryError`].
pub async fn at_work(supervisor: &LeaseSupervisor, account: &str) -> Result<Vec<String>, QueryError> {
    let sessions = supervisor.list().account(account).limit(100).await?;
    let shown = sessions.into_iter().filter_map(|status| match (status.state, status.holder) {
        (SessionState::Running | SessionState::Stopping, Some(holder)) => {
            Some(format!("{}: {}", status.key.session(), holder.label))
        }
        _ => None,
    });
    Ok(shown.collect())
}

/// Stops the session's run, wherever it is, and waits until the session is free.
///
/// # Errors
/// [`StopError`].
pub async fn stop(supervisor: &LeaseSupervisor, key: &SessionKey) -> Result<bool, StopError> {
    match supervisor.stop(key).by("ann").reason("wrong branch").await? {
        StopAnswer::Asked(asked) => {
            asked.stopped().await?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Waits until nobody works on the session, as far as this process can see.
pub async fn idle(supervisor: &LeaseSupervisor, key: &SessionKey) {
    let mut changes = supervisor.watch(key);
    while let Some(observed) = changes.next().await {
        match observed {
            Observed::Known(status) if !status.is_held() => return,
            _ => {}
        }
    }
}

/// An actor of the host that hears of each run.
#[derive(Debug, Default)]
pub struct Ledger {
    pub ended: Vec<EndReason>,
}

impl Actor for Ledger {
    type Context = Context<Self>;
}

impl Handler<RunEvent> for Ledger {
    type Result = ();

    fn handle(&mut self, event: RunEvent, _: &mut Context<Self>) {
        if let RunEvent::Ended { reason, .. } = event {
            self.ended.push(reason);
        }
    }
}
