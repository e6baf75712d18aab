//! Runs CMD under its guardian while the session is held, and reacts to signals, renewals, losses and requests to stop.

mod answering;

use std::{
    ffi::OsString,
    path::PathBuf,
    pin::pin,
    time::{Duration, Instant, SystemTime},
};

use futures::{Stream, StreamExt as _};
use nix::libc;
use tenure::{
    EndReason, Limit, Run, RunEvent, Timing,
    clock::{BootInstant, Clock as _, SystemClock},
    text::printable,
};
use tokio::task::JoinSet;

use crate::{
    cli::{self, Global},
    database::{Database, FileMark},
    events::{Event, Events, Why, request},
    exit::{Failure, UNAVAILABLE},
    guarded::{self, GuardPlan, Guarded, Reports},
    inherited::Dispositions,
    outcome::{ProgramEnd, is_by_signal, word},
    side::{
        self,
        socket::{self, SideSocket},
    },
    signals::{Received, Signals},
    terminal::Terminal,
    wire::{Deadlines, Group, Report, Setup, ToldBy},
};

/// How often to check whether a shell has given this process the terminal. When the job was already running (`fg` after
/// `&`), the shell does so without a signal.
const LOOK_AT_TERMINAL: Duration = Duration::from_millis(300);

/// What a run was begun with.
#[derive(Clone, Copy)]
pub(crate) struct Begun<'a> {
    pub(crate) args: &'a cli::RunArgs,
    pub(crate) global: &'a Global,
    pub(crate) events: &'a Events,
    pub(crate) database: &'a Database,
    pub(crate) timing: Timing,
}

/// CMD under its guardian, and what is known about both.
pub(crate) struct Program<'a> {
    run: &'a Run,
    begun: Begun<'a>,
    guarded: Guarded,
    reports: Reports,
    terminal: Option<Terminal>,
    group: Group,
    /// CMD's process, once there is one.
    pid: Option<u32>,
    /// The end of trust, as the last confirmed renewal has moved it.
    trusted_until: BootInstant,
    /// The SQLite file with the leases, as it was at the start. `None` if the leases are not in a SQLite file.
    file: Option<FileMark>,
    /// The error of the last renewal, if it failed.
    cause: Option<String>,
    end: ProgramEnd,
    /// The first signal that told this command to end.
    signaled: Option<Received>,
    signaled_at: Instant,
    /// A signal told this command to stop (Ctrl-Z). It stops when CMD has stopped.
    is_to_suspend: bool,
    is_stopping: bool,
    /// The guardian reported the end of trust before this process knew of a reason to end CMD.
    is_overdue: bool,
    /// Another run may hold the session already.
    is_overtaken: bool,
    is_guardian_lost: bool,
    survivors: Vec<u32>,
}

/// How CMD ended. Nothing of its tree is alive any more.
pub(crate) struct ProgramOutcome {
    pub(crate) end: ProgramEnd,
    pub(crate) signaled: Option<i32>,
    pub(crate) is_stopping: bool,
    pub(crate) is_overdue: bool,
    pub(crate) is_guardian_lost: bool,
    /// Dropping it waits for the guardian to end.
    pub(crate) reports: Reports,
    confirmed_at: SystemTime,
    cause: Option<String>,
}

impl<'a> Program<'a> {
    /// Starts the guardian, and the process that will become CMD.
    pub(crate) fn start(
        run: &'a Run,
        begun: Begun<'a>,
        dispositions: Dispositions,
        until: BootInstant,
        socket: &SideSocket,
    ) -> Result<Self, Failure> {
        let terminal = Terminal::open();
        let group = terminal.as_ref().map_or(Group::Own, Terminal::group_for_program);
        let setup = Setup {
            run: run.run_id(),
            trust: deadlines(until, begun.timing.safety_margin()),
            grace: begun.args.stop_grace,
            group,
            dispositions,
            leave: begun.args.leave.clone(),
        };
        let plan = GuardPlan {
            binary: PathBuf::from("/proc/self/exe"),
            title: format!("tenure: guardian of {}", printable(run.key().session())),
            setup,
            program: begun.args.program.clone(),
            environment: environment(run, socket),
        };
        let (guarded, reports) = guarded::start(&plan)
            .map_err(|error| Failure::new(UNAVAILABLE, format!("the guardian cannot be started: {error}")))?;
        Ok(Self {
            run,
            begun,
            guarded,
            reports,
            terminal,
            group,
            pid: None,
            trusted_until: until,
            file: begun.database.mark(),
            cause: None,
            end: ProgramEnd::Unknown,
            signaled: None,
            signaled_at: Instant::now(),
            is_to_suspend: false,
            is_stopping: false,
            is_overdue: false,
            is_overtaken: false,
            is_guardian_lost: false,
            survivors: Vec::new(),
        })
    }

    /// Handles all events of the run. Returns when nothing of the tree is alive.
    pub(crate) async fn watch(
        &mut self,
        signals: &mut Signals,
        news: &mut (impl Stream<Item = RunEvent> + Unpin),
        trust: &mut (impl Stream<Item = BootInstant> + Unpin),
        socket: &mut SideSocket,
    ) {
        let mut cancelled = pin!(self.run.cancelled());
        let mut overtaken = pin!(self.run.overtaken());
        let mut requests = JoinSet::new();
        let (mut trusted, mut told, mut is_cancelled) = (true, true, false);
        let mut look = tokio::time::interval(LOOK_AT_TERMINAL);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = &mut overtaken, if !self.is_overtaken => self.be_overtaken(),
                reason = &mut cancelled, if !is_cancelled => {
                    is_cancelled = true;
                    self.stop(&reason);
                }
                until = trust.next(), if trusted => match until {
                    Some(until) => {
                        self.trust(until);
                        socket.restore();
                    }
                    None => trusted = false,
                },
                report = self.reports.next() => match report {
                    Some(report) => self.heed(report),
                    None => return,
                },
                received = signals.next() => self.on_signal(received),
                event = news.next(), if told => match event {
                    Some(event) => self.tell(&event),
                    None => told = false,
                },
                stream = socket.accept() => {
                    let database = self.begun.database.absolute_url();
                    requests.spawn(socket::hear(stream, self.run.context(), database));
                }
                Some(_) = requests.join_next() => {}
                _ = look.tick(), if self.may_be_given_terminal() => {
                    if !self.is_stopping {
                        self.lend_terminal();
                    }
                }
            }
        }
    }

    /// Takes the terminal back. If CMD was killed, also restores the terminal's modes, which CMD could not do itself.
    pub(crate) fn finish(mut self) -> ProgramOutcome {
        let is_by_itself = matches!(self.end, ProgramEnd::Exited(_) | ProgramEnd::CannotStart(_));
        if let Some(terminal) = self.terminal.as_mut().filter(|_| !is_by_itself) {
            terminal.restore_modes();
        }
        ProgramOutcome {
            confirmed_at: self.confirmed_at(),
            end: self.end,
            signaled: self.signaled.map(|signal| signal.number),
            is_stopping: self.is_stopping,
            is_overdue: self.is_overdue,
            is_guardian_lost: self.is_guardian_lost,
            reports: self.reports,
            cause: self.cause,
        }
    }

    /// Orders the guardian to end CMD. An error means that the guardian is lost; [`Reports`] then does its work.
    fn stop(&mut self, reason: &EndReason) {
        if *reason == EndReason::Superseded {
            self.cause = self.file.as_ref().and_then(FileMark::change).or(self.cause.take());
        }
        if reason.is_loss() {
            // The supervisor sends `RunEvent::Stopping` only for ends that leave CMD time.
            self.tell_loss(word(reason, None));
        }
        self.is_stopping = true;
        let told = self.signaled.filter(|signal| is_by_signal(reason, signal.number));
        let told_by = match told {
            Some(signal) if signal.number != libc::SIGTERM => ToldBy::Signal(signal.number),
            Some(signal) if signal.is_by_manager() => ToldBy::Manager,
            _ => ToldBy::Sigterm,
        };
        let grace = if reason.is_certain_loss() { Duration::ZERO } else { self.begun.args.stop_grace };
        let _ = self.guarded.stop(grace, told_by);
    }

    /// Ends CMD's grace, since another run may be at work (invariant I13).
    fn be_overtaken(&mut self) {
        self.is_overtaken = true;
        let _ = self.guarded.stop(Duration::ZERO, ToldBy::Sigterm);
    }

    fn tell_loss(&mut self, reason: &str) {
        if !self.is_stopping {
            let why = Why {
                reason,
                confirmed_at: Some(self.confirmed_at()),
                cause: self.cause.as_deref(),
                ..Why::default()
            };
            self.begun.events.tell(&Event::Stopping(why));
        }
    }

    fn trust(&mut self, until: BootInstant) {
        self.trusted_until = until;
        let _ = self.guarded.trust(deadlines(until, self.begun.timing.safety_margin()));
    }

    /// When the last confirmed renewal, or the acquire, was sent, by the wall clock.
    fn confirmed_at(&self) -> SystemTime {
        let trusted_for = self.begun.timing.ttl().saturating_sub(self.begun.timing.safety_margin());
        let sent_at = self.trusted_until.saturating_sub(trusted_for);
        let now = SystemTime::now();
        now.checked_sub(SystemClock.now().saturating_since(sent_at)).unwrap_or(now)
    }

    fn heed(&mut self, report: Report) {
        match report {
            Report::Ready(pid) => {
                self.pid = Some(pid);
                self.lend_terminal();
                // CMD is never started after a decision to stop, and never without the lease.
                if !self.is_stopping && self.run.is_held() {
                    let _ = self.guarded.go();
                }
            }
            Report::CannotStart { errno, .. } => self.end = ProgramEnd::CannotStart(errno),
            Report::Exited(code) => self.end = ProgramEnd::Exited(code),
            Report::Signaled(number) => self.end = ProgramEnd::Signaled(number),
            Report::Stopped(_) => self.follow_into_stop(),
            Report::Overdue => {
                // The guardian is ending CMD. A renewal that it was not told of cannot change that any more.
                self.tell_loss("unconfirmed");
                self.is_overdue = !std::mem::replace(&mut self.is_stopping, true);
            }
            Report::Killed { pid, name } => {
                let name = printable(&name);
                let why = if self.is_overtaken { "without grace" } else { "which did not end" };
                self.note(&format!("killed process {pid} ({name}), {why}"));
            }
            Report::Left { pid, name } => self.begun.events.tell(&Event::Left { pid, name: &name }),
            Report::Survivors(pids) => self.tell_survivors(pids),
            Report::GuardianLost => {
                self.is_guardian_lost = true;
                self.note("the guardian was killed or does not answer; ending CMD without it");
            }
            Report::Started(_) | Report::Continued | Report::Heard(_) | Report::TreeEmpty => {}
        }
    }

    fn tell_survivors(&mut self, pids: Vec<u32>) {
        if pids == self.survivors {
            return;
        }
        let is_kept = SystemClock.now() < self.trusted_until && !self.is_overdue;
        let follows = match is_kept {
            true => "the lease is kept until they are gone",
            false => "the lease is over, and another run may begin beside them",
        };
        self.note(&format!("processes that cannot be killed: {pids:?}; {follows}"));
        self.survivors = pids;
    }

    fn note(&self, text: &str) {
        self.begun.events.tell(&Event::Note(text));
    }

    /// Whether CMD may still get the terminal: it runs in the background so far.
    fn may_be_given_terminal(&self) -> bool {
        self.group == Group::Own && self.terminal.as_ref().is_some_and(|terminal| !terminal.is_lent())
    }

    fn lend_terminal(&mut self) {
        let (Some(terminal), Some(pid)) = (&mut self.terminal, self.pid) else { return };
        if let Err(error) = terminal.lend(self.group, pid) {
            tracing::warn!(%error, "the terminal cannot be given to CMD");
        }
    }

    fn tell(&mut self, event: &RunEvent) {
        match event {
            // While CMD is being ended, the state of the lease is of no interest.
            RunEvent::AtRisk { .. } | RunEvent::Recovered { .. } if self.is_stopping => {}
            RunEvent::AtRisk { trusted_for, cause, .. } => {
                self.cause = cause.as_ref().map(ToString::to_string);
                self.begun.events.tell(&Event::AtRisk {
                    trusted_for: *trusted_for,
                    confirmed_at: Some(self.confirmed_at()),
                    cause: self.cause.as_deref(),
                });
            }
            RunEvent::Recovered { .. } => {
                self.cause = None;
                self.begun.events.tell(&Event::Recovered);
            }
            RunEvent::Stopping { reason, .. } => {
                let why = why(reason, self.signaled.map(|signal| signal.number));
                self.begun.events.tell(&Event::Stopping(why));
            }
            RunEvent::Stuck { .. } => self.note("CMD does not end; the lease is kept until it does"),
            _ => {}
        }
    }
}

impl ProgramOutcome {
    /// Why the run ended, with this word for the reason.
    pub(crate) fn why<'a>(&'a self, word: &'a str, reason: &'a EndReason) -> Why<'a> {
        let is_loss = reason.is_loss() || self.is_overdue;
        Why {
            reason: word,
            confirmed_at: Some(self.confirmed_at).filter(|_| is_loss),
            cause: self.cause.as_deref().filter(|_| is_loss),
            ..why(reason, self.signaled)
        }
    }
}

/// Why a run ends. If a signal told this command to end, the word is "signal", and the text of the run's reason, which
/// is the signal's name, is left out.
pub(crate) fn why(reason: &EndReason, signaled: Option<i32>) -> Why<'_> {
    let reason_word = word(reason, signaled);
    let (by, why) = request(reason);
    let limit = match reason {
        EndReason::TimedOut { limit: Limit::MaxDuration(limit) | Limit::MaxSilence(limit), .. } => {
            Some(*limit)
        }
        _ => None,
    };
    Why { reason: reason_word, by, why: why.filter(|_| reason_word != "signal"), limit, ..Why::default() }
}

/// CMD is killed half a safety margin after the end of trust: assumption A4 gives work that long.
fn deadlines(until: BootInstant, margin: Duration) -> Deadlines {
    Deadlines { until, kill_at: until + margin / 2 }
}

fn environment(run: &Run, socket: &SideSocket) -> Vec<(OsString, Option<OsString>)> {
    let set = |name: &str, value: OsString| (OsString::from(name), Some(value));
    vec![
        set("TENURE_ACCOUNT", run.key().account().into()),
        set("TENURE_SESSION", run.key().session().into()),
        set(side::RUN_ID, run.run_id().to_string().into()),
        set("TENURE_FENCE", run.fence().to_string().into()),
        // Where this run has no socket, CMD must not inherit that of a run around this one.
        (side::SOCKET.into(), socket.path().map(Into::into)),
        // The URL may have a password, which CMD must not see.
        ("TENURE_DATABASE_URL".into(), None),
    ]
}
