//! The process table in /proc, read so that nobody who starts meanwhile is missed.

use std::{
    collections::HashSet,
    fs, thread,
    time::{Duration, Instant},
};

use super::{Identity, Member};

/// The kernel's flag PF_KTHREAD.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// How often, and how far apart, a process in the middle of an exec is looked at.
const EXEC_LOOKS: u32 = 20;
const EXEC_PAUSE: Duration = Duration::from_micros(200);

/// How often the list of processes is read again for those that started meanwhile.
const MOST_LISTINGS: u32 = 16;

/// One line of the process table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: Identity,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// The kernel's letter.
    pub(super) state: u8,
    pub(super) threads: u64,
    pub(super) is_kernel_thread: bool,
    pub(super) name: String,
    /// Whether it shows the tree's marker.
    pub(super) is_marked: bool,
}

impl Entry {
    pub(super) fn read(pid: i32) -> Option<Self> {
        Self::parse(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The same, with a look for the marker.
    fn read_marked(pid: i32, marker: &[u8]) -> Option<Self> {
        for _ in 0..EXEC_LOOKS {
            let mut entry = Self::read(pid)?;
            if let Some(is_marked) = entry.shows(marker) {
                entry.is_marked = is_marked;
                return Some(entry);
            }
            thread::sleep(EXEC_PAUSE);
        }
        Self::read(pid)
    }

    /// Whether the environment it was started with has a variable; `prefix` is `NAME=`. `None` in the middle of
    /// an exec, when a process shows none.
    pub(super) fn shows(&self, prefix: &[u8]) -> Option<bool> {
        if self.is_kernel_thread || !self.is_alive() {
            return Some(false);
        }
        let pid = self.id.pid;
        let mut environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if environment.is_empty() {
            // One truly without shows arguments all the same. An exec may have come to an end just now.
            if fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.is_empty()) {
                return None;
            }
            environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        }
        Some(environment.split(|byte| *byte == 0).any(|pair| pair.starts_with(prefix)))
    }

    /// The name stands in parentheses and may hold anything, parentheses too: fields are counted from the last.
    fn parse(pid: i32, stat: &[u8]) -> Option<Self> {
        let open = stat.iter().position(|byte| *byte == b'(')?;
        let close = stat.iter().rposition(|byte| *byte == b')')?;
        let name = String::from_utf8_lossy(stat.get(open + 1..close)?).into_owned();
        let rest = str::from_utf8(stat.get(close + 1..)?).ok()?;
        let fields: Vec<_> = rest.split_ascii_whitespace().collect();
        // Numbered from 3 in the kernel's documentation.
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            id: Identity { pid, start: field(22)?.parse().ok()? },
            parent: field(4)?.parse().ok()?,
            group: field(5)?.parse().ok()?,
            session: field(6)?.parse().ok()?,
            state: field(3)?.bytes().next()?,
            threads: field(20)?.parse().ok()?,
            is_kernel_thread: field(9)?.parse::<u64>().ok()? & KERNEL_THREAD != 0,
            name,
            is_marked: false,
        })
    }

    /// A process whose first thread has ended shows as a zombie, though others still work.
    pub(super) fn is_alive(&self) -> bool {
        !matches!(self.state, b'Z' | b'X' | b'x') || self.threads > 1
    }

    pub(super) fn leads_group(&self) -> bool {
        self.group == self.id.pid
    }

    pub(super) fn leads_session(&self) -> bool {
        self.session == self.id.pid
    }

    pub(super) fn member(&self) -> Member {
        Member {
            id: self.id,
            group: self.group,
            name: self.name.clone(),
            is_stopped: matches!(self.state, b'T' | b't'),
        }
    }
}

/// The process table, and whether it is complete. `None` when the deadline has passed meanwhile: a machine at full
/// load takes long to read it.
///
/// The list is read first, then each process in it. One that forks and exits in between is missed, and so is its
/// child: so the list is read until it has nobody new.
pub(super) fn table(marker: &[u8], deadline: Option<Instant>) -> Option<(Vec<Entry>, bool)> {
    let mut table = Vec::new();
    let mut listed = HashSet::new();
    for _ in 0..MOST_LISTINGS {
        let new: Vec<_> = list().into_iter().filter(|pid| listed.insert(*pid)).collect();
        if new.is_empty() {
            return Some((table, true));
        }
        for pid in new {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
            table.extend(Entry::read_marked(pid, marker));
        }
    }
    Some((table, false))
}

pub(super) fn list() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The children of a process; of a kernel that does not tell, none.
pub(super) fn children(pid: i32) -> Vec<i32> {
    // A child belongs to the thread that started it.
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let listed = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    listed
        .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_hides_no_field() {
        let stat = b"7 (a) R 1 (b) S 3 4 5 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 4242 1 2";
        let entry = Entry::parse(7, stat).unwrap();
        assert_eq!(entry.name, "a) R 1 (b");
        assert_eq!((entry.parent, entry.group, entry.session), (3, 4, 5));
        assert_eq!((entry.state, entry.threads, entry.id.start), (b'S', 9, 4242));
    }

    #[test]
    fn a_marker_is_a_whole_name() {
        let own = Entry::read(std::process::id().try_into().unwrap()).unwrap();
        // Set by cargo for every test it runs.
        assert_eq!(own.shows(b"CARGO_MANIFEST_DIR="), Some(true));
        assert_eq!(own.shows(b"ARGO_MANIFEST_DIR="), Some(false));
        assert_eq!(own.shows(b"CARGO_MANIFEST_DIR_NOT="), Some(false));
    }

    #[test]
    fn children_are_those_of_every_thread() {
        let own = std::process::id().try_into().unwrap();
        let start = || std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let mut child = thread::spawn(start).join().unwrap();
        assert!(children(own).contains(&child.id().try_into().unwrap()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
