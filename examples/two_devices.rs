//! Two devices want the same chat session.
//!
//! ```sh
//! cargo run --example two_devices                                  # on a SQLite file that it creates
//! cargo run --example two_devices -- postgres://user@localhost/db  # on PostgreSQL
//! ```
//!
//! The *desktop* is a process of its own, so that it can be frozen like a laptop whose lid is closed. The *browser* is
//! this process. Both use the same database.

use std::{
    error::Error,
    io::{BufRead, BufReader, Lines},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tenure::{AcquireError, LeaseSupervisor, Run, SessionKey, SessionState};
use tokio::time::sleep;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const TTL: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["desktop", url] => desktop(url).await,
        [url] => browser(url).await,
        [] => {
            let directory = tempfile::tempdir()?;
            let file = directory.path().join("leases.db");
            browser(&format!("sqlite://{}", file.display())).await
        }
        _ => Err("give one database URL, or nothing".into()),
    }
}

/// The first device: works on the session until it is done or loses it.
async fn desktop(url: &str) -> Result<()> {
    let supervisor = LeaseSupervisor::builder(url).holder_label("desktop").ttl(TTL).start().await?;
    let run = supervisor.acquire(&session()?).await?;
    println!("acquired the session: run {}, fence {}", run.run_id(), run.fence());
    let mut step = 0;
    let reason = loop {
        tokio::select! {
            biased;
            reason = run.cancelled() => break reason,
            () = sleep(Duration::from_millis(400)) => {}
        }
        // Asked right before every side effect: after a sleep, this is where the desktop notices that its lease is
        // lost.
        if run.is_held() {
            step += 1;
            println!("step {step}, may act for another {:.1} s", run.trusted_for().as_secs_f64());
        } else {
            println!("woke up: may not act any more, so step {} is not done", step + 1);
        }
    };
    println!("work cancelled: {reason}");
    let ended = run.release().await;
    println!(
        "late release: {}",
        if ended.released { "released" } else { "nothing of ours was left to release" }
    );
    supervisor.shutdown(supervisor.timing().stop_grace()).await;
    Ok(())
}

/// The second device: is refused, waits, and takes the session over.
async fn browser(url: &str) -> Result<()> {
    tenure::migrate(url).await?;
    let supervisor = LeaseSupervisor::builder(url).holder_label("browser").ttl(TTL).start().await?;
    println!("database: {}\n", supervisor.location());

    let mut desktop = Desktop::open(url)?;
    desktop.narrate_until("step 2")?;

    say("browser", "the user opens the same session here");
    match supervisor.acquire(&session()?).await {
        Err(AcquireError::Busy(busy)) => say("browser", &format!("refused: {busy}")),
        other => return Err(format!("expected to be refused, got {other:?}").into()),
    }
    desktop.narrate_until("step 4")?;

    desktop.signal(Signal::STOP)?;
    say("", "the laptop's lid is closed: the desktop is frozen and can renew nothing");
    let frozen = Instant::now();
    let run = take_over(&supervisor).await?;
    let waited = frozen.elapsed().as_secs_f64();
    say("browser", &format!("took over after {waited:.1} s: run {}, fence {}", run.run_id(), run.fence()));

    desktop.signal(Signal::CONT)?;
    say("", "the lid is opened again");
    desktop.narrate_until("late release")?;

    let status = supervisor.inspect(&session()?).await?;
    let holder = status.holder.ok_or("nobody holds the session")?;
    if holder.run_id != run.run_id() || holder.fence != run.fence() || !run.is_held() {
        return Err("the late release has touched the new run".into());
    }
    say("browser", &format!("still holds the session: {} under fence {}", holder.label, holder.fence));
    run.scope(async |ctx| {
        say("browser", &format!("works, may act for {:.1} s", ctx.trusted_for().as_secs_f64()))
    })
    .await?;
    let idle = supervisor.inspect(&session()?).await?.state == SessionState::Idle;
    say("browser", if idle { "done; the session is idle" } else { "done; the session is not idle yet" });
    supervisor.shutdown(supervisor.timing().stop_grace()).await;
    desktop.end()
}

async fn take_over(supervisor: &LeaseSupervisor) -> Result<Run> {
    loop {
        match supervisor.acquire(&session()?).await {
            Ok(run) => return Ok(run),
            Err(AcquireError::Busy(busy)) => {
                say("browser", &format!("must wait: {busy}"));
                sleep(busy.holder().expires_in.clamp(Duration::from_millis(50), Duration::from_secs(1)))
                    .await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn session() -> Result<SessionKey> {
    Ok(SessionKey::new("demo", "chat-1")?)
}

fn say(who: &str, what: &str) {
    println!("{who:>8} │ {what}");
}

/// The desktop's process, and the lines that it prints.
struct Desktop {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Desktop {
    fn open(url: &str) -> Result<Self> {
        let mut process =
            Command::new(std::env::current_exe()?).args(["desktop", url]).stdout(Stdio::piped()).spawn()?;
        let output = process.stdout.take().ok_or("no output")?;
        Ok(Self { process, lines: BufReader::new(output).lines() })
    }

    fn narrate_until(&mut self, start: &str) -> Result<()> {
        for line in self.lines.by_ref() {
            let line = line?;
            say("desktop", &line);
            if line.starts_with(start) {
                return Ok(());
            }
        }
        Err("the desktop has ended too early".into())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.process), signal)?)
    }

    fn end(mut self) -> Result<()> {
        match self.process.wait()?.success() {
            true => Ok(()),
            false => Err("the desktop failed".into()),
        }
    }
}

impl Drop for Desktop {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
