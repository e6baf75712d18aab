//! The process that becomes CMD. It is started early, so that the terminal can be given to it, and becomes CMD when the
//! guardian tells it to. Until then it is a fork of the guardian, which costs less than starting this binary again.

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

/// Variables in which a service manager names the process that other variables are for.
const NAMED_BY_MANAGERS: [&str; 3] = ["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"];
/// This variable also names the process of `LISTEN_PID`, by the id of its pidfd. A process cannot find out this id of
/// its own. So the variable, which is optional, is removed.
const LISTEN_PIDFD: &str = "LISTEN_PIDFDID";

/// Starts the process that becomes CMD, in the process group that CMD is to have. The process waits for a byte from the
/// other end of `gate`. `gate` closes when the process has become CMD. If it cannot become CMD, it writes the reason to
/// `gate`.
///
/// The new process drops `of_guardian`, which only the guardian keeps.
///
/// Must be called in the guardian while it has one thread.
pub(crate) fn start<T>(
    gate: UnixStream,
    setup: &Setup,
    program: &[OsString],
    of_guardian: T,
) -> io::Result<(T, Pid)> {
    // This process is the guardian. Its parent is the command.
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

/// Returns only if this process cannot become CMD.
fn wait_and_become(
    mut gate: UnixStream,
    setup: &Setup,
    program: &[OsString],
    guardian: Pid,
    outer: Option<Pid>,
) {
    // This setting outlives the exec, unless CMD is set-user-id.
    let is_tied = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    // The guardian may have died before the setting was made.
    if !is_tied || getppid() != Some(guardian) {
        return;
    }
    // The guardian blocks all signals, and CMD must not inherit that.
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
    // One write, because the guardian reads once. An error means that the guardian has died, and so will this process.
    let _ = gate.write_all(format!("{errno} {error}").as_bytes());
}

/// Lets variables that name the command's process name CMD's process instead.
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
