//! Walks from members to all the processes that belong to them, over one table.

use std::collections::HashSet;

use super::own_pid;
use crate::process::table::Table;

pub(super) struct Walk<'a> {
    table: &'a Table,
    inside: HashSet<usize>,
    /// Those in `inside` from which the walk has not continued yet.
    open: Vec<usize>,
    own_pid: i32,
}

impl<'a> Walk<'a> {
    pub(super) fn over(table: &'a Table) -> Self {
        Self { table, inside: HashSet::new(), open: Vec::new(), own_pid: own_pid() }
    }

    pub(super) fn enter(&mut self, index: usize) {
        if self.table.entries[index].id.pid != self.own_pid && self.inside.insert(index) {
            self.open.push(index);
        }
    }

    /// Adds only descendants.
    pub(super) fn follow_children(mut self) -> HashSet<usize> {
        let table = self.table;
        while let Some(index) = self.open.pop() {
            let children = table.children.get(&table.entries[index].id.pid);
            children.into_iter().flatten().for_each(|index| self.enter(*index));
        }
        self.inside
    }

    /// Adds descendants, and the processes in a group or session that a process inside leads. Skips those in `barred`.
    pub(super) fn follow(mut self, barred: &HashSet<usize>) -> HashSet<usize> {
        let table = self.table;
        while let Some(index) = self.open.pop() {
            let entry = &table.entries[index];
            let pid = &entry.id.pid;
            let children = table.children.get(pid);
            let group = table.groups.get(pid).filter(|_| entry.leads_group());
            let session = table.sessions.get(pid).filter(|_| entry.leads_session());
            for index in [children, group, session].into_iter().flatten().flatten() {
                if !barred.contains(index) {
                    self.enter(*index);
                }
            }
        }
        self.inside
    }
}
