//! One request for a session on its way to the database and back.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actix::Recipient;
use futures::{
    FutureExt,
    future::{Either, select, try_join_all},
};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::{
    actor::{
        call::backoff,
        lane::{Acquiring, LaneAddr, Releasing},
        pool::Pool,
    },
    clock::BootInstant,
    config::Timing,
    run::Shared,
    session::{Holder, RunId, SessionKey},
    store::{Acquire, AcquireOutcome, Grant, Release, ReleaseOutcome, StoreError},
};

/// What came of an acquire.
#[derive(Debug)]
pub(crate) enum AcquisitionEnd {
    /// The database granted; `sent_at` is when the granting statement was sent.
    Granted { sent_at: BootInstant, grant: Grant },
    /// Certain: another run holds it.
    Busy(Box<Holder>),
    /// No grant came in the time there was, for this reason.
    Late(StoreError),
    /// Certain: no grant can come as things are.
    Refused(StoreError),
}

/// The answer to the registry.
#[derive(Debug, actix::Message)]
#[rtype(result = "()")]
pub(crate) struct Acquired {
    pub(crate) key: SessionKey,
    pub(crate) run_id: RunId,
    pub(crate) end: AcquisitionEnd,
    /// Attempts whose effect is unknown: each may still make a row.
    pub(crate) unknown: u32,
}

/// Asks until there is a certain answer or the time is up, always under the same run id, so that a repeated
/// acquire is the same acquire.
pub(crate) struct Acquisition {
    pub(crate) item: Acquire,
    pub(crate) lane: LaneAddr<Acquiring>,
    /// What will renew and release.
    pub(crate) means: Vec<Pool>,
    pub(crate) timing: Timing,
    pub(crate) deadline: Instant,
    pub(crate) location: String,
    /// An earlier run of this process whose work has ended and whose release is under way.
    pub(crate) after: Option<Arc<Shared>>,
    /// Nobody waits for the answer any more.
    pub(crate) abandoned: CancellationToken,
}

impl Acquisition {
    /// Runs to its end in a task of its own; the registry hears of it whatever happens.
    pub(crate) fn spawn(self, registry: Recipient<Acquired>) {
        let (key, run_id, location) = (self.item.key.clone(), self.item.run_id, self.location.clone());
        actix_rt::spawn(async move {
            let outcome = std::panic::AssertUnwindSafe(self.run()).catch_unwind().await;
            let (end, unknown) = outcome.unwrap_or_else(|_panic| {
                let detail = "the acquiring task panicked".to_owned();
                (AcquisitionEnd::Late(StoreError::Unavailable { location, detail }), u32::MAX)
            });
            registry.do_send(Acquired { key, run_id, end, unknown });
        });
    }

    async fn run(self) -> (AcquisitionEnd, u32) {
        let mut attempts = Attempts::default();
        let end = {
            let end = pin!(timeout_at(self.deadline, self.attempts(&mut attempts)));
            let abandoned = pin!(self.long_abandoned());
            match select(end, abandoned).await {
                Either::Left((end, _)) => Some(end),
                Either::Right(_) => None,
            }
        };
        let end = match end {
            Some(Ok(end)) => end,
            Some(Err(_elapsed)) => AcquisitionEnd::Late(self.late(&attempts)),
            None => self.unwanted(),
        };
        (end, attempts.unknown + u32::from(attempts.sent.load(Ordering::Relaxed)))
    }

    /// Nobody waits any more, and not even a statement under way was answered meanwhile. Its own time-out may be
    /// seconds away, and would keep the session from others for as long.
    async fn long_abandoned(&self) {
        self.abandoned.cancelled().await;
        sleep(LONGEST_COMPENSATION_PAUSE).await;
    }

    async fn attempts(&self, attempts: &mut Attempts) -> AcquisitionEnd {
        if let Some(earlier) = &self.after {
            earlier.until_release_known().await;
        }
        let mut alone = false;
        while !self.abandoned.is_cancelled() {
            if let Err(error) = self.means().await {
                if !error.is_transient() {
                    return AcquisitionEnd::Refused(error);
                }
                attempts.last = Some(error.to_string());
                sleep(backoff(attempts.next(), self.timing.longest_backoff())).await;
                continue;
            }
            attempts.sent = Arc::default();
            let answer = self.lane.ask_noting(self.item.clone(), alone, attempts.sent.clone()).await;
            attempts.sent = Arc::default();
            match answer.outcome {
                Ok(AcquireOutcome::Granted(grant)) => {
                    return AcquisitionEnd::Granted { sent_at: answer.sent_at, grant };
                }
                Ok(AcquireOutcome::Busy(holder)) => return AcquisitionEnd::Busy(holder),
                Ok(AcquireOutcome::Locked) => {
                    alone = true;
                    attempts.last = Some("its row is locked by another transaction".to_owned());
                }
                Err(error) if error.is_transient() => {
                    attempts.unknown += u32::from(error.is_uncertain() && answer.sent);
                    // What was rolled back met somebody's lock: not again in a batch that has to wait with it.
                    alone = !error.is_uncertain();
                    attempts.last = Some(error.to_string());
                }
                Err(error) => return AcquisitionEnd::Refused(error),
            }
            sleep(backoff(attempts.next(), self.timing.longest_backoff())).await;
        }
        self.unwanted()
    }

    /// The connections that will renew and release are open before anything is granted (invariant I11).
    async fn means(&self) -> Result<(), StoreError> {
        try_join_all(self.means.iter().map(Pool::ready)).await.map(drop)
    }

    fn unwanted(&self) -> AcquisitionEnd {
        AcquisitionEnd::Late(self.unavailable("the request was abandoned".to_owned()))
    }

    fn late(&self, attempts: &Attempts) -> StoreError {
        let last =
            attempts.last.clone().or_else(|| self.unreleased()).unwrap_or_else(|| "no answer".to_owned());
        self.unavailable(format!("not granted within {:?}; last: {last}", self.timing.acquire_timeout()))
    }

    /// What the request has waited for, if the run before has still to be released.
    fn unreleased(&self) -> Option<String> {
        let refusal = self.after.as_ref()?.release_refusal()?;
        Some(format!("the release of the run before was not confirmed: {refusal}"))
    }

    fn unavailable(&self, detail: String) -> StoreError {
        StoreError::Unavailable { location: self.location.clone(), detail }
    }
}

#[derive(Default)]
struct Attempts {
    count: u32,
    /// Whether the one under way has been sent.
    sent: Arc<AtomicBool>,
    /// How many ended without an answer.
    unknown: u32,
    last: Option<String>,
}

impl Attempts {
    fn next(&mut self) -> u32 {
        self.count = self.count.saturating_add(1);
        self.count
    }
}

/// A run whose row must not stay: its acquire was not, or can no longer be, handed out.
pub(crate) struct Orphan {
    pub(crate) key: SessionKey,
    pub(crate) run_id: RunId,
    /// The most rows that its acquires can still make, one after the other.
    pub(crate) rows: u32,
}

/// Asks for the orphan's release until all the rows it can have were deleted, or one ttl has passed since its
/// last acquire can have been sent (invariant I7). One release is not enough: it may overtake the acquire that
/// it is to undo. Only when time is up (`given_up`) there is one last attempt, and no more.
/// Answers whether nothing of the orphan is left, as far as the database has said.
pub(crate) async fn compensate(
    orphan: Orphan,
    lane: LaneAddr<Releasing>,
    timing: Timing,
    given_up: CancellationToken,
) -> bool {
    let Orphan { key, run_id, mut rows } = orphan;
    let until = Instant::now() + timing.ttl();
    let (mut not_found, mut alone) = (0, false);
    while rows > 0 && Instant::now() < until {
        let last = given_up.is_cancelled();
        let outcome = lane.ask(Release { key: key.clone(), run_id }, alone).await.outcome;
        if let Ok(ReleaseOutcome::Released) = outcome {
            tracing::debug!(%key, %run_id, "gave back what an acquire of unknown outcome had taken");
            rows -= 1;
            continue;
        }
        if last {
            return outcome.is_ok_and(|outcome| outcome == ReleaseOutcome::NotFound);
        }
        alone = matches!(outcome, Ok(ReleaseOutcome::Locked));
        not_found += u32::from(matches!(outcome, Ok(ReleaseOutcome::NotFound)));
        // A row that has not come while the database answered comes late, if ever.
        let longest = match not_found {
            0..8 => LONGEST_COMPENSATION_PAUSE,
            _ => LONGEST_COMPENSATION_PAUSE.max(timing.ttl() / 10).min(Duration::from_secs(5)),
        };
        let wait = longest.mul_f64(0.5 + 0.5 * fastrand::f64());
        let _ = timeout_at(Instant::now() + wait, given_up.cancelled()).await;
    }
    true
}

/// A row is gone within a second of the database being reachable again.
const LONGEST_COMPENSATION_PAUSE: Duration = Duration::from_millis(400);
