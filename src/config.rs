//! Durations: which may be set, how their defaults derive from the ttl, and which relations must hold.
//!
//! The relations are checked once, when the supervisor is built. An error names the settings and the bound.

use std::time::Duration;

/// By default no run renews less often.
pub(crate) const LONGEST_DEFAULT_RENEW_INTERVAL: Duration = Duration::from_secs(20);

/// The durations that a user may set. `None` takes the default.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    pub(crate) ttl: Option<Duration>,
    pub(crate) safety_margin: Option<Duration>,
    pub(crate) renew_interval: Option<Duration>,
    pub(crate) renew_timeout: Option<Duration>,
    pub(crate) acquire_timeout: Option<Duration>,
    pub(crate) stop_grace: Option<Duration>,
    pub(crate) stuck_limit: Option<Duration>,
}

/// The checked durations of one supervisor. A run has others only if its request gave it another
/// [`ttl`](crate::request::AcquireBuilder::ttl) or [`stop_grace`](crate::request::AcquireBuilder::stop_grace).
///
/// ```
/// # use std::time::Duration;
/// # use tenure::Timing;
/// let timing = Timing::for_ttl(Duration::from_secs(30))?;
/// assert_eq!(timing.safety_margin(), Duration::from_secs(6));
/// assert_eq!(timing.renew_interval(), Duration::from_millis(7_500));
/// assert_eq!(timing.tolerated_outage(), Duration::from_millis(11_750));
/// # Ok::<(), tenure::ConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    ttl: Duration,
    safety_margin: Duration,
    renew_interval: Duration,
    renew_timeout: Duration,
    acquire_timeout: Duration,
    stop_grace: Duration,
    stuck_limit: Option<Duration>,
}

impl Timing {
    pub(crate) const RENEW_TIMEOUTS_IN_A_TTL: u32 = 10;
    pub(crate) const LONGEST_DEFAULT_RENEW_TIMEOUT: Duration = Duration::from_secs(5);

    /// The defaults for this ttl.
    ///
    /// # Errors
    /// [`ConfigError`] when the ttl is not between 1 second and 24 hours.
    pub fn for_ttl(ttl: Duration) -> Result<Self, ConfigError> {
        Settings { ttl: Some(ttl), ..Settings::default() }.check()
    }

    /// How long a lease is granted for, in whole milliseconds: 1 s to 24 h. Default: 30 s.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// How long before expiry trust ends. Default: ttl/5.
    pub fn safety_margin(&self) -> Duration {
        self.safety_margin
    }

    /// The time between renewals, ±10 %. Default: ttl/4, at most 20 s.
    pub fn renew_interval(&self) -> Duration {
        self.renew_interval
    }

    /// The bound on one attempt to renew or to release, from when it is sent. Default: ttl/10, at most 5 s.
    ///
    /// A round trip to the database must take no more than about 87 % of it.
    pub fn renew_timeout(&self) -> Duration {
        self.renew_timeout
    }

    /// The bound on a whole acquire, its retries included. Default: ttl/3, at least 1 s, at most 10 s.
    pub fn acquire_timeout(&self) -> Duration {
        self.acquire_timeout
    }

    /// How long work may go on after it was told to stop. The lease is renewed meanwhile. Default: 5 s.
    pub fn stop_grace(&self) -> Duration {
        self.stop_grace
    }

    /// How long work that outlives its grace and cannot be dropped keeps the session. After that the work is given up,
    /// and the session is released although the work may still act. Default: `None`, for as long as the work lives.
    pub fn stuck_limit(&self) -> Option<Duration> {
        self.stuck_limit
    }

    /// The same for one run whose lease lasts longer. The margin grows with the lease, and so does the interval, up to
    /// 20 s. The time-outs stay the supervisor's, because all its runs share their statements.
    ///
    /// A shorter lease is refused. A statement may take as long as the supervisor's ttl allows, and a step of a clock
    /// is noticed from a part of the supervisor's margin on. Both would be too much for a shorter lease.
    pub(crate) fn with_ttl(self, ttl: Duration) -> Result<Self, ConfigError> {
        let ttl = whole_millis(ttl);
        if ttl < self.ttl {
            return Err(ConfigError::ShorterTtl { ttl, supervisor: self.ttl });
        }
        between("ttl", ttl, Settings::LEAST_TTL, Settings::GREATEST_TTL, Settings::BOUNDS_OF_TTL)?;
        let factor = ttl.as_secs_f64() / self.ttl.as_secs_f64();
        let longest_interval = self.renew_interval.max(LONGEST_DEFAULT_RENEW_INTERVAL).min(ttl / 2);
        let timing = Self {
            ttl,
            safety_margin: whole_millis(self.safety_margin.mul_f64(factor)).clamp(ttl / 20, ttl / 2),
            renew_interval: self.renew_interval.mul_f64(factor).min(longest_interval),
            ..self
        };
        check_relations(&timing)?;
        Ok(timing)
    }

    /// The shortest safety margin that a lease of this ttl can have.
    pub(crate) fn least_safety_margin(ttl: Duration) -> Duration {
        (ttl / 20).max(Settings::LEAST_PART)
    }

    /// The same but for the grace of one run.
    pub(crate) fn with_stop_grace(self, stop_grace: Duration) -> Result<Self, ConfigError> {
        let timing = Self { stop_grace, ..self };
        check_relations(&timing)?;
        Ok(timing)
    }

    /// The longest pause between two attempts: ttl/30, at most 1 s.
    pub fn longest_backoff(&self) -> Duration {
        (self.ttl / 30).min(Duration::from_secs(1))
    }

    /// How long the database may be away without any run being lost, even if the outage begins at the worst moment:
    /// `ttl − safety_margin − 1.1·renew_interval − renew_timeout − longest_backoff`.
    ///
    /// At least ttl/3 with the defaults.
    pub fn tolerated_outage(&self) -> Duration {
        self.trusted_after_grant()
            .saturating_sub(self.latest_renewal())
            .saturating_sub(self.renew_timeout)
            .saturating_sub(self.longest_backoff())
    }

    /// The longest time that a grant is trusted after its statement was sent.
    pub(crate) fn trusted_after_grant(&self) -> Duration {
        self.ttl.saturating_sub(self.safety_margin)
    }

    /// How long after trust has ended the work must be gone (assumption A4).
    pub(crate) fn loss_grace(&self) -> Duration {
        self.safety_margin / 2
    }

    /// The bound on one attempt to acquire. Attempts repeat within [`acquire_timeout`](Self::acquire_timeout).
    pub(crate) fn acquire_attempt_timeout(&self) -> Duration {
        (self.ttl / 5).min(Duration::from_secs(5)).min(self.acquire_timeout)
    }

    /// The bound on one query: inspect, list, sweep, probe, or a request to stop.
    pub(crate) fn query_timeout(&self) -> Duration {
        (self.ttl / 5).clamp(Duration::from_millis(500), Duration::from_secs(5))
    }

    /// How long a statement may wait for one lock on the server.
    pub(crate) fn lock_timeout(&self) -> Duration {
        (self.ttl / 30)
            .clamp(Duration::from_millis(50), Duration::from_millis(500))
            .min(self.renew_timeout / 2)
    }

    fn latest_renewal(&self) -> Duration {
        self.renew_interval.mul_f64(1.1)
    }
}

impl Settings {
    pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(30);
    const DEFAULT_STOP_GRACE: Duration = Duration::from_secs(5);
    const LEAST_TTL: Duration = Duration::from_secs(1);
    const GREATEST_TTL: Duration = Duration::from_secs(24 * 3600);
    const BOUNDS_OF_TTL: &str = "1 second and 24 hours";
    const GREATEST_GRACE: Duration = Duration::from_secs(365 * 24 * 3600);
    /// If a duration were shorter, an ordinary round trip or a busy machine would look like an outage.
    const LEAST_PART: Duration = Duration::from_millis(20);

    pub(crate) fn check(&self) -> Result<Timing, ConfigError> {
        let ttl = whole_millis(self.ttl.unwrap_or(Self::DEFAULT_TTL));
        between("ttl", ttl, Self::LEAST_TTL, Self::GREATEST_TTL, Self::BOUNDS_OF_TTL)?;
        let seconds = Duration::from_secs;
        let timing = Timing {
            ttl,
            safety_margin: whole_millis(self.safety_margin.unwrap_or(ttl / 5)),
            renew_interval: self.renew_interval.unwrap_or((ttl / 4).min(LONGEST_DEFAULT_RENEW_INTERVAL)),
            renew_timeout: self.renew_timeout.unwrap_or(
                (ttl / Timing::RENEW_TIMEOUTS_IN_A_TTL).min(Timing::LONGEST_DEFAULT_RENEW_TIMEOUT),
            ),
            acquire_timeout: self.acquire_timeout.unwrap_or((ttl / 3).clamp(seconds(1), seconds(10))),
            stop_grace: self.stop_grace.unwrap_or(Self::DEFAULT_STOP_GRACE),
            stuck_limit: self.stuck_limit,
        };
        check_relations(&timing)?;
        Ok(timing)
    }
}

fn check_relations(timing: &Timing) -> Result<(), ConfigError> {
    let Timing {
        ttl,
        safety_margin,
        renew_interval,
        renew_timeout,
        acquire_timeout,
        stop_grace,
        stuck_limit,
    } = *timing;
    let least = Settings::LEAST_PART;
    let least_margin = Timing::least_safety_margin(ttl);
    between("safety_margin", safety_margin, least_margin, ttl / 2, "ttl/20 and ttl/2")?;
    between("renew_interval", renew_interval, least, ttl / 2, "20 ms and ttl/2")?;
    between("renew_timeout", renew_timeout, least, ttl / 4, "20 ms and ttl/4")?;
    between("acquire_timeout", acquire_timeout, least, Settings::GREATEST_TTL, "20 ms and 24 hours")?;
    between("stop_grace", stop_grace, Duration::ZERO, Settings::GREATEST_GRACE, "0 and a year")?;
    if let Some(limit) = stuck_limit {
        between("stuck_limit", limit, Duration::ZERO, Settings::GREATEST_GRACE, "0 and a year")?;
    }
    let needed = timing.latest_renewal() + 3 * renew_timeout + 2 * timing.longest_backoff();
    if needed > timing.trusted_after_grant() {
        return Err(ConfigError::TooFewAttempts {
            renew_interval,
            renew_timeout,
            needed,
            trusted: timing.trusted_after_grant(),
        });
    }
    Ok(())
}

pub(crate) fn check_connect_timeout(timeout: Duration) -> Result<(), ConfigError> {
    between("connect_timeout", timeout, Settings::LEAST_PART, Settings::GREATEST_TTL, "20 ms and 24 hours")
}

fn between(
    setting: &'static str,
    value: Duration,
    least: Duration,
    greatest: Duration,
    bounds: &'static str,
) -> Result<(), ConfigError> {
    if (least..=greatest).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::OutOfBounds { setting, value, least, greatest, bounds })
}

/// Cuts a duration to whole milliseconds, because the row counts in milliseconds.
fn whole_millis(duration: Duration) -> Duration {
    Duration::from_millis(duration.as_millis().try_into().unwrap_or(u64::MAX))
}

/// Durations that cannot work together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// One setting is out of its bounds.
    #[error("{setting} is {value:?} but must be between {bounds} (here {least:?} to {greatest:?})")]
    #[non_exhaustive]
    OutOfBounds {
        /// Which setting.
        setting: &'static str,
        /// Its value.
        value: Duration,
        /// The least value allowed here.
        least: Duration,
        /// The greatest value allowed here.
        greatest: Duration,
        /// The bounds as a rule.
        bounds: &'static str,
    },
    /// A request asks for a shorter lease than its supervisor's.
    #[error(
        "ttl is {ttl:?} for one run but {supervisor:?} for its supervisor, and must not be shorter, because the \
         time-outs of all statements derive from the supervisor's; give the supervisor the shortest ttl, and longer \
         ones to single requests"
    )]
    #[non_exhaustive]
    ShorterTtl {
        /// The ttl of the request.
        ttl: Duration,
        /// The ttl of the supervisor.
        supervisor: Duration,
    },
    /// There is no time for three attempts to renew before trust ends.
    #[error(
        "renew_interval {renew_interval:?} and renew_timeout {renew_timeout:?} leave no room for three attempts: \
         1.1·renew_interval + 3·renew_timeout + two pauses is {needed:?}, but trust lasts ttl − safety_margin = \
         {trusted:?}; shorten one of them or lengthen the ttl"
    )]
    #[non_exhaustive]
    TooFewAttempts {
        /// The setting.
        renew_interval: Duration,
        /// The setting.
        renew_timeout: Duration,
        /// The time that three attempts need.
        needed: Duration,
        /// The time that trust lasts.
        trusted: Duration,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_work_from_one_second_to_a_day_and_tolerate_a_third_of_the_ttl() {
        for millis in [1_000, 1_001, 2_000, 5_000, 30_000, 60_000, 300_000, 3_600_000, 86_400_000] {
            let ttl = Duration::from_millis(millis);
            let timing = Timing::for_ttl(ttl).unwrap();
            assert!(
                timing.tolerated_outage() >= ttl / 3,
                "{ttl:?} tolerates {:?}",
                timing.tolerated_outage()
            );
            assert!(timing.lock_timeout() < timing.renew_timeout(), "{ttl:?}");
        }
    }

    #[test]
    fn the_operators_page_has_these_very_figures() {
        let page = include_str!("../docs/operating.md");
        for seconds in [10, 30, 60, 120, 300] {
            let timing = Timing::for_ttl(Duration::from_secs(seconds)).unwrap();
            let line = format!(
                "| {seconds} s | {:.1} s | {:.1} s | {seconds} s |",
                timing.tolerated_outage().as_secs_f64(),
                timing.trusted_after_grant().as_secs_f64()
            );
            assert!(page.contains(&line), "{line}");
        }
        let timing = Timing::for_ttl(Settings::DEFAULT_TTL).unwrap();
        let work_gone = timing.trusted_after_grant() + timing.loss_grace();
        for (what, duration) in [
            ("the next renewal, at the latest", timing.latest_renewal()),
            ("the holder stops trusting the lease, and tells its work to end", timing.trusted_after_grant()),
            ("the work has been ended by force", work_gone),
            ("another run can have the session", timing.ttl()),
        ] {
            let line = format!("| {what} | {} s |", duration.as_secs_f64());
            assert!(page.contains(&line), "{line}");
        }
    }

    #[test]
    fn a_ttl_out_of_bounds_is_refused_by_name_and_bound() {
        for ttl in [Duration::ZERO, Duration::from_millis(999), Duration::from_secs(86_401)] {
            let error = Timing::for_ttl(ttl).unwrap_err().to_string();
            assert!(error.contains("ttl") && error.contains("1 second and 24 hours"), "{error}");
        }
    }

    #[test]
    fn a_time_to_connect_that_cannot_work_is_refused_by_its_bounds() {
        for timeout in [Duration::ZERO, Duration::from_millis(19), Duration::MAX] {
            let error = check_connect_timeout(timeout).unwrap_err().to_string();
            assert!(error.contains("connect_timeout") && error.contains("20 ms and 24 hours"), "{error}");
        }
        assert_eq!(check_connect_timeout(Duration::from_secs(5)), Ok(()));
    }

    #[test]
    fn a_longer_lease_works_wherever_the_supervisors_own_does() {
        let seconds = Duration::from_secs;
        let least = Settings { safety_margin: Some(seconds(30) / 20), ..Settings::default() };
        let greatest = Settings {
            safety_margin: Some(seconds(15)),
            renew_interval: Some(seconds(3)),
            ..Settings::default()
        };
        let slow = Settings { renew_interval: Some(seconds(11)), ..Settings::default() };
        for settings in [Settings::default(), least, greatest, slow] {
            let of_all = settings.check().unwrap();
            assert_eq!(of_all.with_ttl(of_all.ttl()), Ok(of_all));
            for millis in [30_001, 31_013, 60_000, 299_999, 3_600_000, 86_400_000] {
                let ttl = Duration::from_millis(millis);
                let timing = of_all.with_ttl(ttl).unwrap();
                assert_eq!((timing.ttl(), timing.renew_timeout()), (ttl, of_all.renew_timeout()));
                assert!(timing.tolerated_outage() >= of_all.tolerated_outage(), "{ttl:?}: {timing:?}");
            }
        }
    }

    #[test]
    fn relations_that_cannot_work_name_both_fields_and_the_bound() {
        let settings = Settings {
            ttl: Some(Duration::from_secs(10)),
            renew_interval: Some(Duration::from_secs(5)),
            renew_timeout: Some(Duration::from_secs(2)),
            ..Settings::default()
        };
        let error = settings.check().unwrap_err().to_string();
        for part in ["renew_interval", "renew_timeout", "8s"] {
            assert!(error.contains(part), "{error}");
        }
        for settings in [
            Settings { stop_grace: Some(Duration::MAX), ..Settings::default() },
            Settings { acquire_timeout: Some(Duration::MAX), ..Settings::default() },
        ] {
            assert!(matches!(settings.check(), Err(ConfigError::OutOfBounds { .. })), "{settings:?}");
        }
        let settings = Settings { safety_margin: Some(Duration::from_secs(20)), ..Settings::default() };
        let error = settings.check().unwrap_err().to_string();
        assert!(
            error.contains("safety_margin") && error.contains("ttl/2") && error.contains("15s"),
            "{error}"
        );
    }
}
