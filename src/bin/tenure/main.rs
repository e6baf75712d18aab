//! The command `tenure`: holds a session while a program runs, and shows who holds what.
//!
//! Each subcommand is a file of its own and uses only the library's public API. `run` has several parts: `program` runs
//! CMD under its guardian; `guarded` starts the guardian as a process of its own and speaks to it in the lines of
//! `wire`; `guardian` is the code of that process. `terminal`, `signals` and `events` are what their names say, and
//! `outcome` computes the exit code.

mod breaking;
mod cli;
mod database;
mod doctor;
#[cfg(target_os = "linux")]
mod events;
mod exit;
#[cfg(target_os = "linux")]
mod guarded;
#[cfg(target_os = "linux")]
mod guardian;
#[cfg(target_os = "linux")]
mod inherited;
#[cfg(target_os = "linux")]
mod launch;
mod lines;
mod list;
mod manual;
mod masking;
mod migrate;
mod mistakes;
#[cfg(target_os = "linux")]
mod outcome;
#[cfg(unix)]
mod phase;
#[cfg(target_os = "linux")]
mod proc_stat;
#[cfg(target_os = "linux")]
mod program;
#[cfg(target_os = "linux")]
mod run;
mod show;
#[cfg(unix)]
mod side;
#[cfg(target_os = "linux")]
mod signals;
mod status;
mod stop;
#[cfg(target_os = "linux")]
mod terminal;
#[cfg(target_os = "linux")]
mod timer;
mod watch;
mod why;
#[cfg(target_os = "linux")]
mod wire;

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
};

use clap::error::ErrorKind;
#[cfg(unix)]
use rustix::process::{Resource, getrlimit};
use tenure::limits::Need;
use tracing::level_filters::LevelFilter;

use crate::{
    cli::{Cli, Command, Global},
    exit::{Exit, Failure, UNAVAILABLE, USAGE},
    lines::Lines,
};

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    inherited::share_one_heap();
    #[cfg(target_os = "linux")]
    if let Some(code) = in_another_role() {
        return code;
    }
    if let Err(failure) = check_parsing() {
        let asked = cli::wanted_output(std::env::args_os().skip(1));
        tell(&failure, asked.json, asked.has_events);
        return ExitCode::from(failure.code);
    }
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => {
            let args: Vec<_> = std::env::args_os().skip(1).collect();
            let error = mistakes::advise(error, &args);
            answer(&error);
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    let result = obey(&cli);
    let exit = result.unwrap_or_else(|failure| {
        tell(&failure, cli.global.json, cli.command.has_events());
        Exit::Code(failure.code)
    });
    #[cfg(target_os = "linux")]
    if let Exit::Signal(number) = exit {
        inherited::die_of(number);
    }
    ExitCode::from(exit.code())
}

fn obey(cli: &Cli) -> Result<Exit, Failure> {
    // Before `check_limits`, which starts threads: signals must be blocked before a thread is started.
    #[cfg(target_os = "linux")]
    let inheritance = matches!(cli.command, Command::Run(_)).then(signals::Inheritance::take).transpose();
    #[cfg(target_os = "linux")]
    let inheritance = inheritance.map_err(|error| Failure::new(UNAVAILABLE, error))?;
    check_limits(&cli.command)?;
    let log = log_to_stderr(&cli.global);
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        #[cfg(target_os = "linux")]
        if let (Command::Run(args), Some(inheritance)) = (&cli.command, inheritance) {
            return run::run(&cli.global, args, inheritance).await;
        }
        execute(cli).await.map(Exit::Code)
    });
    log.finish();
    // All answers are written. Dropping the runtime would wait for its blocking threads, which end with the process.
    std::mem::forget(runtime);
    result
}

/// Reports a failure. With `--json`, `run` writes it to stderr as it writes its events; the other commands write it to
/// stdout, and a sentence for people to stderr.
fn tell(failure: &Failure, json: bool, has_events: bool) {
    match (json, has_events) {
        (true, true) => show::say(failure.to_json()),
        (true, false) => {
            show::complain(failure);
            // An error means that nobody reads stdout any more.
            let _ = show::print(format_args!("{}\n", failure.to_json()));
        }
        (false, _) => show::complain(failure),
    }
}

async fn execute(cli: &Cli) -> Result<u8, Failure> {
    let global = &cli.global;
    match &cli.command {
        #[cfg(target_os = "linux")]
        Command::Run(_) => unreachable!("it does not come here"),
        Command::Status(args) => status::status(global, args).await,
        Command::Stop(args) => stop::stop(global, args).await,
        Command::Why(args) => why::why(global, args).await,
        Command::Break(args) => breaking::break_lease(global, args).await,
        Command::Watch(args) => watch::watch(global, args).await,
        Command::List(args) => list::list(global, args).await,
        #[cfg(unix)]
        Command::Phase(args) => phase::phase(global, args),
        Command::Migrate(args) => migrate::migrate(global, args).await,
        Command::Sweep => migrate::sweep(global).await,
        Command::Doctor(args) => doctor::doctor(global, args).await,
        Command::Completions(args) => manual::completions(args),
        Command::Man(args) => manual::page(args),
    }
}

/// Runs the guardian: `tenure run` starts this binary again for this role.
#[cfg(target_os = "linux")]
fn in_another_role() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let role = args.next()?;
    match role.to_str()? {
        wire::GUARDIAN => Some(guardian::main(args)),
        _ => None,
    }
}

/// The stack that this thread needs, in KiB.
#[cfg(unix)]
const STACK: u64 = 512;

/// Checks that the process may have what reading the command line needs. The parser cannot report a lack of memory, and
/// a thread that overflows its stack aborts the process.
fn check_parsing() -> Result<(), Failure> {
    #[cfg(unix)]
    if let Some(limit) =
        getrlimit(Resource::Stack).current.map(|bytes| bytes / 1024).filter(|limit| *limit < STACK)
    {
        let message = format!(
            "too small a stack: {limit} KiB of {STACK}; raise the limit on the stack (`ulimit -s`, LimitSTACK=)"
        );
        return Err(Failure::new(UNAVAILABLE, message));
    }
    let little = Need::default().memory(4 << 20);
    little.check().map_err(|shortage| Failure::new(UNAVAILABLE, shortage))
}

/// Checks that the process may have what the command, its supervisor and its child processes need together. Without
/// this check, a run could meet a limit while it holds a lease.
fn check_limits(command: &Command) -> Result<(), Failure> {
    let need = match command {
        Command::Phase(_) | Command::Completions(_) | Command::Man(_) => {
            Need::default().descriptors(10).threads(2).memory(4 << 20)
        }
        #[cfg(target_os = "linux")]
        // The supervisor, the writer of events, two connections to a SQLite file, the guardian, and CMD.
        Command::Run(_) => Need::default().descriptors(40).threads(6).memory(48 << 20),
        _ => Need::default().descriptors(40).threads(9).memory(48 << 20),
    };
    need.check().map_err(|shortage| Failure::new(UNAVAILABLE, shortage))
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| Failure::new(UNAVAILABLE, error))
}

/// Prints what is wrong with the command line, with passwords masked, or the help that was asked for.
fn answer(error: &clap::Error) {
    let text = error.render().to_string();
    // Help quotes no argument, and its own example of a URL is to be shown whole.
    let shown = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => text.clone(),
        _ => masking::without_passwords(&text),
    };
    let asked = cli::wanted_output(std::env::args_os().skip(1));
    if error.use_stderr() && asked.json {
        let failure = Failure::usage(&shown);
        if !asked.has_events {
            // An error means that nobody reads stdout any more.
            let _ = show::print(format_args!("{}\n", failure.to_json()));
            eprint!("{shown}");
        } else {
            show::say(failure.to_json());
        }
    } else if error.use_stderr() && shown != text {
        eprint!("{shown}");
    } else {
        let _ = error.print();
    }
}

/// Sends the log to stderr, through [`Lines`]: a reader of stderr that stands still does not block the code that logs.
fn log_to_stderr(global: &Global) -> Lines {
    let level = match global.verbose {
        0 => LevelFilter::OFF,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let lines = Lines::to(Box::new(io::stderr()));
    // https://no-color.org
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = io::stderr().is_terminal() && !is_plain;
    tracing_subscriber::fmt().with_max_level(level).with_ansi(colours).with_writer(lines.clone()).init();
    lines
}
