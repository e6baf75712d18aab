//! State, parent, group and session of a process, from `/proc/PID/stat`.

use std::fs;

pub(crate) struct ProcStat {
    /// The kernel's letter: `T` and `t` are stopped, `Z` is a zombie.
    pub(crate) state: char,
    pub(crate) parent: u32,
    pub(crate) group: i32,
    pub(crate) session: i32,
}

impl ProcStat {
    /// `None` if there is no such process, or no `/proc`.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The process's name is in parentheses and may have any bytes, parentheses included. So fields are counted from
    /// the last parenthesis.
    fn parse(stat: &[u8]) -> Option<Self> {
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let mut fields = str::from_utf8(&stat[end + 1..]).ok()?.split_whitespace();
        Some(Self {
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            group: fields.next()?.parse().ok()?,
            session: fields.next()?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_pass_for_fields() {
        let stat = ProcStat::parse(b"41 (a) Z 1 2 (\xff)) T 40 39 38 0 -1").unwrap();
        assert_eq!((stat.state, stat.parent, stat.group, stat.session), ('T', 40, 39, 38));
        for garbled in
            [&b""[..], b"41 (sh)", b"41 (sh) S", b"41 (sh) S 1", b"41 (sh) S 1 2", b"41 (sh) S 1 x 3"]
        {
            assert!(ProcStat::parse(garbled).is_none(), "{garbled:?}");
        }
    }
}
