//! Who may outlive a tree.

use std::collections::HashMap;

use super::{ProcessIdentity, table::ProcessEntry};

/// The kernel keeps no more of a name.
const LONGEST_NAME: usize = 15;

/// The names of processes that live on, and those that were found.
#[derive(Debug, Clone, Default)]
pub(super) struct Leave {
    names: Vec<Vec<u8>>,
    /// Of the last look.
    found: HashMap<i32, Found>,
}

#[derive(Debug, Clone)]
struct Found {
    id: ProcessIdentity,
    /// `None` of one that merely descends from one of the names.
    name: Option<String>,
    is_alive: bool,
}

impl Leave {
    pub(super) fn add(&mut self, names: impl IntoIterator<Item = String>) {
        self.names.extend(names.into_iter().map(|name| {
            let mut name = name.into_bytes();
            name.truncate(LONGEST_NAME);
            name
        }));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether an entry is left by itself, or descends from one that was left at the last look.
    pub(super) fn means(&self, entry: &ProcessEntry) -> bool {
        self.holds(entry.id) || self.found.contains_key(&entry.parent) || self.is_named(entry)
    }

    fn is_named(&self, entry: &ProcessEntry) -> bool {
        self.names.iter().any(|name| name == entry.name.as_bytes())
    }

    /// Those of this look replace those of the last.
    pub(super) fn note<'a>(&mut self, entries: impl Iterator<Item = &'a ProcessEntry>) {
        let found = entries.map(|entry| {
            let name = self.is_named(entry).then(|| entry.name.clone());
            (entry.id.pid, Found { id: entry.id, name, is_alive: entry.is_alive() })
        });
        self.found = found.collect();
    }

    /// Whether this one was left at the last look.
    pub(super) fn holds(&self, id: ProcessIdentity) -> bool {
        self.found.get(&id.pid).is_some_and(|found| found.id == id)
    }

    pub(super) fn holds_pid(&self, pid: i32) -> bool {
        self.found.contains_key(&pid)
    }

    /// Those alive who have one of the names.
    pub(super) fn left(&self) -> impl Iterator<Item = (ProcessIdentity, &str)> {
        let alive = self.found.values().filter(|found| found.is_alive);
        let mut left: Vec<_> = alive.filter_map(|found| Some((found.id, found.name.as_deref()?))).collect();
        left.sort_by_key(|(id, _)| id.pid);
        left.into_iter()
    }
}
