//! Which process something belongs to.

/// The process that made a value. A fork has a copy of the value, and none of the threads that look after it: whoever
/// asks there is answered at once instead of waiting for ever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin(u32);

impl Origin {
    pub(crate) fn here() -> Self {
        Self(std::process::id())
    }

    /// Costs one cheap call of the system. Takes no lock, which another thread may have held when the process forked.
    pub(crate) fn is_this_process(self) -> bool {
        std::process::id() == self.0
    }
}
