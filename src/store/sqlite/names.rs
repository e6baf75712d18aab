//! Refuses a file that has more than one name.
//!
//! SQLite keeps the last commits in a log beside the file, and names the log after the name by which the file was
//! opened. So a file with two names has two logs, and the log of one name does not show what was granted under the
//! other. A symbolic link is no second name, because SQLite resolves it first. A directory that is mounted twice is no
//! second name either, because the log is in both places.

use std::{
    io,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::Path,
};

use crate::text::printable_path;

/// Why this name must not be used. `None` if it may be used.
///
/// # Errors
/// The error of the file system, if it cannot tell.
pub(super) fn objection(path: &Path) -> io::Result<Option<String>> {
    let path = path.canonicalize()?;
    let found = path.metadata()?;
    let names = found.nlink();
    if !found.is_file() {
        let shown = || format!("{} is neither a file nor a directory; name a file", printable_path(&path));
        return Ok((!found.is_dir()).then(shown));
    }
    if names > 1 {
        return Ok(Some(format!(
            "{} has {names} names (hard links), and SQLite keeps a log for each: a run under one name would not be seen \
             under another. Remove all names but one; `find / -xdev -samefile FILE` lists them",
            printable_path(&path)
        )));
    }
    let is_mounted = is_mounted(&path)?;
    Ok(is_mounted.then(|| {
        format!(
            "{} is mounted as a single file, away from the directory in which SQLite keeps its log: a run under one path \
             would not be seen under the other. Mount the directory that the file is in",
            printable_path(&path)
        )
    }))
}

/// Whether the file itself is a mount point.
fn is_mounted(path: &Path) -> io::Result<bool> {
    if !cfg!(target_os = "linux") {
        return Ok(false);
    }
    match std::fs::read("/proc/self/mountinfo") {
        Ok(mounts) => Ok(mount_points(&mounts).any(|point| point == path.as_os_str().as_bytes())),
        // Without /proc this cannot be found out. Almost always, the answer is no.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The fifth field of each line (see proc_pid_mountinfo(5)).
fn mount_points(mounts: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    mounts
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(unescaped)
}

/// The kernel writes blanks, tabs, line breaks and backslashes as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal =
            after.get(..3).filter(|_| first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_as_the_kernel_writes_them() {
        let mounts = b"22 1 0:21 / /proc rw,nosuid shared:5 - proc proc rw\n\
            66 46 254:0 /d/f /a\\040b/t\\134.db rw - ext4 /dev/vda rw\n67 46 254:0 / /x\\09 rw - ext4 /dev/vda rw\n";
        let points: Vec<_> = mount_points(mounts).map(|point| String::from_utf8(point).unwrap()).collect();
        assert_eq!(points, ["/proc", "/a b/t\\.db", "/x\\09"]);
    }

    #[test]
    fn a_file_with_one_name_has_no_objection_and_one_with_two_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("t.db"), dir.path().join("u.db"));
        std::fs::write(&first, "").unwrap();
        std::os::unix::fs::symlink(&first, dir.path().join("link.db")).unwrap();
        for path in [first.as_path(), &dir.path().join("link.db"), dir.path()] {
            assert_eq!(objection(path).unwrap(), None);
        }
        assert!(objection(Path::new("/dev/null")).unwrap().unwrap().contains("neither a file nor"));
        std::fs::hard_link(&first, &second).unwrap();
        for path in [&first, &second, &dir.path().join("link.db")] {
            assert!(objection(path).unwrap().unwrap().contains("2 names"));
        }
        std::fs::remove_file(&second).unwrap();
        assert_eq!(objection(&first).unwrap(), None);
    }
}
