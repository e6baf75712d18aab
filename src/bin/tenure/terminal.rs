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
//!
//! Its modes are kept in mind when CMD is given the terminal, and set again by
//! [`restore_modes`](Terminal::restore_modes) when CMD could not do so itself.
//!
//! Whoever uses this has SIGTSTP blocked in every thread, so that it stops where it says so.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, IsTerminal as _},
};

use nix::sys::signal::{SigSet, SigmaskHow, Signal as Number};
use rustix::{
    process::{
        Pid, Signal, getpgrp, getpid, kill_current_process_group, kill_process, test_kill_process_group,
    },
    termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp},
};

use crate::{proc_stat::ProcStat, wire::Group};

/// The controlling terminal of this process.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    own_group: Pid,
    lent_to: Option<Pid>,
    /// Before CMD had it.
    modes: Option<Termios>,
    /// Whether what CMD prints goes to a terminal: only then it may fill the screen, and not a pager beside it.
    is_printed_on: bool,
}

impl Terminal {
    /// `None` without a terminal.
    pub(crate) fn open() -> Option<Self> {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        let is_printed_on = io::stdout().is_terminal();
        let mut terminal = Self { tty, own_group: getpgrp(), lent_to: None, modes: None, is_printed_on };
        terminal.note_modes();
        Some(terminal)
    }

    /// Behind, they are another program's.
    fn note_modes(&mut self) {
        if self.modes.is_none() && self.is_ours() {
            self.modes = tcgetattr(&self.tty).ok();
        }
    }

    /// Whether CMD was given it, and has not given it back.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent_to.is_some()
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
        self.note_modes();
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

    /// CMD, in a group of its own, has stopped: takes the foreground back and stops this process and its group, as
    /// Ctrl-Z does. Returns when it was continued, in the foreground or behind as [`is_ours`](Self::is_ours) then says;
    /// or at once, when nobody is there who could continue us.
    pub(crate) fn follow_stop(&mut self) {
        self.take_back();
        suspend_group();
    }

    /// Takes the foreground back, and sets the modes as they were: for a CMD that has been killed in the middle of
    /// whatever it did on the screen.
    pub(crate) fn restore_modes(&mut self) {
        self.take_back();
        let Some(modes) = self.modes.as_ref().filter(|_| self.is_printed_on && self.is_ours()) else {
            return;
        };
        // The terminal may just have been hung up.
        let _ = blocking_ttou(|| Ok(tcsetattr(&self.tty, OptionalActions::Now, modes)?));
    }

    fn set_foreground(&self, group: Pid) -> io::Result<()> {
        blocking_ttou(|| Ok(tcsetpgrp(&self.tty, group)?))
    }
}

/// The kernel stops whoever changes a terminal in the background, unless SIGTTOU is blocked.
fn blocking_ttou(change: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let before = SigSet::from_iter([Number::SIGTTOU]).thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let result = change();
    before.thread_set_mask()?;
    result
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
    // A zombie shares nothing any more.
    let mut others = pids.filter_map(ProcStat::of).filter(|stat| stat.state != 'Z');
    others.any(|other| other.group == group.as_raw_pid())
}

/// Stops this process, as SIGTSTP would if it were not caught. The kernel stops none whom nobody could continue: a
/// group without a shell, process 1.
pub(crate) fn suspend_alone() {
    let _ = kill_process(getpid(), Signal::TSTP);
    let_be_stopped();
}

fn suspend_group() {
    let _ = kill_current_process_group(Signal::TSTP);
    let_be_stopped();
}

/// The signal has come; unblocked, it stops this process here. SIGCONT takes it away again.
fn let_be_stopped() {
    let stop = SigSet::from_iter([Number::SIGTSTP]);
    let _ = stop.thread_unblock().and_then(|()| stop.thread_block());
}
