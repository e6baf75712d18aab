//! Whether an actor that is started is to begin.

use actix::{Actor, ActorContext, ActorState, Context};

/// `false` if the actor is being dropped with its runtime before it has run once. actix calls `started` all the same,
/// and whatever asks for a timer then panics.
pub(super) fn may_start<A: Actor<Context = Context<A>>>(ctx: &Context<A>) -> bool {
    ctx.state() == ActorState::Running
}
