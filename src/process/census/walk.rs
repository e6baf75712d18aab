//! The way from a member to all that belong to it, over one table.

use std::collections::HashSet;

use super::own_pid;
use crate::process::table::Table;

pub(super) struct Walk<'a> {
    table: &'a Table,
    inside: HashSet<usize>,
    /// Of those inside, from whom the way has not been followed yet.
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

    /// Nobody but the descendants.
    pub(super) fn follow_children(mut self) -> HashSet<usize> {
        let table = self.table;
        while let Some(index) = self.open.pop() {
            let children = table.children.get(&table.entries[index].id.pid);
            children.into_iter().flatten().for_each(|index| self.enter(*index));
        }
        self.inside
    }

    /// Descendants, and whoever is in a group or session that is led from inside; but for those who are barred.
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
