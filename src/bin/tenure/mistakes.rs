//! Tips for mistakes on the command line: what was probably meant. A command line that follows its tip works.

use std::ffi::{OsStr, OsString};

use clap::{
    Command, CommandFactory as _,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::cli::Cli;

/// Replaces the guesses in the parser's error by a tip.
pub(crate) fn advise(mut error: clap::Error, args: &[OsString]) -> clap::Error {
    // clap suggests "to pass it as a value, use `-- -x`". That would make `-x` CMD.
    error.remove(ContextKind::Suggested);
    let args: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).take_while(|arg| arg != "--").collect();
    let words: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
    let tip = match error.kind() {
        ErrorKind::UnknownArgument => unknown_argument(&mut error, &words),
        ErrorKind::MissingRequiredArgument => missing(&words),
        ErrorKind::ValueValidation => {
            blame_variable(&mut error, &words);
            None
        }
        ErrorKind::InvalidUtf8 => return unreadable_variable().unwrap_or(error),
        _ => None,
    };
    if let Some(tip) = tip {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

fn unknown_argument(error: &mut clap::Error, words: &[&str]) -> Option<String> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return None };
    let unknown = unknown.clone();
    let at = words.iter().position(|word| word.split('=').next() == Some(&unknown))?;
    let cli = Cli::command();
    let (command_at, command) =
        words.iter().enumerate().find_map(|(at, word)| Some((at, cli.find_subcommand(word)?)))?;
    let name = command.get_name();
    if at < command_at && has_option(command, &unknown) {
        error.remove(ContextKind::SuggestedArg);
        let usage = cli.clone().render_usage();
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
        return Some(format!("'{unknown}' belongs behind '{name}': tenure {name} {unknown} …"));
    }
    if !unknown.starts_with('-') {
        return has_option(command, "-s")
            .then(|| format!("name the session with -s: tenure {name} -s {unknown}"));
    }
    let before = words.get(at.checked_sub(1)?)?;
    if takes_value(&cli, command, before) {
        error.remove(ContextKind::SuggestedArg);
        let equals = if before.starts_with("--") { "=" } else { "" };
        return Some(format!(
            "a value that begins with a dash is written in one word: {before}{equals}{unknown}"
        ));
    }
    if let Some(other) = cli.get_subcommands().find(|other| has_option(other, &unknown)) {
        error.remove(ContextKind::SuggestedArg);
        return Some(format!("'{unknown}' is an option of 'tenure {}'", other.get_name()));
    }
    // clap takes `--reason` and `--json` for similar.
    let initial = |option: &str| option.trim_start_matches('-').chars().next();
    let is_near = match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(near)) => initial(near) == initial(&unknown),
        _ => true,
    };
    if !is_near {
        error.remove(ContextKind::SuggestedArg);
    }
    None
}

/// Names the variable that a wrong value is from, if the option that it stands in for is not given.
fn blame_variable(error: &mut clap::Error, words: &[&str]) {
    let Some(ContextValue::String(invalid)) = error.get(ContextKind::InvalidArg) else { return };
    let is_given =
        |arg: &clap::Arg| words.iter().any(|word| is_named(arg, word.split('=').next().unwrap_or(word)));
    let variable = with_variables().into_iter().find(|arg| arg.to_string() == *invalid && !is_given(arg));
    if let Some(name) = variable.and_then(|arg| Some(arg.get_env()?.to_string_lossy().into_owned())) {
        error.insert(ContextKind::InvalidArg, ContextValue::String(name));
    }
}

/// The error about a variable that is not UTF-8, if there is one.
fn unreadable_variable() -> Option<clap::Error> {
    let is_unreadable = |name: &OsStr| std::env::var_os(name).is_some_and(|value| value.to_str().is_none());
    let name = with_variables()
        .iter()
        .find_map(|arg| Some(arg.get_env().filter(|name| is_unreadable(name))?.to_owned()))?;
    let message = format!("the value of the variable {} is not UTF-8", name.to_string_lossy());
    Some(Cli::command().error(ErrorKind::InvalidUtf8, message))
}

/// All options that a variable can stand in for.
fn with_variables() -> Vec<clap::Arg> {
    let mut cli = Cli::command();
    // Only then can its options be shown.
    cli.build();
    let of_commands = cli.get_subcommands().flat_map(Command::get_arguments);
    cli.get_arguments().chain(of_commands).filter(|arg| arg.get_env().is_some()).cloned().collect()
}

fn missing(words: &[&str]) -> Option<String> {
    let at = words.iter().position(|word| *word == "run")?;
    let has_session = words.iter().any(|word| word.starts_with("--session") || word.starts_with("-s"));
    let name = words.get(at + 1).filter(|word| !word.starts_with('-') && !has_session)?;
    Some(format!("name the session with -s: tenure run -s {name} -- CMD"))
}

fn has_option(command: &Command, option: &str) -> bool {
    command.get_arguments().any(|arg| is_named(arg, option))
}

fn takes_value(cli: &Command, command: &Command, option: &str) -> bool {
    let mut all = cli.get_arguments().chain(command.get_arguments());
    all.any(|arg| is_named(arg, option) && arg.get_action().takes_values())
}

fn is_named(arg: &clap::Arg, option: &str) -> bool {
    match option.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => option
            .strip_prefix('-')
            .is_some_and(|short| arg.get_short().map(String::from).as_deref() == Some(short)),
    }
}

/// What to do about a CMD that cannot be started; `None` if that is not known.
#[cfg(target_os = "linux")]
pub(crate) fn remedy(program: &str, errno: i32) -> Option<String> {
    use std::os::unix::fs::PermissionsExt as _;

    use nix::libc::{EACCES, ENOENT, ENOEXEC};

    let quoted = tenure::text::printable(program);
    match errno {
        ENOENT if program.split_whitespace().count() > 1 => {
            Some(format!("leave out the quotes, or let a shell read them: sh -c '{quoted}'"))
        }
        ENOENT if OF_THE_SHELL.contains(&program) => {
            Some(format!("it is a word of the shell, so write: sh -c '{quoted} …'"))
        }
        EACCES => {
            let found = std::fs::metadata(program).ok()?;
            if found.is_dir() {
                Some("it is a directory; name a program in it".to_owned())
            } else {
                let is_executable = found.permissions().mode() & 0o111 != 0;
                (!is_executable).then(|| format!("make it executable: chmod +x {quoted}"))
            }
        }
        ENOEXEC => Some(format!(
            "it is no program; if it is a script, name its interpreter in its first line, or write: sh {quoted}"
        )),
        _ => None,
    }
}

/// Words of the shell that are no programs, or whose programs would have no effect in a process of their own.
#[cfg(target_os = "linux")]
const OF_THE_SHELL: [&str; 35] = [
    "!", ".", ":", "(", "{", "alias", "bg", "break", "case", "cd", "continue", "eval", "exec", "exit",
    "export", "fg", "for", "function", "hash", "if", "jobs", "local", "read", "readonly", "return", "set",
    "shift", "source", "time", "trap", "type", "ulimit", "umask", "unset", "while",
];

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn said(line: &str) -> String {
        let args: Vec<_> = line.split(' ').map(OsString::from).collect();
        let error = Cli::try_parse_from(["tenure".into()].into_iter().chain(args.clone())).unwrap_err();
        advise(error, &args).render().to_string()
    }

    #[test]
    fn what_was_meant_is_said_as_it_would_work() {
        for (line, tip) in [
            ("--session x status", "'--session' belongs behind 'status': tenure status --session"),
            ("-s x watch", "'-s' belongs behind 'watch': tenure watch -s"),
            ("--session=x status", "tenure status --session"),
            ("status x", "tenure status -s x"),
            ("stop -a me x", "tenure stop -s x"),
            ("status -s -x", "in one word: -s-x"),
            ("status --session -x", "in one word: --session=-x"),
            #[cfg(target_os = "linux")]
            ("run -s a --holder -x -- true", "in one word: --holder=-x"),
            #[cfg(target_os = "linux")]
            ("run a true", "tenure run -s a -- CMD"),
            ("status --sesion x", "'--session'"),
            ("status -s x --reason", "'--reason' is an option of 'tenure stop'"),
            #[cfg(target_os = "linux")]
            ("list -E 3", "'-E' is an option of 'tenure run'"),
            ("stat", "'status'"),
        ] {
            let said = said(line);
            assert!(said.contains(tip), "{line}: {said}");
            assert!(said.matches("tip:").count() <= 1 && !said.contains("use '--"), "{line}: {said}");
        }
        for line in ["list x", "status -s a --nonsense-of-mine", "list --kson", "sweep -x"] {
            assert!(!said(line).contains("tip:"), "{}", said(line));
        }
        for line in ["status -s-x", "status --session=-x", "stop -s x --reason=-x"] {
            let args = ["tenure"].into_iter().chain(line.split(' '));
            assert!(Cli::try_parse_from(args).is_ok(), "{line}");
        }
    }
}
