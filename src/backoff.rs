//! The pause before a failed attempt is repeated.

use std::time::Duration;

/// The pause after this many failures, shortened at random.
pub(crate) fn backoff(failures: u32, longest: Duration) -> Duration {
    backoff_by(failures, longest, fastrand::f64())
}

/// The pause after this many failures. It doubles with each failure, up to `longest`. A `chance` of 1 leaves it whole,
/// and a `chance` of 0 halves it, so that callers that failed together do not retry together.
pub(crate) fn backoff_by(failures: u32, longest: Duration, chance: f64) -> Duration {
    let full = (longest / 32).saturating_mul(1 << failures.min(10)).min(longest);
    full.mul_f64(0.5 + 0.5 * chance)
}
