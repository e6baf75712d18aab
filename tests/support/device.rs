//! A worker that is one device: a process with a supervisor of its own, told what to do line by line.

use std::{
    collections::HashMap,
    process::exit,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};
use tenure::{
    AcquireError, Holder, LeaseSupervisor, Run, SessionKey, SessionState,
    clock::{BootInstant, Clock as _, SystemClock},
};
use tokio::time::sleep;
use uuid::Uuid;

use super::process::{self, Commands, Worker, say};

/// The role of [`work`].
const ROLE: &str = "device";

/// The account of every device.
pub const ACCOUNT: &str = "acct";

/// The test's end of a device.
pub struct Device {
    worker: Worker,
}

/// Who holds a session, as a device has heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub run_id: Uuid,
    pub fence: i64,
    pub label: String,
    pub node: Uuid,
    /// By the database's clock.
    pub since: Duration,
    /// By the database's clock.
    pub expires_at: Duration,
}

/// The answer to a request for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The run and its fence.
    Granted(Uuid, i64),
    /// The holder that was named.
    Busy(Claim),
    /// Neither, in the words of the error.
    Failed(String),
}

/// What a device said of an acquire at a given instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub at: BootInstant,
    pub answer: Answer,
}

/// What a device has seen of the end of its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The last instant at which `is_held` said yes.
    pub last_held: BootInstant,
    pub reason: String,
}

impl Device {
    /// Starts it, and returns when its supervisor has.
    pub async fn start(url: &str, label: &str, ttl: Duration) -> Self {
        let mut device = Self::launch(url, label, ttl);
        device.ready().await;
        device
    }

    /// Starts it; many may start at once, each to be waited for with [`ready`](Self::ready).
    pub fn launch(url: &str, label: &str, ttl: Duration) -> Self {
        Self::launch_with(url, label, ttl, true)
    }

    /// Starts one that hears no hints, and returns when its supervisor has started.
    pub async fn start_without_hints(url: &str, label: &str, ttl: Duration) -> Self {
        let mut device = Self::launch_with(url, label, ttl, false);
        device.ready().await;
        device
    }

    fn launch_with(url: &str, label: &str, ttl: Duration, hints: bool) -> Self {
        let (ttl, hints) = (ttl.as_millis().to_string(), hints.to_string());
        let env = [("URL", url), ("LABEL", label), ("TTL_MS", &ttl), ("HINTS", &hints)];
        Self { worker: Worker::spawn(ROLE, &env) }
    }

    /// Waits for its supervisor.
    pub async fn ready(&mut self) {
        self.worker.expect("ready").await;
    }

    /// The process.
    pub fn process(&mut self) -> &mut Worker {
        &mut self.worker
    }

    /// Its supervisor's id.
    pub async fn node(&mut self) -> Uuid {
        self.worker.send("node");
        self.worker.expect("node ").await.parse().expect("the worker says a node")
    }

    /// Asks for a session now.
    pub async fn acquire(&mut self, session: &str) -> Answer {
        self.ask(session, SystemClock.now());
        self.asked().await.answer
    }

    /// Asks for a session that is free.
    pub async fn granted(&mut self, session: &str) -> (Uuid, i64) {
        match self.acquire(session).await {
            Answer::Granted(run_id, fence) => (run_id, fence),
            other => panic!("{session} was not granted: {other:?}"),
        }
    }

    /// Tells it to ask at this instant.
    pub fn ask(&mut self, session: &str, at: BootInstant) {
        self.worker.send(&format!("acquire {session} {}", at.as_nanos()));
    }

    /// Its answer to [`ask`](Self::ask).
    pub async fn asked(&mut self) -> Asked {
        let said = json_of(&self.worker.expect("answer ").await);
        let answer = match (said["granted"].as_str(), said.get("busy"), &said["failed"]) {
            (Some(run), ..) => Answer::Granted(run.parse().expect("a run id"), number(&said["fence"])),
            (_, Some(busy), _) => Answer::Busy(claim(busy)),
            (.., error) => Answer::Failed(error.to_string()),
        };
        Asked { at: instant(&said["at"]), answer }
    }

    /// Tells it to ask again and again until this instant.
    pub fn hammer(&mut self, session: &str, until: BootInstant) {
        self.worker.send(&format!("hammer {session} {}", until.as_nanos()));
    }

    /// The end of [`hammer`](Self::hammer): how often it was refused, and what else it got.
    pub async fn hammered(&mut self) -> (u64, Vec<String>) {
        let said = json_of(&self.worker.expect("hammered ").await);
        let others = said["others"].as_array().expect("a list").iter().map(Value::to_string).collect();
        (said["refused"].as_u64().expect("a count"), others)
    }

    /// Gives a session back; answers whether the database confirmed it.
    pub async fn release(&mut self, session: &str) -> bool {
        self.worker.send(&format!("release {session}"));
        self.worker.expect("released ").await == "true"
    }

    /// Whether its run of a session says that it may act.
    pub async fn is_held(&mut self, session: &str) -> bool {
        self.worker.send(&format!("held {session}"));
        self.worker.expect("held ").await == "true"
    }

    /// Tells it to watch a run that it holds, from now on until its end.
    pub fn watch(&mut self, session: &str) {
        self.worker.send(&format!("watch {session}"));
    }

    /// Waits for the end of a run that is [watched](Self::watch).
    pub async fn lost(&mut self, session: &str) -> Lost {
        let said = json_of(&self.worker.expect(&format!("lost {session} ")).await);
        let reason = said["reason"].as_str().expect("a reason").to_owned();
        Lost { last_held: instant(&said["last_held"]), reason }
    }

    /// Looks at a session, acquiring nothing.
    pub async fn look(&mut self, session: &str) -> Result<(SessionState, Option<Claim>), String> {
        self.worker.send(&format!("look {session}"));
        let said = json_of(&self.worker.expect("seen ").await);
        let state = match said["state"].as_str() {
            Some("Idle") => SessionState::Idle,
            Some("Running") => SessionState::Running,
            Some("Stopping") => SessionState::Stopping,
            Some("Stuck") => SessionState::Stuck,
            Some("Expired") => SessionState::Expired,
            _ => return Err(said["failed"].to_string()),
        };
        Ok((state, said.get("holder").map(claim)))
    }

    /// Exits without any farewell.
    pub async fn quit(&mut self) {
        self.worker.send("quit");
        assert!(self.worker.exit().await.success());
    }
}

/// A run, until it is released.
type Held = Arc<Mutex<Option<Run>>>;

/// What a test binary's entry for worker processes does, when all of them are devices.
pub fn enter() {
    process::enter(|role, commands| match role {
        ROLE => work(commands),
        _ => panic!("no role {role}"),
    });
}

/// A device's process.
fn work(mut commands: Commands) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a thread").block_on(async move {
        let env = |name| std::env::var(name).expect("the test sets it");
        let ttl = Duration::from_millis(env("TTL_MS").parse().expect("a number"));
        let builder = LeaseSupervisor::builder(env("URL")).holder_label(env("LABEL")).ttl(ttl);
        let supervisor = builder.hints(env("HINTS") == "true").start().await;
        let supervisor = supervisor.unwrap_or_else(|error| panic!("{error}"));
        say("ready");
        let mut runs = HashMap::new();
        loop {
            let line = commands.next().await;
            let words: Vec<_> = line.split(' ').collect();
            obey(&supervisor, &mut runs, &words).await;
        }
    });
}

async fn obey(supervisor: &LeaseSupervisor, runs: &mut HashMap<String, Held>, words: &[&str]) {
    match *words {
        ["node"] => say(format_args!("node {}", supervisor.node())),
        ["acquire", session, at] => {
            wait_until(parsed(at)).await;
            let at = SystemClock.now();
            let answer = supervisor.acquire(&key(session)).await;
            say(format_args!("answer {}", told(session, runs, at, answer)));
        }
        ["hammer", session, until] => {
            let (mut refused, mut others) = (0, Vec::new());
            while SystemClock.now() < parsed(until) {
                match supervisor.acquire(&key(session)).await {
                    Err(AcquireError::Busy(_)) => refused += 1,
                    Err(error) => others.push(error.to_string()),
                    Ok(run) => others.push(format!("granted {}", run.run_id())),
                }
            }
            say(format_args!("hammered {}", json!({ "refused": refused, "others": others })));
        }
        ["release", session] => {
            let held = runs.remove(session).expect("the test knows what it acquired");
            let run = held.lock().expect("no holder panics").take().expect("it is released once");
            say(format_args!("released {}", run.release().await.released));
        }
        ["phase", session, phase] => {
            let held = runs[session].lock().expect("no holder panics");
            held.as_ref().expect("it is held").set_phase(phase).expect("it is short");
        }
        ["watch", session] => watch(session, runs[session].clone()),
        ["held", session] => {
            let is_held =
                runs[session].lock().expect("no holder panics").as_ref().is_some_and(|run| run.is_held());
            say(format_args!("held {is_held}"));
        }
        ["look", session] => {
            let seen = match supervisor.inspect(&key(session)).await {
                Ok(status) => {
                    let mut seen = json!({ "state": format!("{:?}", status.state) });
                    if let Some(holder) = &status.holder {
                        seen["holder"] = holder_json(holder);
                    }
                    seen
                }
                Err(error) => json!({ "failed": error.to_string() }),
            };
            say(format_args!("seen {seen}"));
        }
        ["quit"] => exit(0),
        _ => panic!("no command {words:?}"),
    }
}

fn told(
    session: &str,
    runs: &mut HashMap<String, Held>,
    at: BootInstant,
    answer: Result<Run, AcquireError>,
) -> Value {
    let at = at.as_nanos();
    match answer {
        Ok(run) => {
            let told =
                json!({ "at": at, "granted": run.run_id().to_string(), "fence": run.fence().as_i64() });
            runs.insert(session.to_owned(), Held::new(Mutex::new(Some(run))));
            told
        }
        Err(AcquireError::Busy(busy)) => json!({ "at": at, "busy": holder_json(busy.holder()) }),
        Err(error) => json!({ "at": at, "failed": error.to_string() }),
    }
}

/// Tells of the end of a run, and of the last instant at which it said that it was held.
fn watch(session: &str, held: Held) {
    let session = session.to_owned();
    let ended = held.lock().expect("no holder panics").as_ref().expect("it is held").cancelled();
    let sampler = thread::spawn(move || {
        let mut last_held = BootInstant::from_nanos(0);
        loop {
            // The clock first: trust never comes back, so a run that is trusted now was so a moment ago.
            let now = SystemClock.now();
            if !held.lock().expect("no holder panics").as_ref().is_some_and(|run| run.is_held()) {
                return last_held;
            }
            last_held = now;
            thread::sleep(Duration::from_millis(1));
        }
    });
    tokio::spawn(async move {
        let reason = ended.await;
        let last_held = tokio::task::spawn_blocking(move || sampler.join()).await.expect("not aborted");
        let last_held = last_held.expect("the sampler does not panic").as_nanos();
        let told = json!({ "last_held": last_held, "reason": format!("{reason:?}") });
        say(format_args!("lost {session} {told}"));
    });
}

async fn wait_until(at: BootInstant) {
    // The last stretch is spun: timers are a millisecond coarse.
    let coarse = at.saturating_since(SystemClock.now()).saturating_sub(Duration::from_millis(2));
    if !coarse.is_zero() {
        sleep(coarse).await;
    }
    while SystemClock.now() < at {
        thread::yield_now();
    }
}

/// A session of the devices' account.
pub fn key(session: &str) -> SessionKey {
    SessionKey::new(ACCOUNT, session).expect("short")
}

fn holder_json(holder: &Holder) -> Value {
    let micros = |at: SystemTime| {
        at.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_micros().to_string()
    };
    json!({
        "run": holder.run_id.to_string(),
        "fence": holder.fence.as_i64(),
        "label": holder.label.as_str(),
        "node": holder.node.to_string(),
        "since": micros(holder.since),
        "expires_at": micros(holder.expires_at),
    })
}

fn claim(said: &Value) -> Claim {
    let text = |field: &str| said[field].as_str().expect("a text").to_owned();
    let micros = |field: &str| Duration::from_micros(text(field).parse().expect("microseconds"));
    Claim {
        run_id: text("run").parse().expect("a run id"),
        fence: number(&said["fence"]),
        label: text("label"),
        node: text("node").parse().expect("a node id"),
        since: micros("since"),
        expires_at: micros("expires_at"),
    }
}

fn json_of(said: &str) -> Value {
    serde_json::from_str(said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn number(value: &Value) -> i64 {
    value.as_i64().expect("a whole number")
}

fn instant(value: &Value) -> BootInstant {
    BootInstant::from_nanos(value.as_u64().expect("nanoseconds"))
}

fn parsed(nanos: &str) -> BootInstant {
    BootInstant::from_nanos(nanos.parse().expect("nanoseconds"))
}
