//! Measured latencies and clocks, and what they mean for leases.

use std::time::Duration;

use super::Finding;
use crate::{
    clock::{Clock as _, Reading, SystemClock},
    config::Settings,
};

/// How long something took, several times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Latency {
    median: Duration,
    worst: Duration,
    times: usize,
}

impl Latency {
    /// `None` when nothing was measured.
    pub(crate) fn of(mut taken: Vec<Duration>) -> Option<Self> {
        taken.sort();
        let (median, worst) = (*taken.get(taken.len() / 2)?, *taken.last()?);
        Some(Self { median, worst, times: taken.len() })
    }

    /// One attempt to renew has a tenth of the ttl. Even the slowest should take no more than a third of that.
    pub(crate) fn finding(self, check: &'static str, causes: &str) -> Finding {
        let Self { median, worst, times } = self;
        let found = format!("median {}, worst of {times} {}", millis(median), millis(worst));
        let ttl = worst * 30;
        let finding = if ttl <= Settings::DEFAULT_TTL {
            Finding::fine(check, found)
        } else {
            Finding::warning(
                check,
                found,
                format!(
                    "one attempt to renew may take ttl/10, and should take a third of that: use a ttl of at least \
                     {} s, or look at {causes}",
                    ttl.as_secs() + 1
                ),
            )
        };
        finding.measuring([("median_ms", as_millis(median)), ("worst_ms", as_millis(worst))])
    }
}

/// One reading of the database's clock, between two readings of the local clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClockSample {
    sent: Reading,
    received: Reading,
    database_micros: i64,
    /// The resolution of the database's clock.
    tick: Duration,
}

impl ClockSample {
    /// Call this as soon as the answer is there. `sent` is the local reading from just before the question.
    pub(crate) fn ending_now(sent: Reading, database_micros: i64, tick: Duration) -> Self {
        Self { sent, received: SystemClock.reading(), database_micros, tick }
    }

    pub(crate) fn round_trip(&self) -> Duration {
        self.received.boot.saturating_since(self.sent.boot)
    }

    /// The database's clock minus the local one, in microseconds, accurate to half a round trip.
    fn offset(&self, local: fn(&Reading) -> Duration) -> f64 {
        let middle = (local(&self.sent) + local(&self.received)) / 2;
        self.database_micros as f64 - middle.as_secs_f64() * 1e6
    }
}

/// How the database's clock differs from the local ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clocks {
    /// How far it is ahead of the local wall clock, in microseconds.
    offset: f64,
    offset_uncertainty: f64,
    /// How much faster it runs than the local boot clock, in parts per million.
    rate: f64,
    rate_uncertainty: f64,
    over: Duration,
}

impl Clocks {
    /// Compares the quickest answer of the first quarter with that of the last: quick answers have the least
    /// uncertainty. `None` with fewer than four samples.
    pub(crate) fn of(samples: &[ClockSample]) -> Option<Self> {
        let quarter = samples.len() / 4;
        let quickest = |some: &[ClockSample]| some.iter().min_by_key(|sample| sample.round_trip()).copied();
        let early = quickest(samples.get(..quarter)?)?;
        let late = quickest(samples.get(samples.len() - quarter..)?)?;
        let best = quickest(&[early, late])?;
        let boot = |reading: &Reading| Duration::from_nanos(reading.boot.as_nanos());
        let over = late.sent.boot.saturating_since(early.sent.boot);
        let uncertain = |sample: &ClockSample| (sample.round_trip() + sample.tick).as_secs_f64() * 1e6 / 2.0;
        let seconds = over.as_secs_f64().max(1e-6);
        Some(Self {
            offset: best.offset(|reading| reading.wall),
            offset_uncertainty: uncertain(&best),
            // Microseconds per second are parts per million.
            rate: (late.offset(boot) - early.offset(boot)) / seconds,
            rate_uncertainty: (uncertain(&early) + uncertain(&late)) / seconds,
            over,
        })
    }

    /// The least difference between the clocks of two databases, after subtracting the uncertainty of both.
    #[cfg(feature = "postgres")]
    pub(crate) fn apart_from(&self, other: &Self) -> Duration {
        let uncertain = self.offset_uncertainty + other.offset_uncertainty;
        Duration::from_secs_f64(((self.offset - other.offset).abs() - uncertain).max(0.0) / 1e6)
    }

    /// The finding about a database's clock that is most likely another machine's. The offset is for people only: no
    /// instant of the database is ever compared with a local one (invariant I2).
    #[cfg(feature = "postgres")]
    pub(crate) fn finding(&self) -> Finding {
        let Self { offset, offset_uncertainty, .. } = *self;
        let direction = if offset < 0.0 { "behind" } else { "ahead of" };
        let found = format!(
            "{:.1} ms {direction} this machine's (± {:.1} ms), {}",
            offset.abs() / 1e3,
            offset_uncertainty / 1e3,
            self.rates()
        );
        self.judged(found)
    }

    /// The finding about a database that uses this machine's wall clock.
    #[cfg(feature = "sqlite")]
    pub(crate) fn finding_of_this_machine(&self) -> Finding {
        self.judged(format!("this machine's, {}", self.rates()))
    }

    fn rates(&self) -> String {
        let Self { rate, rate_uncertainty, over, .. } = *self;
        format!("rate {rate:+.0} ppm (± {rate_uncertainty:.0} ppm) over {:.1} s", over.as_secs_f64())
    }

    fn judged(&self, found: String) -> Finding {
        let Self { offset, offset_uncertainty, rate, rate_uncertainty, .. } = *self;
        let finding = if rate.abs() - rate_uncertainty <= GREATEST_RATE {
            Finding::fine("clock", found)
        } else {
            Finding::warning(
                "clock",
                found,
                "the rates of the database's clock and of the boot clock must agree to 1 % (10000 ppm), or a lease is \
                 trusted too long: see whether a clock was stepped just now or is being slewed, and repeat this with a \
                 longer --for",
            )
        };
        finding.measuring([
            ("offset_ms", offset / 1e3),
            ("offset_uncertainty_ms", offset_uncertainty / 1e3),
            ("rate_ppm", rate),
            ("rate_uncertainty_ppm", rate_uncertainty),
        ])
    }
}

/// The greatest difference of the clocks' rates that assumption A3 allows, in parts per million.
const GREATEST_RATE: f64 = 10_000.0;

/// The duration as a text for people.
pub(crate) fn millis(duration: Duration) -> String {
    format!("{:.2} ms", as_millis(duration))
}

fn as_millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::BootInstant, store::finding::Verdict};

    const MILLI: u64 = 1_000_000;

    /// A reading of `at` milliseconds on the boot clock, with the wall clock a second ahead.
    fn reading(at: u64) -> Reading {
        let boot = Duration::from_millis(at);
        Reading {
            boot: BootInstant::from_nanos(at * MILLI),
            monotonic: boot,
            wall: boot + Duration::from_secs(1),
        }
    }

    fn sample(sent: u64, received: u64, database_micros: i64) -> ClockSample {
        let tick = Duration::from_micros(200);
        ClockSample { sent: reading(sent), received: reading(received), database_micros, tick }
    }

    /// With slower answers in between, which must not count.
    fn clocks(early: ClockSample, late: ClockSample) -> Clocks {
        let slow = sample(500, 900, 7_000_000);
        Clocks::of(&[slow, early, slow, slow, slow, slow, late, slow]).unwrap()
    }

    #[test]
    fn the_quickest_answers_tell_offset_and_rate() {
        let clocks = clocks(sample(0, 2, 1_501_000), sample(1_000, 1_004, 1_522_000 + 1_000_000));
        assert_eq!((clocks.offset.round(), clocks.offset_uncertainty.round()), (500_000.0, 1_100.0));
        assert!((clocks.rate - 20_000.0).abs() < 1.0, "{clocks:?}");
        assert!((clocks.rate_uncertainty - 3_200.0).abs() < 1.0, "{clocks:?}");
        assert_eq!(clocks.judged(String::new()).verdict, Verdict::Warning, "{clocks:?}");
    }

    #[test]
    fn what_may_be_the_network_alone_is_no_warning() {
        let clocks = clocks(sample(0, 20, 1_010_000), sample(1_000, 1_030, 2_040_000));
        assert!((clocks.rate - 25_000.0).abs() < 1.0, "{clocks:?}");
        assert_eq!(clocks.judged(String::new()).verdict, Verdict::Fine);
        assert!(Clocks::of(&[sample(0, 20, 0); 3]).is_none());
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn two_databases_are_apart_by_what_the_network_cannot_explain() {
        let near = clocks(sample(0, 2, 1_001_000), sample(10, 12, 1_011_000));
        let far = clocks(sample(0, 4, 3_002_000), sample(10, 14, 3_012_000));
        assert_eq!(near.apart_from(&far), Duration::from_micros(2_000_000 - 3_200));
        assert_eq!(near.apart_from(&near), Duration::ZERO);
    }

    #[test]
    fn a_latency_that_no_ordinary_ttl_allows_asks_for_a_longer_one() {
        let latency =
            |worst| Latency::of(vec![Duration::from_millis(1), Duration::from_millis(worst)]).unwrap();
        assert_eq!(latency(1_000).finding("commit", "the disk").verdict, Verdict::Fine);
        let slow = latency(2_000).finding("commit", "the disk");
        assert_eq!(slow.verdict, Verdict::Warning);
        assert!(slow.advice.as_deref().is_some_and(|advice| advice.contains("61 s")), "{slow:?}");
        assert_eq!(slow.measured, [("median_ms", 2_000.0), ("worst_ms", 2_000.0)]);
    }
}
