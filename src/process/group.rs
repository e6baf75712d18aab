//! Who belongs to a tree where there is no process table to read: the root's process group.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use super::{Member, ProcessIdentity, TreeSnapshot, patience::Patience};
use crate::clock::BootInstant;

/// A group has no start: all of it can be asked at any time.
pub(super) fn started_before(_: &Member, _: BootInstant) -> bool {
    true
}

/// The root's process group, as one member.
#[derive(Debug, Clone)]
pub(super) struct Census {
    group: Option<Pid>,
}

impl Census {
    pub(super) fn of(_marker_name: String) -> Self {
        Self { group: None }
    }

    pub(super) fn set_root(&mut self, pid: u32) {
        self.group = pid.try_into().ok().and_then(Pid::from_raw);
    }

    /// Names are not known.
    pub(super) fn is_left_behind(&self, _: ProcessIdentity) -> bool {
        false
    }

    pub(super) fn left(&self) -> impl Iterator<Item = (ProcessIdentity, &str)> {
        std::iter::empty()
    }

    /// Only a look tells.
    pub(super) fn has_nobody_below(&self) -> bool {
        false
    }

    /// `None` when the patience is over.
    pub(super) fn scan(&mut self, patience: &Patience) -> Option<TreeSnapshot> {
        if patience.is_over() {
            return None;
        }
        // A group of nothing but zombies is refused on some systems and missing on others.
        let Some(group) = self.group.filter(|group| test_kill_process_group(*group).is_ok()) else {
            // Once empty, its id may be given away.
            self.group = None;
            return Some(TreeSnapshot { members: Vec::new(), is_complete: true });
        };
        Some(TreeSnapshot { members: vec![Self::member(group)], is_complete: true })
    }

    pub(super) fn at_hand(&self) -> Vec<Member> {
        let group = self.group.filter(|group| test_kill_process_group(*group).is_ok());
        group.map(Self::member).into_iter().collect()
    }

    /// The only group there is, is a member.
    pub(super) fn signal_led_groups(&self, _: Signal) {}

    fn member(group: Pid) -> Member {
        let pid = group.as_raw_pid();
        Member { id: ProcessIdentity { pid, start: 0 }, group: pid, name: String::new(), is_stopped: false }
    }

    /// A group is signalled all at once: nobody slips through.
    pub(super) fn chase(&mut self, _: Duration, _: Duration) {}

    pub(super) fn signal_all(&self, members: &[Member], signal: Signal) {
        for member in members {
            self.signal_one(member, signal);
        }
    }

    pub(super) fn signal_one(&self, member: &Member, signal: Signal) {
        if let Some(group) = Pid::from_raw(member.group) {
            let _ = kill_process_group(group, signal);
        }
    }
}
