//! Fence gates refuse late writers at a resource.
//!
//! A lease decides which run may start. It cannot keep a run that has lost it from writing to a resource elsewhere. The
//! resource has to check for itself. Every run has a [`FencingToken`], its fence, that is greater than that of every
//! earlier run of its session. The writer sends its fence with each write. The resource remembers the greatest fence
//! per session, and refuses smaller ones. An equal fence passes, because one run writes many times. `docs/fencing.md`
//! says when this is needed.
//!
//! A gate needs neither a [`LeaseSupervisor`](crate::LeaseSupervisor) nor the database of the leases.
//!
//! | the resource is | use |
#![cfg_attr(
    any(feature = "postgres", feature = "sqlite"),
    doc = "| rows of PostgreSQL or SQLite | [`admit`], in the transaction that writes; or its plain SQL, [`POSTGRES`] and [`SQLITE`] |"
)]
//! | one process: a file, a device, memory | [`FenceGate`] |
#![cfg_attr(
    feature = "tower",
    doc = "| an HTTP service | [`FenceLayer`], and one of the others where the handler writes |"
)]
//! | the very database that holds the leases | no gate: [`pin`](crate::RunContext::pin) |
//!
//! Fences of different sessions cannot be compared, so a gate keeps one fence per session. If several sessions write to
//! one resource, a gate is not enough.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::sync::{OwnedRwLockReadGuard, RwLock};

use crate::{
    clock,
    session::{FencingToken, SessionKey},
};

pub mod headers;
#[cfg(feature = "tower")]
mod layer;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod table;

#[cfg(feature = "tower")]
pub use layer::{FenceLayer, FenceService, Fenced};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use table::{GateError, admit};
#[cfg(feature = "postgres")]
pub use table::{POSTGRES, POSTGRES_TABLE};
#[cfg(feature = "sqlite")]
pub use table::{SQLITE, SQLITE_TABLE};

/// A gate in memory. It remembers the greatest fence of each session, and refuses smaller ones.
///
/// Clones are handles of the same gate.
///
/// ```
/// # use tenure::{FencingToken, SessionKey, fence_gate::{FenceGate, Refused}};
/// let gate = FenceGate::new();
/// let key = SessionKey::new("acct-1", "chat-9")?;
/// let (older, newer) = (FencingToken::new(7)?, FencingToken::new(9)?);
/// gate.admit(&key, older)?;
/// gate.admit(&key, older)?;
/// gate.admit(&key, newer)?;
/// assert!(matches!(gate.admit(&key, older), Err(Refused::Late { seen, .. }) if seen == newer));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # After a restart
///
/// A new gate does not know what was written before it started. It [vouches](Self::vouches_from) for a fence that was
/// issued after its start: a later run can only have written since then, and the gate would know. For an older fence,
/// the gate cannot know whether a later run wrote before the start. It then says so in its answer
/// ([`Admitted::is_vouched`]), or, if it is [`strict`](Self::strict), refuses the fence until the session is acquired
/// again. A gate that is [restored](Self::restore) from a snapshot has forgotten nothing.
///
/// Fences are microseconds since 1970 by the clock of the database that grants. The gate compares them with its own
/// clock. If the gate's clock is behind, [start the gate later](Self::starting_at) by as much. After its clock was set
/// back, a database issues fences that are ahead of that clock, until the clock has caught up. A gate that starts in
/// that time vouches for too much.
#[derive(Clone)]
pub struct FenceGate {
    known: Arc<Mutex<HashMap<SessionKey, Arc<Known>>>>,
    vouches_from: Arc<AtomicI64>,
    is_strict: bool,
}

/// What a gate knows of one session.
#[derive(Default)]
struct Known {
    /// The greatest fence that was admitted. Zero if none was.
    highest: AtomicI64,
    /// The fence whose writes may be under way. Writes with smaller fences are over. Each write under way holds a read
    /// lock.
    entered: Arc<RwLock<i64>>,
}

impl Default for FenceGate {
    fn default() -> Self {
        Self::new()
    }
}

impl FenceGate {
    /// A gate that knows nothing yet. It vouches for fences that are issued from now on.
    pub fn new() -> Self {
        Self::starting_at(SystemTime::now())
    }

    /// A gate that knows nothing yet, and vouches for fences that are issued from `instant` on. `instant` should be
    /// now, plus as much as the granting database's clock may be ahead of the local clock.
    pub fn starting_at(instant: SystemTime) -> Self {
        Self::vouching_from(issued_at(instant))
    }

    /// A gate that knows everything that is in a [snapshot](Self::snapshot) of another gate. So it vouches for every
    /// fence.
    pub fn restore(known: impl IntoIterator<Item = (SessionKey, FencingToken)>) -> Self {
        let gate = Self::vouching_from(FencingToken::LEAST);
        for (key, fence) in known {
            gate.known(&key).highest.fetch_max(fence.as_i64(), Ordering::AcqRel);
        }
        gate
    }

    fn vouching_from(fence: FencingToken) -> Self {
        let vouches_from = Arc::new(AtomicI64::new(fence.as_i64()));
        Self { known: Arc::default(), vouches_from, is_strict: false }
    }

    /// Makes the gate refuse fences for which it cannot vouch. A writer with such a fence has to acquire the session
    /// again.
    #[must_use]
    pub fn strict(mut self) -> Self {
        self.is_strict = true;
        self
    }

    /// Admits a write. From then on, smaller fences of this session are refused.
    ///
    /// The write itself comes afterwards, and a later run may write before it. If that matters, use
    /// [`enter`](Self::enter).
    ///
    /// # Errors
    /// [`Refused`], which says which fence was seen. A refused fence is not remembered.
    pub fn admit(&self, key: &SessionKey, fence: FencingToken) -> Result<Admitted, Refused> {
        let known = self.known_if_vouched(key, fence)?;
        self.admit_known(&known, fence)
    }

    /// Admits a write for as long as the returned [`Passage`] is kept. A later run is admitted at once, but it enters
    /// only when every passage of earlier runs was dropped. So writes that are made under a passage are in the order of
    /// the fences.
    ///
    /// Any number of writes with the same fence may be under way together. A write that hangs keeps later runs waiting.
    /// So give the write a time-out, and read what it needs from its client before you enter.
    ///
    /// # Errors
    /// [`Refused`], also when a later run was admitted while this waited.
    ///
    /// # Cancel safety
    /// If the future is dropped, there is no passage. The fence stays remembered.
    pub async fn enter(&self, key: &SessionKey, fence: FencingToken) -> Result<Passage, Refused> {
        let known = self.known_if_vouched(key, fence)?;
        let admitted = self.admit_known(&known, fence)?;
        let wanted = fence.as_i64();
        let mut entered = known.entered.clone().read_owned().await;
        if *entered < wanted {
            drop(entered);
            // Granted only when every passage of a smaller fence was dropped.
            let mut alone = known.entered.clone().write_owned().await;
            *alone = wanted.max(*alone);
            entered = alone.downgrade();
        }
        known.refuse_late(fence)?;
        Ok(Passage { admitted, _entered: entered })
    }

    /// The greatest fence that was admitted for this session.
    pub fn seen(&self, key: &SessionKey) -> Option<FencingToken> {
        let known = self.lock();
        known.get(key)?.admitted()
    }

    /// The least fence for which the gate can vouch. For this fence and every greater one, the gate knows whether a
    /// still greater fence of the same session was ever admitted here. 1 if the gate has forgotten nothing. The
    /// number is also an instant, in microseconds since 1970.
    pub fn vouches_from(&self) -> FencingToken {
        FencingToken::at_least(self.vouches_from.load(Ordering::Acquire))
    }

    /// Forgets sessions whose greatest fence was issued before this instant, to keep the gate small. Afterwards the
    /// gate vouches only from this instant on. The only cost for a [strict](Self::strict) gate is that older runs can
    /// no longer write.
    pub fn forget_before(&self, instant: SystemTime) {
        let from = issued_at(instant).as_i64();
        let mut known = self.lock();
        self.vouches_from.fetch_max(from, Ordering::AcqRel);
        // Keep a session that is in use or about to be, because its entry keeps the order of its writes.
        known.retain(|_, known| {
            known.highest.load(Ordering::Acquire) >= from
                || Arc::strong_count(known) > 1
                || known.is_entered()
        });
    }

    /// Everything that the gate knows, for [`restore`](Self::restore). Take the snapshot when the gate admits nothing
    /// any more: what it admits later is not in the snapshot.
    pub fn snapshot(&self) -> Vec<(SessionKey, FencingToken)> {
        let known = self.lock();
        known.iter().filter_map(|(key, known)| Some((key.clone(), known.admitted()?))).collect()
    }

    fn known_if_vouched(&self, key: &SessionKey, fence: FencingToken) -> Result<Arc<Known>, Refused> {
        self.refuse_unvouched(fence)?;
        let known = self.known(key);
        // `forget_before` may have run in between. If so, `vouches_from` has moved, and this check notices it.
        self.refuse_unvouched(fence)?;
        Ok(known)
    }

    fn refuse_unvouched(&self, fence: FencingToken) -> Result<(), Refused> {
        let from = self.vouches_from();
        if self.is_strict && fence < from { Err(Refused::Unvouched { fence, from }) } else { Ok(()) }
    }

    fn admit_known(&self, known: &Known, fence: FencingToken) -> Result<Admitted, Refused> {
        let before = known.highest.fetch_max(fence.as_i64(), Ordering::AcqRel);
        if before > fence.as_i64() {
            return Err(Refused::Late { fence, seen: FencingToken::at_least(before) });
        }
        Ok(Admitted { fence, is_vouched: fence >= self.vouches_from() })
    }

    fn known(&self, key: &SessionKey) -> Arc<Known> {
        let mut known = self.lock();
        match known.get(key) {
            Some(known) => known.clone(),
            None => known.entry(key.clone()).or_default().clone(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<SessionKey, Arc<Known>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// The greatest fence that was admitted, if any was.
    fn admitted(&self) -> Option<FencingToken> {
        FencingToken::new(self.highest.load(Ordering::Acquire)).ok()
    }

    fn refuse_late(&self, fence: FencingToken) -> Result<(), Refused> {
        match self.admitted() {
            Some(seen) if seen > fence => Err(Refused::Late { fence, seen }),
            _ => Ok(()),
        }
    }

    fn is_entered(&self) -> bool {
        self.entered.try_write().is_err()
    }
}

impl fmt::Debug for FenceGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceGate")
            .field("sessions", &self.lock().len())
            .field("vouches_from", &self.vouches_from())
            .field("is_strict", &self.is_strict)
            .finish()
    }
}

/// The gate has admitted a write: its fence is the greatest that the gate has seen for the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admitted {
    /// The fence.
    pub fence: FencingToken,
    /// Whether it is certain that no later run has written here before: see [`FenceGate`].
    pub is_vouched: bool,
}

/// A write that is under way. Later runs wait until this is dropped.
#[must_use = "a later run enters as soon as this is dropped"]
#[derive(Debug)]
pub struct Passage {
    admitted: Admitted,
    _entered: OwnedRwLockReadGuard<i64>,
}

impl Passage {
    /// How the write was admitted.
    pub fn admitted(&self) -> Admitted {
        self.admitted
    }
}

/// A gate admits no write with this fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// A later run has written.
    #[error("fence {fence} is late: a run with fence {seen} has written; stop, the session is another run's")]
    #[non_exhaustive]
    Late {
        /// What was presented.
        fence: FencingToken,
        /// The greatest that was seen.
        seen: FencingToken,
    },
    /// The gate does not know what was written before `from`, and is [strict](FenceGate::strict).
    #[error("the gate can vouch only from fence {from} on, and {fence} is older; acquire the session anew")]
    #[non_exhaustive]
    Unvouched {
        /// What was presented.
        fence: FencingToken,
        /// The least that is admitted.
        from: FencingToken,
    },
}

/// The least fence that is issued at this instant.
fn issued_at(instant: SystemTime) -> FencingToken {
    let since_1970 = instant.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    FencingToken::at_least(clock::micros(since_1970))
}
