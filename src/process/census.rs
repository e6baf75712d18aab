//! Who belongs to a tree, from the process table.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{
        Pid, PidfdFlags, Signal, getpgrp, kill_process, kill_process_group, pidfd_open, pidfd_send_signal,
    },
};

use super::{
    Identity, Look, Member,
    table::{Entry, children, list, table},
};
use crate::clock::BootInstant;

/// Ticks a second in /proc, which the kernel fixed for its users whatever its own rate.
const TICKS_PER_SECOND: u64 = 100;

/// Whether a process had started a full tick before an instant.
pub(super) fn started_before(member: &Member, instant: BootInstant) -> bool {
    member.id.start < instant.as_nanos() / (1_000_000_000 / TICKS_PER_SECOND)
}

/// How the members of a tree are recognised, and which were.
#[derive(Debug, Clone)]
pub(super) struct Census {
    /// `NAME=`, as the environment shows it.
    marker: Vec<u8>,
    all_below: Option<i32>,
    /// Members of the last look, zombies included. Their ids may be recycled once they are not in the table.
    known: HashSet<Identity>,
    /// Groups and sessions that a member was seen to lead, with that member's start. The kernel does not give
    /// such an id away while anybody is in the group or session.
    groups: HashMap<i32, u64>,
    sessions: HashMap<i32, u64>,
}

impl Census {
    pub(super) fn of(marker_name: String) -> Self {
        Self {
            marker: format!("{marker_name}=").into_bytes(),
            all_below: None,
            known: HashSet::new(),
            groups: HashMap::new(),
            sessions: HashMap::new(),
        }
    }

    pub(super) fn set_root(&mut self, pid: u32) {
        if let Some(root) = pid.try_into().ok().and_then(Entry::read) {
            self.admit(&root);
        }
    }

    pub(super) fn add_all_below(&mut self) {
        self.all_below = Some(own_pid());
    }

    /// Looks at the whole table; `None` when the deadline comes first.
    pub(super) fn scan(&mut self, deadline: Option<Instant>) -> Option<Look> {
        let (table, is_complete) = table(&self.marker, deadline)?;
        let inside = self.members_of(&table);
        let alive = table.iter().zip(inside).filter(|(entry, is_inside)| *is_inside && entry.is_alive());
        Some(Look { members: alive.map(|(entry, _)| entry.member()).collect(), is_complete })
    }

    /// Those of an earlier look who are alive, and those whom the kernel lists as descendants: no proof that there
    /// are no others, but far cheaper than a look.
    pub(super) fn at_hand(&self, known: &[Member]) -> Vec<Member> {
        let mut entries: HashMap<_, _> = known
            .iter()
            .filter_map(|member| Entry::read(member.id.pid).filter(|entry| entry.id == member.id))
            .map(|entry| (entry.id, entry))
            .collect();
        let mut parents: Vec<_> = self.all_below.into_iter().collect();
        while let Some(parent) = parents.pop() {
            for entry in children(parent).into_iter().filter_map(Entry::read) {
                parents.push(entry.id.pid);
                entries.insert(entry.id, entry);
            }
        }
        entries.values().filter(|entry| entry.is_alive()).map(Entry::member).collect()
    }

    /// Sends a signal to all members: to a whole group at once where it is the tree's own, so that no fork in it
    /// can slip through; else one by one. That one is gone, or may not be signalled, shows at the next look.
    pub(super) fn signal_all(&self, members: &[Member], signal: Signal) {
        let mut reached = HashSet::new();
        for member in members {
            let is_own = self.groups.contains_key(&member.group) && member.group != getpgrp().as_raw_pid();
            if is_own && !reached.contains(&member.group) && send_to_group_of(member, signal) {
                reached.insert(member.group);
            }
        }
        for member in members.iter().filter(|member| !reached.contains(&member.group)) {
            self.signal_one(member, signal);
        }
    }

    /// Sends a signal to one member, and not to its group.
    pub(super) fn signal_one(&self, member: &Member, signal: Signal) {
        let _ = send(member.id, signal);
    }

    /// Stops whoever newly appears in the tree, at once, until nobody has for `quiet` or `bound` has passed.
    ///
    /// A whole look takes longer than a process needs to start the next and exit. Here only ids that were not
    /// there a moment ago are read.
    pub(super) fn chase(&mut self, quiet: Duration, bound: Duration) {
        let began = Instant::now();
        let mut last_seen = began;
        let mut listed: HashSet<_> = list().into_iter().collect();
        while last_seen.elapsed() < quiet && began.elapsed() < bound {
            for pid in list() {
                if listed.contains(&pid) {
                    continue;
                }
                let Some(entry) = Entry::read(pid) else { continue };
                let is_child_of_member = self.known.iter().any(|id| id.pid == entry.parent);
                let is_member = if is_child_of_member || self.is_member_by_itself(&entry) {
                    Some(true)
                } else {
                    entry.shows(&self.marker)
                };
                // In the middle of an exec, it is looked at again in the next round.
                let Some(is_member) = is_member else { continue };
                listed.insert(pid);
                if is_member {
                    self.signal_one(&entry.member(), Signal::STOP);
                    self.admit(&entry);
                    last_seen = Instant::now();
                }
            }
        }
    }

    /// Marks the entries that belong to the tree, and remembers them.
    fn members_of(&mut self, table: &[Entry]) -> Vec<bool> {
        self.forget_what_is_not_in(table);
        let mut walk = Walk::over(table);
        for (index, entry) in table.iter().enumerate() {
            if self.is_member_by_itself(entry) {
                walk.enter(index);
            }
        }
        walk.follow();
        for (entry, _) in table.iter().zip(&walk.inside).filter(|(_, is_inside)| **is_inside) {
            self.admit(entry);
        }
        walk.inside
    }

    /// Whether this entry alone shows that it belongs to the tree.
    fn is_member_by_itself(&self, entry: &Entry) -> bool {
        entry.is_marked
            || self.known.contains(&entry.id)
            || self.groups.contains_key(&entry.group)
            || self.sessions.contains_key(&entry.session)
            || self.all_below == Some(entry.parent)
    }

    fn admit(&mut self, entry: &Entry) {
        self.known.insert(entry.id);
        if entry.leads_group() {
            self.groups.insert(entry.group, entry.id.start);
        }
        if entry.leads_session() {
            self.sessions.insert(entry.session, entry.id.start);
        }
    }

    /// An id that is free may be given to a stranger.
    fn forget_what_is_not_in(&mut self, table: &[Entry]) {
        let present: HashSet<_> = table.iter().map(|entry| entry.id).collect();
        self.known.retain(|id| present.contains(id));
        let starts: HashMap<_, _> = table.iter().map(|entry| (entry.id.pid, entry.id.start)).collect();
        let is_same = |pid: &i32, start: &u64| starts.get(pid).is_none_or(|now| now == start);
        let groups: HashSet<_> = table.iter().map(|entry| entry.group).collect();
        self.groups.retain(|group, start| groups.contains(group) && is_same(group, start));
        let sessions: HashSet<_> = table.iter().map(|entry| entry.session).collect();
        self.sessions.retain(|session, start| sessions.contains(session) && is_same(session, start));
    }
}

/// From a member to all that belong to it, over one table.
struct Walk<'a> {
    table: &'a [Entry],
    children: HashMap<i32, Vec<usize>>,
    groups: HashMap<i32, Vec<usize>>,
    sessions: HashMap<i32, Vec<usize>>,
    inside: Vec<bool>,
    queue: VecDeque<usize>,
    own_pid: i32,
}

impl<'a> Walk<'a> {
    fn over(table: &'a [Entry]) -> Self {
        let by = |key: fn(&Entry) -> i32| {
            let mut map = HashMap::<_, Vec<_>>::new();
            for (index, entry) in table.iter().enumerate() {
                map.entry(key(entry)).or_default().push(index);
            }
            map
        };
        Self {
            table,
            children: by(|entry| entry.parent),
            groups: by(|entry| entry.group),
            sessions: by(|entry| entry.session),
            inside: vec![false; table.len()],
            queue: VecDeque::new(),
            own_pid: own_pid(),
        }
    }

    fn enter(&mut self, index: usize) {
        if !self.inside[index] && self.table[index].id.pid != self.own_pid {
            self.inside[index] = true;
            self.queue.push_back(index);
        }
    }

    fn follow(&mut self) {
        while let Some(index) = self.queue.pop_front() {
            let entry = &self.table[index];
            let pid = &entry.id.pid;
            let mut found = self.children.get(pid).cloned().unwrap_or_default();
            if entry.leads_group() {
                found.extend(self.groups.get(pid).into_iter().flatten());
            }
            if entry.leads_session() {
                found.extend(self.sessions.get(pid).into_iter().flatten());
            }
            for index in found {
                self.enter(index);
            }
        }
    }
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_pid()
}

fn is_still(id: Identity) -> bool {
    Entry::read(id.pid).is_some_and(|entry| entry.id == id)
}

/// A group cannot change owners while a member is in it; that one is, was seen a moment ago. For the id to come
/// round again, tens of thousands of processes would have to start in that moment.
fn send_to_group_of(member: &Member, signal: Signal) -> bool {
    let is_there = Entry::read(member.id.pid)
        .is_some_and(|entry| entry.id == member.id && entry.group == member.group && entry.is_alive());
    let group = Pid::from_raw(member.group);
    is_there && group.is_some_and(|group| kill_process_group(group, signal).is_ok())
}

fn send(id: Identity, signal: Signal) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(pid: i32, parent: i32, group: i32, session: i32) -> Entry {
        let id = Identity { pid, start: 100 + pid.unsigned_abs() as u64 };
        Entry {
            id,
            parent,
            group,
            session,
            state: b'S',
            threads: 1,
            is_kernel_thread: false,
            name: "x".into(),
            is_marked: false,
        }
    }

    fn census(root: &Entry) -> Census {
        let mut census = Census::of("MARK".into());
        census.admit(root);
        census
    }

    fn pids(census: &mut Census, table: &[Entry]) -> Vec<i32> {
        let inside = census.members_of(table);
        table.iter().zip(inside).filter(|(_, inside)| *inside).map(|(entry, _)| entry.id.pid).collect()
    }

    // Process ids above the kernel's greatest, so that none is this test's own.
    const A: i32 = 5_000_000;

    #[test]
    fn a_zombie_is_dead_unless_other_threads_of_it_work() {
        let mut zombie = entry(A, 1, A, 1);
        zombie.state = b'Z';
        assert!(!zombie.is_alive());
        zombie.threads = 2;
        assert!(zombie.is_alive());
    }

    #[test]
    fn descendants_groups_and_sessions_of_members_belong_and_strangers_do_not() {
        let root = entry(A, 1, A, 1);
        let table = [
            root.clone(),
            entry(A + 1, A, A, 1),                                      // a child
            entry(A + 2, A + 1, A + 2, A + 2), // a grandchild with a session of its own
            entry(A + 3, 1, A + 9, A + 2),     // one that left its parents, in that session
            entry(A + 4, 1, A, 1),             // one that left its parents, in the root's group
            entry(A + 5, 1, 1, 1),             // a stranger
            Entry { is_marked: true, ..entry(A + 6, 1, A + 6, A + 6) }, // left by everybody, but marked
            entry(A + 7, A + 6, A + 7, A + 7), // its child
        ];
        let found = pids(&mut census(&root), &table);
        assert_eq!(found, [A, A + 1, A + 2, A + 3, A + 4, A + 6, A + 7]);
    }

    #[test]
    fn a_member_that_leaves_its_parents_and_hides_is_still_known() {
        let root = entry(A, 1, A, 1);
        let mut census = census(&root);
        let daemon = entry(A + 1, A, A + 1, A + 1);
        assert_eq!(pids(&mut census, &[root, daemon.clone()]), [A, A + 1]);
        let left = Entry { parent: 1, ..daemon };
        let its_child = entry(A + 2, A + 1, A + 2, A + 2);
        assert_eq!(pids(&mut census, &[left, its_child]), [A + 1, A + 2]);
    }

    #[test]
    fn a_recycled_id_is_a_stranger() {
        let root = entry(A, 1, A, A);
        let mut census = census(&root);
        let mut stranger = root;
        stranger.id.start += 1;
        assert!(pids(&mut census, &[stranger.clone(), entry(A + 1, A, A, A)]).is_empty());
        // A group that was empty for one look is not the tree's any more.
        let mut census = self::census(&entry(A, 1, A, A));
        assert!(pids(&mut census, &[]).is_empty());
        assert!(pids(&mut census, &[entry(A + 1, 1, A, A)]).is_empty());
    }
}
