//! Processes of this machine as the kernel shows them.

use std::{
    collections::HashSet,
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// How long a signalled process may take to show its new state: it is scheduled, no more.
const SIGNAL_BOUND: Duration = Duration::from_secs(5);

/// One line of the process table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    /// The kernel's letter: `T` is stopped, `Z` a zombie.
    pub state: char,
}

/// Every process there is.
pub fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return all_by_ps() };
    let from_proc: Vec<_> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(process)
        .collect();
    if from_proc.is_empty() { all_by_ps() } else { from_proc }
}

/// One process; `None` when there is none of that id.
pub fn process(pid: i32) -> Option<Process> {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return if fs::exists("/proc/self").unwrap_or(false) {
            None
        } else {
            all_by_ps().into_iter().find(|process| process.pid == pid)
        };
    };
    // The name before the last parenthesis may hold anything, spaces and parentheses too.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some(Process { pid, parent: fields.next()?.parse().ok()?, state })
}

/// Whether a process exists and is no zombie.
pub fn is_alive(pid: i32) -> bool {
    process(pid).is_some_and(|process| process.state != 'Z')
}

/// A process and everything below it.
pub fn family(root: i32) -> Vec<i32> {
    let table = all();
    let mut family = vec![root];
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        family.extend(table.iter().filter(|process| process.parent == parent).map(|process| process.pid));
        next += 1;
    }
    family
}

/// Stops a process and everything below it, those it started meanwhile too, and returns when all stand still.
pub fn freeze_family(root: i32) {
    let deadline = Instant::now() + SIGNAL_BOUND;
    let mut signalled = HashSet::new();
    loop {
        for pid in family(root) {
            if signalled.insert(pid) {
                signal(pid, Signal::STOP);
            }
        }
        // Only a process that runs can start another: when all stand still, the family is complete.
        let family = family(root);
        if family.iter().all(|pid| signalled.contains(pid) && stands_still(*pid)) {
            return;
        }
        assert!(Instant::now() < deadline, "process {root} and its children were not stopped: {family:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Stops one process, not its children, and returns when it stands still.
pub fn freeze(pid: i32) {
    let deadline = Instant::now() + SIGNAL_BOUND;
    signal(pid, Signal::STOP);
    while !stands_still(pid) {
        assert!(Instant::now() < deadline, "process {pid} was not stopped");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Lets a process and everything below it go on.
pub fn thaw_family(root: i32) {
    for pid in family(root) {
        signal(pid, Signal::CONT);
    }
}

/// Sends a signal; that the process is already gone is no error.
pub fn signal(pid: i32, signal: Signal) {
    let pid = Pid::from_raw(pid).expect("a process id is not zero");
    match kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => panic!("cannot send {signal:?} to process {pid:?}: {error}"),
    }
}

/// Kills every process that was started with this variable (`NAME=value`), until none is left. Needs /proc.
pub fn kill_all_with(variable: &str) {
    let deadline = Instant::now() + SIGNAL_BOUND;
    loop {
        let marked: Vec<_> =
            all().into_iter().filter(|process| has_variable(process.pid, variable)).collect();
        if marked.is_empty() || Instant::now() > deadline {
            return;
        }
        for process in marked {
            signal(process.pid, Signal::KILL);
        }
    }
}

fn has_variable(pid: i32, variable: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|pair| pair == variable.as_bytes())
}

/// Waits, blocking, until a process of somebody else is gone; panics after `bound`.
pub fn wait_until_gone(pid: i32, bound: Duration) {
    let deadline = Instant::now() + bound;
    while is_alive(pid) {
        assert!(Instant::now() < deadline, "process {pid} is still there after {bound:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn stands_still(pid: i32) -> bool {
    process(pid).is_none_or(|process| matches!(process.state, 'T' | 't' | 'Z' | 'X'))
}

fn all_by_ps() -> Vec<Process> {
    let output =
        Command::new("ps").args(["-A", "-o", "pid=,ppid=,stat="]).output().expect("neither /proc nor ps");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            Some(Process {
                pid: fields.next()?.parse().ok()?,
                parent: fields.next()?.parse().ok()?,
                state: fields.next()?.chars().next()?,
            })
        })
        .collect()
}
