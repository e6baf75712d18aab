//! A regular wake-up.
//!
//! For each timer of the tokio runtime, the thread wakes two or three times, because tokio's timer wheel approaches the
//! deadline in steps. That is too much for a wait that repeats several times a second as long as the process lives. On
//! Linux such a wait uses a timer of the kernel instead, with one wake-up each.
//!
//! All pulses of a process are aligned to the same offset. If the period of one is a multiple of the period of another,
//! both wake the process at the same instants.

use std::time::Duration;

use tokio::time::sleep;

/// How a supervisor makes its pulses: [`Pulse::of_kernel`], or [`Pulse::of_runtime`].
pub(crate) type Pulses = fn(Duration) -> Pulse;

/// Wakes its owner once in each period.
#[derive(Debug)]
pub(crate) struct Pulse {
    period: Duration,
    #[cfg(target_os = "linux")]
    timer: Option<kernel::Timer>,
}

impl Pulse {
    /// Follows the kernel's monotonic clock, which stands still while the machine is suspended. Where the kernel has no
    /// such timer, this follows the runtime's clock.
    ///
    /// # Panics
    /// Outside a tokio runtime, or in a runtime without I/O.
    pub(crate) fn of_kernel(period: Duration) -> Self {
        Self {
            period,
            #[cfg(target_os = "linux")]
            timer: kernel::Timer::new(period).ok(),
        }
    }

    /// Follows the runtime's clock, which may be paused.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn of_runtime(period: Duration) -> Self {
        Self {
            period,
            #[cfg(target_os = "linux")]
            timer: None,
        }
    }

    /// Waits for the next wake-up, for at most one period. Wake-ups that were due before this call are skipped.
    ///
    /// # Cancel safety
    /// With the kernel's timer, the next call waits for the same wake-up. With the runtime's clock, the next call waits
    /// for a whole period again.
    pub(crate) async fn next(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(timer) = &self.timer
            && timer.next().await.is_ok()
        {
            return;
        }
        sleep(self.period).await;
    }
}

#[cfg(target_os = "linux")]
mod kernel {
    use std::{io, sync::OnceLock, time::Duration};

    use rustix::time::{
        ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
        timerfd_create, timerfd_settime,
    };
    use tokio::net::unix::pipe::Receiver;

    const SECOND: u64 = 1_000_000_000;

    /// When wake-ups happen within a second, in nanoseconds. It is random, so that many processes do not wake at once.
    static OFFSET: OnceLock<u64> = OnceLock::new();

    #[derive(Debug)]
    pub(super) struct Timer {
        /// In nanoseconds.
        period: u64,
        /// A timerfd. It is readable once it is due, so the runtime can wait for it as for a pipe.
        file: Receiver,
    }

    impl Timer {
        pub(super) fn new(period: Duration) -> io::Result<Self> {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let file = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            let period = period.as_nanos().try_into().map_err(io::Error::other)?;
            Ok(Self { period, file: Receiver::from_owned_fd_unchecked(file)? })
        }

        /// Arms the timer for one wake-up. A timer that repeats would also wake the process while nobody waits.
        pub(super) async fn next(&self) -> io::Result<()> {
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            let it_value =
                timespec(following(now(), self.period, *OFFSET.get_or_init(|| fastrand::u64(..SECOND))));
            let once = Itimerspec { it_interval, it_value };
            timerfd_settime(&self.file, TimerfdTimerFlags::ABSTIME, &once)?;
            loop {
                self.file.readable().await?;
                match self.file.try_read(&mut [0; 8]) {
                    Ok(_) => return Ok(()),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    fn now() -> u64 {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
        tv_sec.unsigned_abs() * SECOND + tv_nsec.unsigned_abs()
    }

    fn timespec(nanos: u64) -> Timespec {
        Timespec {
            tv_sec: (nanos / SECOND).try_into().unwrap_or(i64::MAX),
            tv_nsec: (nanos % SECOND).try_into().unwrap_or(0),
        }
    }

    /// The first instant after `now` that is a multiple of the period away from `offset`, but at most one period later.
    pub(super) fn following(now: u64, period: u64, offset: u64) -> u64 {
        match now.checked_sub(offset) {
            Some(since) => now + (period - since % period),
            None => now + period.min(offset - now),
        }
    }

    #[cfg(test)]
    mod tests {
        use super::following;

        #[test]
        fn the_next_time_is_later_and_within_the_period() {
            for (now, offset, next) in
                [(0, 0, 10), (9, 0, 10), (10, 0, 20), (12, 5, 15), (15, 5, 25), (2, 5, 5), (2, 50, 12)]
            {
                assert_eq!(following(now, 10, offset), next, "{now} {offset}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const PERIOD: Duration = Duration::from_millis(40);

    #[tokio::test]
    async fn a_pulse_comes_once_in_a_period_even_if_a_wait_was_dropped() {
        let mut pulse = Pulse::of_kernel(PERIOD);
        pulse.next().await;
        let began = Instant::now();
        for _ in 0..3 {
            let _ = tokio::time::timeout(PERIOD / 4, pulse.next()).await;
            pulse.next().await;
        }
        assert!(began.elapsed() > 2 * PERIOD, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pulse_of_the_runtime_follows_a_paused_clock() {
        let (mut pulse, began) = (Pulse::of_runtime(100 * PERIOD), Instant::now());
        pulse.next().await;
        assert_eq!(began.elapsed(), 100 * PERIOD);
    }
}
