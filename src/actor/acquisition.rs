//! One request for a session: its attempts at the database, and the release of what it may have taken.

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
    future::{Either, select},
};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::{
    actor::{
        lane::{Acquiring, LaneAddr, Releasing},
        means::Means,
    },
    backoff::backoff,
    clock::BootInstant,
    config::Timing,
    end::EndReason,
    run::Shared,
    session::{Holder, RunId, SessionKey},
    store::{Acquire, AcquireOutcome, Grant, Release, ReleaseOutcome, StoreError},
    text::printable,
    trace,
};

/// The outcome of an acquisition.
#[derive(Debug)]
pub(crate) enum AcquisitionEnd {
    /// The database granted; `sent_at` is when the granting statement was sent.
    Granted { sent_at: BootInstant, grant: Grant },
    /// Certain: another run holds the session.
    Busy(Box<Holder>),
    /// Certain: the account has this many runs, which is as many as the request allows, or more.
    Full { running: u32 },
    /// No grant came in time, for this reason.
    Late(StoreError),
    /// No attempt can succeed as things are, for this reason.
    Refused(StoreError),
}

/// The result of an acquisition, for the registry.
#[derive(Debug, actix::Message)]
#[rtype(result = "()")]
pub(crate) struct Acquired {
    pub(crate) key: SessionKey,
    pub(crate) run_id: RunId,
    pub(crate) end: AcquisitionEnd,
    /// The number of attempts whose effect is unknown. Each of them may still create a row.
    pub(crate) unknown: u32,
}

/// Asks the database until there is a certain answer or the time is up. All attempts use the same run id, so a repeated
/// attempt is the same acquire.
pub(crate) struct Acquisition {
    pub(crate) item: Acquire,
    pub(crate) lane: LaneAddr<Acquiring>,
    pub(crate) means: Means,
    pub(crate) timing: Timing,
    pub(crate) deadline: Instant,
    pub(crate) location: String,
    /// An earlier run of this process whose work has ended and whose release is under way.
    pub(crate) after: Option<Arc<Shared>>,
    /// Nobody waits for the answer any more.
    pub(crate) abandoned: CancellationToken,
}

impl Acquisition {
    /// Runs in a task of its own. The registry gets a result in any case, even after a panic.
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

    /// Resolves a moment after the caller has gone. The statement under way has that moment to be answered. Waiting for
    /// the statement's own time-out could keep the session from others for seconds.
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
            if let Err(error) = self.means.ready().await {
                if !error.is_transient() {
                    return AcquisitionEnd::Refused(error);
                }
                attempts.last = Some(error.to_string());
                sleep(backoff(attempts.next(), self.timing.longest_backoff())).await;
                continue;
            }
            attempts.sent = Arc::default();
            let answer = self.lane.ask_noting(self.item.clone(), alone, attempts.sent.clone()).await;
            // Answered: from here on the attempt counts by its answer, and not because it was sent.
            attempts.sent = Arc::default();
            match answer.outcome {
                Ok(AcquireOutcome::Granted(grant)) => {
                    return AcquisitionEnd::Granted { sent_at: answer.sent_at, grant };
                }
                Ok(AcquireOutcome::Busy(holder)) => return AcquisitionEnd::Busy(holder),
                Ok(AcquireOutcome::Full { running }) => return AcquisitionEnd::Full { running },
                Ok(AcquireOutcome::Locked) => {
                    alone = true;
                    attempts.last = Some(self.locked().to_owned());
                }
                Err(error) if error.is_transient() => {
                    attempts.unknown += u32::from(error.is_uncertain() && answer.sent);
                    // The statement was rolled back because of a lock. The next attempt goes alone, so that no batch
                    // waits for that lock with it.
                    alone = !error.is_uncertain();
                    attempts.last = Some(error.to_string());
                }
                Err(error) => return AcquisitionEnd::Refused(error),
            }
            sleep(backoff(attempts.next(), self.timing.longest_backoff())).await;
        }
        self.unwanted()
    }

    fn locked(&self) -> &'static str {
        match self.item.limit_per_account {
            Some(_) => {
                "its row is locked by another transaction, or the limit of its account by another acquire"
            }
            None => "its row is locked by another transaction",
        }
    }

    fn unwanted(&self) -> AcquisitionEnd {
        AcquisitionEnd::Late(self.unavailable("the request was abandoned".to_owned()))
    }

    fn late(&self, attempts: &Attempts) -> StoreError {
        let last =
            attempts.last.clone().or_else(|| self.unreleased()).unwrap_or_else(|| "no answer".to_owned());
        self.unavailable(format!("not granted within {:?}; last: {last}", self.timing.acquire_timeout()))
    }

    /// Why the earlier run of this process was not released, if the request has waited for that.
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
    /// Whether the statement of the present attempt has been sent.
    sent: Arc<AtomicBool>,
    /// How many attempts were sent and got no answer.
    unknown: u32,
    last: Option<String>,
}

impl Attempts {
    fn next(&mut self) -> u32 {
        self.count = self.count.saturating_add(1);
        self.count
    }
}

/// A run that has no owner: its grant was not handed out, or no longer can be. Its rows must be released.
pub(crate) struct Orphan {
    pub(crate) key: SessionKey,
    pub(crate) run_id: RunId,
    /// How long each of its rows can last.
    pub(crate) ttl: Duration,
    /// The most rows that its attempts can still create, one after the other.
    pub(crate) rows: u32,
}

/// Releases the orphan until all rows that it can have were deleted, or until one ttl has passed (invariant I7). One
/// release is not enough, because it may reach the database before the acquire that it is to undo. Once `given_up` is
/// cancelled there is only one last attempt.
///
/// Returns `false` only if the one attempt after `given_up` did not confirm that nothing of the orphan is left. Also
/// returns `true` when one ttl has passed without a confirmation.
pub(crate) async fn compensate(
    orphan: Orphan,
    lane: LaneAddr<Releasing>,
    given_up: CancellationToken,
) -> bool {
    let Orphan { key, run_id, ttl, mut rows } = orphan;
    let until = Instant::now() + ttl;
    let (mut not_found, mut alone) = (0, false);
    while rows > 0 && Instant::now() < until {
        let last = given_up.is_cancelled();
        let item = Release { key: key.clone(), run_id, reason: Some(EndReason::Dropped) };
        let outcome = lane.ask(item, alone).await.outcome;
        if let Ok(ReleaseOutcome::Released) = outcome {
            tracing::debug!(
                target: trace::ACQUIRE,
                account = &*printable(key.account()),
                session = &*printable(key.session()),
                %run_id,
                "released what an acquire of unknown outcome had taken"
            );
            rows -= 1;
            continue;
        }
        if last {
            return outcome.is_ok_and(|outcome| outcome == ReleaseOutcome::NotFound);
        }
        alone = matches!(outcome, Ok(ReleaseOutcome::Locked));
        not_found += u32::from(matches!(outcome, Ok(ReleaseOutcome::NotFound)));
        // The database has often answered that there is no row. The row comes late now, if ever: ask less often.
        let longest = match not_found {
            0..8 => LONGEST_COMPENSATION_PAUSE,
            _ => LONGEST_COMPENSATION_PAUSE.max(ttl / 10).min(Duration::from_secs(5)),
        };
        let wait = longest.mul_f64(0.5 + 0.5 * fastrand::f64());
        let _ = timeout_at(Instant::now() + wait, given_up.cancelled()).await;
    }
    true
}

/// Short enough that an orphan's row is gone within a second after the database is reachable again.
const LONGEST_COMPENSATION_PAUSE: Duration = Duration::from_millis(400);
