//! What a process inherits from its parent besides arguments and environment: descriptors, and the dispositions and the
//! mask of signals. CMD gets them as this command got them.
//!
//! This file has the only unsafe code of the command.

#![allow(unsafe_code)]

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::Command,
    ptr,
    str::FromStr,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
};

use nix::{
    libc,
    sys::{
        signal::{SigHandler, SigSet, Signal, signal},
        signalfd::SignalFd,
    },
};
use rustix::{
    fs::{OFlags, fcntl_getfl},
    io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd},
    process::Pid,
    stdio::{dup2_stderr, dup2_stdin, dup2_stdout},
};
use tokio::io::unix::AsyncFd;

use crate::timer::Timer;

/// Lets child processes inherit a socket. Returns the descriptor's number, for the process that needs the socket.
///
/// Every process that is started before the caller closes the socket inherits it. A `pre_exec` hook would limit that to
/// one process, but with such a hook the standard library forks this process instead of using `posix_spawn`.
pub(crate) fn leave_open(socket: &UnixStream) -> io::Result<String> {
    fcntl_setfd(socket, FdFlags::empty())?;
    Ok(socket.as_raw_fd().to_string())
}

/// Takes the socket of this number, which the parent left open. Child processes do not inherit it.
///
/// Must be called once for each number, before anything else opens a file.
pub(crate) fn take(number: &str) -> io::Result<UnixStream> {
    let fd: i32 = number.parse().map_err(io::Error::other)?;
    if fd <= 2 || !Path::new("/proc/self/fd").join(number).exists() {
        return Err(io::Error::other("no such descriptor was left open"));
    }
    // SAFETY: the descriptor is open, and nothing else in this process owns it. It was open before `main`, and the
    // standard library takes over only 0 to 2.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    Ok(socket.into())
}

/// Duplicates the open descriptor of this number, which may be a file, a pipe, a terminal or a socket.
///
/// Refuses a descriptor that the parent did not leave open for writing. This process opens its own descriptors with
/// close-on-exec, so the flag tells them apart.
pub(crate) fn duplicate(number: u32) -> io::Result<File> {
    let fd = i32::try_from(number).map_err(io::Error::other)?;
    if !Path::new("/proc/self/fd").join(number.to_string()).exists() {
        return Err(io::Error::other("is not open"));
    }
    // SAFETY: the descriptor is open, and nothing closes it while it is borrowed. If other code in this process owns
    // it, that code opened it or took it over before this call, and keeps it open for longer than the call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let mode = fcntl_getfl(borrowed)? & OFlags::ACCMODE;
    if fcntl_getfd(borrowed)?.contains(FdFlags::CLOEXEC) || mode == OFlags::RDONLY {
        return Err(io::Error::other("was not left open for writing"));
    }
    Ok(fcntl_dupfd_cloexec(borrowed, 3)?.into())
}

/// The descriptors from 3 on that the parent left open. CMD inherits them; dropping them closes them in this process.
///
/// Must be called once, before a thread is started.
pub(crate) fn take_descriptors() -> Vec<OwnedFd> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<i32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|fd| *fd > 2).collect();
    let is_inherited = |fd: &i32| {
        // SAFETY: only the descriptor's flags are read. For a descriptor that was closed in the meantime, such as that
        // of the directory, this is an error.
        let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
        // This process opens its own descriptors with close-on-exec. A descriptor of the parent with that flag is
        // closed.
        fcntl_getfd(fd).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC))
    };
    // SAFETY: each of these is open and was already open before `main`, so nothing in this process owns it.
    numbers.into_iter().filter(is_inherited).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect()
}

/// Signals as bits: signal n is bit n − 1.
pub(crate) type SignalBits = u64;

/// The signals that a process blocks and ignores. A program cannot inherit handlers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dispositions {
    pub(crate) blocked: SignalBits,
    pub(crate) ignored: SignalBits,
}

/// Whether SIGPIPE was ignored when this process started. The Rust runtime ignores it before `main`.
static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

#[used]
// SAFETY: the C library calls what stands in this section before `main`, with the arguments of `main`.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn(i32, *const *mut libc::c_char) = look_at_the_start;

/// The arguments in this process's memory, and how many there are.
static ARGUMENTS: AtomicPtr<*mut libc::c_char> = AtomicPtr::new(ptr::null_mut());
static ARGUMENT_COUNT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn look_at_the_start(count: i32, arguments: *const *mut libc::c_char) {
    ARGUMENT_COUNT.store(count.try_into().unwrap_or(0), Ordering::Relaxed);
    ARGUMENTS.store(arguments.cast_mut(), Ordering::Relaxed);
    look_at_sigpipe();
}

/// Clears the arguments that `ps` shows, except the name. Must be called after they were read.
pub(crate) fn hide_arguments() {
    let (arguments, count) = (ARGUMENTS.load(Ordering::Relaxed), ARGUMENT_COUNT.load(Ordering::Relaxed));
    if arguments.is_null() {
        return;
    }
    for index in 1..count {
        // SAFETY: the C library passes `count` strings, which belong to this process, may be written and last as long
        // as it. Nothing reads them at the same time: the standard library makes copies, and they have been made.
        unsafe {
            let argument = *arguments.add(index);
            ptr::write_bytes(argument, 0, libc::strlen(argument));
        }
    }
}

fn look_at_sigpipe() {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only the present action is asked for, and written to a place of its type, for which zeros are valid.
    let (result, action) =
        unsafe { (libc::sigaction(libc::SIGPIPE, ptr::null(), action.as_mut_ptr()), action.assume_init()) };
    PIPE_WAS_IGNORED.store(result == 0 && action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
}

impl Dispositions {
    /// Reads the dispositions that this process has inherited. Must be called before this process changes them.
    pub(crate) fn of_this_process() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let bits = |name: &str| {
            let mask = status.lines().find_map(|line| line.strip_prefix(name));
            mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
        };
        let pipe = bit(libc::SIGPIPE);
        let ignored = bits("SigIgn:") & !pipe;
        let ignored = if PIPE_WAS_IGNORED.load(Ordering::Relaxed) { ignored | pipe } else { ignored };
        Self { blocked: bits("SigBlk:"), ignored }
    }

    /// Gives the program of a command these dispositions. The standard library and this command have changed only
    /// SIGPIPE, SIGCHLD and the mask; other signals that were ignored still are.
    pub(crate) fn give_to(self, command: &mut Command) {
        let apply = move || {
            for number in [Signal::SIGPIPE, Signal::SIGCHLD] {
                let is_ignored = self.ignored & bit(number as i32) != 0;
                let handler = if is_ignored { SigHandler::SigIgn } else { SigHandler::SigDfl };
                // SAFETY: neither runs code in this process.
                unsafe { signal(number, handler) }?;
            }
            Ok(set_of(self.blocked).thread_set_mask()?)
        };
        // SAFETY: right before exec this makes system calls only; it allocates nothing and takes no lock.
        unsafe { command.pre_exec(apply) };
    }
}

impl fmt::Display for Dispositions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x},{:x}", self.blocked, self.ignored)
    }
}

impl FromStr for Dispositions {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (blocked, ignored) = text.split_once(',').unwrap_or((text, ""));
        Ok(Self { blocked: u64::from_str_radix(blocked, 16)?, ignored: u64::from_str_radix(ignored, 16)? })
    }
}

pub(crate) fn bit(signal: i32) -> SignalBits {
    1 << (signal - 1)
}

/// The set of these signals. Unlike a set that is built with nix, it may have real-time signals.
pub(crate) fn set_of(bits: SignalBits) -> SigSet {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call initialises the set, and the others add to it. The C library refuses the signals that it
    // uses itself.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for number in (1..=64).filter(|number| bits & bit(*number) != 0) {
            libc::sigaddset(set.as_mut_ptr(), number);
        }
        SigSet::from_sigset_t_unchecked(set.assume_init())
    }
}

/// Registers a signal descriptor with the tokio runtime.
pub(crate) fn watch(file: SignalFd) -> io::Result<AsyncFd<SignalFd>> {
    // SAFETY: it owns its descriptor, and gives the same number as long as it lives.
    Ok(unsafe { AsyncFd::register(file) }?)
}

/// Registers a timer with the tokio runtime.
pub(crate) fn watch_timer(timer: Timer) -> io::Result<AsyncFd<Timer>> {
    // SAFETY: it owns its descriptor, and gives the same number as long as it lives.
    Ok(unsafe { AsyncFd::register(timer) }?)
}

/// Sends a signal, by its number, to a process or to the group that the process leads. Does nothing if it is gone.
pub(crate) fn pass_on(process: Pid, number: i32, to_group: bool) {
    let target = if to_group { -process.as_raw_pid() } else { process.as_raw_pid() };
    // SAFETY: this is a system call that takes only numbers. A number that is no signal is an error.
    unsafe { libc::kill(target, number) };
}

/// Kills this process by a signal, as if the signal had never been caught. Returns only in process 1, which the default
/// action of a signal does not kill.
pub(crate) fn die_of(number: i32) {
    let Ok(number) = Signal::try_from(number) else { return };
    // SIGQUIT would dump a core of this process. CMD has dumped its own.
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    // SAFETY: the default disposition runs no code in this process.
    if unsafe { signal(number, SigHandler::SigDfl) }.is_ok() {
        let _ = nix::sys::signal::raise(number);
        let _ = SigSet::from_iter([number]).thread_unblock();
    }
}

/// Makes all threads allocate from one heap. By default, the C library creates a heap for each of the few threads, which
/// allocate little. Each heap would also reserve at least 64 MiB of address space, which `ulimit -v` counts.
pub(crate) fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: this sets a parameter of the C library, and every value is valid.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Forks this process. The child runs `in_child` and exits. Returns the child's id.
///
/// Must be called while this process has one thread. The child has only the thread that forks, so a lock that another
/// thread holds would stay locked in the child for ever.
pub(crate) fn fork(in_child: impl FnOnce()) -> io::Result<Pid> {
    // SAFETY: the child of a process with one thread may do all that the process may.
    match unsafe { libc::fork() } {
        0 => {
            // A panic must not unwind into the caller, which would then run in both processes.
            let _ = catch_unwind(AssertUnwindSafe(in_child));
            // SAFETY: this runs no exit handlers of the parent.
            unsafe { libc::_exit(1) }
        }
        child => Pid::from_raw(child).filter(|_| child > 0).ok_or_else(io::Error::last_os_error),
    }
}

/// Lets this process wait for the exit statuses of its children. A process inherits an ignored SIGCHLD from its parent,
/// and the kernel then discards the statuses.
pub(crate) fn keep_exit_statuses() -> io::Result<()> {
    // SAFETY: the default disposition runs no code in this process.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    Ok(())
}

/// Points this process's standard input and output to /dev/null, since they are CMD's now.
pub(crate) fn let_go_of_input_and_output() -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    Ok(())
}

/// Points this process's standard error to /dev/null.
pub(crate) fn let_go_of_errors() -> io::Result<()> {
    Ok(dup2_stderr(&OpenOptions::new().write(true).open("/dev/null")?)?)
}
