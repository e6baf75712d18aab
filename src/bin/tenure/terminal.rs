//! The terminal, and which process group has its foreground.
//!
//! CMD runs in a process group of its own. This group must have the foreground, so that CMD can read from the terminal
//! and gets the signals of Ctrl-C and Ctrl-Z. The command takes the foreground back when CMD stops or ends.
//!
//! The order of things: [`group_for_program`](Terminal::group_for_program) → the guardian is ready →
//! [`lend`](Terminal::lend) → go. CMD stopped → [`follow_stop`](Terminal::follow_stop) → the lease is still held →
//! `lend`, and SIGCONT for CMD. The last two steps also follow when this process gets a SIGCONT at another time (`fg`
//! after `bg`). CMD ended → [`take_back`](Terminal::take_back).
//!
//! In a group that CMD shares with others, the signals of Ctrl-C and Ctrl-Z go to this process as well as to CMD. CMD
//! then decides what SIGINT and SIGQUIT mean.
//!
//! The terminal's modes are noted before CMD is given the terminal. [`restore_modes`](Terminal::restore_modes) sets
//! them again if CMD could not do so itself.
//!
//! The caller must have SIGTSTP blocked in every thread, so that this process stops only where it means to.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, IsTerminal as _},
};

use nix::sys::signal::{SigSet, SigmaskHow, Signal as Number};
use rustix::{
    process::{Pid, Signal, getpid, kill_current_process_group, kill_process, test_kill_process_group},
    termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp},
};

use crate::{proc_stat::ProcStat, wire::Group};

/// The controlling terminal of this process.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    /// `None` if it has no number here: in a pid namespace, the group may be outside. The terminal is then never ours.
    own_group: Option<Pid>,
    lent_to: Option<Pid>,
    /// The modes before CMD had the terminal.
    modes: Option<Termios>,
    /// Whether CMD's output goes to a terminal. If not, another program, such as a pager, may use the screen.
    is_printed_on: bool,
}

impl Terminal {
    /// Opens the controlling terminal; `None` if there is none.
    pub(crate) fn open() -> Option<Self> {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        let is_printed_on = io::stdout().is_terminal();
        let own_group = Pid::from_raw(nix::unistd::getpgrp().as_raw());
        let mut terminal = Self { tty, own_group, lent_to: None, modes: None, is_printed_on };
        terminal.note_modes();
        Some(terminal)
    }

    /// Notes the modes, unless this process is in the background, where they are another program's.
    fn note_modes(&mut self) {
        if self.modes.is_none() && self.is_ours() {
            self.modes = tcgetattr(&self.tty).ok();
        }
    }

    /// Whether CMD was given the terminal and it was not taken back.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent_to.is_some()
    }

    /// Whether this process has the foreground, and so can give it to CMD.
    pub(crate) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|foreground| Some(foreground) == self.own_group)
    }

    /// The process group that CMD must run in, to have the terminal as it would without this command.
    ///
    /// Only one group can have the foreground. When this process shares its group with others (`tenure run … | less`,
    /// or a script), these need the foreground, too, and Ctrl-C is for all of them. CMD then joins the group.
    pub(crate) fn group_for_program(&self) -> Group {
        match self.own_group.filter(|group| self.is_ours() && is_shared(*group)) {
            Some(group) => Group::Shared(group.as_raw_pid().unsigned_abs()),
            None => Group::Own,
        }
    }

    /// Gives the foreground to CMD's group, if that is CMD's own and this process has the foreground.
    pub(crate) fn lend(&mut self, group: Group, program: u32) -> io::Result<()> {
        let leader = program.try_into().ok().and_then(Pid::from_raw);
        let Some(leader) = leader.filter(|_| group == Group::Own && self.is_ours()) else { return Ok(()) };
        self.note_modes();
        self.set_foreground(leader)?;
        self.lent_to = Some(leader);
        Ok(())
    }

    /// Takes the foreground back from CMD's group, or from a group that has no processes any more. Never takes it from
    /// other groups, such as the shell's after `bg`.
    pub(crate) fn take_back(&mut self) {
        let (Some(borrower), Some(own_group)) = (self.lent_to.take(), self.own_group) else { return };
        let Ok(foreground) = tcgetpgrp(&self.tty) else { return };
        if foreground == borrower || test_kill_process_group(foreground).is_err() {
            // The terminal may just have been hung up.
            let _ = self.set_foreground(own_group);
        }
    }

    /// Called when CMD, in a group of its own, has stopped. Takes the foreground back and stops this process and its
    /// group, as Ctrl-Z does. Returns when this process was continued; [`is_ours`](Self::is_ours) then says whether it
    /// was continued in the foreground.
    pub(crate) fn follow_stop(&mut self) {
        self.take_back();
        suspend_group();
    }

    /// Takes the foreground back and restores the modes, for a CMD that was killed and so could not restore them.
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

/// Changes the terminal with SIGTTOU blocked. Otherwise the kernel would stop a process in the background that does so.
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

/// Whether this process shares its group with other processes.
fn is_shared(group: Pid) -> bool {
    members(group.as_raw_pid()).any(|(pid, _)| pid != std::process::id())
}

/// The processes of a group. A zombie is none: it does not use the terminal any more.
fn members(group: i32) -> impl Iterator<Item = (u32, ProcStat)> {
    let pids = fs::read_dir("/proc").into_iter().flatten();
    let pids = pids.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let processes = pids.filter_map(|pid| Some((pid, ProcStat::of(pid)?)));
    processes.filter(move |(_, stat)| stat.group == group && stat.state != 'Z')
}

/// Whether SIGTSTP can stop this process. The kernel does not stop a process that no other process could continue:
/// process 1, or one in an orphaned group. In an orphaned group, no process has a parent in another group of the
/// session.
pub(crate) fn can_be_stopped() -> bool {
    let pid = std::process::id();
    let Some(own) = ProcStat::of(pid) else { return true };
    let is_shell = |parent: ProcStat| parent.group != own.group && parent.session == own.session;
    pid != 1 && members(own.group).any(|(_, member)| ProcStat::of(member.parent).is_some_and(is_shell))
}

/// Stops this process, as SIGTSTP would if it were not blocked.
pub(crate) fn suspend_alone() {
    let _ = kill_process(getpid(), Signal::TSTP);
    let_be_stopped();
}

fn suspend_group() {
    let _ = kill_current_process_group(Signal::TSTP);
    let_be_stopped();
}

/// Unblocks the pending SIGTSTP, which stops this process here. SIGCONT removes a pending SIGTSTP.
fn let_be_stopped() {
    let stop = SigSet::from_iter([Number::SIGTSTP]);
    let _ = stop.thread_unblock().and_then(|()| stop.thread_block());
}
