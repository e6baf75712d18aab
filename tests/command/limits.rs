//! The limits of the process: named before anything is granted, and never met under a lease.

use std::{
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    process::Command,
};

use rustix::process::geteuid;

use crate::{
    scene::{Finished, Running, Scene, TENURE},
    support::{backend::Reachable, client::key},
};

on_every_backend! {
    too_few_descriptors_are_named_before_anything_is_granted
    too_little_memory_is_named_before_anything_is_granted
    too_few_processes_are_named_before_anything_is_granted
}

/// Under limits that a shell sets first.
fn limited(scene: &Scene, limit: &str, url: &str, command: &[&str]) -> Command {
    let script = format!("{limit} && exec \"$TENURE\" \"$@\"");
    let mut shell = scene.dress(Command::new("sh"), ["-c", &script, "sh"]);
    shell.args(command).env("TENURE_DATABASE_URL", url).env("TENURE", TENURE);
    shell
}

fn finished(command: Command) -> Finished {
    Running::start(command).finish()
}

const RUN: [&str; 8] = ["run", "-a", "acct", "-s", "chat", "--", "echo", "worked"];

/// It worked, or it was refused with the cause; `true` if it worked.
#[track_caller]
fn judge(what: &str, cause: &str, done: &Finished) -> bool {
    let text = format!("{what}: {done:?}");
    assert!(!text.contains("panicked") && !text.contains("overflow"), "{text}");
    match done.code {
        0 | 1 => true,
        // The loader of the program could not open its libraries, or map them.
        127 if done.is_said("error while loading shared libraries") => false,
        69 => {
            assert!(done.is_said(cause), "{text}");
            assert!(!done.text().contains("worked"), "{text}");
            false
        }
        _ => panic!("{text}"),
    }
}

async fn too_few_descriptors_are_named_before_anything_is_granted(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let commands: [&[&str]; 3] = [&RUN, &["status", "-s", "chat"], &["doctor", "--for", "0s"]];
    for command in commands {
        let mut worked_with = Vec::new();
        for limit in 3..=64 {
            // All commands at the edge, and the one that grants everywhere.
            if command.len() < RUN.len() && limit % 8 != 0 {
                continue;
            }
            let done = finished(limited(&scene, &format!("ulimit -n {limit}"), &url, command));
            if judge(&format!("ulimit -n {limit} {command:?}"), "file descriptors", &done) {
                worked_with.push(limit);
            }
            assert!(backend.image(&key("chat")).await.is_none(), "{limit}: nothing is left");
        }
        assert!(worked_with.contains(&64), "{command:?}: {worked_with:?}");
    }
}

async fn too_little_memory_is_named_before_anything_is_granted(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut worked = false;
    for mebibytes in [32, 48, 64, 80, 96, 128, 160, 180, 192, 220, 256, 280, 300, 320, 400, 512, 4096] {
        let limit = format!("ulimit -v {}", mebibytes * 1024);
        let done = finished(limited(&scene, &limit, &url, &RUN));
        let did_with_less = worked;
        worked = judge(&limit, "memory", &done);
        assert!(worked || !did_with_less, "{limit}: less is enough, and more is not: {done:?}");
        assert!(backend.image(&key("chat")).await.is_none(), "{done:?}: nothing is left");
    }
    assert!(worked);
}

/// Whoever sets it for CMD, which gets it from the command.
#[cfg(feature = "sqlite")]
#[test]
fn too_small_a_stack_is_named_before_anything_is_granted() {
    let scene = Scene::new();
    let url = format!("sqlite://{}", scene.path("t.db").display());
    let commands: [&[&str]; 3] = [&RUN, &["status", "-s", "chat"], &["--help"]];
    for command in commands {
        for (kibibytes, is_enough) in [(64, false), (128, false), (256, false), (512, true), (1024, true)] {
            let limit = format!("ulimit -s {kibibytes}");
            let done = finished(limited(&scene, &limit, &url, command));
            assert_eq!(judge(&limit, "too small a stack", &done), is_enough, "{limit} {command:?}: {done:?}");
        }
    }
}

/// The limit counts all processes of a user, and is none for root: the command runs as a user that has no others.
async fn too_few_processes_are_named_before_anything_is_granted(backend: impl Reachable) {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: only root can start the command as a user that has no other processes");
        return;
    }
    let (scene, url) = (Scene::new(), backend.url());
    if url.starts_with("sqlite:") {
        eprintln!("SKIPPED: the file is root's");
        return;
    }
    // The directories above the program may be closed to that user.
    let program = scene.path("program");
    std::fs::copy(TENURE, &program).unwrap();
    std::fs::set_permissions(program.parent().unwrap(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let user = 60_000 + fastrand::u32(0..5_000);
    for limit in [1, 2, 4, 8, 12, 16, 20, 24, 32, 64] {
        // Not every `sh` knows this limit.
        let script = format!("ulimit -u {limit} && exec \"$@\"");
        let mut shell = scene.dress(Command::new("bash"), ["-c", &script, "bash"]);
        shell
            .arg(&program)
            .args(["status", "-s", "chat"])
            .env("TENURE_DATABASE_URL", &url)
            .uid(user)
            .gid(user);
        let worked = judge(&format!("ulimit -u {limit}"), "processes", &finished(shell));
        assert!(worked || limit < 64, "{limit}");
    }
}
