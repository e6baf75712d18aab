//! The rows in memory, and what each statement does to them.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use futures::channel::mpsc;

use super::{Fault, Statements};
use crate::{
    clock::{instant, micros},
    history::{Ending, PastRun},
    session::{FencingToken, Holder, Label, NodeId, RunId, RunPhase, RunStage, SessionKey, StopRequest},
    store::{
        Acquire, AcquireOutcome, BreakLease, BreakOutcome, Grant, Release, ReleaseOutcome, Renew,
        RenewOutcome, Renewed, StopOutcome, StopRun, StoreError,
    },
};

#[derive(Default)]
pub(super) struct State {
    pub(super) rows: BTreeMap<SessionKey, Row>,
    pub(super) floor: i64,
    pub(super) step_micros: i64,
    pub(super) fault: Fault,
    pub(super) delay: Duration,
    pub(super) reply_delay: Duration,
    pub(super) failing_renewals: u32,
    pub(super) locked: HashSet<SessionKey>,
    pub(super) rejected: HashSet<SessionKey>,
    pub(super) sweeps_rejected: bool,
    pub(super) frozen: Vec<FrozenStatement>,
    pub(super) statements: Statements,
    /// The runs that are over, by session and in the order of their ends.
    pub(super) past: BTreeMap<SessionKey, Vec<PastRun>>,
    pub(super) listeners: Vec<(NodeId, mpsc::UnboundedSender<RunId>)>,
    pub(super) hints_lost: bool,
}

/// A call that happens when the server continues. Its `i64` is the clock at that time.
pub(super) type FrozenStatement = Box<dyn FnOnce(&mut State, i64) + Send>;

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) run_id: RunId,
    pub(super) fence: i64,
    pub(super) node: NodeId,
    pub(super) label: Label,
    pub(super) stage: RunStage,
    pub(super) phase: RunPhase,
    pub(super) acquired_at: i64,
    pub(super) expires_at: i64,
    pub(super) stop: Option<StopRequest>,
}

impl State {
    /// Rejects the whole statement if the row of one of its keys may not be written.
    pub(super) fn check<'a>(
        &mut self,
        mut keys: impl ExactSizeIterator<Item = &'a SessionKey>,
    ) -> Result<(), StoreError> {
        let items = keys.len() as u64;
        let Some(key) = keys.find(|key| self.rejected.contains(key)) else { return Ok(()) };
        self.statements.rejected_items += items;
        let detail = format!("an error was raised for {key}");
        Err(StoreError::Rejected { location: "memory".to_owned(), detail })
    }

    pub(super) fn acquire(&mut self, item: &Acquire, now: i64) -> AcquireOutcome {
        let held = self.rows.get(&item.key);
        if let Some(row) = held.filter(|row| row.expires_at > now && row.run_id != item.run_id) {
            return AcquireOutcome::Busy(Box::new(row.holder(now)));
        }
        if self.locked.contains(&item.key) {
            return AcquireOutcome::Locked;
        }
        let is_live = held.is_some_and(|row| row.expires_at > now);
        if let Some(limit) = item.limit_per_account.filter(|_| !is_live) {
            let is_of_account = |key: &SessionKey| key.account() == item.key.account();
            let live = |(key, row): &(&SessionKey, &Row)| is_of_account(key) && row.expires_at > now;
            let running = self.rows.iter().filter(live).count().try_into().unwrap_or(u32::MAX);
            if running >= limit {
                return AcquireOutcome::Full { running };
            }
        }
        let expires_at = now + micros(item.ttl);
        let row = match self.rows.get_mut(&item.key).filter(|row| row.run_id == item.run_id) {
            Some(own) => {
                own.expires_at = own.expires_at.max(expires_at);
                own
            }
            None => {
                self.record(&item.key, Ending::TakenOver, now);
                self.floor = now.max(self.floor + 1);
                let row = Row {
                    run_id: item.run_id,
                    fence: self.floor,
                    node: item.node,
                    label: item.label.clone(),
                    stage: RunStage::Running,
                    phase: item.phase.clone(),
                    acquired_at: now,
                    expires_at,
                    stop: None,
                };
                self.rows.entry(item.key.clone()).insert_entry(row).into_mut()
            }
        };
        AcquireOutcome::Granted(Grant {
            fence: FencingToken::at_least(row.fence),
            remaining: between(now, row.expires_at),
            acquired_at_micros: row.acquired_at,
            expires_at_micros: row.expires_at,
            stop: row.stop.clone(),
        })
    }

    pub(super) fn renew(&mut self, item: &Renew, now: i64) -> RenewOutcome {
        let Some(row) = self.rows.get_mut(&item.key) else { return RenewOutcome::Gone { clock_micros: now } };
        if row.run_id != item.run_id {
            return RenewOutcome::Superseded { clock_micros: now };
        }
        if self.locked.contains(&item.key) {
            return RenewOutcome::Locked;
        }
        if row.expires_at - micros(item.safety_margin) <= now {
            return RenewOutcome::Expired { clock_micros: now };
        }
        row.expires_at = row.expires_at.max(now + micros(item.ttl));
        row.stage = item.stage;
        if let Some(phase) = &item.phase {
            row.phase = phase.clone();
        }
        RenewOutcome::Renewed(Renewed {
            remaining: between(now, row.expires_at),
            clock_micros: now,
            stop: row.stop.clone(),
        })
    }

    pub(super) fn release(&mut self, item: &Release, now: i64) -> ReleaseOutcome {
        match self.rows.get(&item.key) {
            Some(row) if row.run_id == item.run_id => {
                if self.locked.contains(&item.key) {
                    return ReleaseOutcome::Locked;
                }
                self.remove(&item.key, Ending::Released { why: item.reason.clone() }, now);
                ReleaseOutcome::Released
            }
            _ => ReleaseOutcome::NotFound,
        }
    }

    pub(super) fn break_lease(&mut self, item: &BreakLease, now: i64) -> BreakOutcome {
        let row = self.rows.get(&item.key);
        let Some(row) = row.filter(|row| row.run_id == item.run_id && row.expires_at > now) else {
            return BreakOutcome::NotHeld;
        };
        if instant(row.expires_at) != item.expires_at {
            return BreakOutcome::Renewed;
        }
        if self.locked.contains(&item.key) {
            return BreakOutcome::Locked;
        }
        let by = item.by.as_ref().map(|by| by.as_str().to_owned());
        let reason = item.reason.as_ref().map(|reason| reason.as_str().to_owned());
        BreakOutcome::Broken { remaining: self.cut_short(&item.key, now, Ending::Broken { by, reason }, now) }
    }

    /// Moves the expiry of the session's lease back. If the lease ends by that, this is recorded. Returns by how much.
    pub(super) fn cut_short(
        &mut self,
        key: &SessionKey,
        expires_at: i64,
        ending: Ending,
        now: i64,
    ) -> Duration {
        if expires_at <= now {
            self.record(key, ending, now);
        }
        let Some(row) = self.rows.get_mut(key) else { return Duration::ZERO };
        between(expires_at, std::mem::replace(&mut row.expires_at, expires_at))
    }

    /// Deletes the session's row.
    pub(super) fn remove(&mut self, key: &SessionKey, ending: Ending, now: i64) {
        self.record(key, ending, now);
        self.rows.remove(key);
    }

    /// Records the end of the run that the session's row is of, if there is a row. The first end of a run stays.
    fn record(&mut self, key: &SessionKey, ending: Ending, now: i64) {
        let Some(row) = self.rows.get(key) else { return };
        let past = self.past.entry(key.clone()).or_default();
        if past.iter().any(|run| run.fence == FencingToken::at_least(row.fence)) {
            return;
        }
        past.push(PastRun {
            run_id: row.run_id,
            node: row.node,
            label: row.label.clone(),
            fence: FencingToken::at_least(row.fence),
            phase: row.phase.clone(),
            since: instant(row.acquired_at),
            until: instant(row.expires_at.min(now)),
            waited: None,
            stop: row.stop.clone(),
            ending,
        });
    }

    pub(super) fn request_stop(&mut self, item: &StopRun, now: i64) -> StopOutcome {
        let is_wanted = |row: &Row| item.run_id.is_none_or(|wanted| wanted == row.run_id);
        let row = self.rows.get_mut(&item.key).filter(|row| row.expires_at > now && is_wanted(row));
        let Some(row) = row else { return StopOutcome::Idle };
        if self.locked.contains(&item.key) {
            return StopOutcome::Locked(row.run_id);
        }
        let first = row.stop.is_none();
        row.stop.get_or_insert_with(|| {
            let by = item.by.as_ref().map(|by| by.as_str().to_owned());
            let reason = item.reason.as_ref().map(|reason| reason.as_str().to_owned());
            StopRequest::new(instant(now), by, reason)
        });
        let holder = row.holder(now);
        self.hint(&holder);
        StopOutcome::Asked { holder: Box::new(holder), first }
    }
}

impl Row {
    pub(super) fn holder(&self, now: i64) -> Holder {
        Holder {
            run_id: self.run_id,
            node: self.node,
            label: self.label.clone(),
            fence: FencingToken::at_least(self.fence),
            stage: self.stage,
            phase: self.phase.clone(),
            since: instant(self.acquired_at),
            expires_at: instant(self.expires_at),
            expires_in: between(now, self.expires_at),
            stop: self.stop.clone(),
        }
    }
}

fn between(now: i64, expires_at: i64) -> Duration {
    Duration::from_micros(expires_at.saturating_sub(now).try_into().unwrap_or(0))
}
