//! What a process takes over from its parent beyond arguments and environment: descriptors and signal
//! dispositions.
//! The only unsafe code of the command.

#![allow(unsafe_code)]

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    path::Path,
    process::Command,
};

use nix::sys::signal::{SigHandler, Signal, signal};
use rustix::{
    fs::{OFlags, fcntl_getfl},
    io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd},
    stdio::{dup2_stdin, dup2_stdout},
};

/// Lets a command's process, and no other, have a socket; answers the number to tell it.
///
/// The flag is cleared after the fork, so that no process started at the same time by another thread gets it.
/// The socket is closed in this process when the command is dropped.
pub(crate) fn leave_open(command: &mut Command, socket: UnixStream) -> String {
    let number = socket.as_raw_fd().to_string();
    let keep = move || Ok(fcntl_setfd(&socket, FdFlags::empty())?);
    // SAFETY: between fork and exec this makes one system call; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(keep) };
    number
}

/// Takes over the socket of this number, which the parent left open; what this process starts does not have it.
///
/// To be called once for each number, before anything else opens a file.
pub(crate) fn take(number: &str) -> io::Result<UnixStream> {
    let fd: i32 = number.parse().map_err(io::Error::other)?;
    if fd <= 2 || !Path::new("/proc/self/fd").join(number).exists() {
        return Err(io::Error::other("no such descriptor was left open"));
    }
    // SAFETY: it is open, and nothing else in this process owns it: it was open before `main`, and the standard
    // library takes over none but 0 to 2.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    Ok(socket.into())
}

/// Another handle of an open file of this number, whatever it is: a pipe, a terminal, a socket.
///
/// Only of one that the parent left open for writing. What this process opens itself is closed on exec, so the
/// flag tells them apart.
pub(crate) fn duplicate(number: u32) -> io::Result<File> {
    let fd = i32::try_from(number).map_err(io::Error::other)?;
    if !Path::new("/proc/self/fd").join(number.to_string()).exists() {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: it is open, and nothing closes it while it is borrowed: nothing else in this process owns it unless
    // it is closed on exec, and then it was opened before, for longer than this call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let mode = fcntl_getfl(borrowed)? & OFlags::ACCMODE;
    if fcntl_getfd(borrowed)?.contains(FdFlags::CLOEXEC) || mode == OFlags::RDONLY {
        return Err(io::Error::other("no such descriptor was left open for writing"));
    }
    Ok(fcntl_dupfd_cloexec(borrowed, 3)?.into())
}

/// Makes exit statuses of children available: a parent that ignores SIGCHLD has its children inherit that, and
/// then the kernel throws statuses away.
pub(crate) fn keep_exit_statuses() -> io::Result<()> {
    // SAFETY: the default disposition runs no code in this process.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    Ok(())
}

/// Closes this process's own standard input and output, which are CMD's now.
pub(crate) fn let_go_of_input_and_output() -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    Ok(())
}
