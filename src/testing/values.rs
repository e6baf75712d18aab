//! Values that are otherwise made only by a supervisor.

use std::time::{Duration, SystemTime};

use crate::{
    end::{EndReason, Ended},
    error::{Busy, Closed},
    event::{RunEvent, RunRef},
    history::{Ending, PastRun},
    session::{FencingToken, Holder, InvalidText, Label, NodeId, RunId, RunPhase, RunStage, SessionKey},
    store::StoreError,
};

/// A holder with this label: a random run with fence 1 that began now, has 30 s left, and was not asked to stop.
///
/// ```
/// use std::time::Duration;
/// use tenure::{AcquireError, testing};
///
/// let mut holder = testing::holder("phone")?;
/// holder.expires_in = Duration::from_secs(3);
/// let refusal = AcquireError::Busy(Box::new(testing::busy(holder)));
/// assert!(refusal.to_string().contains("phone"));
/// # Ok::<(), tenure::InvalidText>(())
/// ```
///
/// # Errors
/// [`InvalidText`] when the label is not 1 to 255 bytes without NUL.
pub fn holder(label: &str) -> Result<Holder, InvalidText> {
    let (since, expires_in) = (SystemTime::now(), Duration::from_secs(30));
    Ok(Holder {
        run_id: RunId::random(),
        node: NodeId::random(),
        label: Label::new(label)?,
        fence: FencingToken::LEAST,
        stage: RunStage::Running,
        phase: RunPhase::default(),
        since,
        expires_at: since + expires_in,
        expires_in,
        stop: None,
    })
}

/// The refusal that names this holder.
pub fn busy(holder: Holder) -> Busy {
    Busy::new(holder)
}

/// The end of a run for this reason. It has released its session, and did not give it up.
pub fn ended(reason: EndReason) -> Ended {
    Ended { reason, released: true, gave_up: false }
}

/// A run that is over, of a holder with this label: a random run with fence 1 that lasted a minute, did not wait, was not
/// asked to stop, and ended just now.
///
/// # Errors
/// [`InvalidText`] when the label is not 1 to 255 bytes without NUL.
pub fn past_run(label: &str, ending: Ending) -> Result<PastRun, InvalidText> {
    let Holder { run_id, node, label, fence, phase, since: until, .. } = holder(label)?;
    let since = until - Duration::from_secs(60);
    Ok(PastRun { run_id, node, label, fence, phase, since, until, waited: None, stop: None, ending })
}

/// A run of this session, as events name it.
pub fn run_ref(key: SessionKey, run_id: RunId, fence: FencingToken) -> RunRef {
    RunRef { key, run_id, fence }
}

/// The error of a database that does not answer, for these details.
pub fn unavailable(detail: impl Into<String>) -> StoreError {
    StoreError::Unavailable { location: "memory".to_owned(), detail: detail.into() }
}

/// The error of a supervisor that has ended.
pub fn closed() -> Closed {
    Closed
}

/// Events of a run, for tests of code that listens to them.
pub mod events {
    use super::{Duration, EndReason, Ended, RunEvent, RunRef, StoreError};

    /// [`RunEvent::Acquired`].
    pub fn acquired(run: RunRef, ttl: Duration) -> RunEvent {
        RunEvent::Acquired { run, ttl }
    }

    /// [`RunEvent::AtRisk`].
    pub fn at_risk(run: RunRef, trusted_for: Duration, cause: Option<StoreError>) -> RunEvent {
        RunEvent::AtRisk { run, trusted_for, cause }
    }

    /// [`RunEvent::Recovered`].
    pub fn recovered(run: RunRef) -> RunEvent {
        RunEvent::Recovered { run }
    }

    /// [`RunEvent::Stopping`].
    pub fn stopping(run: RunRef, reason: EndReason) -> RunEvent {
        RunEvent::Stopping { run, reason }
    }

    /// [`RunEvent::Stuck`].
    pub fn stuck(run: RunRef) -> RunEvent {
        RunEvent::Stuck { run }
    }

    /// [`RunEvent::Ended`].
    pub fn ended(run: RunRef, ended: Ended) -> RunEvent {
        let Ended { reason, released, gave_up } = ended;
        RunEvent::Ended { run, reason, released, gave_up }
    }
}
