//! Signals to the members of a tree, sent so that none reaches a stranger.

use std::{collections::HashSet, io};

use rustix::{
    io::Errno,
    process::{
        Pid, PidfdFlags, Signal, getpgrp, kill_process, kill_process_group, pidfd_open, pidfd_send_signal,
    },
};

use super::Census;
use crate::process::{Member, ProcessIdentity, table::ProcessEntry};

impl Census {
    /// Sends a signal to the groups whose leader is there, if only as a zombie: whoever is in them then, known or not.
    pub(in crate::process) fn signal_led_groups(&self, signal: Signal) {
        for (group, start) in &self.groups {
            let leads = |entry: ProcessEntry| entry.id.start == *start && entry.leads_group();
            let is_led = self.is_ours_alone(*group) && ProcessEntry::read(*group).is_some_and(leads);
            if let Some(group) = Pid::from_raw(*group).filter(|_| is_led) {
                let _ = kill_process_group(group, signal);
            }
        }
    }

    /// Sends a signal to all members: to a whole group at once where it is the tree's own, so that no fork in it
    /// can slip through; else one by one. That one is gone, or may not be signalled, shows at the next look.
    pub(in crate::process) fn signal_all(&self, members: &[Member], signal: Signal) {
        let mut reached = HashSet::new();
        for member in members {
            let is_own = self.groups.contains_key(&member.group) && self.is_ours_alone(member.group);
            if is_own && !reached.contains(&member.group) && send_to_group_of(member, signal) {
                reached.insert(member.group);
            }
        }
        for member in members.iter().filter(|member| !reached.contains(&member.group)) {
            self.signal_one(member, signal);
        }
    }

    /// Whether a group of the tree can be signalled at once: this process is not in it, and nobody who is to be left can
    /// be.
    pub(super) fn is_ours_alone(&self, group: i32) -> bool {
        group != getpgrp().as_raw_pid() && self.leave.is_empty()
    }

    /// Sends a signal to one member, and not to its group.
    pub(in crate::process) fn signal_one(&self, member: &Member, signal: Signal) {
        let _ = send(member.id, signal);
    }
}

fn is_still(id: ProcessIdentity) -> bool {
    ProcessEntry::read(id.pid).is_some_and(|entry| entry.id == id)
}

/// A group cannot change owners while a member is in it; that one is, was seen a moment ago. For the id to come
/// round again, tens of thousands of processes would have to start in that moment.
fn send_to_group_of(member: &Member, signal: Signal) -> bool {
    let is_there = ProcessEntry::read(member.id.pid)
        .is_some_and(|entry| entry.id == member.id && entry.group == member.group && entry.is_alive());
    let group = Pid::from_raw(member.group);
    is_there && group.is_some_and(|group| kill_process_group(group, signal).is_ok())
}

fn send(id: ProcessIdentity, signal: Signal) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(id.pid) else { return Ok(()) };
    match pidfd_open(pid, PidfdFlags::empty()) {
        // The identity is checked when the descriptor already holds the process.
        Ok(process) if is_still(id) => Ok(pidfd_send_signal(process, signal)?),
        Ok(_) | Err(Errno::SRCH) => Ok(()),
        // No such call in an old kernel or a sandbox, or no descriptor left.
        Err(_) if is_still(id) => Ok(kill_process(pid, signal)?),
        Err(_) => Ok(()),
    }
}
