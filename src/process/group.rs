//! The members of a tree on systems without a process table in /proc: the root's process group.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use super::{Member, ProcessIdentity, TreeSnapshot, patience::Patience};
use crate::clock::BootInstant;

/// A group has no start time, so the group can be signalled at any time.
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

    /// Always `false`: names are not known here.
    pub(super) fn is_left_behind(&self, _: ProcessIdentity) -> bool {
        false
    }

    pub(super) fn left(&self) -> impl Iterator<Item = (ProcessIdentity, &str)> {
        std::iter::empty()
    }

    /// Always `false`: only a look can tell.
    pub(super) fn has_nobody_below(&self) -> bool {
        false
    }

    /// Looks whether the group exists. `None` if the patience is over.
    pub(super) fn scan(&mut self, patience: &Patience) -> Option<TreeSnapshot> {
        if patience.is_over() {
            return None;
        }
        // For a group that contains only zombies, some systems refuse the test and others find no group.
        let Some(group) = self.group.filter(|group| test_kill_process_group(*group).is_ok()) else {
            // The id of an empty group may be recycled.
            self.group = None;
            return Some(TreeSnapshot { members: Vec::new(), is_complete: true });
        };
        Some(TreeSnapshot { members: vec![Self::member(group)], is_complete: true })
    }

    pub(super) fn at_hand(&self) -> Vec<Member> {
        let group = self.group.filter(|group| test_kill_process_group(*group).is_ok());
        group.map(Self::member).into_iter().collect()
    }

    /// Does nothing: the only group is the member itself.
    pub(super) fn signal_led_groups(&self, _: Signal) {}

    fn member(group: Pid) -> Member {
        let pid = group.as_raw_pid();
        Member { id: ProcessIdentity { pid, start: 0 }, group: pid, name: String::new(), is_stopped: false }
    }

    /// Does nothing: a group is signalled as a whole, so no process is missed.
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
