//! Several tool processes under one run, stopped together. None of them is alive when the session is free again.
//!
//! ```sh
//! cargo run --features process --example tool_calls
//! ```
//!
//! One tool answers, one ends on SIGTERM, one ignores SIGTERM, and one has started a process in the background. Ctrl-C
//! and SIGTERM stop the run, too. The host must handle these signals: each tool has a process group of its own, which
//! the terminal's Ctrl-C does not reach.

#[cfg(unix)]
use {
    std::{
        error::Error,
        future::Future,
        io,
        process::{Command, Stdio},
        time::Duration,
    },
    tenure::{
        LeaseSupervisor, RunContext, SessionKey,
        process::{ChildTree, ProcessOutcome},
    },
    tokio::{
        io::AsyncReadExt,
        process::ChildStdout,
        signal::unix::{SignalKind, signal},
        time::{Instant, sleep},
    },
};

/// A tool's name, and the shell script that stands in for it.
#[cfg(unix)]
const TOOLS: [(&str, &str); 4] = [
    ("answer", "sleep 0.3; echo 42"),
    ("obedient", "exec sleep 30"),
    ("stubborn", "trap '' TERM; for part in 1 2 3; do sleep 10; done"),
    ("forking", "(sleep 30 &); exec sleep 30"),
];

#[cfg(unix)]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The signals are handled before the first tool is started.
    let interrupted = interrupted()?;
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite://{}", directory.path().join("leases.db").display());
    let supervisor = LeaseSupervisor::builder(&url)
        .holder_label("desktop")
        .stop_grace(Duration::from_secs(1))
        .start()
        .await?;
    let key = SessionKey::new("demo", "chat-1")?;
    let run = supervisor.acquire(&key).await?;

    let mut tools = Vec::new();
    // The tools belong to the run: the scope returns when each tool, and all that it has started, has ended.
    let worked = run
        .scope(async |ctx| {
            ctx.spawn(stop_when(interrupted, ctx.clone()));
            call_tools(&ctx, &mut tools).await
        })
        .await;
    match &worked {
        Ok(_) => println!("all tools have answered"),
        Err(error) => println!("{error}"),
    }
    for (name, tool) in &tools {
        report(name, tool).await;
    }
    println!("the session is {:?}", supervisor.inspect(&key).await?.state);
    supervisor.shutdown(supervisor.timing().stop_grace()).await;
    Ok(())
}

/// Starts all tools at once, and waits for them until somebody stops the run.
#[cfg(unix)]
async fn call_tools(
    ctx: &RunContext,
    tools: &mut Vec<(&'static str, ChildTree)>,
) -> Result<String, Box<dyn Error>> {
    for (name, script) in TOOLS {
        let tool = ctx.child(Command::new("sh").args(["-c", script]).stdout(Stdio::piped()))?;
        println!("started  {name:<8}  process {}", tool.pid());
        tools.push((name, tool));
    }
    let mut answer = String::new();
    let output = tools[0].1.stdout.take().ok_or("no pipe")?;
    ChildStdout::from_std(output)?.read_to_string(&mut answer).await?;
    if !ctx.is_held() {
        return Ok(answer);
    }
    println!("answered {:<8}  {}", tools[0].0, answer.trim());

    ctx.spawn(press_stop(ctx.clone()));
    tokio::select! {
        // The work may simply return: the run ends the tools.
        _ = ctx.cancelled() => {}
        _ = futures::future::join_all(tools.iter().map(|(_, tool)| tool.wait())) => {}
    }
    Ok(answer)
}

#[cfg(unix)]
async fn press_stop(ctx: RunContext) {
    sleep(Duration::from_millis(500)).await;
    if !ctx.is_held() {
        return;
    }
    println!("somebody presses stop");
    let pressed = Instant::now();
    ctx.stop("the button was pressed");
    ctx.cancelled().await;
    println!("cancelled within {:.1} ms; the tools have a second", pressed.elapsed().as_secs_f64() * 1e3);
}

/// Handles Ctrl-C and SIGTERM from now on. The future completes at the first of them.
#[cfg(unix)]
fn interrupted() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

#[cfg(unix)]
async fn stop_when(interrupted: impl Future<Output = ()>, ctx: RunContext) {
    tokio::select! {
        () = interrupted => ctx.stop("interrupted"),
        _ = ctx.cancelled() => {}
    }
}

/// Prints how a tool, and each process below it, has ended.
#[cfg(unix)]
async fn report(name: &str, tool: &ChildTree) {
    let end = tool.wait().await;
    let status = end.status.map_or_else(|| "unknown status".to_owned(), |status| status.to_string());
    println!("ended    {name:<8}  {status}");
    for process in end.tree.processes() {
        let how = match process.how {
            ProcessOutcome::Terminated => "ended when it was told to",
            ProcessOutcome::Killed => "HAD TO BE KILLED",
            _ => "IS STILL ALIVE",
        };
        println!("                     {} {}: {how}", process.name, process.pid);
    }
}

#[cfg(not(unix))]
fn main() {
    println!("process trees need Unix");
}
