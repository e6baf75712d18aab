//! The process that becomes CMD. It is started early, so that the terminal can be given to it, and becomes CMD when the
//! guardian tells it to.

use std::{
    env,
    ffi::OsString,
    io::{Read as _, Write as _},
    os::unix::{net::UnixStream, process::CommandExt as _},
    process::{Command, ExitCode},
};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::{
    inherited::{self, Dispositions},
    wire,
};

/// Variables in which a service manager names the process that other variables are for.
const NAMED_BY_MANAGERS: [&str; 3] = ["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"];
/// This variable also names the process of `LISTEN_PID`, by the id of its pidfd. A process cannot find out this id of
/// its own. So the variable, which is optional, is removed.
const LISTEN_PIDFD: &str = "LISTEN_PIDFDID";

/// The command that starts this process. The caller adds CMD and its arguments.
pub(crate) fn command(gate: UnixStream, dispositions: Dispositions) -> Command {
    // The file that this process runs, even if it was replaced at its path.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tenure").arg(wire::LAUNCH);
    let gate = inherited::leave_open(&mut command, gate);
    // This process is the guardian. Its parent is the command.
    let outer = getppid().map_or(0, |parent| parent.as_raw_pid());
    command.args([gate, std::process::id().to_string(), outer.to_string(), dispositions.to_string()]);
    command
}

/// `tenure __launch FD GUARDIAN_PID COMMAND_PID BLOCKED,IGNORED CMD [ARG…]`
pub(crate) fn main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let mut word = || args.next().and_then(|arg| arg.into_string().ok()).unwrap_or_default();
    let (gate, guardian, outer, dispositions) = (word(), word(), word(), word().parse::<Dispositions>());
    let (Ok(mut gate), Ok(dispositions), Some(program)) = (inherited::take(&gate), dispositions, args.next())
    else {
        return ExitCode::from(64);
    };
    // This setting outlives the exec, unless CMD is set-user-id.
    let is_tied = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    let parent = getppid().map(|parent| parent.as_raw_pid().to_string());
    // The guardian may have died before the setting was made.
    if !is_tied || parent.as_ref() != Some(&guardian) {
        return ExitCode::FAILURE;
    }
    // The guardian blocks all signals, and CMD must not inherit that.
    let is_open = inherited::set_of(dispositions.blocked).thread_set_mask().is_ok();
    if !is_open || gate.read_exact(&mut [0]).is_err() {
        return ExitCode::FAILURE;
    }
    let mut command = Command::new(program);
    command.args(args);
    dispositions.give_to(&mut command);
    point_to_this_process(&mut command, &outer);
    let error = command.exec();
    let errno = error.raw_os_error().unwrap_or(0);
    // One write, because the guardian reads once. An error means that the guardian has died, and so will this process.
    let _ = gate.write_all(format!("{errno} {error}").as_bytes());
    ExitCode::FAILURE
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
