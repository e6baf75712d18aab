//! Finds the members of a tree in the process table.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{Signal, WaitId, WaitIdOptions, child_subreaper, waitid},
};

use super::{
    Member, ProcessIdentity, TreeSnapshot,
    leave::Leave,
    patience::Patience,
    table::{ProcessEntry, Table, children, list},
};
use crate::clock::BootInstant;

mod signals;
mod walk;

use walk::Walk;

/// Ticks per second in /proc. For user space this is a constant, whatever the kernel's own rate is.
const TICKS_PER_SECOND: u64 = 100;

/// Whether a process had started at least one tick before an instant.
pub(super) fn started_before(member: &Member, instant: BootInstant) -> bool {
    member.id.start < instant.as_nanos() / (1_000_000_000 / TICKS_PER_SECOND)
}

/// How the members of a tree are recognised, and those that were found.
#[derive(Debug, Clone)]
pub(super) struct Census {
    /// The name of an environment variable.
    marker: Vec<u8>,
    /// The process whose descendants are all members.
    all_below: Option<i32>,
    /// The members of the last look, including zombies. Their ids may be recycled once they are not in the table.
    known: HashSet<ProcessIdentity>,
    /// The groups and sessions that a member was seen to lead, with that member's start time. The kernel does not
    /// recycle such an id while a process is in the group or session.
    groups: HashMap<i32, u64>,
    sessions: HashMap<i32, u64>,
    root: Option<ProcessIdentity>,
    leave: Leave,
}

impl Census {
    pub(super) fn of(marker_name: String) -> Self {
        Self {
            marker: marker_name.into_bytes(),
            all_below: None,
            known: HashSet::new(),
            groups: HashMap::new(),
            sessions: HashMap::new(),
            root: None,
            leave: Leave::default(),
        }
    }

    pub(super) fn leave(&mut self, names: impl IntoIterator<Item = String>) {
        self.leave.add(names);
    }

    /// Whether the last look found that this process may live on.
    pub(super) fn is_left_behind(&self, id: ProcessIdentity) -> bool {
        self.leave.holds(id)
    }

    /// The processes of the last look that may live on and have one of the allowed names, with their names.
    pub(super) fn left(&self) -> impl Iterator<Item = (ProcessIdentity, &str)> {
        self.leave.left()
    }

    pub(super) fn set_root(&mut self, pid: u32) {
        if let Some(root) = pid.try_into().ok().and_then(ProcessEntry::read) {
            self.root = Some(root.id);
            self.admit(&root);
        }
    }

    pub(super) fn add_all_below(&mut self) {
        self.all_below = Some(own_pid());
    }

    /// Whether the kernel says for certain that no member is left. This is cheap: every descendant of a sub-reaper
    /// descends from one of its children, which may be a zombie, so a sub-reaper without children has no descendants.
    /// If this is `false`, only a look can tell.
    pub(super) fn has_nobody_below(&self) -> bool {
        self.all_below == Some(own_pid()) && self.leave.is_empty() && is_subreaper() && is_childless()
    }

    /// Looks for members in the whole table. `None` if the patience is over first.
    pub(super) fn scan(&mut self, patience: &Patience) -> Option<TreeSnapshot> {
        let table = Table::look(patience)?;
        let inside = self.members_of(&table).into_iter().map(|index| &table.entries[index]);
        let members = inside.filter(|entry| entry.is_alive()).map(ProcessEntry::member).collect();
        Some(TreeSnapshot { members, is_complete: table.is_complete })
    }

    /// The living members of the last look (or the root, before the first look), and the descendants that the kernel
    /// lists. This is far cheaper than a look, but there may be other members.
    pub(super) fn at_hand(&self) -> Vec<Member> {
        let known =
            self.known.iter().filter_map(|id| ProcessEntry::read(id.pid).filter(|entry| entry.id == *id));
        let mut entries: HashMap<_, _> = known.map(|entry| (entry.id, entry)).collect();
        let mut parents: Vec<_> = self.all_below.into_iter().collect();
        while let Some(parent) = parents.pop() {
            for entry in children(parent).into_iter().filter_map(ProcessEntry::read) {
                // The descendants of a process that is left are left, too.
                if !self.is_left(&entry) {
                    parents.push(entry.id.pid);
                    entries.insert(entry.id, entry);
                }
            }
        }
        entries.retain(|_, entry| !self.is_left(entry));
        entries.values().filter(|entry| entry.is_alive()).map(ProcessEntry::member).collect()
    }

    /// Stops each new member as soon as it appears, until none has appeared for `quiet`, or `bound` is over.
    ///
    /// A full look takes longer than a process needs to start the next one and exit. So this reads only processes whose
    /// ids are new in the list.
    pub(super) fn chase(&mut self, quiet: Duration, bound: Duration) {
        let began = Instant::now();
        let mut last_seen = began;
        let mut listed: HashSet<_> = list().into_iter().collect();
        while last_seen.elapsed() < quiet && began.elapsed() < bound {
            for pid in list() {
                if listed.contains(&pid) {
                    continue;
                }
                let Some(entry) = ProcessEntry::read(pid) else { continue };
                let is_child_of_member = self.known.iter().any(|id| id.pid == entry.parent);
                let is_member = if is_child_of_member || self.is_member_by_itself(&entry) {
                    Some(true)
                } else {
                    entry.read_markers().map(|markers| markers.iter().any(|name| **name == *self.marker))
                };
                // In the middle of an exec nothing is known. The next round reads the process again.
                let Some(is_member) = is_member else { continue };
                listed.insert(pid);
                if is_member && !self.is_left(&entry) {
                    self.signal_one(&entry.member(), Signal::STOP);
                    self.admit(&entry);
                    last_seen = Instant::now();
                }
            }
        }
    }

    /// Finds the members in the table, in the table's order, and remembers them.
    fn members_of(&mut self, table: &Table) -> Vec<usize> {
        self.forget_what_is_not_in(table);
        let reached = self.reach(table, &HashSet::new());
        let left = self.set_aside(table, &reached);
        // Processes that can be reached only through those that are left are left, too.
        let inside = if left.is_empty() { reached } else { self.reach(table, &left) };
        let mut inside: Vec<_> = inside.into_iter().collect();
        inside.sort_unstable();
        for index in &inside {
            self.admit(&table.entries[*index]);
        }
        inside
    }

    /// All processes that belong to the tree, without following a path through those in `barred`.
    fn reach(&self, table: &Table, barred: &HashSet<usize>) -> HashSet<usize> {
        let mut walk = Walk::over(table);
        let known = self.known.iter().filter_map(|id| table.position(*id));
        let groups = self.groups.keys().filter_map(|group| table.groups.get(group)).flatten();
        let sessions = self.sessions.keys().filter_map(|session| table.sessions.get(session)).flatten();
        let below = self.all_below.iter().filter_map(|parent| table.children.get(parent)).flatten();
        let marked = table.marked.get(self.marker.as_slice()).into_iter().flatten();
        known
            .chain(groups.chain(sessions).chain(below).chain(marked).copied())
            .filter(|one| !barred.contains(one))
            .for_each(|one| walk.enter(one));
        walk.follow(barred)
    }

    /// Of the processes in `inside`, finds and remembers those that may live on, with all their descendants.
    fn set_aside(&mut self, table: &Table, inside: &HashSet<usize>) -> HashSet<usize> {
        if self.leave.is_empty() {
            return HashSet::new();
        }
        let named = inside.iter().copied().filter(|index| self.is_left(&table.entries[*index]));
        let mut walk = Walk::over(table);
        named.for_each(|index| walk.enter(index));
        let left = walk.follow_children();
        self.leave.note(left.iter().map(|index| &table.entries[*index]));
        // A process may have been a member before it had its present name.
        let is_left = |pid: &i32| self.leave.holds_pid(*pid);
        self.known.retain(|id| !is_left(&id.pid));
        self.groups.retain(|group, _| !is_left(group));
        self.sessions.retain(|session, _| !is_left(session));
        left
    }

    fn is_left(&self, entry: &ProcessEntry) -> bool {
        self.root != Some(entry.id) && self.leave.means(entry)
    }

    /// Whether this entry alone, without its markers, shows that the process is a member.
    fn is_member_by_itself(&self, entry: &ProcessEntry) -> bool {
        self.known.contains(&entry.id)
            || self.groups.contains_key(&entry.group)
            || self.sessions.contains_key(&entry.session)
            || self.all_below == Some(entry.parent)
    }

    fn admit(&mut self, entry: &ProcessEntry) {
        self.known.insert(entry.id);
        if entry.leads_group() {
            self.groups.insert(entry.group, entry.id.start);
        }
        if entry.leads_session() {
            self.sessions.insert(entry.session, entry.id.start);
        }
    }

    /// Forgets ids that are not in the table, because a free id may be given to a stranger.
    fn forget_what_is_not_in(&mut self, table: &Table) {
        self.known.retain(|id| table.position(*id).is_some());
        let start_of = |pid: &i32| table.by_pid.get(pid).map(|index| table.entries[*index].id.start);
        let is_same = |pid: &i32, start: &u64| start_of(pid).is_none_or(|now| now == *start);
        self.groups.retain(|group, start| table.groups.contains_key(group) && is_same(group, start));
        self.sessions
            .retain(|session, start| table.sessions.contains_key(session) && is_same(session, start));
    }
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_pid()
}

fn is_subreaper() -> bool {
    child_subreaper().is_ok_and(|reaper| reaper.is_some())
}

fn is_childless() -> bool {
    let any = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::All, any).is_err_and(|error| error == Errno::CHILD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(pid: i32, parent: i32, group: i32, session: i32) -> ProcessEntry {
        let id = ProcessIdentity { pid, start: 100 + pid.unsigned_abs() as u64 };
        ProcessEntry {
            id,
            parent,
            group,
            session,
            state: b'S',
            threads: 1,
            is_kernel_thread: false,
            name: "x".into(),
            markers: Vec::new(),
        }
    }

    fn census(root: &ProcessEntry) -> Census {
        let mut census = Census::of("MARK".into());
        census.admit(root);
        census
    }

    fn pids(census: &mut Census, entries: &[ProcessEntry]) -> Vec<i32> {
        let table = Table::of(entries.to_vec(), true);
        census.members_of(&table).into_iter().map(|index| table.entries[index].id.pid).collect()
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
            entry(A + 1, A, A, 1),             // a child
            entry(A + 2, A + 1, A + 2, A + 2), // a grandchild with a session of its own
            entry(A + 3, 1, A + 9, A + 2),     // one that left its parents, in that session
            entry(A + 4, 1, A, 1),             // one that left its parents, in the root's group
            entry(A + 5, 1, 1, 1),             // a stranger
            ProcessEntry { markers: vec![(*b"MARK").into()], ..entry(A + 6, 1, A + 6, A + 6) }, // left by everybody, but marked
            entry(A + 7, A + 6, A + 7, A + 7),                                                  // its child
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
        let left = ProcessEntry { parent: 1, ..daemon };
        let its_child = entry(A + 2, A + 1, A + 2, A + 2);
        assert_eq!(pids(&mut census, &[left, its_child]), [A + 1, A + 2]);
    }

    #[test]
    fn who_is_to_be_left_is_no_member_nor_is_its_offspring_and_the_root_always_is() {
        let named = |name: &str, entry: ProcessEntry| ProcessEntry { name: name.into(), ..entry };
        let root = named("tmux: server", entry(A, 1, A, 1));
        let mut census = census(&root);
        census.root = Some(root.id);
        census.leave(["tmux: server".to_owned(), "a name of more than 15 bytes".to_owned()]);
        let server = entry(A + 1, A, A + 1, A + 1);
        assert_eq!(pids(&mut census, &[root.clone(), server.clone()]), [A, A + 1], "not of that name yet");
        let table = [
            root,
            named("tmux: server", server),
            entry(A + 2, A + 1, A + 2, A + 2),               // its child
            entry(A + 3, 1, A + 3, A + 1),                   // a stranger in its session
            named("a name of more ", entry(A + 4, A, A, 1)), // in the group of the root
            entry(A + 5, A, A, 1),
        ];
        assert_eq!(pids(&mut census, &table), [A, A + 5]);
        let left: Vec<_> = census.left().map(|(id, _)| id.pid).collect();
        assert_eq!(left, [A + 1, A + 4]);
        assert!(!census.is_ours_alone(A), "a signal to that group would reach one that is left");
        let renamed = [named("x", table[1].clone()), table[2].clone()];
        assert!(pids(&mut census, &renamed).is_empty(), "whoever was left stays left");
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
