//! The place of a file: the type of its file system, the free space, and which other users may write the file.

use std::path::Path;

use crate::store::finding::Finding;

/// Findings about the file system of this path, or of the nearest directory above it that exists.
pub(super) fn around(path: &Path) -> Vec<Finding> {
    let Some(there) = path.ancestors().find(|path| path.exists()) else { return Vec::new() };
    #[cfg(target_os = "linux")]
    let kind = rustix::fs::statfs(there).ok().map(|found| file_system(found.f_type as u32));
    #[cfg(not(target_os = "linux"))]
    let kind = None::<Finding>;
    kind.into_iter().chain(room(there)).collect()
}

/// SQLite's write-ahead log relies on locks, on shared memory and on the order of writes. Not every file system
/// provides them.
#[cfg(target_os = "linux")]
fn file_system(kind: u32) -> Finding {
    // The numbers are from Linux's uapi/linux/magic.h and from the sources of the file systems.
    const FOREIGN: [(u32, &str); 13] = [
        (0x0000_6969, "NFS"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB2"),
        (0x0000_517b, "SMB"),
        (0x00c3_6400, "Ceph"),
        (0x0bd0_0bd0, "Lustre"),
        (0x5346_414f, "AFS"),
        (0x0102_1997, "9P"),
        (0x6a65_6a63, "virtiofs"),
        (0x0116_1970, "GFS2"),
        (0x7461_636f, "OCFS2"),
        (0x4750_4653, "GPFS"),
        (0x6573_5546, "FUSE, which may well be a remote one"),
    ];
    match FOREIGN.iter().find(|(number, _)| *number == kind) {
        Some((_, name)) => Finding::warning(
            "file_system",
            *name,
            "on file systems that are not local, SQLite's locks do not hold between machines, and often not at all: two \
             runs could hold one session, and the file could be damaged. Move it to a local disk, or use PostgreSQL",
        ),
        None => Finding::fine("file_system", format!("local (type {kind:#x})")),
    }
}

fn room(path: &Path) -> Option<Finding> {
    let found = rustix::fs::statvfs(path).ok()?;
    let bytes = found.f_bavail.saturating_mul(found.f_frsize);
    let shown = format!("{} MiB free", bytes / (1024 * 1024));
    let finding = if bytes < LEAST_ROOM {
        Finding::warning(
            "disk_space",
            shown,
            "on a full disk nothing can be granted or renewed, and every run is lost: make room",
        )
    } else {
        Finding::fine("disk_space", shown)
    };
    Some(finding.measuring([("free_bytes", bytes as f64)]))
}

const LEAST_ROOM: u64 = 100 * 1024 * 1024;

/// Warns if every user may write the file, because such a user can take any session.
pub(super) fn of_the_file(file: &Path) -> Option<Finding> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(file).ok()?.permissions().mode() & 0o777;
    let found = format!("mode {mode:03o}");
    Some(match mode & 0o002 {
        0 => Finding::fine("permissions", found),
        _ => Finding::warning(
            "permissions",
            found,
            "every user of this machine may write the file, and so take or end any lease: chmod o-w",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::finding::Verdict;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_system_that_is_not_local_is_named() {
        for (kind, verdict) in
            [(0x6969, Verdict::Warning), (0xff53_4d42, Verdict::Warning), (0xef53, Verdict::Fine)]
        {
            assert_eq!(file_system(kind).verdict, verdict, "{kind:x}");
        }
    }

    #[test]
    fn a_place_that_is_not_there_yet_is_judged_by_the_directory_above() {
        let dir = tempfile::tempdir().unwrap();
        let checks = |path: &Path| around(path).iter().map(|finding| finding.check).collect::<Vec<_>>();
        let there = checks(dir.path());
        assert!(there.contains(&"disk_space"), "{there:?}");
        assert_eq!(checks(&dir.path().join("not/yet/there.db")), there);
    }
}
