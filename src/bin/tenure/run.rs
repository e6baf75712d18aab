//! `tenure run`: holds a session while a program runs.
//!
//! The lease comes first: CMD is started when it is held. While CMD runs, every confirmed renewal is passed on to
//! the guardian, which ends CMD's tree by itself when they stop coming. The release comes last: when the guardian
//! has said that nothing of the tree is alive.

use std::{
    ffi::OsString,
    path::PathBuf,
    pin::pin,
    time::{Duration, Instant},
};

use futures::{Stream, StreamExt as _};
use tenure::{AcquireError, EndReason, Run, RunEvent, SessionKey, Supervisor, clock::BootInstant, printable};
use tokio::task::JoinSet;

use crate::{
    caller::user_at_host,
    cli::{self, Global},
    database::Database,
    events::{Event, Events, reason_word, request},
    exit::{CANNOT_EXECUTE, FAILED, Failure, LOST, NOT_FOUND, STOPPED, TIMED_OUT, UNAVAILABLE, USAGE},
    guarded::{self, Guarded, Plan, Reports},
    inherited,
    phase::{self, PhaseSocket},
    show,
    signals::{self, Received, Signals},
    terminal::Terminal,
    wire::{Group, Report, Setup, Trust},
};

pub(crate) async fn run(global: &Global, args: &cli::Run) -> Result<u8, Failure> {
    let key = args.session.key()?;
    check_proc()?;
    let events = Events::open(args.events.as_deref(), global.json, global.quiet, key.clone())
        .map_err(|error| Failure::new(USAGE, format!("events cannot be written there: {error}")))?;
    let code = hold(global, args, &key, &events).await.unwrap_or_else(|failure| {
        events.tell(&Event::Failed(&failure));
        if args.events.is_some() {
            show::complain(&failure);
        }
        failure.code
    });
    events.close();
    Ok(code)
}

async fn hold(global: &Global, args: &cli::Run, key: &SessionKey, events: &Events) -> Result<u8, Failure> {
    let label = args.holder.clone().unwrap_or_else(user_at_host);
    let mut signals = Signals::listen().map_err(|error| Failure::new(UNAVAILABLE, error))?;
    let builder = Database::of(global)?.writing()?.connect_timeout(global.connect_timeout);
    let starting = builder.ttl(args.ttl).stop_grace(args.stop_grace).holder(&label).start();
    let supervisor = tokio::select! {
        started = starting => started?,
        number = signals.next() => return Ok(by_signal(number)),
    };
    let mut news = supervisor.events();
    let mut request = supervisor.acquire(key);
    if let Some(limit) = args.max_duration {
        request = request.max_duration(limit);
    }
    let acquired = tokio::select! {
        acquired = request.into_future() => acquired,
        number = signals.next() => {
            supervisor.shutdown(Duration::ZERO).await;
            return Ok(by_signal(number));
        }
    };
    let code = match acquired {
        Ok(run) => {
            events.tell(&Event::Acquired { run: &run, holder: &label, ttl: args.ttl });
            Session { run, args, events }.work(&supervisor, &mut signals, &mut news).await
        }
        Err(AcquireError::Busy(busy)) => {
            events.tell(&Event::Busy { holder: busy.holder() });
            if global.quiet && !global.json {
                show::complain(format_args!("{key} is busy: {}", show::held_by(busy.holder())));
            }
            Ok(args.busy_code)
        }
        Err(error) => Err(error.into()),
    };
    supervisor.shutdown(Duration::ZERO).await;
    code
}

/// Processes are found by `/proc`. One of another pid namespace would show strangers under our own numbers.
fn check_proc() -> Result<(), Failure> {
    let own = std::fs::read_link("/proc/self").ok();
    if own.is_some_and(|own| own.to_str() == Some(&std::process::id().to_string())) {
        return Ok(());
    }
    let message = "/proc is missing, or of another pid namespace: mount it anew (`unshare --mount-proc`)";
    Err(Failure::new(UNAVAILABLE, message))
}

/// A session that is held.
struct Session<'a> {
    run: Run,
    args: &'a cli::Run,
    events: &'a Events,
}

/// How CMD ended, once nothing of its tree is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProgramEnd {
    Exited(i32),
    Signaled(i32),
    CannotStart(i32),
    /// Before it had started, or without anybody having seen how.
    Unknown,
}

impl Session<'_> {
    async fn work(
        self,
        supervisor: &Supervisor,
        signals: &mut Signals,
        news: &mut (impl Stream<Item = RunEvent> + Unpin),
    ) -> Result<u8, Failure> {
        let Self { run, args, events } = self;
        let margin = supervisor.timing().safety_margin();
        let socket = match PhaseSocket::open(&run) {
            Ok(socket) => socket,
            Err(error) => {
                let sentence = format!("no socket for `tenure phase` can be made: {error}");
                return Ok(not_begun(run, events, Some(Failure::new(UNAVAILABLE, sentence))).await);
            }
        };
        let terminal = Terminal::open();
        let group = terminal.as_ref().map_or(Group::Own, Terminal::group_for_program);
        let mut trust = run.trust();
        let Some(until) = trust.next().await else { return Ok(not_begun(run, events, None).await) };
        let setup =
            Setup { run: run.run_id(), trust: deadlines(until, margin), grace: args.stop_grace, group };
        let plan = Plan {
            binary: PathBuf::from("/proc/self/exe"),
            setup,
            program: args.program.clone(),
            environment: environment(&run, &socket),
        };
        let (guarded, reports) = match guarded::start(&plan) {
            Ok(started) => started,
            Err(error) => {
                let failure = Failure::new(UNAVAILABLE, format!("the guardian cannot be started: {error}"));
                return Ok(not_begun(run, events, Some(failure)).await);
            }
        };
        // Whoever reads CMD's output sees its end when CMD closes it.
        if let Err(error) = inherited::let_go_of_input_and_output() {
            tracing::warn!(%error, "CMD's input and output stay open here");
        }
        let mut program = Program {
            run: &run,
            guarded,
            reports,
            terminal,
            group,
            pid: None,
            args,
            events,
            end: ProgramEnd::Unknown,
            signaled: None,
            signaled_at: Instant::now(),
            is_stopping: false,
            is_guardian_lost: false,
        };
        program.watch(margin, signals, news, &mut trust, &socket).await;
        let Program { end, signaled, is_guardian_lost, is_stopping, terminal, .. } = program;
        drop(terminal);
        // The tree is gone: the work has ended, and only now the session is given back (invariant I6).
        let ended = run.release().await;
        // The guardian may have dealt with a loss before this process, stopped or starved, has noticed it.
        if ended.reason.is_loss() && !is_stopping {
            events.tell(&Event::Stopping { reason: reason_word(&ended.reason), by: None, why: None });
        }
        let signaled = signaled.filter(|number| is_by_signal(&ended.reason, *number));
        let code = exit_code(&ended.reason, end, signaled);
        let is_unseen = is_guardian_lost && ended.reason == EndReason::Completed;
        if !ended.released && ended.reason == EndReason::Completed {
            events.tell(&Event::Note("warning: the release is not confirmed; the lease expires by itself"));
        }
        if let ProgramEnd::CannotStart(errno) = end {
            let error = std::io::Error::from_raw_os_error(errno);
            let name =
                args.program.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let sentence = format!("{} cannot be started: {error}", printable(&name));
            events.tell(&Event::Failed(&Failure::new(code, sentence)));
        }
        let reason = match signaled {
            _ if is_unseen => "guardian_lost",
            Some(_) => "signal",
            None => reason_word(&ended.reason),
        };
        // The signal is its own reason.
        let (_, why) = request(&ended.reason);
        let why = why.filter(|_| signaled.is_none());
        events.tell(&Event::Ended { reason, why, exit_code: code, released: ended.released });
        Ok(code)
    }
}

/// Gives back a session for which nothing was started, and answers the exit code.
async fn not_begun(run: Run, events: &Events, failure: Option<Failure>) -> u8 {
    let ended = run.release().await;
    let (_, why) = request(&ended.reason);
    let (reason, code) = match (&ended.reason, &failure) {
        (EndReason::Completed, Some(failure)) => ("failed", failure.code),
        (reason, _) => (reason_word(reason), exit_code(reason, ProgramEnd::Unknown, None)),
    };
    failure.iter().for_each(|failure| events.tell(&Event::Failed(failure)));
    events.tell(&Event::Ended { reason, why, exit_code: code, released: ended.released });
    code
}

/// CMD under its guardian, and what is known of both.
struct Program<'a> {
    run: &'a Run,
    guarded: Guarded,
    reports: Reports,
    terminal: Option<Terminal>,
    group: Group,
    /// CMD's process, once there is one.
    pid: Option<u32>,
    args: &'a cli::Run,
    events: &'a Events,
    end: ProgramEnd,
    /// The signal by which this command was told to end.
    signaled: Option<i32>,
    signaled_at: Instant,
    is_stopping: bool,
    is_guardian_lost: bool,
}

/// The same signal again, this long after the first, asks for an end without grace.
const IMPATIENT_AFTER: Duration = Duration::from_secs(1);

/// How often to see whether a shell has given this process the terminal, which it does without a signal when the
/// job was already running (`fg` after `&`).
const LOOK_AT_TERMINAL: Duration = Duration::from_millis(300);

impl Program<'_> {
    /// Returns when nothing of the tree is alive.
    async fn watch(
        &mut self,
        margin: Duration,
        signals: &mut Signals,
        news: &mut (impl Stream<Item = RunEvent> + Unpin),
        trust: &mut (impl Stream<Item = BootInstant> + Unpin),
        socket: &PhaseSocket,
    ) {
        let mut cancelled = pin!(self.run.cancelled());
        let mut phases = JoinSet::new();
        let (mut trusted, mut told) = (true, true);
        let mut look = tokio::time::interval(LOOK_AT_TERMINAL);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                reason = &mut cancelled, if !self.is_stopping => self.stop(&reason),
                until = trust.next(), if trusted => match until {
                    Some(until) => _ = self.guarded.trust(deadlines(until, margin)),
                    None => trusted = false,
                },
                report = self.reports.next() => match report {
                    Some(report) => self.heed(report).await,
                    None => return,
                },
                received = signals.next_of_all() => match received {
                    Received::End(number) => self.on_signal(number),
                    Received::Continued => self.resume(),
                },
                event = news.next(), if told => match event {
                    Some(event) => self.tell(&event),
                    None => told = false,
                },
                stream = socket.accept() => {
                    let context = self.run.context();
                    let set = move |text: &str| context.set_phase(text).map_err(|error| error.to_string());
                    phases.spawn(phase::hear(stream, set));
                }
                Some(_) = phases.join_next() => {}
                _ = look.tick(), if self.terminal.is_some() => {
                    if !self.is_stopping {
                        self.lend_terminal();
                    }
                }
            }
        }
    }

    /// Orders to a guardian that is lost have no effect: the reports then do its work.
    fn stop(&mut self, reason: &EndReason) {
        self.is_stopping = true;
        if reason.is_loss() {
            // Its own Stopping event comes only with ends that leave time.
            self.events.tell(&Event::Stopping { reason: reason_word(reason), by: None, why: None });
        }
        let _ = self.guarded.stop(self.args.stop_grace);
    }

    async fn heed(&mut self, report: Report) {
        match report {
            Report::Ready(pid) => {
                self.pid = Some(pid);
                self.lend_terminal();
                // Never after a stop decision, and never without the lease.
                if !self.is_stopping && self.run.is_held() {
                    let _ = self.guarded.go();
                }
            }
            Report::CannotStart { errno, .. } => self.end = ProgramEnd::CannotStart(errno),
            Report::Exited(code) => self.end = ProgramEnd::Exited(code),
            Report::Signaled(number) => self.end = ProgramEnd::Signaled(number),
            Report::Stopped(_) => self.follow_into_stop().await,
            Report::Killed { pid, name } => {
                let name = printable(&name);
                self.events.tell(&Event::Note(&format!("killed process {pid} ({name}), which did not end")));
            }
            Report::Survivors(pids) => {
                self.events.tell(&Event::Note(&format!(
                    "processes that cannot be killed: {pids:?}; the lease is kept"
                )));
            }
            Report::GuardianLost => {
                self.is_guardian_lost = true;
                self.events.tell(&Event::Note("the guardian is lost; ending CMD without it"));
            }
            Report::Started(_) | Report::Continued | Report::Overdue | Report::TreeEmpty => {}
        }
    }

    /// Ctrl-Z: this command stops as CMD has, and on `fg` CMD goes on only if the lease is still held.
    async fn follow_into_stop(&mut self) {
        // Without a terminal, whoever stopped CMD will continue it.
        let Some(terminal) = &mut self.terminal else { return };
        match terminal.follow_stop(self.group).await {
            Ok(true) => self.resume(),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "cannot stop like CMD"),
        }
    }

    /// Goes on after a stop; CMD does only if the lease is still held.
    fn resume(&mut self) {
        if self.terminal.is_some() && self.run.is_held() && !self.is_stopping {
            self.lend_terminal();
            let _ = self.guarded.signal(nix::libc::SIGCONT);
        }
    }

    fn lend_terminal(&mut self) {
        let (Some(terminal), Some(pid)) = (&mut self.terminal, self.pid) else { return };
        if let Err(error) = terminal.lend(self.group, pid) {
            tracing::warn!(%error, "the terminal cannot be given to CMD");
        }
    }

    fn on_signal(&mut self, number: i32) {
        // In a group of several (a pipeline, a script), Ctrl-C reaches CMD as well, and is CMD's to answer.
        if is_from_keyboard(number) && matches!(self.group, Group::Shared(_)) {
            return;
        }
        let Some(first) = self.signaled else {
            self.signaled = Some(number);
            self.signaled_at = Instant::now();
            return self.run.stop(signals::name(number));
        };
        // Told twice, from the keyboard or by somebody who has waited: no more patience. A service manager that sends
        // SIGTERM and SIGHUP together means one end.
        let is_pressing = is_from_keyboard(first) || is_from_keyboard(number);
        if is_pressing || (first == number && self.is_long_since()) {
            let _ = self.guarded.stop(Duration::ZERO);
        }
    }

    fn is_long_since(&self) -> bool {
        self.signaled_at.elapsed() > IMPATIENT_AFTER
    }

    fn tell(&self, event: &RunEvent) {
        match event {
            RunEvent::AtRisk { trusted_for, .. } => {
                self.events.tell(&Event::AtRisk { trusted_for: *trusted_for })
            }
            RunEvent::Recovered { .. } => self.events.tell(&Event::Recovered),
            RunEvent::Stopping { reason, .. } => {
                let (by, why) = request(reason);
                let is_signal = self.signaled.is_some_and(|number| is_by_signal(reason, number));
                let (reason, why) = if is_signal { ("signal", None) } else { (reason_word(reason), why) };
                self.events.tell(&Event::Stopping { reason, by, why });
            }
            RunEvent::Stuck { .. } => {
                self.events.tell(&Event::Note("CMD does not end; the lease is kept until it does"))
            }
            _ => {}
        }
    }
}

fn is_from_keyboard(signal: i32) -> bool {
    signal == nix::libc::SIGINT || signal == nix::libc::SIGQUIT
}

/// `kill_at` is what assumption A4 leaves the work after a loss.
fn deadlines(until: BootInstant, margin: Duration) -> Trust {
    Trust { until, kill_at: until + margin / 2 }
}

fn environment(run: &Run, socket: &PhaseSocket) -> Vec<(OsString, Option<OsString>)> {
    let set = |name: &str, value: OsString| (OsString::from(name), Some(value));
    vec![
        set("TENURE_ACCOUNT", run.key().account().into()),
        set("TENURE_SESSION", run.key().session().into()),
        set("TENURE_RUN_ID", run.run_id().to_string().into()),
        set("TENURE_FENCE", run.fence().to_string().into()),
        set(phase::SOCKET, socket.path().into()),
        // It may hold a password, and is no business of CMD's.
        ("TENURE_DATABASE_URL".into(), None),
    ]
}

/// Whether a run ended because this command was told to: a stop from elsewhere, or a loss, may have come first.
fn is_by_signal(reason: &EndReason, number: i32) -> bool {
    matches!(reason, EndReason::Stopped { by: None, why: Some(why) } if *why == signals::name(number))
}

fn exit_code(reason: &EndReason, end: ProgramEnd, signaled: Option<i32>) -> u8 {
    match (end, reason) {
        (ProgramEnd::CannotStart(nix::libc::ENOENT), EndReason::Completed) => NOT_FOUND,
        (ProgramEnd::CannotStart(_), EndReason::Completed) => CANNOT_EXECUTE,
        (_, EndReason::Stopped { .. }) if signaled.is_some() => by_signal(signaled.unwrap_or_default()),
        (_, EndReason::Stopped { .. } | EndReason::Shutdown) => STOPPED,
        (_, EndReason::TimedOut { .. }) => TIMED_OUT,
        (ProgramEnd::Exited(code), EndReason::Completed) => u8::try_from(code).unwrap_or(u8::MAX),
        (ProgramEnd::Signaled(number), EndReason::Completed) => by_signal(number),
        (_, reason) if reason.is_loss() => LOST,
        (_, _) => FAILED,
    }
}

fn by_signal(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(u8::MAX)
}
