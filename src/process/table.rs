//! Reads the process table in /proc such that it misses no process that starts in the meantime.

use std::{
    collections::{HashMap, HashSet},
    fs,
    sync::Arc,
    thread,
    time::Duration,
};

use super::{MARKER_PREFIX, Member, ProcessIdentity, patience::Patience, reading::Readings};

/// The kernel's flag PF_KTHREAD.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// How many times a process in the middle of an exec is read, and the pause in between.
const EXEC_LOOKS: u32 = 20;
const EXEC_PAUSE: Duration = Duration::from_micros(200);

/// How many times the list of processes is read, to find those that started in the meantime.
const MOST_LISTINGS: u32 = 16;

/// Shared, so that ending many trees at the same time does not read the table for each.
static READINGS: Readings<Table> = Readings::new();

/// One line of the process table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProcessEntry {
    pub(super) id: ProcessIdentity,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// The kernel's letter for the state.
    pub(super) state: u8,
    pub(super) threads: u64,
    pub(super) is_kernel_thread: bool,
    pub(super) name: String,
    /// The names of all its markers, of whatever tree.
    pub(super) markers: Vec<Box<[u8]>>,
}

impl ProcessEntry {
    pub(super) fn read(pid: i32) -> Option<Self> {
        Self::parse(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Like [`read`](Self::read), with the markers.
    fn read_marked(pid: i32) -> Option<Self> {
        for _ in 0..EXEC_LOOKS {
            let mut entry = Self::read(pid)?;
            if let Some(markers) = entry.read_markers() {
                entry.markers = markers;
                return Some(entry);
            }
            thread::sleep(EXEC_PAUSE);
        }
        Self::read(pid)
    }

    /// The markers in the environment that the process was started with. `None` in the middle of an exec, when the
    /// process shows no environment.
    pub(super) fn read_markers(&self) -> Option<Vec<Box<[u8]>>> {
        if self.is_kernel_thread || !self.is_alive() {
            return Some(Vec::new());
        }
        let pid = self.id.pid;
        let mut environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if environment.is_empty() {
            // A process whose environment is really empty still shows its arguments. If it does, the exec may have just
            // ended, so the environment is read again.
            if fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.is_empty()) {
                return None;
            }
            environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        }
        Some(markers_in(&environment))
    }

    /// Parses a line of /proc/PID/stat. The name is in parentheses and may contain any character, even parentheses. So
    /// the fields are counted from the last closing one.
    fn parse(pid: i32, stat: &[u8]) -> Option<Self> {
        let open = stat.iter().position(|byte| *byte == b'(')?;
        let close = stat.iter().rposition(|byte| *byte == b')')?;
        let name = String::from_utf8_lossy(stat.get(open + 1..close)?).into_owned();
        let rest = str::from_utf8(stat.get(close + 1..)?).ok()?;
        let fields: Vec<_> = rest.split_ascii_whitespace().collect();
        // The fields after the name are numbered from 3, as in proc_pid_stat(5).
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            id: ProcessIdentity { pid, start: field(22)?.parse().ok()? },
            parent: field(4)?.parse().ok()?,
            group: field(5)?.parse().ok()?,
            session: field(6)?.parse().ok()?,
            state: field(3)?.bytes().next()?,
            threads: field(20)?.parse().ok()?,
            is_kernel_thread: field(9)?.parse::<u64>().ok()? & KERNEL_THREAD != 0,
            name,
            markers: Vec::new(),
        })
    }

    /// Whether any thread of the process lives. A process whose first thread has ended is shown as a zombie, even if
    /// other threads still run.
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

/// The names of the markers in an environment, without their values.
fn markers_in(environment: &[u8]) -> Vec<Box<[u8]>> {
    let pairs =
        environment.split(|byte| *byte == 0).filter(|pair| pair.starts_with(MARKER_PREFIX.as_bytes()));
    let names = pairs.filter_map(|pair| pair.split_at_checked(pair.iter().position(|byte| *byte == b'=')?));
    names.map(|(name, _)| name.into()).collect()
}

/// The process table, with the indices by which members of a tree are found.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) entries: Vec<ProcessEntry>,
    /// Whether no process can have started unseen while the table was read.
    pub(super) is_complete: bool,
    pub(super) by_pid: HashMap<i32, usize>,
    pub(super) children: HashMap<i32, Vec<usize>>,
    pub(super) groups: HashMap<i32, Vec<usize>>,
    pub(super) sessions: HashMap<i32, Vec<usize>>,
    pub(super) marked: HashMap<Box<[u8]>, Vec<usize>>,
}

impl Table {
    /// A table whose reading began after this call. `None` if the patience is over first: on a busy machine it may take
    /// long to read.
    pub(super) fn look(patience: &Patience) -> Option<Arc<Self>> {
        if patience.is_over() {
            return None;
        }
        READINGS.share(patience, || Self::read(patience))
    }

    /// Reads the list, and then each process in it. A process that forks and exits in between is missed, and so is its
    /// child. So the list is read again until it has no new process.
    fn read(patience: &Patience) -> Option<Self> {
        let mut entries = Vec::new();
        let mut listed = HashSet::new();
        for _ in 0..MOST_LISTINGS {
            let new: Vec<_> = list().into_iter().filter(|pid| listed.insert(*pid)).collect();
            if new.is_empty() {
                return Some(Self::of(entries, true));
            }
            for pid in new {
                if patience.is_over() {
                    return None;
                }
                entries.extend(ProcessEntry::read_marked(pid));
            }
        }
        Some(Self::of(entries, false))
    }

    pub(super) fn of(entries: Vec<ProcessEntry>, is_complete: bool) -> Self {
        let by = |key: fn(&ProcessEntry) -> i32| {
            let mut map = HashMap::<_, Vec<_>>::new();
            for (index, entry) in entries.iter().enumerate() {
                map.entry(key(entry)).or_default().push(index);
            }
            map
        };
        let (children, groups, sessions) =
            (by(|entry| entry.parent), by(|entry| entry.group), by(|entry| entry.session));
        let by_pid = entries.iter().enumerate().map(|(index, entry)| (entry.id.pid, index)).collect();
        let mut marked = HashMap::<_, Vec<_>>::new();
        for (index, entry) in entries.iter().enumerate() {
            for marker in &entry.markers {
                marked.entry(marker.clone()).or_default().push(index);
            }
        }
        Self { entries, is_complete, by_pid, children, groups, sessions, marked }
    }

    /// The index of a process, by its identity.
    pub(super) fn position(&self, id: ProcessIdentity) -> Option<usize> {
        self.by_pid.get(&id.pid).copied().filter(|index| self.entries[*index].id == id)
    }
}

pub(super) fn list() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The children of a process. Empty if the kernel does not list them.
pub(super) fn children(pid: i32) -> Vec<i32> {
    // The kernel lists a child under the thread that started it.
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
        let entry = ProcessEntry::parse(7, stat).unwrap();
        assert_eq!(entry.name, "a) R 1 (b");
        assert_eq!((entry.parent, entry.group, entry.session), (3, 4, 5));
        assert_eq!((entry.state, entry.threads, entry.id.start), (b'S', 9, 4242));
    }

    #[test]
    fn a_marker_is_a_whole_name_and_its_value_is_not_kept() {
        let environment =
            b"TENURE_RUN_1=1\0NOT_TENURE_RUN_2=1\0A=TENURE_RUN_3=1\0TENURE_RUN_4\0TENURE_X=a=b\0";
        let markers: Vec<_> = markers_in(environment).iter().map(|name| name.to_vec()).collect();
        assert_eq!(markers, [b"TENURE_RUN_1".to_vec(), b"TENURE_X".to_vec()]);
    }

    #[test]
    fn a_process_shows_its_markers_in_each_look_at_the_table() {
        let mut sleep = std::process::Command::new("sleep");
        let mut child = sleep.arg("600").env("TENURE_TEST_TABLE", "1").spawn().unwrap();
        let look = || Table::look(&Patience::default()).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let (one, other) = (look(), look());
        assert!(!Arc::ptr_eq(&one, &other), "each began after it was asked for");
        for table in [one, other] {
            let marked = &table.marked[b"TENURE_TEST_TABLE".as_slice()];
            assert!(marked.iter().any(|index| table.entries[*index].id.pid == pid));
        }
        child.kill().unwrap();
        child.wait().unwrap();
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
