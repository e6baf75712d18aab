//! The local clocks, and what their readings can show.
//!
//! Trust is measured on the **boot clock** (CLOCK_BOOTTIME on Linux). It goes on while the machine is suspended;
//! `std::time::Instant` and timers stand still then. An instant of the boot clock is never compared with one of the
//! database (invariant I2). Only durations pass between the two.

use std::{
    fmt,
    ops::Add,
    sync::Arc,
    time::{Duration, SystemTime},
};

/// An instant of the local boot clock: nanoseconds since the machine started, suspended time included.
///
/// On Linux, instants can be compared between processes of one machine. They can never be compared between machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(u64);

impl BootInstant {
    /// The instant `nanos` nanoseconds after the machine started.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the machine started.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`. Zero if `earlier` is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The instant `duration` before `self`, but not before the machine's start.
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }
}

/// Saturates 584 years after the machine's start.
impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// The three local clocks, read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reading {
    /// The boot clock. It goes on in suspend, and never jumps.
    pub boot: BootInstant,
    /// The monotonic clock, which timers follow. It stands still in suspend. Its zero is arbitrary.
    pub monotonic: Duration,
    /// Wall time since 1970. It may jump. After a pause of a virtual machine it is set right, so it counts the pause.
    pub wall: Duration,
}

impl Reading {
    /// The three clocks of one instant.
    pub fn new(boot: BootInstant, monotonic: Duration, wall: Duration) -> Self {
        Self { boot, monotonic, wall }
    }
}

/// A source of local time: [`SystemClock`] in production, and a simulated clock in tests. You may implement it. A later
/// release adds no method without a default.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The boot clock now. Costs nanoseconds, and never goes back.
    fn now(&self) -> BootInstant;

    /// All three clocks now.
    fn reading(&self) -> Reading;
}

/// A shared [`Clock`].
pub type SharedClock = Arc<dyn Clock>;

/// The operating system's clocks.
///
/// On Linux and Android the boot clock is CLOCK_BOOTTIME. On Apple systems it is CLOCK_MONOTONIC, which counts sleep
/// there. On other Unix systems it is CLOCK_MONOTONIC too, which may not count suspend. On such a system, a machine
/// that sleeps can trust its lease for too long, and only the fencing token bounds the damage.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[cfg(unix)]
    fn now(&self) -> BootInstant {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const BOOT: rustix::time::ClockId = rustix::time::ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const BOOT: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
        BootInstant(nanos(unix(BOOT)))
    }

    #[cfg(not(unix))]
    fn now(&self) -> BootInstant {
        BootInstant(nanos(since_first_use()))
    }

    #[cfg(unix)]
    fn reading(&self) -> Reading {
        Reading {
            boot: self.now(),
            monotonic: unix(rustix::time::ClockId::Monotonic),
            wall: unix(rustix::time::ClockId::Realtime),
        }
    }

    #[cfg(not(unix))]
    fn reading(&self) -> Reading {
        Reading {
            boot: self.now(),
            monotonic: since_first_use(),
            wall: std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default(),
        }
    }
}

#[cfg(unix)]
fn unix(id: rustix::time::ClockId) -> Duration {
    let time = rustix::time::clock_gettime(id);
    // A wall clock before 1970 reads as zero. Only differences matter here.
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(not(unix))]
fn since_first_use() -> Duration {
    static FIRST: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    FIRST.get_or_init(std::time::Instant::now).elapsed()
}

/// What happened between two readings of the local clocks, about a second apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gap {
    /// Nothing: all clocks advanced alike.
    None,
    /// The boot clock ran ahead of the monotonic clock by this much. The machine was suspended, and timers are late by
    /// as much.
    Suspended(Duration),
    /// Wall time ran ahead of boot time by this much. Either a virtual machine was paused, or the wall clock was set.
    /// The two cannot be told apart here, so the lease has to be confirmed now in both cases.
    WallAhead(Duration),
}

/// A smaller difference between two clocks may come from reading them one after the other.
const LEAST_GAP: Duration = Duration::from_millis(200);

impl Gap {
    /// Compares two readings. Wall time may run ahead by `margin` without being reported.
    pub(crate) fn between(earlier: &Reading, later: &Reading, margin: Duration) -> Self {
        let boot = later.boot.saturating_since(earlier.boot);
        let monotonic = later.monotonic.saturating_sub(earlier.monotonic);
        let wall = later.wall.saturating_sub(earlier.wall);
        let suspended = boot.saturating_sub(monotonic);
        let ahead = wall.saturating_sub(boot);
        if suspended > LEAST_GAP {
            Self::Suspended(suspended)
        } else if ahead > margin.max(LEAST_GAP) {
            Self::WallAhead(ahead)
        } else {
            Self::None
        }
    }
}

/// Notices jumps of the database's clock, from the clock reading in each statement's reply.
///
/// The database read its clock at some moment between the sending of the statement and the reply. So the offset of the
/// two clocks lies in an interval as wide as the round trip. If two successive intervals are further apart than
/// `tolerance`, the clock has jumped by at least that distance.
#[derive(Debug, Default)]
pub(crate) struct StepDetector {
    /// The least and the greatest offset: the database's microseconds since 1970 minus local boot microseconds.
    last: Option<(i64, i64)>,
}

impl StepDetector {
    /// Takes one reply. If the clock has jumped, returns by how many microseconds at least: positive for a jump
    /// forward. `None` if it has not.
    pub(crate) fn observe(
        &mut self,
        database_micros: i64,
        sent_at: BootInstant,
        received_at: BootInstant,
        tolerance: Duration,
    ) -> Option<i64> {
        let by_boot_clock = |instant: BootInstant| (instant.as_nanos() / 1_000) as i64;
        let least = database_micros - by_boot_clock(received_at);
        let greatest = database_micros - by_boot_clock(sent_at);
        let tolerance = micros(tolerance);
        let (last_least, last_greatest) = self.last.replace((least, greatest))?;
        let forward = least - last_greatest;
        let back = last_least - greatest;
        if forward > tolerance {
            Some(forward)
        } else if back > tolerance {
            Some(-back)
        } else {
            None
        }
    }
}

/// The whole microseconds of a duration, as the stores count them.
pub(crate) fn micros(duration: Duration) -> i64 {
    duration.as_micros().try_into().unwrap_or(i64::MAX)
}

/// Microseconds since 1970, as a value of the standard library.
pub(crate) fn instant(micros: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn reading(boot: u64, monotonic: u64, wall: u64) -> Reading {
        let millis = Duration::from_millis;
        Reading {
            boot: BootInstant::from_nanos(boot * 1_000_000),
            monotonic: millis(monotonic),
            wall: millis(wall),
        }
    }

    #[test]
    fn suspend_shows_as_boot_ahead_of_monotonic() {
        let gap = Gap::between(&reading(0, 0, 0), &reading(61_000, 1_000, 61_000), SECOND);
        assert_eq!(gap, Gap::Suspended(Duration::from_secs(60)));
    }

    #[test]
    fn a_paused_virtual_machine_shows_as_wall_ahead_of_boot() {
        let gap = Gap::between(&reading(0, 0, 0), &reading(1_000, 1_000, 9_000), SECOND);
        assert_eq!(gap, Gap::WallAhead(Duration::from_secs(8)));
    }

    #[test]
    fn ordinary_seconds_and_small_or_backward_steps_show_nothing() {
        for wall in [0, 1_000, 1_900] {
            assert_eq!(Gap::between(&reading(0, 0, 0), &reading(1_000, 1_000, wall), SECOND), Gap::None);
        }
    }

    #[test]
    fn a_stepped_database_clock_is_noticed_in_both_directions_and_jitter_is_not() {
        let at = |millis: u64| BootInstant::from_nanos(millis * 1_000_000);
        let tolerance = Duration::from_millis(100);
        let mut detector = StepDetector::default();
        assert_eq!(detector.observe(1_000_000, at(0), at(10), tolerance), None);
        assert_eq!(detector.observe(2_000_000, at(995), at(1_050), tolerance), None);
        let back = detector.observe(-57_000_000, at(2_000), at(2_001), tolerance).unwrap();
        assert!((-60_100_000..=-59_900_000).contains(&back), "{back}");
        let forward = detector.observe(4_000_000, at(3_000), at(3_001), tolerance).unwrap();
        assert!((59_900_000..=60_100_000).contains(&forward), "{forward}");
    }

    #[test]
    fn the_system_clock_moves_forward() {
        let earlier = SystemClock.reading();
        let later = SystemClock.reading();
        assert!(later.boot >= earlier.boot && later.monotonic >= earlier.monotonic);
    }
}
