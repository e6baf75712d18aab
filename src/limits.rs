//! Checks whether the operating system gives this process enough file descriptors, threads and memory.
//!
//! A supervisor checks this when it starts, so that a limit is reported before anything is granted, and not met in the
//! middle of a lease. Nothing is reserved: another part of the process may use up the resources later.

use std::{collections::TryReserveError, fmt, fs::File, hint::black_box, io, sync::mpsc, thread};

/// The resources that are needed at the same time.
///
/// ```
/// let need = tenure::limits::Need::default().descriptors(40).threads(8);
/// need.check().unwrap();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Need {
    /// File descriptors.
    pub descriptors: usize,
    /// Threads with stacks of Rust's default size, 2 MiB.
    pub threads: usize,
    /// Bytes of address space, in addition to the stacks of the threads.
    pub memory: usize,
}

/// The most that a supervisor uses while nothing is wrong: its own thread, the watchers' thread, and for each
/// connection one descriptor or, on SQLite, one thread and up to two descriptors.
pub(crate) const SUPERVISOR: Need = Need { descriptors: 28, threads: 12, memory: 16 << 20 };

impl Need {
    /// Also this many file descriptors.
    #[must_use]
    pub fn descriptors(self, descriptors: usize) -> Self {
        Self { descriptors, ..self }
    }

    /// Also this many threads.
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Also this many bytes of address space.
    #[must_use]
    pub fn memory(self, memory: usize) -> Self {
        Self { memory, ..self }
    }

    /// Takes all of these resources for a moment, and gives them back.
    ///
    /// # Errors
    /// [`Shortage`], which names the limit and the remedy.
    pub fn check(self) -> Result<(), Shortage> {
        self.try_descriptors()?;
        // Before the memory, because the stacks and heaps that the C library maps for threads stay mapped.
        self.try_threads()?;
        self.try_memory()
    }

    fn try_descriptors(self) -> Result<(), Shortage> {
        let mut had = Vec::with_capacity(self.descriptors);
        while had.len() < self.descriptors {
            // A duplicate costs less than another file, and takes a descriptor as well.
            match had.first().map_or_else(any_file, File::try_clone) {
                Ok(file) => had.push(file),
                Err(error) if is_of_descriptors(&error) => {
                    return Err(Shortage {
                        resource: Resource::of(&error),
                        wanted: self.descriptors,
                        had: had.len(),
                    });
                }
                // The file does not exist here, or this user may not open it: there is nothing to try with.
                Err(_) => break,
            }
        }
        Ok(())
    }

    fn try_memory(self) -> Result<(), Shortage> {
        // The memory is not touched, so this costs only address space.
        let had = try_bytes(self.memory);
        had.map_err(|_| Shortage { resource: Resource::Memory, wanted: self.memory >> 20, had: 0 })
    }

    fn try_threads(self) -> Result<(), Shortage> {
        let mut had = Vec::with_capacity(self.threads);
        let mut result = Ok(());
        while had.len() < self.threads && result.is_ok() {
            let (end, ended) = mpsc::channel::<()>();
            // The thread waits until `end` is dropped.
            match thread::Builder::new().name("tenure-trial".to_owned()).spawn(move || ended.recv().is_err())
            {
                Ok(thread) => had.push((end, thread)),
                Err(_) => {
                    result =
                        Err(Shortage { resource: Resource::Threads, wanted: self.threads, had: had.len() });
                }
            }
        }
        let (ends, threads): (Vec<_>, Vec<_>) = had.into_iter().unzip();
        drop(ends);
        for thread in threads {
            // The thread cannot panic.
            let _ = thread.join();
        }
        result
    }
}

fn try_bytes(count: usize) -> Result<(), TryReserveError> {
    let mut bytes = Vec::<u8>::new();
    bytes.try_reserve_exact(count)?;
    black_box(bytes);
    Ok(())
}

/// This process, its user or the whole machine has reached a limit. The text names the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    resource: Resource,
    /// In MiB for memory.
    wanted: usize,
    had: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource {
    Descriptors,
    /// Open files of the whole machine.
    Files,
    Threads,
    Memory,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, wanted, had } = self;
        match resource {
            Resource::Memory => {
                write!(f, "too little memory: {wanted} MiB cannot be had; {}", resource.remedy())
            }
            Resource::Threads => write!(
                f,
                "too few processes, or too little memory: of {wanted} threads only {had} can be started; {}",
                resource.remedy()
            ),
            Resource::Descriptors | Resource::Files => {
                write!(
                    f,
                    "too few file descriptors: of {wanted} only {had} can be had; {}",
                    resource.remedy()
                )
            }
        }
    }
}

impl std::error::Error for Shortage {}

impl Resource {
    fn of(error: &io::Error) -> Self {
        match error.raw_os_error() == Some(errno::NFILE) {
            true => Self::Files,
            false => Self::Descriptors,
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::Descriptors => {
                "raise the limit on open files of this process (`ulimit -n`, LimitNOFILE=), or close some"
            }
            Self::Files => {
                "the machine has no more: raise fs.file-max, or find what keeps so many files open"
            }
            Self::Threads => {
                "raise the limits on processes and memory (`ulimit -u` and `-v`, TasksMax=, the container's)"
            }
            Self::Memory => "raise the limit on memory (`ulimit -v`)",
        }
    }
}

/// The text of an error of the operating system, with the remedy if the error is a limit.
pub(crate) fn with_remedy(error: &io::Error) -> String {
    match remedy(error) {
        Some(remedy) => format!("{error}; {remedy}"),
        None => error.to_string(),
    }
}

/// The remedy for an error of the operating system, if the error is a limit on files or memory.
pub(crate) fn remedy(error: &io::Error) -> Option<&'static str> {
    let resource = match error.raw_os_error() {
        _ if is_of_descriptors(error) => Resource::of(error),
        Some(errno::NOMEM) => Resource::Memory,
        _ => return None,
    };
    Some(resource.remedy())
}

/// Why a thread could not be started. EAGAIN means a limit here, and only here.
pub(crate) fn no_thread(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(errno::AGAIN) => format!("{error}; {}", Resource::Threads.remedy()),
        _ => with_remedy(error),
    }
}

fn is_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(errno::MFILE | errno::NFILE))
}

#[cfg(unix)]
fn any_file() -> io::Result<File> {
    File::open("/dev/null")
}

#[cfg(not(unix))]
fn any_file() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(unix)]
mod errno {
    use rustix::io::Errno;

    pub(super) const AGAIN: i32 = Errno::AGAIN.raw_os_error();
    pub(super) const MFILE: i32 = Errno::MFILE.raw_os_error();
    pub(super) const NFILE: i32 = Errno::NFILE.raw_os_error();
    pub(super) const NOMEM: i32 = Errno::NOMEM.raw_os_error();
}

/// Placeholders that match no error: no error code is zero.
#[cfg(not(unix))]
mod errno {
    pub(super) const AGAIN: i32 = 0;
    pub(super) const MFILE: i32 = 0;
    pub(super) const NFILE: i32 = 0;
    pub(super) const NOMEM: i32 = 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_had_is_no_shortage() {
        assert_eq!(SUPERVISOR.check(), Ok(()));
    }

    #[test]
    fn more_memory_than_there_is_address_space_is_named() {
        let need = Need { descriptors: 0, threads: 0, memory: isize::MAX as usize };
        let shortage = need.check().unwrap_err().to_string();
        assert!(shortage.contains("too little memory") && shortage.contains("ulimit -v"), "{shortage}");
    }

    #[cfg(unix)]
    #[test]
    fn an_error_that_is_a_limit_names_it() {
        let told = |code| with_remedy(&io::Error::from_raw_os_error(code));
        assert!(told(errno::MFILE).contains("ulimit -n"));
        assert!(told(errno::NFILE).contains("fs.file-max"));
        assert!(no_thread(&io::Error::from_raw_os_error(errno::AGAIN)).contains("ulimit -u"));
        assert!(told(errno::NOMEM).contains("ulimit -v"));
        let other = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(with_remedy(&other), other.to_string());
    }
}
