//! Tells CMD to end, before the rest of its tree is told.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Gate, Guardian};
use crate::{
    inherited::pass_on,
    signals::is_manager,
    wire::{Group, ToldBy},
};

/// How long a service manager may take between signals to two processes of one unit.
const MANAGER_PATIENCE: Duration = Duration::from_millis(100);

/// CMD was told to end, and has time until its grace is over. The rest of its tree is told when CMD has ended.
pub(super) struct Asking {
    grace_until: Instant,
    /// Until when a service manager may still tell CMD. `None` when CMD has been told for certain.
    unless_told_until: Option<Instant>,
}

impl Asking {
    pub(super) fn left(&self) -> Duration {
        self.grace_until.saturating_duration_since(Instant::now())
    }

    /// How long there is nothing to do.
    pub(super) fn pause(&self) -> Duration {
        let next = self.unless_told_until.map_or(self.grace_until, |until| until.min(self.grace_until));
        next.saturating_duration_since(Instant::now())
    }
}

impl Guardian {
    /// Begins to end the tree, in the way that was ordered.
    pub(super) fn stop(&mut self, grace: Duration, told_by: ToldBy) {
        let grace_until = Instant::now().checked_add(grace).filter(|_| self.can_ask());
        match (told_by, grace_until) {
            (ToldBy::Signal(number), Some(grace_until)) => {
                self.pass_on(number, true);
                // A stopped process cannot handle the signal.
                self.pass_on(Signal::CONT.as_raw(), true);
                self.asking = Some(Asking { grace_until, unless_told_until: None });
            }
            (ToldBy::Manager, Some(grace_until)) => {
                let until = Instant::now() + MANAGER_PATIENCE;
                self.asking = Some(Asking { grace_until, unless_told_until: Some(until) });
            }
            _ => self.end(grace),
        }
    }

    /// Whether CMD runs and neither it nor its tree was told to end yet.
    fn can_ask(&self) -> bool {
        self.child.is_some()
            && !matches!(self.gate, Gate::Shut(_))
            && self.asking.is_none()
            && self.ending.is_none()
    }

    /// Ends CMD's grace, or the wait for a service manager, when its time has come.
    pub(super) fn ask_on(&mut self) {
        let Some(asking) = &mut self.asking else { return };
        let left = asking.left();
        if left.is_zero() {
            return self.end(Duration::ZERO);
        }
        let Some(until) = asking.unless_told_until else { return };
        if self.is_told_by_manager {
            asking.unless_told_until = None;
        } else if Instant::now() >= until {
            self.end(left);
        }
    }

    /// Passes a signal on to CMD or its group. Does nothing if CMD is gone.
    pub(super) fn pass_on(&self, number: i32, to_group: bool) {
        let Some(child) = self.child else { return };
        // By its number, since real-time signals have no names.
        pass_on(child, number, to_group && self.group == Group::Own);
    }

    pub(super) fn read_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let is_term = i32::try_from(info.ssi_signo) == Ok(Signal::TERM.as_raw());
            self.is_told_by_manager |= is_term && is_manager(info.ssi_pid);
        }
    }
}
