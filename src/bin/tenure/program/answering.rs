//! How this command answers signals, and how it stops and continues together with CMD.

use std::time::{Duration, Instant};

use nix::libc;

use super::Program;
use crate::{
    events::Event,
    signals::{self, Received},
    terminal,
    wire::{Group, ToldBy},
};

/// The same signal again, longer than this after the first, ends CMD without further grace.
const IMPATIENT_AFTER: Duration = Duration::from_secs(1);

impl Program<'_> {
    pub(super) fn on_signal(&mut self, received: Received) {
        let number = received.number;
        // A signal from the kernel goes to the whole foreground group of the terminal.
        let has_reached_cmd = received.sender.is_none() && self.group != Group::Own;
        if number == libc::SIGCONT {
            self.resume();
        } else if signals::is_stop(number) {
            self.on_stop_signal(number, has_reached_cmd);
        } else if signals::is_end(number) && !self.is_cmds_to_answer(number, has_reached_cmd) {
            self.on_end_signal(received);
        } else if !has_reached_cmd {
            let _ = match number {
                libc::SIGWINCH => self.guarded.signal_group(number),
                _ => self.guarded.signal(number),
            };
        }
    }

    /// Whether CMD decides what the signal means. It does for a Ctrl-C that has reached CMD directly, and for a SIGHUP
    /// that CMD ignores or catches, perhaps to read its configuration again.
    fn is_cmds_to_answer(&self, number: i32, has_reached_cmd: bool) -> bool {
        match number {
            libc::SIGHUP => self.pid.is_some_and(|pid| signals::survives(pid, number)),
            _ => has_reached_cmd && signals::is_from_keyboard(number),
        }
    }

    /// Stops CMD and then this command (Ctrl-Z).
    fn on_stop_signal(&mut self, number: i32, has_reached_cmd: bool) {
        if !has_reached_cmd {
            let _ = self.guarded.signal_group(number);
        }
        match self.group {
            Group::Own => self.is_to_suspend = true,
            Group::Shared(_) => self.suspend(),
        }
    }

    fn on_end_signal(&mut self, received: Received) {
        let number = received.number;
        let Some(first) = self.signaled else {
            self.signaled = Some(received);
            self.signaled_at = Instant::now();
            return self.run.stop(signals::name(number));
        };
        // A second signal from the keyboard, or the same one after a pause, means: end at once. Two different signals
        // do not mean that: a service manager may send SIGTERM and SIGHUP together.
        let is_pressing = signals::is_from_keyboard(first.number) || signals::is_from_keyboard(number);
        let is_repeated = first.number == number && self.signaled_at.elapsed() > IMPATIENT_AFTER;
        if is_pressing || is_repeated {
            let _ = self.guarded.stop(Duration::ZERO, ToldBy::Sigterm);
        }
    }

    /// Stops this command after CMD has stopped. After `fg`, CMD is continued only if the lease is still held.
    pub(super) fn follow_into_stop(&mut self) {
        // Without a terminal, whoever stopped only CMD will continue it.
        let is_told = std::mem::take(&mut self.is_to_suspend);
        // In a shared group, whoever stopped CMD has stopped this process as well, or meant only CMD.
        if self.is_stopping || self.group != Group::Own || !(is_told || self.terminal.is_some()) {
            return;
        }
        self.suspend();
        self.resume();
    }

    /// Stops this command, unless nobody could continue it. Returns when it was continued.
    fn suspend(&mut self) {
        if !terminal::can_be_stopped() {
            return;
        }
        self.begun.events.tell(&Event::Suspended { trusted_for: self.run.trusted_for() });
        self.begun.events.flush();
        match (self.group, &mut self.terminal) {
            (Group::Own, Some(terminal)) => terminal.follow_stop(),
            _ => terminal::suspend_alone(),
        }
    }

    /// Continues CMD, if the lease is still held.
    fn resume(&mut self) {
        if self.run.is_held() && !self.is_stopping {
            self.lend_terminal();
            let _ = self.guarded.signal_group(libc::SIGCONT);
        }
    }
}
