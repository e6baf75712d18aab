//! An agent actor in the host's own actix system that owns a run, and stops its work when the run ends.
//!
//! ```sh
//! cargo run --example actix_agent
//! ```
//!
//! The supervisor has a thread and a system of its own; this system only holds the guard. The agent's work is
//! cut into steps, as a conversation is cut into turns and tool calls, and it asks `is_held` before each.

use std::time::Duration;

use actix::prelude::*;
use tenure::{AcquireError, EndReason, Run, SessionKey, Supervisor};

/// One conversation, while this process may work on it. The run ends with the actor, and the actor with the run.
struct Agent {
    run: Run,
    turns: u32,
}

/// Do one turn of the conversation.
#[derive(Message)]
#[rtype(result = "Result<u32, EndReason>")]
struct Turn;

/// The run has ended.
#[derive(Message)]
#[rtype(result = "()")]
struct RunEnded(EndReason);

impl Actor for Agent {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        println!("agent: holds {} under fence {}", self.run.key(), self.run.fence());
        let ended = self.run.cancelled().into_actor(self);
        ctx.spawn(ended.map(|reason, _, ctx| ctx.notify(RunEnded(reason))));
    }

    fn stopped(&mut self, _: &mut Context<Self>) {
        println!("agent: stopped after {} turns; dropping the run releases the session", self.turns);
    }
}

impl Handler<Turn> for Agent {
    type Result = Result<u32, EndReason>;

    fn handle(&mut self, _: Turn, _: &mut Context<Self>) -> Self::Result {
        if !self.run.is_held() {
            return Err(EndReason::Unconfirmed);
        }
        self.turns += 1;
        Ok(self.turns)
    }
}

impl Handler<RunEnded> for Agent {
    type Result = ();

    fn handle(&mut self, RunEnded(reason): RunEnded, ctx: &mut Context<Self>) {
        println!("agent: the run has ended: {reason}");
        ctx.stop();
    }
}

#[actix_rt::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite://{}", directory.path().join("leases.db").display());
    let supervisor =
        Supervisor::builder(&url).holder("agent-host").ttl(Duration::from_secs(5)).start().await?;
    let key = SessionKey::new("demo", "chat-1")?;

    let agent = Agent { run: supervisor.acquire(&key).await?, turns: 0 }.start();
    for _ in 0..3 {
        println!("host: turn {:?}", agent.send(Turn).await?);
    }
    if let Err(AcquireError::Busy(busy)) = supervisor.acquire(&key).await {
        println!("host: a second agent is refused: {busy}");
    }

    println!("host: shutting down");
    let report = supervisor.shutdown(supervisor.timing().stop_grace()).await;
    println!("host: left behind: {:?}", report.left);
    println!(
        "host: the agent takes no more turns: {:?}",
        agent.send(Turn).await.map_err(|error| error.to_string())
    );
    Ok(())
}
