//! The command line: its options and subcommands, and the text of `--help`.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tenure::{RunId, diagnosis::Examination};

/// Hold a session while a program runs: at most one run per session, across terminals and machines.
#[derive(Debug, Parser)]
#[command(
    name = "tenure",
    version,
    arg_required_else_help = true,
    infer_subcommands = false,
    after_help = "Example:  tenure run -s nightly -- ./backup.sh"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Where the leases are: postgres://user:password@host/database or sqlite://path/to/file.db. Default: a
    /// SQLite file under the user's state directory.
    #[arg(long, global = true, value_name = "URL", env = "TENURE_DATABASE_URL", hide_env_values = true)]
    pub(crate) database: Option<String>,
    /// How long to wait for the database at the start.
    #[arg(long, global = true, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub(crate) connect_timeout: Duration,
    /// Print JSON: one object per line for events, one document for an answer.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Log to stderr; repeat for more detail.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Print nothing on stderr except errors.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Hold the session while CMD runs. End CMD, with everything it started, when the session is lost.
    #[cfg(target_os = "linux")]
    #[command(after_help = r#"Example:  tenure run -s nightly -- ./backup.sh --all"#)]
    Run(RunArgs),
    /// Show who holds a session. Exits 1 when nobody does.
    #[command(after_help = r#"Example:  tenure status -s nightly"#)]
    Status(StatusArgs),
    /// Ask the run that holds a session to stop, wherever it is. Exits 1 when nobody holds it.
    #[command(after_help = r#"Example:  tenure stop -s nightly --reason "maintenance" --wait 30s"#)]
    Stop(StopArgs),
    /// Say why a session is as it is, and what its last runs have come to.
    #[command(after_help = r#"Example:  tenure why -s nightly"#)]
    Why(WhyArgs),
    /// End the lease of a run that is known to be dead, so that the session is free before the lease expires.
    #[command(
        after_help = "The run is watched for some seconds, half a minute at most. If it renews its lease, it lives: exit code \
                      75.\n\nIf the run is alive, and only cut off from the database, it goes on working beside the next \
                      run until its own lease would have ended. Only a resource that checks fences refuses it.\n\nExample:  \
                      tenure break -s nightly --run 44d5977e-0f5c-4c0b-9a55-6f2f0a9e2a11 --i-know-it-is-dead"
    )]
    Break(BreakArgs),
    /// Print a line about a session now, and a line at every change, until interrupted.
    #[command(after_help = r#"Example:  tenure watch -s nightly"#)]
    Watch(WatchArgs),
    /// Show all sessions that are held.
    #[command(after_help = r#"Example:  tenure list --expired"#)]
    List(ListArgs),
    /// Inside CMD: show others what the run is doing.
    #[cfg(unix)]
    #[command(after_help = r#"Example:  tenure phase "waiting for approval""#)]
    Phase(PhaseArgs),
    /// Set up the database, or print the statements that would do so.
    #[command(after_help = r#"Example:  tenure migrate --database postgres://owner@db1/app"#)]
    Migrate(MigrateArgs),
    /// Remove the rows of leases that expired at least an hour ago.
    #[command(after_help = "Example:  tenure sweep")]
    Sweep,
    /// Check database, schema, clocks and commit latency, and say what to change. Exits 0 unless no lease can be held.
    #[command(after_help = r#"Example:  tenure doctor --for 1m"#)]
    Doctor(DoctorArgs),
    /// Print completions for a shell.
    #[command(
        after_help = "Example:  tenure completions bash > ~/.local/share/bash-completion/completions/tenure"
    )]
    Completions(CompletionsArgs),
    /// Print a manual page.
    #[command(after_help = "Example:  tenure man run | man -l -")]
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub(crate) struct SessionArgs {
    /// The account that the session belongs to.
    #[arg(short, long, default_value = "local", env = "TENURE_ACCOUNT", allow_negative_numbers = true)]
    pub(crate) account: String,
    /// The name of the session.
    #[arg(short, long, allow_negative_numbers = true)]
    pub(crate) session: String,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) session: SessionArgs,
    /// The length of the lease, renewed while CMD runs: 1s to 24h.
    #[arg(long, value_name = "DURATION", default_value = "30s", env = "TENURE_TTL", value_parser = duration)]
    pub(crate) ttl: Duration,
    /// The name that others see. Default: user@host.
    #[arg(long, value_name = "LABEL", env = "TENURE_HOLDER", allow_negative_numbers = true)]
    pub(crate) holder: Option<String>,
    /// What to do when another run holds the session.
    #[arg(long, value_enum, default_value = "reject")]
    pub(crate) on_busy: OnBusy,
    /// How long CMD may take to end once it was told to.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub(crate) stop_grace: Duration,
    /// How long the run may last, time in suspend included.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) max_duration: Option<Duration>,
    /// The exit code when another run holds the session.
    #[arg(short = 'E', value_name = "CODE", default_value_t = crate::exit::BUSY)]
    pub(crate) busy_code: u8,
    /// Where events go: a file to append to, or the number of an open descriptor. `-` is stderr, the default.
    #[arg(long, value_name = "PATH|FD")]
    pub(crate) events: Option<PathBuf>,
    /// Let processes of this name, and their descendants, outlive the run: helpers that are shared on purpose, such as
    /// a build daemon. The name is the one that `ps -o comm` shows. May be given more than once.
    #[arg(long, value_name = "NAME")]
    pub(crate) leave: Vec<String>,
    /// The program to run, and its arguments. A program whose name begins with a dash needs `--` before it.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) program: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OnBusy {
    /// Give up at once and name the holder.
    Reject,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) session: SessionArgs,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub(crate) session: SessionArgs,
    /// Stop only this run, and no run that holds the session after it.
    #[arg(long, value_name = "RUN_ID", value_parser = run_id)]
    pub(crate) run: Option<RunId>,
    /// The reason, which the run and others are shown: at most 1000 bytes.
    #[arg(long, value_name = "TEXT", allow_negative_numbers = true)]
    pub(crate) reason: Option<String>,
    /// Wait until the run has ended, for this long at most. Exits 75 when it has not ended by then.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    pub(crate) session: SessionArgs,
    /// How many runs that are over to show, at most.
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 10)]
    pub(crate) limit: u32,
}

#[derive(Debug, Args)]
pub(crate) struct BreakArgs {
    #[command(flatten)]
    pub(crate) session: SessionArgs,
    /// The run that is dead, as `tenure status` shows it.
    #[arg(long, value_name = "RUN_ID", value_parser = run_id)]
    pub(crate) run: RunId,
    /// Say that its process is gone, and does not come back.
    #[arg(long, required = true)]
    pub(crate) i_know_it_is_dead: bool,
    /// The reason, which others are shown: at most 1000 bytes.
    #[arg(long, value_name = "TEXT", allow_negative_numbers = true)]
    pub(crate) reason: Option<String>,
    /// How often the run would renew its lease. Needed only if its program was set to renew less often than every 20s.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) renew_interval: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    pub(crate) session: SessionArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Show only the sessions of this account.
    #[arg(short, long, allow_negative_numbers = true)]
    pub(crate) account: Option<String>,
    /// Show expired leases, too.
    #[arg(long)]
    pub(crate) expired: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PhaseArgs {
    /// At most 64 bytes. An empty text removes the phase.
    #[arg(allow_negative_numbers = true)]
    pub(crate) text: String,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The subcommand. Without it, the page is about the whole command.
    #[arg(value_name = "COMMAND")]
    pub(crate) of: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    /// Print the statements and change nothing.
    #[arg(long)]
    pub(crate) print: bool,
    /// Keep a history of the runs that are over. This is the default for a new database.
    #[arg(long)]
    pub(crate) with_history: bool,
    /// Keep no history, and remove the one that is there.
    #[arg(long, conflicts_with = "with_history")]
    pub(crate) without_history: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// How long to watch the clocks, at most 1h. A longer time shows a smaller difference in their rates.
    #[arg(long = "for", value_name = "DURATION", default_value = "3s", value_parser = examination)]
    pub(crate) lasting: Duration,
}

/// Parses `500ms`, `1.5s`, `30s`, `2m`, `1h`, `1d`, and several of these in a row. So a duration is accepted in the
/// form in which the command shows it: `1m 30s`, `1day 2h`.
fn duration(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    let mut seconds = 0.0;
    loop {
        let (number, after) = split(rest, |char| char.is_ascii_digit() || char == '.');
        let (unit, after) = split(after.trim_start(), char::is_alphabetic);
        if unit.is_empty() && after.is_empty() && !number.is_empty() {
            return Err(format!("add a unit: {text}s, {text}m, {text}h or {text}ms"));
        }
        let number: f64 = number.parse().map_err(|_| "write a number and a unit, like 1.5s".to_owned())?;
        seconds += number * seconds_of(unit)?;
        rest = after.trim_start();
        if rest.is_empty() {
            return Duration::try_from_secs_f64(seconds).map_err(|_| "it is too long".to_owned());
        }
    }
}

fn run_id(text: &str) -> Result<RunId, String> {
    let hint = "write the run's id, a UUID, as `tenure status` shows it";
    text.parse().map_err(|_| hint.to_owned())
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|char| !belongs(char)).unwrap_or(text.len()))
}

fn seconds_of(unit: &str) -> Result<f64, String> {
    Ok(match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" | "day" | "days" => 86_400.0,
        other => {
            return Err(format!("{other:?} is not a unit; write 500ms, 1.5s, 30s, 2m, 1h, 1d or 1m 30s"));
        }
    })
}

/// Parses a [`duration`] that an examination may last.
fn examination(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|duration| match duration <= Examination::LONGEST {
        true => Ok(duration),
        false => Err("it is too long: at most 1h".to_owned()),
    })
}

impl Cli {
    /// Reads the command line of this process. An empty variable counts as one that is not set.
    ///
    /// [`Database::of`](crate::database::Database::of) refuses an empty URL, and so it is not ignored here.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let is_empty = |name: &OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
        let ignoring = |arg: clap::Arg| match arg.get_env() {
            Some(name) if is_empty(name) && arg.get_id() != "database" => arg.env(None),
            _ => arg,
        };
        let definition = Self::command().mut_args(ignoring);
        let mut definition = definition.mut_subcommands(|command| command.mut_args(ignoring));
        let mut matches = definition.try_get_matches_from_mut(std::env::args_os())?;
        Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut definition))
    }
}

impl RunArgs {
    /// The file or descriptor that events go to instead of stderr.
    #[cfg(target_os = "linux")]
    pub(crate) fn events(&self) -> Option<&Path> {
        self.events.as_deref().filter(|path| path.as_os_str() != "-")
    }
}

impl Command {
    /// Whether the subcommand writes events and leaves stdout to CMD.
    pub(crate) fn has_events(&self) -> bool {
        #[cfg(target_os = "linux")]
        return matches!(self, Self::Run(_));
        #[cfg(not(target_os = "linux"))]
        false
    }
}

/// The form of output that a command line asks for, found without parsing it: it may have errors.
pub(crate) struct WantedOutput {
    pub(crate) json: bool,
    pub(crate) has_events: bool,
}

pub(crate) fn wanted_output(args: impl Iterator<Item = OsString>) -> WantedOutput {
    let mut args = args.take_while(|arg| arg != "--");
    let (mut json, mut command) = (false, None);
    while let Some(arg) = args.next() {
        if arg == "--database" || arg == "--connect-timeout" {
            args.next();
        } else if arg == "--json" {
            json = true;
        } else if command.is_none() && !arg.to_string_lossy().starts_with('-') {
            command = Some(arg);
        }
    }
    WantedOutput { json, has_events: command.is_some_and(|command| command == "run") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_want_a_unit_and_say_so() {
        let millis = |text| duration(text).map(|duration| duration.as_millis());
        assert_eq!(millis("500ms"), Ok(500));
        assert_eq!(millis("1.5s"), Ok(1_500));
        assert_eq!(millis("2m"), Ok(120_000));
        assert_eq!(millis("1h"), Ok(3_600_000));
        assert_eq!(millis("1m 30s"), Ok(90_000));
        assert_eq!(millis("1m30s"), Ok(90_000));
        assert_eq!(millis("1d"), Ok(86_400_000));
        assert_eq!(millis(" 1 day 2h 500ms "), Ok(93_600_500));
        for bare in ["30", "0", "1m 30"] {
            assert!(duration(bare).unwrap_err().contains(&format!("{bare}s")), "{bare}");
        }
        for bad in ["", "s", "-1s", "1.2.3s", "1w", "5M", "1m, 30s", "9e9h", "99999999999999999999h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_line_that_cannot_be_parsed_still_says_who_is_asked() {
        let wanted = |line: &str| {
            let output = wanted_output(line.split(' ').map(OsString::from));
            (output.json, output.has_events)
        };
        assert_eq!(wanted("--database run --json status --nonsense"), (true, false));
        assert_eq!(wanted("-v run -s x --ttl 5 --json -- sh"), (true, true));
        assert_eq!(wanted("run -s x -- sh --json"), (false, true));
    }

    #[test]
    fn what_is_shown_is_accepted() {
        for seconds in [0.4, 27.1, 59.9, 60.0, 182.0, 3_600.0, 86_400.0, 93_784.0, 2_592_000.0] {
            let shown = crate::show::short(Duration::from_secs_f64(seconds));
            assert_eq!(duration(&shown), Ok(Duration::from_secs_f64(seconds)), "{shown}");
        }
    }
}
