//! The guardian: a process between the command and CMD. It ends CMD's tree, whatever happens to the command.
//!
//! The guardian is CMD's parent and the sub-reaper of CMD's descendants, so that none of them can leave its tree. It
//! ends the tree in four cases: it is told to, CMD has ended, the command has died, or the boot clock passes the end of
//! trust. So a frozen or starved command cannot keep CMD running. The guardian does nothing else: it has a process
//! group of its own, blocks every signal that can be blocked, holds none of CMD's files, and never blocks on another
//! process.
//!
//! It answers every order, so that the command notices when the guardian stands still.
//!
//! When the guardian itself is killed, the kernel kills CMD, and the command ends the rest of the tree.

mod asking;
mod control;

use std::{
    ffi::OsString,
    fs,
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    process::ExitCode,
    time::Duration,
};

use nix::sys::{
    signal::{SigSet, Signal as Number},
    signalfd::{SfdFlags, SignalFd},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, WaitOptions, WaitStatus, wait},
};
use tenure::{
    clock::{Clock as _, SystemClock},
    process::{Ending, ProcessTree, Progress, TreeEnd, become_subreaper},
};

use crate::{
    inherited, launch,
    timer::Timer,
    wire::{Deadlines, Group, Order, Report, Setup},
};

use asking::Asking;
use control::{Control, Heard};

/// How many killed processes are reported by name. A fork bomb has thousands.
const MOST_NAMED: usize = 20;

/// Runs `tenure __guardian FD …`; [`wire`](crate::wire) documents the arguments.
pub(crate) fn main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let control = args.next().and_then(|arg| inherited::take(arg.to_str()?).ok());
    let (Some(control), Ok(setup)) = (control, Setup::from_args(&mut args)) else {
        eprintln!("tenure: the guardian is started by `tenure run` only");
        return ExitCode::from(64);
    };
    let program = args.collect();
    inherited::hide_arguments();
    // This is the name that `ps -o comm` shows.
    let _ = fs::write("/proc/self/comm", "tenure-guardian");
    match Guardian::start(control.try_clone(), setup, program) {
        Ok(guardian) => guardian.run(),
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            let report = Report::CannotStart { errno, text: error.to_string() };
            let _ = (&control).write_all(format!("{report}\n{}\n", Report::TreeEmpty).as_bytes());
            ExitCode::FAILURE
        }
    }
}

struct Guardian {
    control: Control,
    /// How many orders have come so far.
    heard: u64,
    gate: Gate,
    /// The id of CMD's process.
    program: u32,
    /// The same process, until it was waited for. From then on the id may be another process's.
    child: Option<Pid>,
    /// Whether CMD's process has become CMD. Only then the end of the process is the end of CMD.
    is_program: bool,
    group: Group,
    tree: ProcessTree,
    trust: Deadlines,
    is_overdue: bool,
    grace: Duration,
    /// CMD was told to end, and the rest of its tree was not told yet.
    asking: Option<Asking>,
    ending: Option<Ending>,
    survivors: Vec<u32>,
    signals: SignalFd,
    /// A service manager has sent SIGTERM to this process, and so to all processes of its unit.
    is_told_by_manager: bool,
    timer: Timer,
}

/// The socket to CMD's process while that process is not CMD yet.
enum Gate {
    /// The process waits.
    Shut(UnixStream),
    /// The process was told to become CMD. The socket closes when it has.
    Open(UnixStream),
    /// The process is CMD, could not become CMD, or never will.
    Gone,
}

impl Guardian {
    fn start(control: io::Result<UnixStream>, setup: Setup, program: Vec<OsString>) -> io::Result<Self> {
        let control = Control::new(control?)?;
        let descriptors = inherited::take_descriptors();
        inherited::keep_exit_statuses()?;
        SigSet::all().thread_block()?;
        become_subreaper()?;
        let wanted = SigSet::from_iter([Number::SIGCHLD, Number::SIGTERM]);
        let signals = SignalFd::with_flags(&wanted, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let timer = Timer::new()?;

        let (gate, theirs) = UnixStream::pair()?;
        gate.set_nonblocking(true)?;
        let own = (control, signals, timer, gate);
        let ((control, signals, timer, gate), child) = launch::start(theirs, &setup, &program, own)?;
        drop(descriptors);
        let program = child.as_raw_pid().unsigned_abs();
        let tree = ProcessTree::of(setup.run).with_root(program).with_all_below_this_process();
        let mut guardian = Self {
            control,
            heard: 0,
            gate: Gate::Shut(gate),
            program,
            child: Some(child),
            is_program: false,
            group: setup.group,
            tree: tree.leaving(setup.leave),
            trust: setup.trust,
            is_overdue: false,
            grace: setup.grace,
            asking: None,
            ending: None,
            survivors: Vec::new(),
            signals,
            is_told_by_manager: false,
            timer,
        };
        // So the reader of CMD's output sees the end when CMD closes it.
        inherited::let_go_of_input_and_output()?;
        inherited::let_go_of_errors()?;
        guardian.control.say(&Report::Ready(program));
        Ok(guardian)
    }

    fn run(mut self) -> ExitCode {
        loop {
            self.hear();
            self.check_trust();
            self.look_through_gate();
            self.reap();
            self.ask_on();
            let pause = match self.ending.as_mut().map(Ending::step) {
                Some(Progress::Done) if self.settle() => return ExitCode::SUCCESS,
                Some(Progress::Done) => Some(Duration::from_secs(1)),
                Some(Progress::Wait(pause)) => Some(pause),
                None => self.asking.as_ref().map(Asking::pause),
            };
            self.control.flush();
            self.sleep(pause);
        }
    }

    fn hear(&mut self) {
        let heard_before = self.heard;
        while let Some(heard) = self.control.hear() {
            let Heard::Order(order) = heard else {
                self.end(self.grace);
                continue;
            };
            self.heard += 1;
            match order {
                Order::Trust(trust) if !self.is_overdue => self.trust = trust,
                Order::Trust(_) => {}
                Order::Go => self.go(),
                Order::Stop { grace, told_by } => self.stop(grace, told_by),
                Order::Signal { number, to_group } => self.pass_on(number, to_group),
            }
        }
        if self.heard > heard_before {
            self.control.say(&Report::Heard(self.heard));
        }
    }

    fn go(&mut self) {
        self.check_trust();
        if self.ending.is_some() {
            return;
        }
        self.gate = match std::mem::replace(&mut self.gate, Gate::Gone) {
            Gate::Shut(mut gate) => {
                // An error means that the process has died, which its exit status will tell.
                let _ = gate.write_all(b"!");
                Gate::Open(gate)
            }
            other => other,
        };
    }

    /// Ends the tree when the boot clock has passed the end of trust. A later renewal cannot undo that.
    fn check_trust(&mut self) {
        let now = SystemClock.now();
        if now >= self.trust.until && !self.is_overdue {
            self.is_overdue = true;
            self.control.say(&Report::Overdue);
        }
        if self.is_overdue {
            self.end(self.trust.kill_at.saturating_since(now));
        }
        let next = if self.is_overdue { self.trust.kill_at } else { self.trust.until };
        self.timer.arm(Some(next).filter(|next| *next > now));
    }

    /// Begins to end the tree, or shortens the grace of an end that has begun. The grace may be longer than trust
    /// lasts: renewals go on meanwhile, and if they do not, the end of trust shortens the grace.
    fn end(&mut self, grace: Duration) {
        self.asking = None;
        match &mut self.ending {
            Some(ending) => ending.shorten(grace),
            None if matches!(self.gate, Gate::Shut(_)) => {
                self.gate = Gate::Gone;
                self.ending = Some(self.tree.clone().ending(Duration::ZERO));
            }
            None => self.ending = Some(self.tree.clone().ending(grace)),
        }
    }

    /// Checks whether CMD's process has become CMD, or could not.
    fn look_through_gate(&mut self) {
        let Gate::Open(gate) = &mut self.gate else { return };
        let mut text = [0; 1024];
        let read = match gate.read(&mut text) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // The process died before it read the word to go, or soon after.
            Err(_) => 0,
        };
        self.gate = Gate::Gone;
        if read == 0 {
            self.is_program = true;
            let pid = self.child.map_or(0, |child| child.as_raw_pid().unsigned_abs());
            self.control.say(&Report::Started(pid));
            return;
        }
        let text = String::from_utf8_lossy(&text[..read]);
        let (errno, text) = text.split_once(' ').unwrap_or(("0", ""));
        let errno = errno.parse().unwrap_or(0);
        self.control.say(&Report::CannotStart { errno, text: text.to_owned() });
        self.end(Duration::ZERO);
    }

    /// Takes the exit statuses of all children, adopted ones included.
    fn reap(&mut self) {
        self.read_signals();
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
        while let Ok(Some((pid, status))) = wait(options) {
            if self.child != Some(pid) {
                continue;
            }
            // Since the last look the process may have become CMD, or failed to, and then ended.
            self.look_through_gate();
            if status.stopped() || status.continued() {
                self.tell_job_control(status);
                continue;
            }
            self.child = None;
            self.tell_end(status);
            let grace = self.asking.take().map_or(self.grace, |asking| asking.left());
            self.end(grace);
        }
    }

    fn tell_job_control(&mut self, status: WaitStatus) {
        if !self.is_program || self.ending.is_some() {
            return;
        }
        let report = status.stopping_signal().map_or(Report::Continued, Report::Stopped);
        self.control.say(&report);
    }

    fn tell_end(&mut self, status: WaitStatus) {
        let report = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) if self.is_program => Report::Exited(code),
            // A signal before the process became CMD counts as the end of CMD, unless the guardian sent it.
            (None, Some(signal)) if self.is_program || self.ending.is_none() => Report::Signaled(signal),
            _ => return,
        };
        self.control.say(&report);
    }

    /// Reports the result of an ending. Returns whether the tree is gone.
    fn settle(&mut self) -> bool {
        self.reap();
        let Some(end) = self.ending.take().map(Ending::finish) else { return false };
        // A process that never became CMD is not reported.
        let killed = end.killed().filter(|process| self.is_program || process.pid != self.program);
        for process in killed.take(MOST_NAMED) {
            self.control.say(&Report::Killed { pid: process.pid, name: process.name.clone() });
        }
        for process in end.left() {
            self.control.say(&Report::Left { pid: process.pid, name: process.name.clone() });
        }
        if end.is_verified() {
            self.control.say(&Report::TreeEmpty);
            self.control.flush();
            return true;
        }
        self.tell_survivors(&end);
        self.ending = Some(self.tree.clone().ending(Duration::ZERO));
        false
    }

    fn tell_survivors(&mut self, end: &TreeEnd) {
        let survivors: Vec<_> = end.survivors().map(|process| process.pid).collect();
        if survivors != self.survivors {
            self.control.say(&Report::Survivors(survivors.clone()));
            self.survivors = survivors;
        }
    }

    /// Waits until something happens, or `pause` has passed.
    fn sleep(&self, pause: Option<Duration>) {
        let mut files =
            vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.timer.file, PollFlags::IN)];
        if let Gate::Open(gate) = &self.gate {
            files.push(PollFd::new(gate, PollFlags::IN));
        }
        if let Some(events) = self.control.awaits() {
            files.push(PollFd::new(&self.control.socket, events));
        }
        let pause = pause.map(|pause| Timespec {
            tv_sec: pause.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: pause.subsec_nanos().into(),
        });
        // The result does not matter, not even an error: the loop checks everything.
        let _ = poll(&mut files, pause.as_ref());
    }
}
