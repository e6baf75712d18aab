//! What becomes of the signals to this command, and how it stops and goes on together with CMD.

use std::time::{Duration, Instant};

use nix::libc;

use super::Program;
use crate::{
    events::Event,
    signals::{self, Received},
    terminal,
    wire::{Group, ToldBy},
};

/// The same signal again, this long after the first, asks for an end without grace.
const IMPATIENT_AFTER: Duration = Duration::from_secs(1);

impl Program<'_> {
    pub(super) fn on_signal(&mut self, received: Received) {
        let number = received.number;
        // The kernel means all in the foreground of a terminal.
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

    /// Where Ctrl-C has reached CMD as well, and where CMD has another use for SIGHUP, such as to read its
    /// configuration again, or none.
    fn is_cmds_to_answer(&self, number: i32, has_reached_cmd: bool) -> bool {
        match number {
            libc::SIGHUP => self.pid.is_some_and(|pid| signals::survives(pid, number)),
            _ => has_reached_cmd && signals::is_from_keyboard(number),
        }
    }

    /// Stops CMD, and then this command.
    fn on_stop_signal(&mut self, number: i32, has_reached_cmd: bool) {
        if !has_reached_cmd {
            let _ = self.guarded.signal_group(number);
        }
        match self.group {
            Group::Own => self.is_to_suspend = true,
            Group::Shared(_) => {
                self.tell_suspended();
                terminal::suspend_alone();
            }
        }
    }

    fn on_end_signal(&mut self, received: Received) {
        let number = received.number;
        let Some(first) = self.signaled else {
            self.signaled = Some(received);
            self.signaled_at = Instant::now();
            return self.run.stop(signals::name(number));
        };
        // Told twice, from the keyboard or by somebody who has waited: no more patience. A service manager that sends
        // SIGTERM and SIGHUP together means one end.
        let is_pressing = signals::is_from_keyboard(first.number) || signals::is_from_keyboard(number);
        let is_repeated = first.number == number && self.signaled_at.elapsed() > IMPATIENT_AFTER;
        if is_pressing || is_repeated {
            let _ = self.guarded.stop(Duration::ZERO, ToldBy::Sigterm);
        }
    }

    /// This command stops as CMD has, and on `fg` CMD goes on only if the lease is still held.
    pub(super) fn follow_into_stop(&mut self) {
        // Without a terminal, whoever stopped CMD alone will continue it.
        let is_told = std::mem::take(&mut self.is_to_suspend);
        // Who stopped CMD in a shared group has stopped all of it, or meant CMD alone.
        if self.is_stopping || self.group != Group::Own || !(is_told || self.terminal.is_some()) {
            return;
        }
        self.tell_suspended();
        match &mut self.terminal {
            Some(terminal) => terminal.follow_stop(),
            None => terminal::suspend_alone(),
        }
        self.resume();
    }

    fn tell_suspended(&self) {
        self.begun.events.tell(&Event::Suspended { trusted_for: self.run.trusted_for() });
        self.begun.events.flush();
    }

    /// Goes on after a stop; CMD does only if the lease is still held.
    fn resume(&mut self) {
        if self.run.is_held() && !self.is_stopping {
            self.lend_terminal();
            let _ = self.guarded.signal_group(libc::SIGCONT);
        }
    }
}
