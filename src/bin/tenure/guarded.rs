//! The command's side of the guardian: starts it, gives it orders, and reads its reports.

// With a path, because a test includes this file from another directory.
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

/// How long the last attempt to read a report takes, before the guardian counts as lost.
const LAST_LOOK: Duration = Duration::from_millis(20);
/// How long the guardian may take to end after its last report.
const LAST_BREATH: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// How often the clock is read if the timer fails.
const CLOCK_STEP: Duration = Duration::from_millis(500);

/// What the guardian is started with.
#[derive(Debug)]
pub(crate) struct GuardPlan {
    /// This binary: `/proc/self/exe` is the right path even if the file was replaced in the meantime.
    pub(crate) binary: PathBuf,
    /// The name that `ps` shows for the guardian.
    pub(crate) title: String,
    pub(crate) setup: Setup,
    /// CMD and its arguments.
    pub(crate) program: Vec<OsString>,
    /// Variables to set for CMD, or to take out of its environment.
    pub(crate) environment: Vec<(OsString, Option<OsString>)>,
}

/// Gives orders to the guardian of CMD. When it is dropped, the guardian ends CMD's tree on its own.
#[derive(Debug)]
#[must_use = "dropping it ends CMD"]
pub(crate) struct Guarded {
    orders: OwnedWriteHalf,
    shared: Arc<GivenOrders>,
}

/// The state that [`Guarded`] and [`Reports`] share.
#[derive(Debug, Default)]
struct GivenOrders {
    /// When CMD is killed, in nanoseconds of the boot clock.
    kill_at: AtomicU64,
    /// How many orders were given.
    orders: AtomicU64,
    /// Whether the guardian was told to end the tree. From then on it has work to do without further orders.
    is_stopping: AtomicBool,
}

/// The reports of the guardian. They must be read all the time: [`next`](Self::next) also notices that the guardian is
/// lost, and then does the guardian's work.
#[derive(Debug)]
pub(crate) struct Reports {
    socket: OwnedReadHalf,
    received: Vec<u8>,
    shared: Arc<GivenOrders>,
    answers: Answers,
    timer: AsyncFd<Timer>,
    /// How long after the kill instant the guardian may stay silent before it counts as lost: half of the time that is
    /// then left until another run can start.
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
    /// `None` on a kernel without pidfds. A stopped guardian is then not continued.
    handle: Option<OwnedFd>,
}

/// The command ends the tree itself, because the guardian is lost.
struct Rescue {
    /// The guardian's process id. Its end is not reported as one of CMD's processes.
    guardian: u32,
    tree: ProcessTree,
    end: Pin<Box<dyn Future<Output = TreeEnd> + Send>>,
    unsaid: Vec<Report>,
}

/// Starts the guardian, and CMD's process, which waits for [`go`](Guarded::go).
///
/// Needs a tokio runtime. The calling process must start no other children: when the guardian is lost, all descendants
/// of the process are ended. A signal that was ignored when the process started (`nohup`) must still be ignored,
/// because CMD inherits that. In a process that ignores SIGCHLD, nothing else may wait for children.
pub(crate) fn start(plan: &GuardPlan) -> io::Result<(Guarded, Reports)> {
    // If the guardian is killed, this process becomes the parent of what it leaves.
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

/// Orders never block. An error means that the guardian is lost; [`Reports::next`] then says so.
impl Guarded {
    /// Starts CMD, unless a stop was ordered or trust has ended. CMD is given the terminal before this, when the
    /// guardian is [`Ready`](Report::Ready).
    pub(crate) fn go(&self) -> io::Result<()> {
        self.order(Order::Go)
    }

    /// Tells the guardian of a renewal.
    pub(crate) fn trust(&self, trust: Deadlines) -> io::Result<()> {
        self.shared.kill_at.store(trust.kill_at.as_nanos(), Ordering::Relaxed);
        self.order(Order::Trust(trust))
    }

    /// Ends the tree: tells it to end, and kills it after the grace or at the kill instant, whichever comes first. A
    /// second stop can only shorten the grace.
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
        // Written without tokio, which refuses to write to a new socket until it has found it writable. The socket's
        // buffer holds thousands of lines: if it does not take a whole line, the guardian does not read any more.
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
                    // Both sides are the same binary, so every line can be parsed.
                    Err(_) => {}
                }
                continue;
            }
            self.answers.expect(&self.shared);
            let is_lost = tokio::select! {
                biased;
                read = read_some(&self.socket, &mut self.received) => read.is_err(),
                () = passed(&mut self.timer, &self.shared.kill_at, self.silence) => {
                    // If this process was stopped itself, a report may have arrived that it has not read yet.
                    let look = timeout(LAST_LOOK, read_some(&self.socket, &mut self.received)).await;
                    !matches!(look, Ok(Ok(())))
                }
                () = self.answers.step() => {
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

    /// Waits for the guardian's process, which ends right after its last report. Otherwise it could stay as a zombie:
    /// in a container, the next parent is often a program that does not wait for orphans.
    fn wait_briefly(&mut self) {
        if let Some(handle) = self.handle.as_ref().filter(|_| matches!(self.child.try_wait(), Ok(None))) {
            let _ = poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&LAST_BREATH));
        }
        let _ = self.child.try_wait();
    }

    /// Continues the guardian, in case it was stopped.
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

/// Waits for more bytes and reads them. The end of the file is an error.
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

/// Waits until `silence` after the kill instant, which renewals may move meanwhile.
async fn passed(timer: &mut AsyncFd<Timer>, kill_at: &AtomicU64, silence: Duration) {
    loop {
        let overdue_at = BootInstant::from_nanos(kill_at.load(Ordering::Relaxed)) + silence;
        if overdue_at <= SystemClock.now() {
            return;
        }
        timer.get_mut().arm(Some(overdue_at));
        match timer.readable().await {
            Ok(mut ready) => ready.clear_ready(),
            // The clock decides, not the timer.
            Err(_) => tokio::time::sleep(CLOCK_STEP).await,
        }
    }
}
