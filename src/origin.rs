//! Tells whether a value belongs to this process, or was copied into it by a fork.

/// The process that made a value. A fork has a copy of the value, but none of the threads that serve it. Calls in a
/// fork therefore return at once, instead of waiting for ever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin(u32);

impl Origin {
    pub(crate) fn here() -> Self {
        Self(std::process::id())
    }

    /// Costs one cheap system call. Takes no lock, because another thread may have held it when the process forked.
    pub(crate) fn is_this_process(self) -> bool {
        std::process::id() == self.0
    }
}
