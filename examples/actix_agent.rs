//! An agent actor in the host's own actix system. It owns a run, receives the run's events as messages, and stops its
//! work when the run ends.
//!
//! ```sh
//! cargo run --example actix_agent
//! ```
//!
//! The supervisor has a thread and a system of its own, so that a busy agent delays no renewal. A busy agent handles
//! events late, so it must not rely on them: it asks `is_held` right before each side effect.

use std::{error::Error, time::Duration};

use actix::prelude::*;
use futures::channel::oneshot;
use tenure::{LeaseSupervisor, Run, RunEvent, SessionKey};

/// How long the agent pauses between two turns.
const PAUSE: Duration = Duration::from_millis(300);

/// Works on one conversation while it holds the session.
struct Agent {
    name: &'static str,
    supervisor: LeaseSupervisor,
    key: SessionKey,
    run: Option<Run>,
    turns: u32,
    /// Dropped with the agent, which tells the host that the agent has ended.
    _alive: oneshot::Sender<()>,
}

/// The message to do one turn of the conversation.
#[derive(Message)]
#[rtype(result = "()")]
struct Turn;

impl Actor for Agent {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let request =
            self.supervisor.acquire(&self.key).holder_label(self.name).events(ctx.address().recipient());
        let granted = request.into_future().into_actor(self).map(|granted, agent, ctx| match granted {
            Ok(run) => {
                agent.run = Some(run);
                ctx.notify(Turn);
            }
            Err(error) => {
                agent.say(&format!("refused: {error}"));
                ctx.stop();
            }
        });
        ctx.spawn(granted);
    }

    fn stopped(&mut self, _: &mut Context<Self>) {
        self.say(&format!("has gone after {} turns", self.turns));
    }
}

impl Handler<Turn> for Agent {
    type Result = ();

    fn handle(&mut self, Turn: Turn, ctx: &mut Context<Self>) {
        let Some(run) = self.run.as_ref().filter(|run| run.is_held()) else { return };
        self.turns += 1;
        self.say(&format!("turn {}, under fence {}", self.turns, run.fence()));
        ctx.notify_later(Turn, PAUSE);
    }
}

impl Handler<RunEvent> for Agent {
    type Result = ();

    fn handle(&mut self, event: RunEvent, ctx: &mut Context<Self>) {
        match event {
            RunEvent::AtRisk { trusted_for, .. } => {
                self.say(&format!("the database does not answer; may act for {trusted_for:?}"))
            }
            RunEvent::Recovered { .. } => self.say("the database answers again"),
            RunEvent::Stopping { reason, .. } => {
                self.say(&format!("told to stop: {reason}"));
                // Between two messages no turn is under way, so the work has ended. Dropping the run releases the
                // session.
                self.run = None;
            }
            RunEvent::Ended { reason, released, .. } => {
                self.say(&format!("the run has ended: {reason}; released: {released}"));
                ctx.stop();
            }
            RunEvent::Missed(count) => self.say(&format!("was too busy to hear of {count} events")),
            _ => {}
        }
    }
}

impl Agent {
    /// Starts an agent. The returned receiver completes when the agent has ended.
    fn open(name: &'static str, supervisor: &LeaseSupervisor, key: &SessionKey) -> oneshot::Receiver<()> {
        let (alive, gone) = oneshot::channel();
        let (supervisor, key) = (supervisor.clone(), key.clone());
        Self { name, supervisor, key, run: None, turns: 0, _alive: alive }.start();
        gone
    }

    fn say(&self, what: &str) {
        println!("{:>7} │ {what}", self.name);
    }
}

#[actix_rt::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite://{}", directory.path().join("leases.db").display());
    let supervisor = LeaseSupervisor::builder(&url).ttl(Duration::from_secs(5)).start().await?;
    let key = SessionKey::new("demo", "chat-1")?;

    let first = Agent::open("first", &supervisor, &key);
    actix_rt::time::sleep(2 * PAUSE).await;
    // An error of the receiver is the expected end: the agent has dropped its sender.
    let _ = Agent::open("second", &supervisor, &key).await;
    actix_rt::time::sleep(2 * PAUSE).await;

    println!("   host │ shutting down");
    let report = supervisor.shutdown(supervisor.timing().stop_grace()).await;
    let _ = first.await;
    println!("   host │ ended {} run, left to expire: {:?}", report.ended.len(), report.left);
    Ok(())
}
