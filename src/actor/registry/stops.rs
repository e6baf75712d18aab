//! Requests to stop: those that this process makes, and those found in the rows of its runs.

use std::time::{Duration, SystemTime};

use actix::{Addr, AsyncContext as _, Context, Handler, Message, ResponseFuture};
use futures::channel::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::{ConfirmAll, LocalSession, Pending, Registry, Running};
use crate::{
    actor::{
        acquisition::{Acquired, AcquisitionEnd},
        query::{Queries, Query},
    },
    backoff::backoff,
    end::EndReason,
    error::QueryError,
    run::RunMessage,
    session::{Holder, RunId, SessionKey, StopRequest},
    store::{MAX_BATCH, StopOutcome, StopRun, StoreError},
    trace,
};

/// A caller wants the run of a session to stop.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct StopSession {
    pub(crate) item: StopRun,
    pub(crate) reply: oneshot::Sender<Result<Option<AskedRun>, QueryError>>,
}

/// The run that was asked to stop, and whether it is certain that nobody had asked before.
pub(crate) struct AskedRun {
    pub(crate) holder: Holder,
    pub(crate) first: bool,
}

/// This run of this process may have been asked to stop; with `None`, any of its runs may. The registry reads the rows,
/// and answers when that is done.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct LookForStops(pub(crate) Option<RunId>);

/// The row of a run of this process holds a request to stop.
#[derive(Message)]
#[rtype(result = "()")]
struct StopFound {
    key: SessionKey,
    run_id: RunId,
    request: StopRequest,
}

/// How many times reading the rows is tried. After that, the next renewal brings the requests.
const LOOKS: u32 = 4;
/// The longest pause between two attempts to read, or to write into a locked row.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

impl Registry {
    pub(super) fn tell_whether_busy(&self) {
        let is_busy = !self.sessions.is_empty();
        self.links.is_busy.send_if_modified(|was| std::mem::replace(was, is_busy) != is_busy);
    }

    /// Tells the run of this process to stop, at once. Returns its holder with the request that counts, and whether
    /// that is this request, as far as this process knows.
    fn stop_here(
        &mut self,
        key: &SessionKey,
        run_id: Option<RunId>,
        request: &StopRequest,
    ) -> Option<AskedRun> {
        let LocalSession { running, acquiring } = self.sessions.get_mut(key)?;
        // This run may be about to be granted. It is certainly the one that is meant only if the request names it.
        if let Some(pending) = acquiring.as_mut().filter(|pending| Some(pending.run_id) == run_id) {
            pending.stop.get_or_insert_with(|| request.clone());
        }
        let is_meant = |run: &&Running| run_id.is_none_or(|wanted| wanted == run.shared.run_id);
        let works = |run: &&Running| !run.shared.is_work_over();
        let running = running.as_ref().filter(is_meant).filter(works)?;
        running.actor.do_send(RunMessage::Stop { reason: EndReason::asked(request), grace: None });
        let first = running.shared.note_stop(request);
        let holder = running.holder(&self.links);
        (!holder.expires_in.is_zero()).then_some(AskedRun { holder, first })
    }

    /// If a hint for a run came before its grant, reads the run's row before the run is handed out, so that work that
    /// was asked to stop does not begin. Returns the grant if there is nothing to read.
    pub(super) fn look_first(&mut self, acquired: Acquired, ctx: &Context<Self>) -> Option<Acquired> {
        let pending = self.sessions.get_mut(&acquired.key).and_then(|session| session.acquiring.as_mut());
        let hinted = pending.filter(|sent| sent.run_id == acquired.run_id && sent.is_hinted);
        let (Some(pending), AcquisitionEnd::Granted { .. }) = (hinted, &acquired.end) else {
            return Some(acquired);
        };
        pending.is_hinted = false;
        let (queries, registry) = (self.links.queries.clone(), ctx.address());
        actix_rt::spawn(async move {
            let (key, run_id) = (acquired.key.clone(), acquired.run_id);
            let looking = queries.ask(|reply| Query::Inspect(key.clone(), reply));
            let found = timeout(LONGEST_PAUSE, looking).await.ok().and_then(Result::ok);
            let own = found.and_then(|status| status.holder).filter(|holder| holder.run_id == run_id);
            if let Some(request) = own.and_then(|holder| holder.stop) {
                registry.do_send(StopFound { key, run_id, request });
            }
            registry.do_send(acquired);
        });
        None
    }

    /// The runs that were not told to stop: `only` this one, or all. Marks the requests whose runs may be granted just
    /// now.
    fn unstopped(&mut self, only: Option<RunId>) -> Vec<(SessionKey, RunId)> {
        let is_meant = |run_id| only.is_none_or(|only| only == run_id);
        let mut unstopped = Vec::new();
        for (key, LocalSession { running, acquiring }) in &mut self.sessions {
            if let Some(Pending { is_hinted, .. }) = acquiring.as_mut().filter(|sent| is_meant(sent.run_id)) {
                *is_hinted = true;
            }
            if let Some(Running { shared, .. }) = running
                && is_meant(shared.run_id)
                && shared.reason().is_none()
            {
                unstopped.push((key.clone(), shared.run_id));
            }
        }
        unstopped
    }
}

impl Handler<StopSession> for Registry {
    type Result = ();

    /// Tells a run of this process at once, whatever the database does. The request is also written into the row, for
    /// all who look at it.
    fn handle(&mut self, StopSession { item, reply }: StopSession, ctx: &mut Context<Self>) {
        let request = StopRequest::new(
            SystemTime::now(),
            item.by.as_ref().map(|by| by.as_str().to_owned()),
            item.reason.as_ref().map(|reason| reason.as_str().to_owned()),
        );
        let here = self.stop_here(&item.key, item.run_id, &request);
        let (queries, node) = (self.links.queries.clone(), self.links.node);
        let (patience, location) = (self.links.run.timing.query_timeout(), self.links.location.clone());
        let registry = ctx.address();
        actix_rt::spawn(async move {
            let key = item.key.clone();
            let run_id = here.as_ref().map(|asked| asked.holder.run_id);
            let item = StopRun { run_id: item.run_id.or(run_id), ..item };
            let answer = record(item, queries, patience, location).await;
            if let Ok(Some(AskedRun { holder, .. })) = &answer
                && holder.node == node
                && let Some(request) = holder.stop.clone()
            {
                registry.do_send(StopFound { key, run_id: holder.run_id, request });
            }
            let answer = match (answer, here) {
                // The run was told, even if its row is gone by now.
                (Ok(None), Some(asked)) => Ok(Some(asked)),
                // The row may hold somebody else's request.
                (Err(_), Some(asked)) => Ok(Some(AskedRun { first: false, ..asked })),
                (answer, _) => answer,
            };
            // Fails if nobody waits for the answer any more.
            let _ = reply.send(answer);
        });
    }
}

/// Writes the request into the row. While the row is locked, tries again with the run's id.
async fn record(
    mut item: StopRun,
    queries: Queries,
    patience: Duration,
    location: String,
) -> Result<Option<AskedRun>, QueryError> {
    let (until, mut attempts) = (Instant::now() + patience, 0);
    loop {
        let refusal = match queries.ask(|reply| Query::Stop(item.clone(), reply)).await {
            Ok(StopOutcome::Asked { holder, first }) => return Ok(Some(AskedRun { holder: *holder, first })),
            Ok(StopOutcome::Idle) => return Ok(None),
            Ok(StopOutcome::Locked(run_id)) => {
                item.run_id = Some(run_id);
                let detail = "the row is locked by another transaction".to_owned();
                StoreError::RolledBack { location: location.clone(), detail }
            }
            Err(QueryError::Store(error @ StoreError::RolledBack { .. })) => error,
            Err(error) => return Err(error),
        };
        attempts += 1;
        let pause = backoff(attempts, LONGEST_PAUSE);
        if Instant::now() + pause >= until {
            return Err(refusal.into());
        }
        sleep(pause).await;
    }
}

impl Handler<LookForStops> for Registry {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, LookForStops(only): LookForStops, ctx: &mut Context<Self>) -> ResponseFuture<()> {
        let (unstopped, queries) = (self.unstopped(only), self.links.queries.clone());
        let registry = ctx.address();
        Box::pin(async move {
            for some in unstopped.chunks(MAX_BATCH) {
                look(some, &queries, &registry).await;
            }
        })
    }
}

async fn look(runs: &[(SessionKey, RunId)], queries: &Queries, registry: &Addr<Registry>) {
    for attempt in 1..=LOOKS {
        let keys = runs.iter().map(|(key, _)| key.clone()).collect();
        match queries.ask(|reply| Query::Look(keys, reply)).await {
            Ok(holders) => {
                for ((key, run_id), holder) in runs.iter().zip(holders) {
                    let own = holder.filter(|holder| holder.run_id == *run_id);
                    if let Some(request) = own.and_then(|holder| holder.stop) {
                        registry.do_send(StopFound { key: key.clone(), run_id: *run_id, request });
                    }
                }
                return;
            }
            // The leases are gone: let every run find out at once.
            Err(QueryError::Store(StoreError::Lost { .. })) => return registry.do_send(ConfirmAll),
            Err(error) => {
                tracing::debug!(target: trace::STORE, %error, "requests to stop were not read")
            }
        }
        sleep(backoff(attempt, LONGEST_PAUSE)).await;
    }
}

impl Handler<StopFound> for Registry {
    type Result = ();

    fn handle(&mut self, StopFound { key, run_id, request }: StopFound, _: &mut Context<Self>) {
        let running = self.sessions.get(&key).and_then(|session| session.running.as_ref());
        if let Some(running) = running.filter(|running| running.shared.run_id == run_id) {
            running.shared.note_recorded_stop(&request);
        }
        self.stop_here(&key, Some(run_id), &request);
    }
}
