//! A timer on the boot clock.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tenure::clock::BootInstant;

/// Becomes readable at an instant of the boot clock. Ordinary time-outs do not count time in suspend.
#[derive(Debug)]
pub(crate) struct Timer {
    pub(crate) file: OwnedFd,
    armed: Option<BootInstant>,
}

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self { file: timerfd_create(TimerfdClockId::Boottime, flags)?, armed: None })
    }

    pub(crate) fn arm(&mut self, at: Option<BootInstant>) {
        if self.armed == at {
            return;
        }
        self.armed = at;
        // Zero disarms the timer. No instant in the future is zero.
        let nanos = at.map_or(0, BootInstant::as_nanos);
        let it_value = Timespec {
            tv_sec: (nanos / 1_000_000_000).try_into().unwrap_or(i64::MAX),
            tv_nsec: (nanos % 1_000_000_000).try_into().unwrap_or(0),
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(&self.file, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value })
            .expect("a valid time is accepted by a valid timer");
    }
}

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}
