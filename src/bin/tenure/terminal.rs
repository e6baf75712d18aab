//! The terminal: who has its foreground.
//!
//! CMD runs in a process group of its own, so it must be given the foreground to be able to read, and to be the
//! one whom Ctrl-C and Ctrl-Z reach. The command takes it back when CMD stops or ends.
//!
//! The order of things: [`group_for_program`](Terminal::group_for_program) → the guardian is ready →
//! [`lend`](Terminal::lend) → go. CMD stopped → [`follow_stop`](Terminal::follow_stop) → the lease is still held →
//! `lend`, and SIGCONT for CMD. The last two also when this process gets a SIGCONT at any other time: `fg` after
//! `bg`. CMD ended → [`take_back`](Terminal::take_back).
//!
//! In a group shared with others, Ctrl-C and Ctrl-Z come to this process as well as to CMD: SIGINT and SIGQUIT
//! are then CMD's to answer.

use std::{
    fs::{self, File, OpenOptions},
    io,
    time::Duration,
};

use nix::sys::signal::{SigSet, SigmaskHow, Signal as Number};
use rustix::{
    process::{Pid, Signal, getpgrp, kill_current_process_group, test_kill_process_group},
    termios::{tcgetpgrp, tcsetpgrp},
};
use tokio::signal::unix::{SignalKind, signal};

use crate::wire::Group;

/// How long a stop of ourselves may take to show. There is none when nobody could continue us: the kernel
/// does not let a terminal stop a group without a shell, nor process 1.
const STOP_BOUND: Duration = Duration::from_millis(200);

/// The controlling terminal of this process.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    own_group: Pid,
    lent_to: Option<Pid>,
}

impl Terminal {
    /// `None` without a terminal.
    pub(crate) fn open() -> Option<Self> {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { tty, own_group: getpgrp(), lent_to: None })
    }

    /// Whether this process is in the foreground: only then there is something to give.
    pub(crate) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == self.own_group)
    }

    /// The group in which CMD has the terminal as it would without this command.
    ///
    /// Only one group can have the foreground. When this process shares its group (`tenure run … | less`, or a
    /// script), the others need it too, and Ctrl-C is for all of them: then CMD joins the group.
    pub(crate) fn group_for_program(&self) -> Group {
        if self.is_ours() && is_shared(self.own_group) {
            Group::Shared(self.own_group.as_raw_pid().unsigned_abs())
        } else {
            Group::Own
        }
    }

    /// Gives the foreground to CMD, by its process id, when it has a group of its own and the foreground is ours to
    /// give.
    pub(crate) fn lend(&mut self, group: Group, program: u32) -> io::Result<()> {
        let leader = program.try_into().ok().and_then(Pid::from_raw);
        let Some(leader) = leader.filter(|_| group == Group::Own && self.is_ours()) else { return Ok(()) };
        self.set_foreground(leader)?;
        self.lent_to = Some(leader);
        Ok(())
    }

    /// Takes the foreground back from CMD's group, or from a group of its tree that is no more; never from
    /// others, such as the shell after `bg`.
    pub(crate) fn take_back(&mut self) {
        let Some(borrower) = self.lent_to.take() else { return };
        let Ok(foreground) = tcgetpgrp(&self.tty) else { return };
        if foreground == borrower || test_kill_process_group(foreground).is_err() {
            // The terminal may just have been hung up.
            let _ = self.set_foreground(self.own_group);
        }
    }

    /// CMD has stopped: takes the foreground back and stops this process and its group, as Ctrl-Z does. Returns
    /// when it was continued, in the foreground or behind as [`is_ours`](Self::is_ours) then says; or after a
    /// moment, when nobody is there who could continue us.
    ///
    /// Answers whether CMD is to be continued now. Not in a shared group: who stopped CMD there has stopped all of
    /// it, or meant CMD alone.
    pub(crate) async fn follow_stop(&mut self, group: Group) -> io::Result<bool> {
        if group != Group::Own {
            return Ok(false);
        }
        self.take_back();
        suspend().await?;
        Ok(true)
    }

    /// The kernel stops whoever does this in the background, unless SIGTTOU is blocked.
    fn set_foreground(&self, group: Pid) -> io::Result<()> {
        let before = SigSet::from_iter([Number::SIGTTOU]).thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let result = tcsetpgrp(&self.tty, group);
        before.thread_set_mask()?;
        Ok(result?)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// Whether others are in the group of this process.
fn is_shared(group: Pid) -> bool {
    let pids = fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        Some(pid).filter(|pid| *pid != std::process::id())
    });
    let mut groups = pids.filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the name: state, parent, group. A zombie shares nothing any more.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        fields.next().filter(|state| *state != "Z")?;
        fields.nth(1)?.parse().ok()
    });
    groups.any(|other: i32| other == group.as_raw_pid())
}

async fn suspend() -> io::Result<()> {
    let mut continued = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
    kill_current_process_group(Signal::TSTP)?;
    // Another thread may take the signal: without this wait we would run on for a moment.
    let _ = tokio::time::timeout(STOP_BOUND, continued.recv()).await;
    Ok(())
}
