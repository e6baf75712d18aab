//! The signals to `tenure run`: none is lost, and none ends the command without a release.
//!
//! All signals that can be caught are blocked early and read from a descriptor, so that no thread is interrupted and no
//! default action happens. A signal that was ignored when this process was started (`nohup`, a background job of a
//! script) stays ignored, also for CMD. A signal that was blocked is read all the same.

use std::{collections::VecDeque, fs, io, os::fd::OwnedFd};

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

/// How many signals are kept for a CMD that has not started yet.
const MOST_KEPT: usize = 128;

/// What this process inherited from its parent and passes on to CMD.
pub(crate) struct Inheritance {
    pub(crate) dispositions: Dispositions,
    /// The descriptors from 3 on.
    descriptors: Vec<OwnedFd>,
}

impl Inheritance {
    /// Takes what was inherited, and blocks all signals until [`Signals::listen`]. Must be called before a thread is
    /// started.
    pub(crate) fn take() -> io::Result<Self> {
        let dispositions = Dispositions::of_this_process();
        inherited::keep_exit_statuses()?;
        inherited::set_of(heard(dispositions.ignored)).thread_block()?;
        Ok(Self { dispositions, descriptors: inherited::take_descriptors() })
    }

    /// Closes the descriptors, which CMD's process has by now, so that readers of the other ends see CMD close them.
    pub(crate) fn let_go(self) {
        drop(self.descriptors);
    }
}

/// The signals to read: all that can be caught and were not ignored, and always SIGCHLD, on which children are reaped.
fn heard(ignored: SignalBits) -> SignalBits {
    let never = bit(libc::SIGKILL) | bit(libc::SIGSTOP);
    (!ignored & !never) | bit(libc::SIGCHLD)
}

/// The stream of signals to this process.
pub(crate) struct Signals {
    file: AsyncFd<SignalFd>,
    /// What came while there was no CMD to pass it on to.
    kept: VecDeque<Received>,
}

/// One signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) number: i32,
    /// The process that sent it; `None` for the kernel, which sends signals of a terminal to its foreground group.
    pub(crate) sender: Option<u32>,
}

impl Signals {
    /// Needs a tokio runtime.
    pub(crate) fn listen(inheritance: &Inheritance) -> io::Result<Self> {
        let set: SigSet = inherited::set_of(heard(inheritance.dispositions.ignored));
        let file = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        // Another program may have started children and then become this one by exec.
        reap();
        Ok(Self { file: inherited::watch(file)?, kept: VecDeque::new() })
    }

    /// The next signal, first those that [`next_end`](Self::next_end) has kept. Meanwhile it reaps children that end: as process 1, or as a sub-reaper, this process is the
    /// parent of every orphan.
    ///
    /// # Cancel safety
    /// Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> Received {
        match self.kept.pop_front() {
            Some(received) => received,
            None => self.read().await,
        }
    }

    async fn read(&mut self) -> Received {
        loop {
            // Not retried, since it could fail in a tight loop.
            let Ok(mut ready) = self.file.readable().await else { return std::future::pending().await };
            let Ok(Some(info)) = self.file.get_ref().read_signal() else {
                ready.clear_ready();
                continue;
            };
            let number = i32::try_from(info.ssi_signo).unwrap_or_default();
            // A signal with this process's own id is one that the kernel raised for one of its threads, such as SIGPIPE
            // and SIGXFSZ.
            let is_own = info.ssi_code <= 0 && info.ssi_pid == std::process::id();
            match number {
                libc::SIGCHLD => reap(),
                _ if is_own => {}
                _ => return Received { number, sender: Some(info.ssi_pid).filter(|_| info.ssi_code <= 0) },
            }
        }
    }

    /// The number of the next signal that tells this process to end, while there is no CMD. It stops this process on
    /// signals to stop, and keeps all others until there is a CMD to pass them on to.
    ///
    /// # Cancel safety
    /// Dropping the future loses none.
    pub(crate) async fn next_end(&mut self) -> i32 {
        loop {
            let received = self.read().await;
            match received.number {
                number if is_end(number) => return number,
                number if is_stop(number) => terminal::suspend_alone(),
                libc::SIGCONT => {}
                _ => self.keep(received),
            }
        }
    }

    /// As the kernel does with blocked signals: one of each kind, but every real-time signal, of which there are
    /// [`MOST_KEPT`] at most.
    fn keep(&mut self, received: Received) {
        let is_queued = received.number >= libc::SIGRTMIN() && self.kept.len() < MOST_KEPT;
        if is_queued || self.kept.iter().all(|kept| kept.number != received.number) {
            self.kept.push_back(received);
        }
    }
}

impl Received {
    /// Whether a service manager has sent it. A service manager may send a signal to all processes of a unit.
    pub(crate) fn is_by_manager(&self) -> bool {
        self.sender.is_some_and(is_manager)
    }
}

/// Whether a process is systemd, of the machine or of a user.
pub(crate) fn is_manager(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "systemd")
}

/// Whether a signal tells this command to end. (CMD may have another use for SIGHUP.)
pub(crate) fn is_end(number: i32) -> bool {
    matches!(number, libc::SIGINT | libc::SIGTERM | libc::SIGQUIT | libc::SIGHUP)
}

pub(crate) fn is_stop(number: i32) -> bool {
    matches!(number, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

pub(crate) fn is_from_keyboard(number: i32) -> bool {
    matches!(number, libc::SIGINT | libc::SIGQUIT)
}

/// Whether a process catches or ignores a signal, and so does not die of it.
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

/// Reaps all children that have ended. No other code in this process waits for children.
fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}
