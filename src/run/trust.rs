//! The instant until which a run may act.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::BootInstant;

/// The end of trust, readable from any thread without a lock.
///
/// The first reader that sees trust end closes it for good. A renewal may have been confirmed just before and be
/// published just after. It must not let `is_held` go from `false` back to `true` (invariant I3).
pub(super) struct Trust(AtomicU64);

impl Trust {
    const OVER: u64 = 0;

    pub(super) fn until(instant: BootInstant) -> Self {
        Self(AtomicU64::new(instant.as_nanos()))
    }

    pub(super) fn holds(&self, now: BootInstant) -> bool {
        let until = self.0.load(Ordering::Acquire);
        if now.as_nanos() < until {
            return true;
        }
        // The exchange fails if a renewal has extended trust in between. Then trust has not ended.
        let closed = self.0.compare_exchange(until, Self::OVER, Ordering::AcqRel, Ordering::Acquire);
        closed.is_err_and(|extended| now.as_nanos() < extended)
    }

    pub(super) fn extend(&self, instant: BootInstant) -> bool {
        let extend = |until| (until != Self::OVER).then_some(instant.as_nanos());
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, extend).is_ok()
    }

    pub(super) fn revoke(&self) {
        self.0.store(Self::OVER, Ordering::Release);
    }

    pub(super) fn end(&self) -> Option<BootInstant> {
        let until = self.0.load(Ordering::Acquire);
        (until != Self::OVER).then(|| BootInstant::from_nanos(until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> BootInstant {
        BootInstant::from_nanos(nanos)
    }

    #[test]
    fn i3_trust_that_was_seen_to_pass_is_never_extended() {
        let trust = Trust::until(at(10));
        assert!(trust.holds(at(9)));
        assert!(trust.extend(at(20)));
        assert!(trust.holds(at(19)));
        assert!(!trust.holds(at(20)));
        assert!(!trust.extend(at(40)));
        assert!(!trust.holds(at(5)));
        assert_eq!(trust.end(), None);
    }
}
