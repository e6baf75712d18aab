//! The signals of `tenure run`: none is lost, and none ends it without a release.
//!
//! All that can be caught are blocked from the first instruction on and read from a descriptor, so that no thread is
//! interrupted and no signal meets a default action. One that was ignored when this process was started (`nohup`, a
//! background job of a script) stays ignored, for CMD too. One that was blocked is heard all the same.

use std::{fs, io, os::fd::OwnedFd};

use nix::{
    libc,
    sys::{
        signal::SigSet,
        signalfd::{SfdFlags, SignalFd},
    },
};
use rustix::process::{WaitOptions, wait};
use tokio::io::unix::AsyncFd;

use crate::{
    inherited::{self, Dispositions, SignalBits, bit},
    terminal,
};

/// What this process took over from its parent, for CMD.
pub(crate) struct Inheritance {
    pub(crate) dispositions: Dispositions,
    /// From 3 on.
    descriptors: Vec<OwnedFd>,
}

impl Inheritance {
    /// Takes it, and holds back all signals for [`Signals::listen`]. To be called before a thread is started.
    pub(crate) fn take() -> io::Result<Self> {
        let dispositions = Dispositions::of_this_process();
        inherited::keep_exit_statuses()?;
        inherited::set_of(heard(dispositions.ignored)).thread_block()?;
        Ok(Self { dispositions, descriptors: inherited::take_descriptors() })
    }

    /// Closes what CMD's process has by now: whoever reads the other ends sees CMD close them.
    pub(crate) fn let_go(self) {
        drop(self.descriptors);
    }
}

/// Not those that cannot be caught, nor those that were ignored; but always SIGCHLD, by which children are waited for.
fn heard(ignored: SignalBits) -> SignalBits {
    let never = bit(libc::SIGKILL) | bit(libc::SIGSTOP);
    (!ignored & !never) | bit(libc::SIGCHLD)
}

/// All signals to this process.
pub(crate) struct Signals {
    file: AsyncFd<SignalFd>,
}

/// One signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) number: i32,
    /// The process that sent it; `None` for the kernel, which means a terminal and all in its foreground.
    pub(crate) sender: Option<u32>,
}

impl Signals {
    /// Needs a tokio runtime.
    pub(crate) fn listen(inheritance: &Inheritance) -> io::Result<Self> {
        let set: SigSet = inherited::set_of(heard(inheritance.dispositions.ignored));
        let file = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        // Those that were there before, of whoever became this process.
        reap();
        Ok(Self { file: inherited::watch(file)? })
    }

    /// The next one. Children that end meanwhile are waited for: as process 1, or as a sub-reaper, this process is
    /// given every orphan.
    ///
    /// # Cancel safety
    /// Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> Received {
        loop {
            // Reading a signal descriptor does not fail for long, and is not retried in a tight loop.
            let Ok(mut ready) = self.file.readable().await else { return std::future::pending().await };
            let Ok(Some(info)) = self.file.get_ref().read_signal() else {
                ready.clear_ready();
                continue;
            };
            let number = i32::try_from(info.ssi_signo).unwrap_or_default();
            // What the kernel has to say to a thread of ours comes under our own id: an output that nobody reads
            // (SIGPIPE), a file that is too large (SIGXFSZ).
            let is_own = info.ssi_code <= 0 && info.ssi_pid == std::process::id();
            match number {
                libc::SIGCHLD => reap(),
                _ if is_own => {}
                _ => return Received { number, sender: Some(info.ssi_pid).filter(|_| info.ssi_code <= 0) },
            }
        }
    }

    /// The next one that tells this process to end, by number, while there is no CMD. It follows those that tell it to
    /// stop; for others there is nobody to pass them on to.
    ///
    /// # Cancel safety
    /// Dropping the future loses none.
    pub(crate) async fn next_end(&mut self) -> i32 {
        loop {
            match self.next().await.number {
                number if is_end(number) => return number,
                number if is_stop(number) => terminal::suspend_alone(),
                _ => {}
            }
        }
    }
}

impl Received {
    /// Whether a service manager has sent it, which may send it to all processes of a unit.
    pub(crate) fn is_by_manager(&self) -> bool {
        self.sender.is_some_and(is_manager)
    }
}

/// Whether a process is systemd, that of a machine or that of a user.
pub(crate) fn is_manager(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "systemd")
}

/// The ways to end a process by a signal. (CMD may have another use for SIGHUP.)
pub(crate) fn is_end(number: i32) -> bool {
    matches!(number, libc::SIGINT | libc::SIGTERM | libc::SIGQUIT | libc::SIGHUP)
}

pub(crate) fn is_stop(number: i32) -> bool {
    matches!(number, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

pub(crate) fn is_from_keyboard(number: i32) -> bool {
    matches!(number, libc::SIGINT | libc::SIGQUIT)
}

/// Whether a process does not die of a signal: it catches or ignores it.
pub(crate) fn survives(pid: u32, number: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let masks =
        status.lines().filter_map(|line| line.strip_prefix("SigIgn:").or(line.strip_prefix("SigCgt:")));
    masks.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & bit(number) != 0)
}

pub(crate) fn name(number: i32) -> String {
    nix::sys::signal::Signal::try_from(number)
        .map_or_else(|_| format!("signal {number}"), |signal| signal.to_string())
}

/// Nobody else in this process waits for children.
fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}
