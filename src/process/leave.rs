//! The processes that may outlive a tree.

use std::collections::HashMap;

use super::{ProcessIdentity, table::ProcessEntry};

/// The kernel keeps this many bytes of a name.
const LONGEST_NAME: usize = 15;

/// The names of processes that may live on, and the processes that were found.
#[derive(Debug, Clone, Default)]
pub(super) struct Leave {
    names: Vec<Vec<u8>>,
    /// The processes that the last look has left, by their ids.
    found: HashMap<i32, Found>,
}

#[derive(Debug, Clone)]
struct Found {
    id: ProcessIdentity,
    /// `None` for a process that is left only because an ancestor of it is.
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

    /// Whether a process is left: because of its name, because the last look left it, or because the last look left its
    /// parent.
    pub(super) fn means(&self, entry: &ProcessEntry) -> bool {
        self.holds(entry.id) || self.found.contains_key(&entry.parent) || self.is_named(entry)
    }

    fn is_named(&self, entry: &ProcessEntry) -> bool {
        self.names.iter().any(|name| name == entry.name.as_bytes())
    }

    /// Replaces the processes of the last look by those of this one.
    pub(super) fn note<'a>(&mut self, entries: impl Iterator<Item = &'a ProcessEntry>) {
        let found = entries.map(|entry| {
            let name = self.is_named(entry).then(|| entry.name.clone());
            (entry.id.pid, Found { id: entry.id, name, is_alive: entry.is_alive() })
        });
        self.found = found.collect();
    }

    /// Whether the last look left this process.
    pub(super) fn holds(&self, id: ProcessIdentity) -> bool {
        self.found.get(&id.pid).is_some_and(|found| found.id == id)
    }

    pub(super) fn holds_pid(&self, pid: i32) -> bool {
        self.found.contains_key(&pid)
    }

    /// The processes that are alive and have one of the names.
    pub(super) fn left(&self) -> impl Iterator<Item = (ProcessIdentity, &str)> {
        let alive = self.found.values().filter(|found| found.is_alive);
        let mut left: Vec<_> = alive.filter_map(|found| Some((found.id, found.name.as_deref()?))).collect();
        left.sort_by_key(|(id, _)| id.pid);
        left.into_iter()
    }
}
