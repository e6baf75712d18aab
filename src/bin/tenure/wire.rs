//! The protocol between the command and its guardian.
//!
//! They exchange lines of words over a Unix socket that the guardian inherits. The guardian is set up by its arguments,
//! so that it has a deadline before the first order:
//!
//!     tenure __guardian FD RUN_ID TRUSTED_UNTIL KILL_AT GRACE_MS own|GROUP BLOCKED,IGNORED [leave=NAME…] -- CMD [ARG…]
//!
//! Orders, to the guardian. The end of the file means that the command has died:
//!
//!     trust TRUSTED_UNTIL KILL_AT   a renewal, in nanoseconds of the boot clock
//!     go                            start CMD, unless a stop or the end of trust came before
//!     stop GRACE_MS                 end the tree; a second one can only shorten the grace
//!     stop GRACE_MS N               the same, but CMD's group gets this signal; the rest is told when CMD has ended
//!     stop GRACE_MS manager         the same, but a service manager may tell CMD itself; if it tells the guardian,
//!                                   it has told CMD, too
//!     signal N                      pass on to CMD
//!     signal-group N                pass on to CMD's group, where it has its own
//!
//! Reports, from the guardian. The end of the file without `tree-empty` means that the guardian has died:
//!
//!     ready PID                     CMD's process exists and waits for `go`
//!     started PID                   the process runs CMD now
//!     cannot-start ERRNO TEXT       the process could not run CMD: 2 (ENOENT) is not found, else it cannot be executed
//!     stopped N | continued         CMD was stopped or continued; not reported while the tree is being ended
//!     exited CODE | signaled N      CMD has ended; its descendants are ended next
//!     overdue                       TRUSTED_UNTIL has passed: the tree is being ended, and killed by KILL_AT
//!     heard N                       the guardian has received N orders so far
//!     killed PID NAME               this process was ended by SIGKILL
//!     left PID NAME                 this process lives on, as `--leave` allows
//!     survivors PID…                SIGKILL did not end these processes; it is tried again
//!     tree-empty                    nothing of the tree is alive. The last line

use std::{ffi::OsString, fmt, str::FromStr, time::Duration};

use tenure::{RunId, clock::BootInstant};

use crate::inherited::Dispositions;

pub(crate) const GUARDIAN: &str = "__guardian";
const LEAVE: &str = "leave=";

/// Until when CMD may run, by the boot clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadlines {
    /// From here on CMD is told to end.
    pub(crate) until: BootInstant,
    /// `until` plus half the safety margin. CMD is killed then, and has as long again to be gone.
    pub(crate) kill_at: BootInstant,
}

/// The process group that CMD runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// Its own.
    Own,
    /// This one, which it shares with others that need the terminal at the same time.
    Shared(u32),
}

/// What the guardian knows from the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) run: RunId,
    pub(crate) trust: Deadlines,
    /// The grace for processes that CMD leaves behind, and for CMD when the command dies.
    pub(crate) grace: Duration,
    pub(crate) group: Group,
    /// The signals that CMD is to block and ignore.
    pub(crate) dispositions: Dispositions,
    /// The names of processes that may outlive the run.
    pub(crate) leave: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Trust(Deadlines),
    Go,
    Stop { grace: Duration, told_by: ToldBy },
    Signal { number: i32, to_group: bool },
}

/// How CMD learns that it is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToldBy {
    /// SIGTERM to the whole tree.
    Sigterm,
    /// This signal to CMD's group; the rest is told when CMD has ended, as always.
    Signal(i32),
    /// Perhaps by the service manager, which has told the command; otherwise by SIGTERM to the whole tree.
    Manager,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Report {
    Ready(u32),
    Started(u32),
    CannotStart {
        errno: i32,
        text: String,
    },
    Stopped(i32),
    Continued,
    Exited(i32),
    Signaled(i32),
    Overdue,
    Heard(u64),
    Killed {
        pid: u32,
        name: String,
    },
    Left {
        pid: u32,
        name: String,
    },
    Survivors(Vec<u32>),
    TreeEmpty,
    /// Never on the wire: the guardian has died or stands still, and the command does its work.
    GuardianLost,
}

/// A line or an argument that cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Garbled;

impl Setup {
    /// The guardian's arguments after the descriptor, in their order.
    pub(crate) fn to_args(&self) -> Vec<OsString> {
        let group = match self.group {
            Group::Own => "own".into(),
            Group::Shared(group) => group.to_string(),
        };
        let fixed = [
            self.run.to_string(),
            self.trust.until.as_nanos().to_string(),
            self.trust.kill_at.as_nanos().to_string(),
            self.grace.as_millis().to_string(),
            group,
            self.dispositions.to_string(),
        ];
        let leave = self.leave.iter().map(|name| format!("{LEAVE}{name}"));
        fixed.into_iter().chain(leave).chain(["--".into()]).map(OsString::from).collect()
    }

    pub(crate) fn from_args(args: &mut impl Iterator<Item = OsString>) -> Result<Self, Garbled> {
        let mut next = || args.next().and_then(|arg| arg.into_string().ok()).ok_or(Garbled);
        let mut setup = Self {
            run: parse(&next()?)?,
            trust: Deadlines { until: instant(&next()?)?, kill_at: instant(&next()?)? },
            grace: Duration::from_millis(parse(&next()?)?),
            group: match next()?.as_str() {
                "own" => Group::Own,
                group => Group::Shared(parse(group)?),
            },
            dispositions: parse(&next()?)?,
            leave: Vec::new(),
        };
        loop {
            match next()?.strip_prefix(LEAVE) {
                Some(name) => setup.leave.push(name.to_owned()),
                // It is the `--`.
                None => return Ok(setup),
            }
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trust(trust) => write!(f, "trust {} {}", trust.until.as_nanos(), trust.kill_at.as_nanos()),
            Self::Go => f.write_str("go"),
            Self::Stop { grace, told_by } => {
                write!(f, "stop {}", grace.as_millis())?;
                match told_by {
                    ToldBy::Sigterm => Ok(()),
                    ToldBy::Signal(number) => write!(f, " {number}"),
                    ToldBy::Manager => f.write_str(" manager"),
                }
            }
            Self::Signal { number, to_group: false } => write!(f, "signal {number}"),
            Self::Signal { number, to_group: true } => write!(f, "signal-group {number}"),
        }
    }
}

impl FromStr for Order {
    type Err = Garbled;

    fn from_str(line: &str) -> Result<Self, Garbled> {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["trust", until, kill_at] => {
                Ok(Self::Trust(Deadlines { until: instant(until)?, kill_at: instant(kill_at)? }))
            }
            ["go"] => Ok(Self::Go),
            ["stop", grace] => stop(grace, ToldBy::Sigterm),
            ["stop", grace, "manager"] => stop(grace, ToldBy::Manager),
            ["stop", grace, number] => stop(grace, ToldBy::Signal(parse(number)?)),
            ["signal", number] => Ok(Self::Signal { number: parse(number)?, to_group: false }),
            ["signal-group", number] => Ok(Self::Signal { number: parse(number)?, to_group: true }),
            _ => Err(Garbled),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(pid) => write!(f, "ready {pid}"),
            Self::Started(pid) => write!(f, "started {pid}"),
            Self::CannotStart { errno, text } => write!(f, "cannot-start {errno} {}", one_line(text)),
            Self::Stopped(signal) => write!(f, "stopped {signal}"),
            Self::Continued => f.write_str("continued"),
            Self::Exited(code) => write!(f, "exited {code}"),
            Self::Signaled(signal) => write!(f, "signaled {signal}"),
            Self::Overdue => f.write_str("overdue"),
            Self::Heard(orders) => write!(f, "heard {orders}"),
            Self::Killed { pid, name } => write!(f, "killed {pid} {}", one_line(name)),
            Self::Left { pid, name } => write!(f, "left {pid} {}", one_line(name)),
            Self::Survivors(pids) => {
                f.write_str("survivors")?;
                pids.iter().try_for_each(|pid| write!(f, " {pid}"))
            }
            Self::TreeEmpty => f.write_str("tree-empty"),
            Self::GuardianLost => f.write_str("guardian-lost"),
        }
    }
}

impl FromStr for Report {
    type Err = Garbled;

    fn from_str(line: &str) -> Result<Self, Garbled> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        Ok(match word {
            "ready" => Self::Ready(parse(rest)?),
            "started" => Self::Started(parse(rest)?),
            "cannot-start" => {
                let (errno, text) = rest.split_once(' ').ok_or(Garbled)?;
                Self::CannotStart { errno: parse(errno)?, text: text.into() }
            }
            "stopped" => Self::Stopped(parse(rest)?),
            "continued" => Self::Continued,
            "exited" => Self::Exited(parse(rest)?),
            "signaled" => Self::Signaled(parse(rest)?),
            "overdue" => Self::Overdue,
            "heard" => Self::Heard(parse(rest)?),
            "killed" | "left" => {
                let (pid, name) = rest.split_once(' ').ok_or(Garbled)?;
                let (pid, name) = (parse(pid)?, name.into());
                if word == "killed" { Self::Killed { pid, name } } else { Self::Left { pid, name } }
            }
            "survivors" => Self::Survivors(rest.split_whitespace().map(parse).collect::<Result<_, _>>()?),
            "tree-empty" => Self::TreeEmpty,
            _ => return Err(Garbled),
        })
    }
}

/// Takes the first whole line out of the received bytes; `None` if there is none.
pub(crate) fn take_line(received: &mut Vec<u8>) -> Option<String> {
    let end = received.iter().position(|byte| *byte == b'\n')?;
    let line: Vec<_> = received.drain(..=end).collect();
    Some(String::from_utf8_lossy(&line[..end]).into_owned())
}

/// Replaces control characters: a process may give itself a name with line breaks.
fn one_line(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '?' } else { char }).collect()
}

fn stop(grace: &str, told_by: ToldBy) -> Result<Order, Garbled> {
    Ok(Order::Stop { grace: Duration::from_millis(parse(grace)?), told_by })
}

fn parse<T: FromStr>(word: &str) -> Result<T, Garbled> {
    word.parse().map_err(|_| Garbled)
}

fn instant(word: &str) -> Result<BootInstant, Garbled> {
    parse(word).map(BootInstant::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_reads_back() {
        let trust = Deadlines { until: BootInstant::from_nanos(1), kill_at: BootInstant::from_nanos(2) };
        let grace = Duration::from_millis(1_500);
        let signal = |to_group| Order::Signal { number: 40, to_group };
        for order in [Order::Trust(trust), Order::Go, signal(false), signal(true)] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        for told_by in [ToldBy::Sigterm, ToldBy::Signal(2), ToldBy::Manager] {
            let order = Order::Stop { grace, told_by };
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        for report in [
            Report::Ready(1),
            Report::Started(1),
            Report::CannotStart { errno: 2, text: "No such file".into() },
            Report::Stopped(20),
            Report::Continued,
            Report::Exited(3),
            Report::Signaled(9),
            Report::Overdue,
            Report::Heard(7),
            Report::Killed { pid: 4, name: "a b".into() },
            Report::Left { pid: 4, name: "tmux: server".into() },
            Report::Survivors(vec![5, 6]),
            Report::TreeEmpty,
        ] {
            assert_eq!(report.to_string().parse(), Ok(report));
        }
        for group in [Group::Own, Group::Shared(7)] {
            let dispositions = Dispositions { blocked: u64::MAX, ignored: 0x1000 };
            let leave = vec!["--".to_owned(), "leave=a b".to_owned()];
            let setup = Setup { run: RunId::random(), trust, grace, group, dispositions, leave };
            assert_eq!(Setup::from_args(&mut setup.to_args().into_iter()), Ok(setup));
        }
    }

    #[test]
    fn a_name_with_a_line_break_stays_one_line() {
        let report = Report::Killed { pid: 1, name: "x\ntree-empty".into() };
        assert!(!report.to_string().contains('\n'));
    }
}
