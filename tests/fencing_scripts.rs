//! The scripts of `docs/fencing.md`, as they stand there.

#![cfg(unix)]

use std::{
    fs,
    io::{ErrorKind, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

const DOCS: &str = include_str!("../docs/fencing.md");
/// As `tenure run` says of a lease that was lost.
const LATE: Option<i32> = Some(76);

#[test]
fn a_file_is_not_written_by_a_late_run() {
    let place = Place::new();
    assert!(place.write("5", "first").status.success());
    assert!(place.write("9", "later").status.success());
    let late = place.write("5", "late");
    assert_eq!(late.status.code(), LATE, "{late:?}");
    assert!(String::from_utf8_lossy(&late.stderr).contains("a run with fence 9 has written"), "{late:?}");
    assert!(place.write("9", "later again").status.success());
    assert_eq!(fs::read_to_string(place.path("report")).unwrap(), "later again");
    let left: Vec<_> =
        fs::read_dir(place.directory.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "the script, the file, its fence and its lock: {left:?}");
}

/// What it is to write comes slowly, as from a program that was paused.
#[test]
fn a_writer_that_began_first_and_ends_last_is_late() {
    let place = Place::new();
    let mut paused = place.writer("5");
    paused.stdin.as_mut().unwrap().write_all(b"half of it, ").unwrap();
    assert!(place.write("9", "later").status.success());
    paused.stdin.take().unwrap().write_all(b"and the rest").unwrap();
    assert_eq!(paused.wait_with_output().unwrap().status.code(), LATE);
    assert_eq!(fs::read_to_string(place.path("report")).unwrap(), "later");
}

/// What the shell cannot compare is refused, on either side of the comparison.
#[test]
fn what_is_no_fence_never_passes_for_one() {
    let place = Place::new();
    assert!(place.write("50", "good").status.success());
    for bad in ["", "5x", "-1", "99999999999999999999"] {
        assert_eq!(place.write(bad, "late").status.code(), LATE, "{bad:?}");
    }
    for damaged in ["", "5x\n", "99999999999999999999\n"] {
        fs::write(place.path("report.fence"), damaged).unwrap();
        let refused = place.write("51", "late");
        assert_eq!(refused.status.code(), LATE, "{damaged:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("is damaged"), "{refused:?}");
    }
    assert_eq!(fs::read_to_string(place.path("report")).unwrap(), "good");
}

#[test]
fn a_file_keeps_its_mode_and_no_temporary_file_stays_behind() {
    let place = Place::new();
    assert!(place.write("5", "first").status.success());
    assert_eq!(fs::metadata(place.path("report")).unwrap().permissions().mode() & 0o777, 0o644);
    fs::set_permissions(place.path("report"), fs::Permissions::from_mode(0o640)).unwrap();
    assert!(place.write("6", "second").status.success());
    assert_eq!(fs::metadata(place.path("report")).unwrap().permissions().mode() & 0o777, 0o640);
    fs::create_dir(place.path("directory")).unwrap();
    fs::rename(place.path("report"), place.path("directory/report")).unwrap();
    fs::create_dir(place.path("report")).unwrap();
    assert_eq!(place.write("7", "lost").status.code(), LATE, "a directory is no file");
    let left = fs::read_dir(place.directory.path()).unwrap().count();
    assert_eq!(left, 5, "the script, both directories, the fence and the lock");
}

#[test]
fn the_command_gives_its_program_the_fence_that_the_script_needs() {
    let place = Place::new();
    let mut fences = Vec::new();
    for text in ["first", "later"] {
        let done = Command::new(env!("CARGO_BIN_EXE_tenure"))
            .args(["--database", &format!("sqlite://{}", place.path("leases.db").display())])
            .args(["-q", "run", "-s", "report", "--", "sh", "-c"])
            .arg(format!("echo {text} | ./guarded-write report"))
            .current_dir(place.directory.path())
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        assert_eq!(fs::read_to_string(place.path("report")).unwrap().trim(), text);
        fences.push(fs::read_to_string(place.path("report.fence")).unwrap().trim().parse::<i64>().unwrap());
    }
    assert!(fences[0] < fences[1], "{fences:?}");
    assert_eq!(place.write(&fences[0].to_string(), "late").status.code(), LATE);
}

#[test]
fn a_push_of_a_late_run_is_refused_ref_by_ref() {
    if Command::new("git").arg("--version").output().is_err() {
        eprintln!("skipped: no git");
        return;
    }
    let place = Place::new();
    place.git(&place.path(""), &["init", "-q", "--bare", "origin"]);
    place.git(&place.path("origin"), &["config", "receive.advertisePushOptions", "true"]);
    script("hooks/pre-receive", &place.path("origin/hooks/pre-receive"));
    place.git(&place.path(""), &["clone", "-q", "origin", "work"]);

    let pushed = |fence: Option<&str>, refs: &[&str]| {
        place.git(&place.path("work"), &["commit", "-q", "--allow-empty", "-m", "more"]);
        let option = fence.map(|fence| format!("tenure-fence={fence}"));
        let option: Vec<_> = option.iter().flat_map(|option| ["-o", option]).collect();
        let done =
            place.try_git(&place.path("work"), &[&["push", "--force", "origin"], refs, &option[..]].concat());
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        (done.status.success(), said)
    };
    assert!(pushed(Some("5"), &["HEAD:main"]).0);
    assert!(pushed(Some("9"), &["HEAD:main"]).0);
    let (accepted, said) = pushed(Some("5"), &["HEAD:main"]);
    assert!(!accepted && said.contains("a run with fence 9 has pushed refs/heads/main"), "{said}");
    assert!(pushed(Some("9"), &["HEAD:main"]).0);
    assert!(pushed(Some("5"), &["HEAD:other/deeper"]).0, "another ref keeps its own");
    // Of a push to several, all or none are remembered.
    assert!(!pushed(Some("7"), &["HEAD:other/deeper", "HEAD:main"]).0);
    assert!(pushed(Some("5"), &["HEAD:other/deeper"]).0);
    // The names of two refs that a careless gate would keep in one place, in both orders.
    for (first, second) in [("y", "y.fence/x"), ("z.fence/x", "z"), ("w", "w.new/x")] {
        for name in [first, second] {
            let target = format!("HEAD:{name}");
            assert!(pushed(Some("50"), &[&target]).0, "{name}");
            assert!(!pushed(Some("7"), &[&target]).0, "{name}");
        }
    }
    for none in [None, Some(""), Some("5x"), Some("99999999999999999999")] {
        let (accepted, said) = pushed(none, &["HEAD:new"]);
        assert!(!accepted && said.contains("-o tenure-fence=$TENURE_FENCE"), "{said}");
    }
}

/// A directory with `guarded-write` in it.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { directory: tempfile::tempdir().expect("there is room for a directory") };
        script("guarded-write", &place.path("guarded-write"));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, fence: &str, text: &str) -> Output {
        let mut writer = self.writer(fence);
        match writer.stdin.take().unwrap().write_all(text.as_bytes()) {
            // What is no fence is refused before anything is read. The exit code tells.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            written => written.unwrap(),
        }
        writer.wait_with_output().unwrap()
    }

    fn writer(&self, fence: &str) -> std::process::Child {
        Command::new(self.path("guarded-write"))
            .arg("report")
            .current_dir(self.directory.path())
            .env("TENURE_FENCE", fence)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn git(&self, directory: &Path, args: &[&str]) {
        let done = self.try_git(directory, args);
        assert!(done.status.success(), "git {args:?}: {done:?}");
    }

    fn try_git(&self, directory: &Path, args: &[&str]) -> Output {
        Command::new("git")
            .args([
                "-c",
                "user.name=tenure",
                "-c",
                "user.email=tenure@example.com",
                "-c",
                "protocol.file.allow=always",
            ])
            .args(args)
            .current_dir(directory)
            // Not the developer's own.
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .unwrap()
    }
}

/// Writes the script out whose second line names it.
fn script(name: &str, path: &Path) {
    let mut blocks = DOCS.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap());
    let script = blocks.find(|block| block.lines().nth(1).is_some_and(|line| line.contains(name)));
    let script = script.unwrap_or_else(|| panic!("no script {name} in the docs"));
    // Written by another process: a child that another test forks meanwhile would keep the file open for writing, and
    // then nobody could execute it.
    let install =
        Command::new("install").args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped()).spawn();
    let mut install = install.unwrap();
    install.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(install.wait().unwrap().success());
}
