//! The values of the protocol: session keys, run ids, fencing tokens, holders.
//!
//! These are plain values. Text that people choose (keys, labels, phases) is checked once, when the value is made. All
//! other code may rely on the bounds.

mod key;
mod status;
mod texts;
#[cfg(feature = "serde")]
mod wire;

pub use key::{FencingToken, InvalidFence, NodeId, RunId, SessionKey};
pub use status::{Holder, RunStage, SessionState, SessionStatus, Standby, StopRequest, UnknownStage};
pub use texts::{InvalidText, Label, Reason, Requester, RunPhase};
#[cfg(feature = "serde")]
pub(crate) use wire::{from_millis, millis, optional_millis, rfc3339};
