//! CMD under its guardian, as the command sees it.

// By its path, since a test takes this file in from elsewhere.
#[path = "guarded/answers.rs"]
mod answers;

use std::{
    ffi::OsString,
    future::Future,
    io,
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream as StdStream, process::CommandExt as _},
    },
    path::PathBuf,
    pin::Pin,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use tenure::{
    clock::{BootInstant, Clock as _, SystemClock},
    process::{ProcessTree, TreeEnd, become_subreaper},
};
use tokio::{
    io::unix::AsyncFd,
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout,
};

use answers::Answers;

use crate::{
    inherited,
    proc_stat::ProcStat,
    timer::Timer,
    wire::{Deadlines, GUARDIAN, Order, Report, Setup, ToldBy, take_line},
};

/// How long a last look at what the guardian has said may take, before it counts as lost.
const LAST_LOOK: Duration = Duration::from_millis(20);
/// How long the guardian may take to end after its last report.
const LAST_BREATH: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// How often the clock is read where it cannot be waited for.
const CLOCK_STEP: Duration = Duration::from_millis(500);

/// What to start.
#[derive(Debug)]
pub(crate) struct GuardPlan {
    /// This binary: `/proc/self/exe` is right even when the file was replaced meanwhile.
    pub(crate) binary: PathBuf,
    /// What others see the guardian as.
    pub(crate) title: String,
    pub(crate) setup: Setup,
    /// CMD and its arguments.
    pub(crate) program: Vec<OsString>,
    /// Variables to set for CMD, or to take out of its environment.
    pub(crate) environment: Vec<(OsString, Option<OsString>)>,
}

/// CMD, guarded. Dropping it is a stop: the guardian then ends the tree on its own.
#[derive(Debug)]
#[must_use = "dropping it ends CMD"]
pub(crate) struct Guarded {
    orders: OwnedWriteHalf,
    shared: Arc<GivenOrders>,
}

/// What those who give orders and those who read reports share.
#[derive(Debug, Default)]
struct GivenOrders {
    /// In nanoseconds of the boot clock.
    kill_at: AtomicU64,
    /// Orders given.
    orders: AtomicU64,
    /// The tree is to end, and the guardian has work to do without further orders.
    is_stopping: AtomicBool,
}

/// What the guardian reports. To be read all the time: this is also what replaces a guardian that is lost.
#[derive(Debug)]
pub(crate) struct Reports {
    socket: OwnedReadHalf,
    received: Vec<u8>,
    shared: Arc<GivenOrders>,
    answers: Answers,
    timer: AsyncFd<Timer>,
    /// How long past the kill instant the guardian may stay silent, before it counts as lost: half of what then is
    /// left until another run can start.
    silence: Duration,
    guardian: GuardianHandle,
    tree: ProcessTree,
    rescue: Option<Rescue>,
    is_over: bool,
}

/// The guardian's process.
#[derive(Debug)]
struct GuardianHandle {
    child: std::process::Child,
    /// Where the kernel has none, nobody continues a stopped guardian.
    handle: Option<OwnedFd>,
}

/// The command does the guardian's work.
struct Rescue {
    /// Its end is no news of CMD's.
    guardian: u32,
    tree: ProcessTree,
    end: Pin<Box<dyn Future<Output = TreeEnd> + Send>>,
    unsaid: Vec<Report>,
}

/// Starts the guardian and, waiting for [`go`](Guarded::go), CMD's process.
///
/// Needs a tokio runtime, and a process that starts no other children: when the guardian is lost, all that is
/// below this process is ended. A signal that was ignored when this process started must still be (`nohup`):
/// CMD inherits that. In a process that ignores SIGCHLD, nothing else may wait for children.
pub(crate) fn start(plan: &GuardPlan) -> io::Result<(Guarded, Reports)> {
    // What a killed guardian leaves comes to us.
    become_subreaper()?;
    let (ours, theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut command = Command::new(&plan.binary);
    let socket = inherited::leave_open(&theirs)?;
    // Signals from the terminal are for CMD, not for its guardian.
    command.arg0(&plan.title).arg(GUARDIAN).arg(socket).process_group(0);
    command.args(plan.setup.to_args()).args(&plan.program);
    for (name, value) in &plan.environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let child = command.spawn()?;
    drop(theirs);
    let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok();
    let (socket, orders) = UnixStream::from_std(ours)?.into_split();
    let tree = ProcessTree::of(plan.setup.run).with_all_below_this_process();
    let Deadlines { until, kill_at } = plan.setup.trust;
    let shared =
        Arc::new(GivenOrders { kill_at: AtomicU64::new(kill_at.as_nanos()), ..GivenOrders::default() });
    let guarded = Guarded { orders, shared: shared.clone() };
    let reports = Reports {
        socket,
        received: Vec::new(),
        shared,
        answers: Answers::none_expected(),
        timer: inherited::watch_timer(Timer::new()?)?,
        silence: kill_at.saturating_since(until) / 2,
        guardian: GuardianHandle { child, handle },
        tree: tree.leaving(plan.setup.leave.clone()),
        rescue: None,
        is_over: false,
    };
    Ok((guarded, reports))
}

/// Orders never wait. An error means that the guardian is lost; the reports tell what follows from it.
impl Guarded {
    /// Starts CMD, unless it was stopped or trust has ended. The terminal is given away before this, when the
    /// guardian is [`Ready`](Report::Ready).
    pub(crate) fn go(&self) -> io::Result<()> {
        self.order(Order::Go)
    }

    /// Tells of a renewal.
    pub(crate) fn trust(&self, trust: Deadlines) -> io::Result<()> {
        self.shared.kill_at.store(trust.kill_at.as_nanos(), Ordering::Relaxed);
        self.order(Order::Trust(trust))
    }

    /// Ends the tree: asked first, killed after the grace, or at the kill instant when that comes first. A second
    /// stop can only shorten the grace.
    pub(crate) fn stop(&self, grace: Duration, told_by: ToldBy) -> io::Result<()> {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        self.order(Order::Stop { grace, told_by })
    }

    /// Passes a signal on to CMD, by number.
    pub(crate) fn signal(&self, number: i32) -> io::Result<()> {
        self.order(Order::Signal { number, to_group: false })
    }

    /// Passes a signal on to CMD's group, as a terminal would.
    pub(crate) fn signal_group(&self, number: i32) -> io::Result<()> {
        self.order(Order::Signal { number, to_group: true })
    }

    fn order(&self, order: Order) -> io::Result<()> {
        self.shared.orders.fetch_add(1, Ordering::Relaxed);
        let line = format!("{order}\n");
        // Past the runtime, which knows of a new socket only after a while that it can be written, and refuses until
        // then. The buffer holds thousands of lines, so it takes a line whole or the guardian does not read any more.
        match rustix::io::write(self.orders.as_ref(), line.as_bytes())? {
            written if written == line.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}

impl Reports {
    /// The next report; `None` after [`Report::TreeEmpty`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Option<Report> {
        loop {
            if self.is_over {
                return None;
            }
            if let Some(rescue) = &mut self.rescue {
                let report = rescue.next().await;
                self.is_over = report == Report::TreeEmpty;
                return Some(report);
            }
            if let Some(line) = take_line(&mut self.received) {
                match line.parse() {
                    Ok(Report::Heard(orders)) => self.answers.heard = orders,
                    Ok(report) => {
                        self.is_over = report == Report::TreeEmpty;
                        return Some(report);
                    }
                    // From the same binary: an unknown line cannot be.
                    Err(_) => {}
                }
                continue;
            }
            let is_due = self.answers.are_due(&self.shared);
            let is_lost = tokio::select! {
                biased;
                read = read_some(&self.socket, &mut self.received) => read.is_err(),
                () = passed(&mut self.timer, &self.shared.kill_at, self.silence) => {
                    // What it has said may be here, only not noticed: this process may have been stopped itself.
                    let look = timeout(LAST_LOOK, read_some(&self.socket, &mut self.received)).await;
                    !matches!(look, Ok(Ok(())))
                }
                _ = self.answers.step.tick(), if is_due => {
                    let was_stopped = self.guardian.is_stopped();
                    self.guardian.wake();
                    self.answers.are_overdue(&self.shared, was_stopped)
                }
            };
            if is_lost {
                self.rescue = Some(Rescue::start(self.tree.clone(), self.guardian.child.id()));
                return Some(Report::GuardianLost);
            }
        }
    }
}

impl GuardianHandle {
    fn is_stopped(&self) -> bool {
        ProcStat::of(self.child.id()).is_some_and(|stat| matches!(stat.state, 'T' | 't'))
    }

    /// Whoever is given it after this process, in a container often a program that waits for nobody, would keep it as
    /// a zombie. It ends by itself, at once after its last report.
    fn wait_briefly(&mut self) {
        if let Some(handle) = self.handle.as_ref().filter(|_| matches!(self.child.try_wait(), Ok(None))) {
            let _ = poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&LAST_BREATH));
        }
        let _ = self.child.try_wait();
    }

    /// Lets it go on, if somebody has stopped it.
    fn wake(&self) {
        if let Some(handle) = &self.handle {
            let _ = pidfd_send_signal(handle, Signal::CONT);
        }
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        self.guardian.wait_briefly();
    }
}

impl Rescue {
    fn start(tree: ProcessTree, guardian: u32) -> Self {
        let end = Box::pin(tree.clone().end(Duration::ZERO));
        Self { guardian, tree, end, unsaid: Vec::new() }
    }

    async fn next(&mut self) -> Report {
        while self.unsaid.is_empty() {
            let end = (&mut self.end).await;
            let killed = end.killed().filter(|one| one.pid != self.guardian);
            let killed = killed.map(|one| Report::Killed { pid: one.pid, name: one.name.clone() });
            let left = end.left().map(|one| Report::Left { pid: one.pid, name: one.name.clone() });
            self.unsaid.extend(killed.chain(left));
            self.unsaid.push(if end.is_verified() {
                Report::TreeEmpty
            } else {
                Report::Survivors(end.survivors().map(|one| one.pid).collect())
            });
            if !end.is_verified() {
                self.end = Box::pin(self.tree.clone().end(Duration::ZERO));
            }
        }
        self.unsaid.remove(0)
    }
}

impl std::fmt::Debug for Rescue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rescue").field("unsaid", &self.unsaid).finish_non_exhaustive()
    }
}

/// Waits for more; an error at the end.
async fn read_some(socket: &OwnedReadHalf, received: &mut Vec<u8>) -> io::Result<()> {
    loop {
        socket.readable().await?;
        let mut buffer = [0; 1024];
        match socket.try_read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                received.extend_from_slice(&buffer[..read]);
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until the kill instant has passed, wherever renewals move it meanwhile.
async fn passed(timer: &mut AsyncFd<Timer>, kill_at: &AtomicU64, silence: Duration) {
    loop {
        let overdue_at = BootInstant::from_nanos(kill_at.load(Ordering::Relaxed)) + silence;
        if overdue_at <= SystemClock.now() {
            return;
        }
        timer.get_mut().arm(Some(overdue_at));
        match timer.readable().await {
            Ok(mut ready) => ready.clear_ready(),
            // It is not the timer that decides.
            Err(_) => tokio::time::sleep(CLOCK_STEP).await,
        }
    }
}
