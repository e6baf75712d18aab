//! How a registry ends: it refuses new runs, lets the present runs finish or tells them to end, and reports.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use actix::{ActorContext, AsyncContext, Context, Handler, Message};
use futures::channel::oneshot;
use tracing::{info, warn};

use super::{LocalSession, Registry, Running};
use crate::{
    end::{EndReason, Ended},
    event::RunRef,
    run::{RunMessage, Shared},
    session::SessionKey,
    trace,
};

/// Set once new runs are refused.
#[derive(Default)]
pub(super) struct Closing {
    drained: Vec<oneshot::Sender<()>>,
    farewells: Vec<mpsc::Sender<()>>,
    /// Set once the runs were also told to end.
    shutdown: Option<ShuttingDown>,
}

#[derive(Default)]
struct ShuttingDown {
    /// Told when the report is ready.
    replies: Vec<oneshot::Sender<()>>,
    ended: Vec<EndedRun>,
    /// Sessions that are over here, but whose release the database has not confirmed.
    left: Vec<SessionKey>,
}

/// Refuse new runs.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Drain {
    /// Told when no run is left, nor a request that may become one.
    pub(crate) drained: oneshot::Sender<()>,
}

/// Refuse new runs, end the present ones, and then end.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Shutdown {
    pub(crate) grace: Duration,
    /// Told when the report is ready. Dropped if the registry ends without a report.
    pub(crate) reply: Option<oneshot::Sender<()>>,
}

/// The last handle is dropped, and the process may be about to end.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Farewell {
    /// Told when no release is under way any more.
    pub(crate) released: mpsc::Sender<()>,
}

/// What a shutdown ended, and what it left behind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ShutdownReport {
    /// The runs whose work ended after the shutdown had begun, for whatever reason, in the order in which they ended.
    pub ended: Vec<EndedRun>,
    /// The sessions whose work did not end in time, or whose release was not confirmed in time, in key order. Their
    /// leases expire within one ttl.
    pub left: Vec<SessionKey>,
    /// The supervisor had already failed. Every run was cancelled, and every lease that it held expires within one ttl.
    pub failed: bool,
}

/// A run that ended, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct EndedRun {
    /// Which run.
    pub run: RunRef,
    /// How it ended.
    pub ended: Ended,
}

impl EndedRun {
    fn of(shared: &Arc<Shared>) -> Self {
        Self { run: shared.to_ref(), ended: shared.ended() }
    }
}

impl Registry {
    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        self.closing.as_ref().is_some_and(|closing| closing.shutdown.is_some())
    }

    /// Notes an ended run for the report, if a shutdown is under way.
    pub(super) fn note_ended(&mut self, run: &Running) {
        let Some(shutdown) = self.closing.as_mut().and_then(|closing| closing.shutdown.as_mut()) else {
            return;
        };
        let run = EndedRun::of(&run.shared);
        // After `Superseded` there is no row of this run left to expire.
        if !run.ended.released && run.ended.reason != EndReason::Superseded {
            shutdown.left.push(run.run.key.clone());
        }
        shutdown.ended.push(run);
    }

    /// Notes a session whose row, from an acquire of unknown outcome, may be left.
    pub(super) fn note_left(&mut self, key: SessionKey) {
        if let Some(shutdown) = self.closing.as_mut().and_then(|closing| closing.shutdown.as_mut()) {
            shutdown.left.push(key);
        }
    }

    /// Whether a row is still to be released: of a run whose work has ended, of a request under way, or of an orphan.
    fn is_releasing(&self) -> bool {
        let is_going = |session: &LocalSession| {
            session.acquiring.is_some()
                || session.running.as_ref().is_some_and(|running| running.shared.is_work_over())
        };
        !self.orphans.is_empty() || self.sessions.values().any(is_going)
    }

    pub(super) fn end_when_empty(&mut self, ctx: &mut Context<Self>) {
        let is_releasing = self.is_releasing();
        if let Some(closing) = self.closing.as_mut().filter(|_| !is_releasing) {
            // Dropping the senders tells the receivers.
            closing.farewells.clear();
        }
        let Some(closing) = self.closing.as_mut() else { return };
        if !self.sessions.is_empty() {
            return;
        }
        // A drain does not wait for orphans: they are no runs, and are released in the background.
        for drained in closing.drained.drain(..) {
            let _ = drained.send(());
        }
        if closing.shutdown.is_some() && self.orphans.is_empty() {
            self.end(ctx);
        }
    }

    fn end(&mut self, ctx: &mut Context<Self>) {
        let shutdown = self.closing.as_mut().and_then(|closing| closing.shutdown.take());
        let Some(ShuttingDown { replies, mut ended, mut left }) = shutdown else { return };
        let running = self.sessions.values().filter_map(|session| session.running.as_ref());
        let unreleased = running.filter(|run| run.shared.is_work_over());
        ended.extend(unreleased.map(|run| EndedRun::of(&run.shared)));
        left.extend(self.sessions.keys().chain(self.orphans.values()).cloned());
        left.sort();
        left.dedup();
        if !left.is_empty() {
            warn!(target: trace::SUPERVISOR, left = left.len(), "shut down with sessions left to expire");
        }
        // The report stays for later calls of `shutdown`, which find no registry any more.
        let _ = self.links.report.set(ShutdownReport { ended, left, failed: false });
        for reply in replies {
            let _ = reply.send(());
        }
        ctx.stop();
    }

    /// Long enough for the grace, for work to be dropped after it, and for two attempts to release.
    fn longest_shutdown(&self, grace: Duration) -> Duration {
        let timing = &self.links.run.timing;
        let running = self.sessions.values().filter_map(|session| session.running.as_ref());
        let loss_grace = running.map(|run| run.shared.timing.loss_grace()).max().unwrap_or_default();
        grace.saturating_add(
            loss_grace.max(timing.loss_grace()) + 2 * timing.renew_timeout() + timing.longest_backoff(),
        )
    }
}

impl Handler<Drain> for Registry {
    type Result = ();

    fn handle(&mut self, drain: Drain, ctx: &mut Context<Self>) {
        if !self.is_closing() {
            info!(target: trace::SUPERVISOR, sessions = self.sessions.len(), "draining");
        }
        self.closing.get_or_insert_default().drained.push(drain.drained);
        self.end_when_empty(ctx);
    }
}

impl Handler<Farewell> for Registry {
    type Result = ();

    fn handle(&mut self, Farewell { released }: Farewell, ctx: &mut Context<Self>) {
        self.closing.get_or_insert_default().farewells.push(released);
        self.end_when_empty(ctx);
    }
}

impl Handler<Shutdown> for Registry {
    type Result = ();

    fn handle(&mut self, Shutdown { grace, reply }: Shutdown, ctx: &mut Context<Self>) {
        if !self.is_shutting_down() {
            info!(target: trace::SUPERVISOR, sessions = self.sessions.len(), "shutting down");
        }
        let closing = self.closing.get_or_insert_default();
        closing.shutdown.get_or_insert_default().replies.extend(reply);
        self.stop_compensating.cancel();
        // A repeated shutdown may shorten the grace, so tell the runs again.
        for session in self.sessions.values() {
            if let Some(running) = &session.running {
                running.actor.do_send(RunMessage::Stop { reason: EndReason::Shutdown, grace: Some(grace) });
            }
            if let Some(pending) = &session.acquiring {
                pending.first.abandoned.cancel();
            }
        }
        ctx.run_later(self.longest_shutdown(grace), |registry, ctx| registry.end(ctx));
        self.end_when_empty(ctx);
    }
}
