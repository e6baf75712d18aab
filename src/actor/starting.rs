//! Tells whether an actor may begin its work when actix calls `started`.

use actix::{Actor, ActorContext, ActorState, Context};

/// `false` if the actor's runtime drops it before it has run once. actix calls `started` even then, and setting a timer
/// would panic.
pub(super) fn may_start<A: Actor<Context = Context<A>>>(ctx: &Context<A>) -> bool {
    ctx.state() == ActorState::Running
}
