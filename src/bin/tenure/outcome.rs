//! The outcome of a run: its exit code, and the word for the reason of its end.

use nix::libc::{ENOENT, SIGINT, SIGKILL, SIGQUIT};
use tenure::EndReason;

use crate::{
    exit::{CANNOT_EXECUTE, Exit, FAILED, LOST, NOT_FOUND, STOPPED, TIMED_OUT, by_signal},
    show::reason_word,
    signals,
};

/// How CMD ended, once nothing of its tree is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramEnd {
    Exited(i32),
    Signaled(i32),
    CannotStart(i32),
    /// It ended before it had become CMD, or nobody has seen how it ended.
    Unknown,
}

/// All that the outcome depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunOutcome<'a> {
    /// The first reason for the end, as the supervisor reports it.
    pub(crate) reason: &'a EndReason,
    pub(crate) program: ProgramEnd,
    /// The signal that told this command to end, if one has.
    pub(crate) signaled: Option<i32>,
    /// The guardian ended CMD because no renewal had reached it in time.
    pub(crate) is_overdue: bool,
    pub(crate) is_guardian_lost: bool,
}

impl RunOutcome<'_> {
    pub(crate) fn exit(&self) -> Exit {
        match self.reason {
            EndReason::Completed if self.is_overdue => Exit::Code(LOST),
            EndReason::Completed => self.own_end(),
            EndReason::Stopped { .. } => match self.told() {
                Some(number) => self.end_after(number),
                None => Exit::Code(STOPPED),
            },
            EndReason::Shutdown => Exit::Code(STOPPED),
            EndReason::TimedOut { .. } => Exit::Code(TIMED_OUT),
            reason if reason.is_loss() => Exit::Code(LOST),
            _ => Exit::Code(FAILED),
        }
    }

    /// The reason as one word, for scripts.
    pub(crate) fn word(&self) -> &'static str {
        match self.reason {
            EndReason::Completed if self.is_overdue => reason_word(&EndReason::Unconfirmed),
            EndReason::Completed if self.is_guardian_lost => "guardian_lost",
            reason => word(reason, self.signaled),
        }
    }

    /// The signal, if it is the reason of the end. A request to stop, or a loss, may have come first.
    fn told(&self) -> Option<i32> {
        self.signaled.filter(|number| is_by_signal(self.reason, *number))
    }

    /// How this process ends after CMD ended by itself.
    fn own_end(&self) -> Exit {
        match self.program {
            ProgramEnd::Exited(code) => Exit::Code(u8::try_from(code).unwrap_or(u8::MAX)),
            // The user pressed Ctrl-C and means the whole script. The shell stops it if this process dies of the
            // signal, too.
            ProgramEnd::Signaled(number @ (SIGINT | SIGQUIT)) => Exit::Signal(number),
            ProgramEnd::Signaled(number) => Exit::Code(by_signal(number)),
            ProgramEnd::CannotStart(ENOENT) => Exit::Code(NOT_FOUND),
            ProgramEnd::CannotStart(_) => Exit::Code(CANNOT_EXECUTE),
            ProgramEnd::Unknown => Exit::Code(FAILED),
        }
    }

    /// How this process ends after this signal told it, and so CMD, to end.
    fn end_after(&self, number: i32) -> Exit {
        match self.program {
            ProgramEnd::Exited(_) => self.own_end(),
            ProgramEnd::Signaled(of) if of == number => Exit::Signal(number),
            // CMD was killed when its grace was over.
            ProgramEnd::Signaled(SIGKILL) => Exit::Code(by_signal(number)),
            ProgramEnd::Signaled(_) => self.own_end(),
            ProgramEnd::Unknown if self.is_guardian_lost => Exit::Code(by_signal(number)),
            // CMD was not started: this process dies of the signal as if it had not caught it.
            ProgramEnd::CannotStart(_) | ProgramEnd::Unknown => Exit::Signal(number),
        }
    }
}

/// The word for a reason. It is "signal" where a signal told this command to end, and that is the reason.
pub(crate) fn word(reason: &EndReason, signaled: Option<i32>) -> &'static str {
    match signaled {
        Some(number) if is_by_signal(reason, number) => "signal",
        _ => reason_word(reason),
    }
}

/// Whether a run ended because this signal told this command to end.
pub(crate) fn is_by_signal(reason: &EndReason, number: i32) -> bool {
    matches!(reason, EndReason::Stopped { by: None, reason: Some(reason), .. } if *reason == signals::name(number))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::libc::{EACCES, SIGHUP, SIGSEGV, SIGTERM};
    use tenure::Limit;

    use super::{ProgramEnd::*, *};

    fn exit(reason: &EndReason, program: ProgramEnd, signaled: Option<i32>) -> Exit {
        RunOutcome { reason, program, signaled, is_overdue: false, is_guardian_lost: false }.exit()
    }

    fn told(number: i32) -> EndReason {
        EndReason::stopped(None, Some(signals::name(number)))
    }

    #[test]
    fn cmds_own_end_is_passed_on() {
        for (program, expected) in [
            (Exited(0), Exit::Code(0)),
            (Exited(75), Exit::Code(75)),
            (Signaled(SIGKILL), Exit::Code(137)),
            (Signaled(SIGTERM), Exit::Code(143)),
            (Signaled(SIGINT), Exit::Signal(SIGINT)),
            (Signaled(SIGQUIT), Exit::Signal(SIGQUIT)),
            (Signaled(40), Exit::Code(168)),
            (CannotStart(ENOENT), Exit::Code(127)),
            (CannotStart(EACCES), Exit::Code(126)),
            (Unknown, Exit::Code(70)),
        ] {
            assert_eq!(exit(&EndReason::Completed, program, None), expected, "{program:?}");
        }
    }

    #[test]
    fn after_a_signal_cmds_own_code_counts_where_it_ended_by_itself() {
        for number in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
            let killed = Exit::Code(by_signal(number));
            for (program, expected) in [
                (Exited(0), Exit::Code(0)),
                (Exited(5), Exit::Code(5)),
                (Signaled(number), Exit::Signal(number)),
                (Signaled(SIGKILL), killed),
                (Signaled(SIGSEGV), Exit::Code(139)),
                (CannotStart(ENOENT), Exit::Signal(number)),
                (Unknown, Exit::Signal(number)),
            ] {
                assert_eq!(exit(&told(number), program, Some(number)), expected, "{number} {program:?}");
            }
            let outcome = RunOutcome {
                reason: &told(number),
                program: Unknown,
                signaled: Some(number),
                is_overdue: false,
                is_guardian_lost: true,
            };
            assert_eq!((outcome.exit(), outcome.word()), (killed, "signal"));
        }
    }

    #[test]
    fn other_reasons_have_codes_of_their_own_however_cmd_ended() {
        let stopped = EndReason::stopped(Some("ann".into()), None);
        let timed_out = EndReason::timed_out(Limit::MaxDuration(Duration::ZERO));
        for (reason, code) in [
            (&stopped, 77),
            (&EndReason::Shutdown, 77),
            (&timed_out, 124),
            (&EndReason::Superseded, 76),
            (&EndReason::Expired, 76),
            (&EndReason::Unconfirmed, 76),
            (&EndReason::Panicked, 70),
        ] {
            for program in [Exited(0), Signaled(SIGINT), Signaled(SIGKILL), CannotStart(ENOENT), Unknown] {
                for signaled in [None, Some(SIGTERM)] {
                    assert_eq!(exit(reason, program, signaled), Exit::Code(code), "{reason} {program:?}");
                }
            }
        }
    }

    #[test]
    fn a_loss_that_only_the_guardian_has_seen_is_a_loss() {
        let mut outcome = RunOutcome {
            reason: &EndReason::Completed,
            program: Signaled(SIGKILL),
            signaled: None,
            is_overdue: true,
            is_guardian_lost: false,
        };
        assert_eq!((outcome.exit(), outcome.word()), (Exit::Code(76), "unconfirmed"));
        outcome.reason = &EndReason::Shutdown;
        assert_eq!((outcome.exit(), outcome.word()), (Exit::Code(77), "shutdown"));
    }
}
