//! An actor-based lease supervisor: which run owns this session now, and for how long?

pub mod clock;
mod session;
pub mod store;

pub use session::{
    FencingToken, Holder, InvalidText, Label, NodeId, Phase, RunId, SessionKey, SessionState, SessionStatus,
    Stage, StopRequest, UnknownStage,
};
