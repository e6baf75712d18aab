//! SQLite files as people name them, and as they lose them.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
};

use crate::{
    scene::{Scene, TENURE},
    support::{
        backend::{Backend as _, Reachable as _},
        client::key,
        sqlite_backend::SqliteBackend,
    },
};

/// Every command that only looks, or ends what is there, with what it exits with where there is no database.
const LOOKING: [(&[&str], i32); 5] = [
    (&["status", "-s", "chat"], 1),
    (&["stop", "-s", "chat"], 1),
    (&["list"], 0),
    (&["sweep"], 0),
    (&["doctor", "--for", "0s"], 0),
];

fn entries(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn looking_creates_nothing_however_the_url_is_written() {
    let scene = Scene::new();
    let directory = scene.path("empty");
    fs::create_dir(&directory).unwrap();
    symlink("nowhere.db", directory.join("link.db")).unwrap();
    let at = directory.display();
    for url in [
        format!("sqlite://{at}/new.db"),
        format!("SQLITE://{at}/new.db"),
        format!("Sqlite:{at}/new.db?mode=rwc"),
        format!("sqlite://{at}/new.db\n"),
        format!("sqlite://{at}/n%65w.db"),
        format!("sqlite://{at}/link.db"),
    ] {
        for (command, code) in LOOKING {
            let done = scene.output(["--database", &url].into_iter().chain(command.iter().copied()));
            assert_eq!(done.code, code, "{url} {command:?}: {done:?}");
            assert_eq!(entries(&directory), ["link.db"], "{url} {command:?}");
        }
        let mut watching = scene.tenure(["--database", &url, "watch", "-s", "chat"]);
        let mut watching = watching.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut first = [0; 1];
        std::io::Read::read_exact(watching.stdout.as_mut().unwrap(), &mut first).unwrap();
        watching.kill().unwrap();
        watching.wait().unwrap();
        assert_eq!(entries(&directory), ["link.db"], "{url}");
    }
    // A file that somebody has made, but no run has used.
    fs::write(directory.join("new.db"), "").unwrap();
    let url = format!("SQLite://{at}/new.db?mode=rwc");
    for (command, _) in &LOOKING[..4] {
        let done = scene.output(["--database", &url].into_iter().chain(command.iter().copied()));
        assert_eq!(done.code, 78, "{command:?}: {done:?}");
        assert_eq!(fs::metadata(directory.join("new.db")).unwrap().len(), 0, "{command:?}");
    }
    assert_eq!(entries(&directory), ["link.db", "new.db"]);
}

#[test]
fn an_empty_url_is_no_database_and_never_the_local_file() {
    let scene = Scene::new();
    for url in ["", " ", "\n"] {
        let run: &[&str] = &["run", "-s", "chat", "--", "true"];
        for command in LOOKING.iter().map(|(command, _)| *command).chain([run, &["migrate"]]) {
            let mut by_variable = scene.tenure(command);
            by_variable.env("TENURE_DATABASE_URL", url);
            let by_variable = crate::scene::Running::start(by_variable).finish();
            let by_option = scene.output(["--database", url].into_iter().chain(command.iter().copied()));
            for done in [by_variable, by_option] {
                assert_eq!(done.code, 78, "{command:?}: {done:?}");
                assert!(done.is_said("empty"), "{command:?}: {done:?}");
            }
        }
    }
    assert_eq!(entries(&scene.path("state")), Vec::<String>::new());
}

#[test]
fn a_line_break_around_a_url_makes_no_second_database() {
    let scene = Scene::new();
    let url = format!("sqlite://{}/t.db", scene.path("state").display());
    let mut holder = scene.run(&format!("{url}\n"), "chat", &[], "ready; sleep 6000");
    scene.wait_for("ready");
    assert_eq!(scene.run(&url, "chat", &[], "true").exit(), 75);
    assert_eq!(entries(&scene.path("state")), ["t.db", "t.db-shm", "t.db-wal"]);
    let done = scene.output(["--database", &url.replace("t.db", "t\n.db"), "status", "-s", "chat"]);
    assert_eq!(done.code, 78, "{done:?}");
    holder.signal(rustix::process::Signal::TERM);
    assert_eq!(holder.exit(), -15);
}

#[test]
fn the_home_directory_may_be_written_as_a_tilde() {
    let scene = Scene::new();
    assert_eq!(scene.run("sqlite://~/t.db", "chat", &[], "exit 3").exit(), 3);
    assert!(scene.path("home/t.db").is_file());
    assert_eq!(scene.run("sqlite://~ann/t.db", "chat", &[], "true").exit(), 78);
}

/// I1: what only one of two names shows must not be granted under the other.
#[tokio::test]
async fn a_held_session_is_refused_under_every_other_name_of_its_file() {
    let (scene, backend) = (Scene::new(), SqliteBackend::start().await);
    let url = backend.url();
    let file = url.strip_prefix("sqlite://").unwrap().to_owned();
    let mut holder = scene.run(&url, "chat", &[], "ready; sleep 6000");
    scene.wait_for("ready");
    let (hard, soft) = (scene.path("hard.db"), scene.path("soft.db"));
    symlink(&file, &soft).unwrap();
    assert_eq!(scene.run(&format!("sqlite://{}", soft.display()), "chat", &[], "true").exit(), 75);

    fs::hard_link(&file, &hard).unwrap();
    let hard = format!("sqlite://{}", hard.display());
    for command in [&["status", "-s", "chat"][..], &["list"], &["doctor", "--for", "0s"], &["migrate"]] {
        let done = scene.output(["--database", &hard].into_iter().chain(command.iter().copied()));
        assert_eq!(done.code, 78, "{command:?}: {done:?}");
        assert!(done.is_said("hard links") || done.text().contains("hard links"), "{command:?}: {done:?}");
    }
    let refused = scene.run(&hard, "chat", &[], "echo second").finish();
    assert_eq!((refused.code, refused.text().as_str()), (78, ""), "{refused:?}");
    assert!(refused.is_said("hard links"), "{refused:?}");
    fs::remove_file(scene.path("hard.db")).unwrap();
    assert!(backend.image(&key("chat")).await.is_some(), "the holder still holds it");
    holder.signal(rustix::process::Signal::TERM);
    assert_eq!(holder.exit(), -15);
}

/// A container that is given the file alone, and one that is given its directory.
#[tokio::test]
async fn a_file_that_is_mounted_alone_is_refused_and_a_mounted_directory_is_the_same_database() {
    let (scene, backend) = (Scene::new(), SqliteBackend::start().await);
    let url = backend.url();
    let file = Path::new(url.strip_prefix("sqlite://").unwrap());
    for name in ["alone", "whole", "a blank"] {
        fs::create_dir(scene.path(name)).unwrap();
    }
    for name in ["alone/tenure.db", "a blank/tenure.db"] {
        fs::write(scene.path(name), "").unwrap();
    }
    let mut holder = scene.run(&url, "chat", &[], "ready; sleep 6000");
    scene.wait_for("ready");
    let mounted = |from: &Path, to: &str, command: &[&str]| {
        let script =
            "mount --bind \"$1\" \"$2\" || exit 99; url=$3; shift 3; \"$TENURE\" --database \"$url\" \"$@\"";
        let to = scene.path(to);
        let opened = if from.is_dir() { to.join("tenure.db") } else { to.clone() };
        let url = format!("sqlite://{}", opened.display());
        let mut shell = scene.dress(Command::new("unshare"), ["-m", "sh", "-c", script, "sh"]);
        shell.arg(from).arg(to).arg(url).args(command).env("TENURE", TENURE);
        crate::scene::Running::start(shell).finish()
    };
    let run = ["run", "-a", "acct", "-s", "chat", "--", "echo", "second"];
    let whole = mounted(file.parent().unwrap(), "whole", &run);
    if whole.code == 99 || whole.is_said("unshare: ") {
        eprintln!("SKIPPED: this user may not mount anything: {whole:?}");
        return;
    }
    assert_eq!((whole.code, whole.text().as_str()), (75, ""), "{whole:?}");
    for to in ["alone/tenure.db", "a blank/tenure.db"] {
        for command in [&run[..], &["status", "-s", "chat"], &["doctor", "--for", "0s"]] {
            let alone = mounted(file, to, command);
            assert_eq!(alone.code, 78, "{command:?}: {alone:?}");
            assert!(!alone.text().contains("second"), "{alone:?}");
            let is_named = alone.is_said("mounted as a single file")
                || alone.text().contains("mounted as a single file");
            assert!(is_named, "{command:?}: {alone:?}");
        }
        assert_eq!(entries(scene.path(to).parent().unwrap()), ["tenure.db"]);
    }
    holder.signal(rustix::process::Signal::TERM);
    assert_eq!(holder.exit(), -15);
}

/// I13: no run goes on beside that of a new file until its trust ends.
#[tokio::test]
async fn a_holder_whose_files_were_deleted_ends_as_lost_while_another_holds_the_new_file() {
    let (scene, backend) = (Scene::new(), SqliteBackend::start().await);
    let url = backend.url();
    let mut old = scene.run(&url, "chat", &["--ttl", "2m"], "ready; sleep 6000");
    scene.wait_for("ready");
    for name in entries(Path::new(url.strip_prefix("sqlite://").unwrap()).parent().unwrap()) {
        fs::remove_file(Path::new(url.strip_prefix("sqlite://").unwrap()).with_file_name(name)).unwrap();
    }
    let mut new = scene.run(&url, "chat", &[], ": > $dir/second; sleep 6000");
    scene.wait_for("second");
    let ended = old.event("ended");
    assert_eq!((ended["reason"].as_str(), ended["released"].as_bool()), (Some("superseded"), Some(false)));
    assert_eq!(old.exit(), 76);
    assert_eq!(scene.status(&url, "chat").0, 0);
    new.signal(rustix::process::Signal::TERM);
    assert_eq!(new.exit(), -15);
}

/// The cause is the file, not the session.
#[test]
fn a_run_whose_file_is_gone_or_another_says_so() {
    let scene = Scene::new();
    for (act, cause) in [
        ("rm $dir/t.db $dir/t.db-wal $dir/t.db-shm", "t.db was deleted or renamed"),
        ("mv $dir/t.db $dir/old.db; rm $dir/t.db-*; cp $dir/old.db $dir/t.db", "t.db was replaced"),
        ("rm $dir/t.db-wal", "t.db-wal was deleted"),
    ] {
        let url = format!("sqlite://{}", scene.path("t.db").display());
        let done = scene.run(&url, "chat", &["--ttl", "2s"], &format!("{act}; exec sleep 6000")).finish();
        let events = done.events();
        for name in ["stopping", "ended"] {
            let event = events.iter().find(|event| event["event"] == name).unwrap();
            assert_eq!(event["reason"], "superseded", "{done:?}");
            assert!(event["cause"].as_str().unwrap_or_default().contains(cause), "{act}: {done:?}");
        }
        let at = |name: &str| events.iter().position(|event| event["event"] == name);
        assert!(at("at_risk") < at("stopping"), "no more is told of what may become of it: {done:?}");
        assert_eq!(done.code, 76);
        for name in ["t.db", "t.db-wal", "t.db-shm", "old.db"] {
            let _ = fs::remove_file(scene.path(name));
        }
    }
}
