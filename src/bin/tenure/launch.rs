//! The process that becomes CMD: it is there early, so that the terminal can be given to it, and turns into CMD
//! when told so. Until then it is a copy of the guardian, which takes less than to start this binary once more.

use std::{
    env,
    ffi::OsString,
    io::{self, Read as _, Write as _},
    os::unix::{net::UnixStream, process::CommandExt as _},
    process::Command,
};

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal, setpgid};
use tenure::process::prepare;

use crate::{
    inherited,
    wire::{Group, Setup},
};

/// By which a service manager names the process that its words are for.
const NAMED_BY_MANAGERS: [&str; 3] = ["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"];
/// The same in another form, which cannot be made for a process by itself; it may be missing.
const LISTEN_PIDFD: &str = "LISTEN_PIDFDID";

/// Starts CMD's process, in the group that CMD shall have. It waits for a byte from the other end of its `gate`, which
/// closes when it has become CMD; why it could not is written to it. `of_guardian` is what it does not share.
///
/// To be called while this process, the guardian, has one thread.
pub(crate) fn start<T>(
    gate: UnixStream,
    setup: &Setup,
    program: &[OsString],
    of_guardian: T,
) -> io::Result<(T, Pid)> {
    // This process's parent is the one that people have started.
    let (guardian, outer) = (getpid(), getppid());
    let mut kept = Some(of_guardian);
    let child = inherited::fork(|| {
        drop(kept.take());
        wait_and_become(gate, setup, program, guardian, outer);
    })?;
    let group = match setup.group {
        Group::Own => child,
        Group::Shared(group) => {
            group.try_into().ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?
        }
    };
    setpgid(Some(child), Some(group))?;
    let kept = kept.ok_or(io::ErrorKind::Other)?;
    Ok((kept, child))
}

/// Returns when it could not.
fn wait_and_become(
    mut gate: UnixStream,
    setup: &Setup,
    program: &[OsString],
    guardian: Pid,
    outer: Option<Pid>,
) {
    // It outlives the exec, unless CMD is set-user-id.
    let is_tied = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    // The guardian may have died before the tie was made.
    if !is_tied || getppid() != Some(guardian) {
        return;
    }
    // The guardian blocks all, and CMD shall see every one.
    let is_open = inherited::set_of(setup.dispositions.blocked).thread_set_mask().is_ok();
    let Some((name, args)) = program.split_first() else { return };
    if !is_open || gate.read_exact(&mut [0]).is_err() {
        return;
    }
    let mut command = Command::new(name);
    command.args(args);
    prepare(&mut command, setup.run);
    if let Group::Shared(group) = setup.group {
        command.process_group(group.try_into().unwrap_or(0));
    }
    setup.dispositions.give_to(&mut command);
    point_to_this_process(&mut command, &outer.map_or(0, Pid::as_raw_pid).to_string());
    let error = command.exec();
    let errno = error.raw_os_error().unwrap_or(0);
    // In one piece, since the guardian reads once. One that does not listen any more has died, and this process
    // with it.
    let _ = gate.write_all(format!("{errno} {error}").as_bytes());
}

/// What points to the process that people have started means CMD.
fn point_to_this_process(command: &mut Command, outer: &str) {
    for name in NAMED_BY_MANAGERS {
        if env::var(name).is_ok_and(|pid| pid == outer) {
            command.env(name, std::process::id().to_string());
            if name == "LISTEN_PID" {
                command.env_remove(LISTEN_PIDFD);
            }
        }
    }
}
