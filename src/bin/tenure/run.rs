//! `tenure run`: holds a session while a program runs.
//!
//! The lease comes first: CMD is started once the lease is held. While CMD runs, the guardian is told of every
//! confirmed renewal. When no more renewals come, it ends CMD's tree by itself. The release comes last: when the
//! guardian has reported that nothing of the tree is alive.

use std::{ffi::OsString, future::Future, pin::pin, time::Duration};

use futures::{FutureExt as _, Stream, StreamExt as _};
use tenure::{AcquireError, EndReason, Label, LeaseSupervisor, Run, RunEvent, SessionKey, text::printable};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    cli::{self, Global},
    database::Database,
    events::{Event, Events, Why},
    exit::{Exit, Failure, UNAVAILABLE, USAGE},
    inherited, mistakes,
    outcome::{ProgramEnd, RunOutcome},
    program::{self, Begun, Program, ProgramOutcome},
    show,
    side::socket::SideSocket,
    signals::{Inheritance, Signals},
};

/// How long the command waits at its end for a database that does not answer. The lease then expires by itself.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the database has to answer although a signal ends the wait. A signal may come with the end of CMD, and mean
/// both: Ctrl-C in a pipeline, or `pkill`.
const MOMENT: Duration = Duration::from_millis(500);
/// After how long the command says what it is waiting for.
const SAY_AFTER: Duration = Duration::from_secs(1);
/// How long closing the connections may take at the very end.
const GOODBYE: Duration = Duration::from_millis(200);

pub(crate) async fn run(
    global: &Global,
    args: &cli::RunArgs,
    inheritance: Inheritance,
) -> Result<Exit, Failure> {
    let key = args.session.key()?;
    check_program(&args.program)?;
    check_proc()?;
    let events = Events::open(args.events(), global.json, global.quiet, key.clone())
        .map_err(|error| Failure::new(USAGE, format!("--events: {error}")))?;
    let exit = hold(global, args, &key, &events, inheritance).await.unwrap_or_else(|failure| {
        events.tell(&Event::Failed(&failure));
        if args.events().is_some() {
            show::complain(&failure);
        }
        Exit::Code(failure.code)
    });
    events.flush();
    Ok(exit)
}

/// Refuses a URL as CMD: somebody forgot `--database`. The URL may have a password, so it is not quoted.
fn check_program(program: &[OsString]) -> Result<(), Failure> {
    let is_url = program.first().is_some_and(|name| name.to_string_lossy().contains("://"));
    if is_url {
        let message =
            "a URL stands where CMD belongs; name the database by --database or TENURE_DATABASE_URL";
        return Err(Failure::new(USAGE, message));
    }
    Ok(())
}

async fn hold(
    global: &Global,
    args: &cli::RunArgs,
    key: &SessionKey,
    events: &Events,
    inheritance: Inheritance,
) -> Result<Exit, Failure> {
    let label = args.holder.clone().unwrap_or_else(|| Label::user_at_host().into());
    let mut signals = Signals::listen(&inheritance).map_err(|error| Failure::new(UNAVAILABLE, error))?;
    let database = Database::of(global)?;
    let builder = database.writing()?.connect_timeout(global.connect_timeout);
    let starting = builder.ttl(args.ttl).stop_grace(args.stop_grace).holder_label(&label).start();
    let supervisor = tokio::select! {
        started = starting => started?,
        number = signals.next_end() => return Ok(Exit::Signal(number)),
    };
    let mut news = supervisor.events();
    let mut request = supervisor.acquire(key);
    if let Some(limit) = args.max_duration {
        request = request.max_duration(limit);
    }
    let acquired = tokio::select! {
        acquired = request.into_future() => acquired,
        number = signals.next_end() => {
            give_back(&supervisor, &mut signals, events).await;
            return Ok(Exit::Signal(number));
        }
    };
    let run = match acquired {
        Ok(run) => run,
        Err(error) => {
            give_back(&supervisor, &mut signals, events).await;
            let AcquireError::Busy(busy) = error else { return Err(error.into()) };
            events.tell(&Event::Busy { holder: busy.holder() });
            if global.quiet && !global.json {
                show::complain(format_args!("{key} is busy: {}", show::held_by(busy.holder())));
            }
            return Ok(Exit::Code(args.busy_code));
        }
    };
    let location = database.location()?;
    events.tell(&Event::Acquired { run: &run, holder: &label, ttl: args.ttl, database: &location });
    let begun = Begun { args, global, events, database: &database, timing: supervisor.timing() };
    let exit = work(run, begun, inheritance, &mut signals, &mut news).await;
    say_goodbye(supervisor, &database).await;
    Ok(exit)
}

/// Closes the connections to a server. A SQLite file is not closed: closing it would checkpoint its log, which may take
/// long on a busy disk. The next run can go on with the log.
async fn say_goodbye(supervisor: LeaseSupervisor, database: &Database) {
    if database.is_file() {
        std::mem::forget(supervisor);
    } else {
        let _ = timeout(GOODBYE, supervisor.shutdown(Duration::ZERO)).await;
    }
}

/// Checks that `/proc` shows this process's pid namespace. Processes are found in `/proc`, and in the `/proc` of
/// another namespace the same numbers belong to other processes.
fn check_proc() -> Result<(), Failure> {
    let own = std::fs::read_link("/proc/self").ok();
    if own.is_some_and(|own| own.to_str() == Some(&std::process::id().to_string())) {
        return Ok(());
    }
    let message = "/proc is missing, or of another pid namespace: mount it anew (`unshare --mount-proc`)";
    Err(Failure::new(UNAVAILABLE, message))
}

/// Closes a supervisor without a run. An acquire without an answer may have been granted; it is released now.
async fn give_back(supervisor: &LeaseSupervisor, signals: &mut Signals, events: &Events) {
    let what = "waiting for the database, to give back what it may have granted";
    patiently(async || signals.next_end().await, events, what, supervisor.shutdown(Duration::ZERO)).await;
}

/// Waits for an answer of the database, for [`PATIENCE`] at most. A signal that tells this process to end leaves it a
/// [`MOMENT`].
async fn patiently<T>(
    mut next_end: impl AsyncFnMut() -> i32,
    events: &Events,
    what: &str,
    answer: impl Future<Output = T>,
) -> Option<T> {
    let began = Instant::now();
    let (mut answer, mut over, mut late) = (pin!(answer), pin!(sleep(PATIENCE)), pin!(sleep(SAY_AFTER)));
    let (mut is_cut, mut is_said) = (false, false);
    loop {
        tokio::select! {
            biased;
            answer = &mut answer => return Some(answer),
            () = &mut over => return None,
            _ = next_end(), if !is_cut => {
                is_cut = true;
                over.as_mut().reset(began + MOMENT);
            }
            () = &mut late, if !is_said => {
                is_said = true;
                let left = show::short(PATIENCE - SAY_AFTER);
                events.tell(&Event::Note(&format!("{what}, for {left} at most; a signal ends the wait")));
            }
        }
    }
}

/// Runs CMD while the session is held, and releases the session.
async fn work(
    run: Run,
    begun: Begun<'_>,
    inheritance: Inheritance,
    signals: &mut Signals,
    news: &mut (impl Stream<Item = RunEvent> + Unpin),
) -> Exit {
    let (mut socket, error) = SideSocket::open(&run);
    if let Some(error) = error {
        let note = "CMD runs without the socket through which `tenure` inside it speaks to this run";
        begun.events.tell(&Event::Note(&format!("{note} (`tenure phase`; its database): {error}")));
    }
    let mut trust = run.trust();
    let Some(until) = trust.next().await else { return not_begun(run, signals, begun.events, None).await };
    let mut program = match Program::start(&run, begun, inheritance.dispositions, until, &socket) {
        Ok(program) => program,
        Err(failure) => return not_begun(run, signals, begun.events, Some(failure)).await,
    };
    let_go(inheritance, &begun);
    program.watch(signals, news, &mut trust, &mut socket).await;
    let watched = program.finish();
    // The tree is gone: the work has ended, and only now the session is given back (invariant I6).
    let (reason, released) = release(run, signals, begun.events).await;
    let exit = conclude(&begun, &watched, &reason, released);
    // Dropping this waits for the guardian to end. The guardian had the time of the release to do so.
    drop(watched.reports);
    exit
}

/// Releases the session. Returns why the run ended, and whether the database has confirmed the release.
async fn release(run: Run, signals: &mut Signals, events: &Events) -> (EndReason, bool) {
    let context = run.context();
    let what = "waiting for the database to confirm the release";
    match patiently(async || signals.next_end().await, events, what, run.release()).await {
        Some(ended) => (ended.reason, ended.released),
        // The run has ended as soon as its release was asked for, confirmed or not.
        None => (context.cancelled().now_or_never().unwrap_or(EndReason::Completed), false),
    }
}

/// Releases a session for which no program was started.
async fn not_begun(run: Run, signals: &mut Signals, events: &Events, failure: Option<Failure>) -> Exit {
    failure.iter().for_each(|failure| run.fail(failure));
    let (reason, released) = release(run, signals, events).await;
    let (word, exit) = match (&reason, &failure) {
        (EndReason::Failed { .. }, Some(failure)) => ("failed", Exit::Code(failure.code)),
        (reason, _) => {
            let outcome = RunOutcome {
                reason,
                program: ProgramEnd::Unknown,
                signaled: None,
                is_overdue: false,
                is_guardian_lost: false,
            };
            (outcome.word(), outcome.exit())
        }
    };
    failure.iter().for_each(|failure| events.tell(&Event::Failed(failure)));
    let why = Why { reason: word, ..program::why(&reason, None) };
    events.tell(&Event::Ended { why, exit_code: exit.code(), released });
    exit
}

/// Closes this process's copies of CMD's descriptors, so that the reader of a pipe sees the end when CMD closes it.
fn let_go(inheritance: Inheritance, begun: &Begun<'_>) {
    inheritance.let_go();
    let mut result = inherited::let_go_of_input_and_output();
    if begun.args.events().is_some() && begun.global.verbose == 0 {
        result = result.and_then(|()| inherited::let_go_of_errors());
    }
    if let Err(error) = result {
        tracing::warn!(%error, "CMD's input and output stay open here");
    }
}

/// Writes the last events of a run. Returns how this process is to end.
fn conclude(begun: &Begun<'_>, watched: &ProgramOutcome, reason: &EndReason, released: bool) -> Exit {
    let events = begun.events;
    let outcome = RunOutcome {
        reason,
        program: watched.end,
        signaled: watched.signaled,
        is_overdue: watched.is_overdue,
        is_guardian_lost: watched.is_guardian_lost,
    };
    let (exit, word) = (outcome.exit(), outcome.word());
    // While this process was stopped or starved, the guardian may have ended CMD after a loss.
    if reason.is_loss() && !watched.is_stopping {
        events.tell(&Event::Stopping(watched.why(word, reason)));
    }
    if let (ProgramEnd::CannotStart(errno), EndReason::Completed) = (watched.end, reason) {
        let error = std::io::Error::from_raw_os_error(errno);
        let name = begun.args.program.first().map(|name| name.to_string_lossy()).unwrap_or_default();
        let remedy = mistakes::remedy(&name, errno).map(|remedy| format!("; {remedy}")).unwrap_or_default();
        let sentence = format!("{} cannot be started: {error}{remedy}", printable(&name));
        events.tell(&Event::Failed(&Failure::new(exit.code(), sentence)));
    }
    if !released && *reason == EndReason::Completed {
        events.tell(&Event::Note("warning: the release is not confirmed; the lease expires by itself"));
    }
    events.tell(&Event::Ended { why: watched.why(word, reason), exit_code: exit.code(), released });
    exit
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        path::Path,
    };

    use tokio::time::sleep_until;

    use super::*;

    fn events() -> Events {
        let key = SessionKey::new("acct", "chat").unwrap();
        Events::open(Some(Path::new("/dev/null")), false, false, key).unwrap()
    }

    async fn waits(next_end: impl AsyncFnMut() -> i32, answer: impl Future<Output = ()>) -> (bool, Duration) {
        let began = Instant::now();
        let answered = patiently(next_end, &events(), "waiting", answer).await.is_some();
        (answered, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_signal_that_comes_with_the_end_of_cmd_costs_no_release() {
        let in_time = MOMENT - Duration::from_millis(1);
        let at_once = async || 15;
        assert_eq!(waits(at_once, sleep(in_time)).await, (true, in_time));
        assert_eq!(waits(at_once, ready(())).await, (true, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn a_signal_ends_the_wait_for_a_silent_database() {
        assert_eq!(waits(async || 2, pending()).await, (false, MOMENT));
        let late = Duration::from_secs(2);
        let at = Instant::now() + late;
        let one = async || {
            sleep_until(at).await;
            15
        };
        assert_eq!(waits(one, pending()).await, (false, late));
        assert_eq!(waits(async || pending().await, pending()).await, (false, PATIENCE));
    }
}
