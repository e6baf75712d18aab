//! Sends signals to the members of a tree, such that none reaches a stranger.

use std::{collections::HashSet, io};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open, pidfd_send_signal},
};

use super::Census;
use crate::process::{Member, ProcessIdentity, table::ProcessEntry};

impl Census {
    /// Sends a signal to every group whose leader is still in the table, even as a zombie. It reaches all processes in
    /// the group, known or not.
    pub(in crate::process) fn signal_led_groups(&self, signal: Signal) {
        for (group, start) in &self.groups {
            let leads = |entry: ProcessEntry| entry.id.start == *start && entry.leads_group();
            let is_led = self.is_ours_alone(*group) && ProcessEntry::read(*group).is_some_and(leads);
            if let Some(group) = Pid::from_raw(*group).filter(|_| is_led) {
                let _ = kill_process_group(group, signal);
            }
        }
    }

    /// Sends a signal to all members. A group that belongs to the tree gets it as a whole, so that no fork in it is
    /// missed. The other members get it one by one. Errors are ignored: the next look shows who is still alive.
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

    /// Whether a group of the tree may be signalled as a whole: this process is not in it, and no process that may live
    /// on can be in it.
    pub(super) fn is_ours_alone(&self, group: i32) -> bool {
        // Not by rustix, which panics if this process's group is outside its pid namespace and so has no number.
        self.leave.is_empty() && group != nix::unistd::getpgrp().as_raw()
    }

    /// Sends a signal to one member, and not to its group.
    pub(in crate::process) fn signal_one(&self, member: &Member, signal: Signal) {
        let _ = send(member.id, signal);
    }
}

fn is_still(id: ProcessIdentity) -> bool {
    ProcessEntry::read(id.pid).is_some_and(|entry| entry.id == id)
}

/// Sends a signal to the group of a member. A group's id cannot be recycled while the member is in it, and that is
/// checked just before. For the id to be recycled in between, tens of thousands of processes would have to start in
/// that moment.
fn send_to_group_of(member: &Member, signal: Signal) -> bool {
    let is_there = ProcessEntry::read(member.id.pid)
        .is_some_and(|entry| entry.id == member.id && entry.group == member.group && entry.is_alive());
    let group = Pid::from_raw(member.group);
    is_there && group.is_some_and(|group| kill_process_group(group, signal).is_ok())
}

fn send(id: ProcessIdentity, signal: Signal) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(id.pid) else { return Ok(()) };
    match pidfd_open(pid, PidfdFlags::empty()) {
        // The identity is checked after the descriptor is open, because from then on it cannot change.
        Ok(process) if is_still(id) => Ok(pidfd_send_signal(process, signal)?),
        Ok(_) | Err(Errno::SRCH) => Ok(()),
        // An old kernel or a sandbox has no pidfd, or there is no free descriptor.
        Err(_) if is_still(id) => Ok(kill_process(pid, signal)?),
        Err(_) => Ok(()),
    }
}
