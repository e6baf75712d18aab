//! The process that becomes CMD: it is there early, so that the terminal can be given to it, and turns into CMD
//! when told so.

use std::{
    ffi::OsString,
    io::{Read as _, Write as _},
    os::unix::{net::UnixStream, process::CommandExt as _},
    process::{Command, ExitCode},
};

use nix::sys::signal::SigSet;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::{inherited, wire};

/// The command that starts this; CMD and its arguments are to be added.
pub(crate) fn command(gate: UnixStream) -> Command {
    // The very file that this process runs, even when it was replaced meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tenure").arg(wire::LAUNCH);
    let gate = inherited::leave_open(&mut command, gate);
    command.arg(gate).arg(std::process::id().to_string());
    command
}

/// `tenure __launch FD GUARDIAN_PID CMD [ARG…]`
pub(crate) fn main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let mut word = || args.next().and_then(|arg| arg.into_string().ok()).unwrap_or_default();
    let (gate, guardian) = (word(), word());
    let (Ok(mut gate), Some(program)) = (inherited::take(&gate), args.next()) else {
        return ExitCode::from(64);
    };
    // It outlives the exec, unless CMD is set-user-id.
    let is_tied = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    let parent = getppid().map(|parent| parent.as_raw_pid().to_string());
    // The guardian may have died before the tie was made.
    if !is_tied || parent.as_ref() != Some(&guardian) {
        return ExitCode::FAILURE;
    }
    // The guardian blocks all, and CMD shall see every one.
    if SigSet::empty().thread_set_mask().is_err() || gate.read_exact(&mut [0]).is_err() {
        return ExitCode::FAILURE;
    }
    let error = Command::new(program).args(args).exec();
    let errno = error.raw_os_error().unwrap_or(0);
    // In one piece, since the guardian reads once. One that does not listen any more has died, and this process
    // with it.
    let _ = gate.write_all(format!("{errno} {error}").as_bytes());
    ExitCode::FAILURE
}
