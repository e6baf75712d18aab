//! Ends a tree step by step: ask, wait, kill, verify.

use std::{
    collections::{HashMap, HashSet},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use super::{
    Member, ProcessEnd, ProcessIdentity, ProcessOutcome, TreeEnd, TreeSnapshot,
    census::{Census, started_before},
    patience::Patience,
};
use crate::clock::{BootInstant, Clock as _, SystemClock};

const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// How long killed processes may take to disappear. Freeing much memory takes a while.
const KILL_PATIENCE: Duration = Duration::from_secs(5);
/// How long killing may take in all while new processes keep appearing.
const FORK_PATIENCE: Duration = Duration::from_secs(30);
/// How long all members may take to stop before they are killed in any case.
const FREEZE_PATIENCE: Duration = Duration::from_millis(200);
/// If no new member appears for this long, the stopped members are looked at again.
const QUIET: Duration = Duration::from_millis(10);
/// How many empty looks in a row prove that no member is left. One is not enough, because the table is not read at one
/// instant.
const LOOKS_FOR_PROOF: u32 = 2;
/// How many empty looks count as proof if no look is complete because other processes fork too fast.
const INCOMPLETE_LOOKS_FOR_PROOF: u32 = 20;

/// A tree that is being ended. This is for a caller with a loop of its own. Otherwise use
/// [`ProcessTree::end`](super::ProcessTree::end).
#[derive(Debug)]
#[must_use = "processes are signalled only by its steps"]
pub struct Ending {
    census: Census,
    reached: EndingStep,
    /// Ends the grace, even from another thread.
    killed: Option<CancellationToken>,
    /// All processes that were ever found.
    seen: HashMap<ProcessIdentity, SeenProcess>,
    /// How many looks in a row found no member: complete looks, and all looks.
    empty_looks: (u32, u32),
    pause: Duration,
}

#[derive(Debug)]
enum EndingStep {
    /// Members may end by themselves until this instant.
    Grace { until: Instant, asked: Option<TermSent> },
    /// From this instant on, every member that is found is killed.
    Killing { since: Instant },
    /// Nothing more is done. The last look counts.
    Done,
}

/// When SIGTERM was sent, and to which members.
#[derive(Debug)]
struct TermSent {
    at: BootInstant,
    members: HashSet<ProcessIdentity>,
}

#[derive(Debug)]
struct SeenProcess {
    name: String,
    was_killed: bool,
    is_alive: bool,
}

/// The result of a step. There will never be a third one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Step again after this pause, or sooner.
    Wait(Duration),
    /// No member is left, or nothing can be done about the rest.
    Done,
}

impl Ending {
    pub(super) fn new(census: Census, grace: Duration) -> Self {
        let now = Instant::now();
        let reached = match now.checked_add(grace) {
            Some(until) => EndingStep::Grace { until, asked: None },
            // The instant is beyond the clock's range. A century from now is as good as never.
            None => EndingStep::Grace { until: now + Duration::from_secs(3_155_760_000), asked: None },
        };
        Self {
            census,
            reached,
            killed: None,
            seen: HashMap::new(),
            empty_looks: (0, 0),
            pause: SHORTEST_PAUSE,
        }
    }

    /// Ends the grace when the token is cancelled, even in the middle of a look or of a [`pause`](Self::pause).
    pub(crate) fn killed_by(self, token: CancellationToken) -> Self {
        Self { killed: Some(token), ..self }
    }

    /// Shortens the rest of the grace to this, counted from now. Zero kills the known members at once, and the others
    /// with the next step. This never makes the grace longer.
    pub fn shorten(&mut self, grace: Duration) {
        let now = Instant::now();
        if let EndingStep::Grace { until, .. } = &mut self.reached {
            if grace.is_zero() {
                self.begin_killing();
            } else if let Some(sooner) = now.checked_add(grace) {
                *until = sooner.min(*until);
            }
        }
    }

    /// Looks which members are alive, and sends the signals that are due. This reads the process table, and never
    /// sleeps for long.
    pub fn step(&mut self) -> Progress {
        if matches!(self.reached, EndingStep::Done) {
            return Progress::Done;
        }
        if self.census.has_nobody_below() {
            self.seen.values_mut().for_each(|seen| seen.is_alive = false);
            self.reached = EndingStep::Done;
            return Progress::Done;
        }
        let began = Instant::now();
        let Some(TreeSnapshot { members, is_complete }) = self.look() else {
            // The grace is over, and there is no time for another look.
            self.begin_killing();
            return Progress::Wait(Duration::ZERO);
        };
        if members.is_empty() {
            return self.note_empty_look(is_complete);
        }
        self.empty_looks = (0, 0);
        match self.reached {
            EndingStep::Grace { .. } => self.ask(&members),
            EndingStep::Killing { since } => self.kill(&members, since),
            EndingStep::Done => {}
        }
        if matches!(self.reached, EndingStep::Done) {
            return Progress::Done;
        }
        self.next_pause(began.elapsed())
    }

    /// Blocks the thread between two steps, at most until the grace is over.
    pub(crate) fn pause(&self, pause: Duration) {
        match self.patience() {
            Patience { until: None, .. } => thread::sleep(pause),
            patience => {
                let until = Instant::now().checked_add(pause).or(patience.until).min(patience.until);
                let _ = Patience { until, ..patience }.wait_for(|| None::<()>);
            }
        }
    }

    /// The result. Before [`Progress::Done`], all members that were alive at the last look count as survivors.
    pub fn finish(self) -> TreeEnd {
        let mut processes: Vec<_> = self
            .seen
            .into_iter()
            .filter(|(id, _)| !self.census.is_left_behind(*id))
            .map(|(id, seen)| ProcessEnd {
                pid: id.pid.unsigned_abs(),
                name: seen.name,
                how: match (seen.is_alive, seen.was_killed) {
                    (true, _) => ProcessOutcome::Survived,
                    (false, true) => ProcessOutcome::Killed,
                    (false, false) => ProcessOutcome::Terminated,
                },
            })
            .collect();
        let left = self.census.left();
        processes.extend(left.map(|(id, name)| ProcessEnd {
            pid: id.pid.unsigned_abs(),
            name: name.to_owned(),
            how: ProcessOutcome::Left,
        }));
        processes.sort_by_key(|process| process.pid);
        TreeEnd { processes }
    }

    /// Begins to kill. On a busy machine a look takes long, so the members at hand are killed before the next look.
    fn begin_killing(&mut self) {
        self.reached = EndingStep::Killing { since: Instant::now() };
        self.pause = SHORTEST_PAUSE;
        let at_hand = self.census.at_hand();
        self.note(&at_hand);
        self.kill_all(&at_hand);
        self.census.signal_led_groups(Signal::KILL);
    }

    fn kill_all(&mut self, members: &[Member]) {
        self.census.signal_all(members, Signal::KILL);
        for member in members {
            if let Some(seen) = self.seen.get_mut(&member.id) {
                seen.was_killed = true;
            }
        }
    }

    /// Looks, and remembers what it found. `None` if the grace ended first.
    fn look(&mut self) -> Option<TreeSnapshot> {
        let look = self.census.scan(&self.patience())?;
        for seen in self.seen.values_mut() {
            seen.is_alive = false;
        }
        self.note(&look.members);
        Some(look)
    }

    /// The limit of a look. Only the grace has one: killing is not cut short.
    fn patience(&self) -> Patience {
        match self.reached {
            EndingStep::Grace { until, .. } => Patience { until: Some(until), unless: self.killed.clone() },
            EndingStep::Killing { .. } | EndingStep::Done => Patience::default(),
        }
    }

    fn note(&mut self, members: &[Member]) {
        for member in members {
            let seen = self.seen.entry(member.id).or_insert_with(|| SeenProcess {
                name: String::new(),
                was_killed: false,
                is_alive: true,
            });
            seen.is_alive = true;
            seen.name.clone_from(&member.name);
        }
    }

    fn note_empty_look(&mut self, is_complete: bool) -> Progress {
        let (complete, all) = &mut self.empty_looks;
        *complete += u32::from(is_complete);
        *all += 1;
        if *complete < LOOKS_FOR_PROOF && *all < INCOMPLETE_LOOKS_FOR_PROOF {
            return Progress::Wait(SHORTEST_PAUSE);
        }
        self.reached = EndingStep::Done;
        Progress::Done
    }

    fn ask(&mut self, members: &[Member]) {
        let EndingStep::Grace { asked, .. } = &mut self.reached else { return };
        let Some(asked) = asked else {
            *asked = Some(TermSent {
                at: SystemClock.now(),
                members: members.iter().map(|member| member.id).collect(),
            });
            self.census.signal_all(members, Signal::TERM);
            self.census.signal_all(members, Signal::CONT);
            return;
        };
        for member in members {
            // A member that had started before the signal and was missed gets it late. A process that started later was
            // started by a member that is ending, for example to clean up, and gets none.
            if started_before(member, asked.at) && asked.members.insert(member.id) {
                self.census.signal_one(member, Signal::TERM);
                self.census.signal_one(member, Signal::CONT);
            }
        }
    }

    fn kill(&mut self, members: &[Member], since: Instant) {
        let is_new = |id: &ProcessIdentity| !self.seen.get(id).is_some_and(|seen| seen.was_killed);
        let has_new = members.iter().any(|member| is_new(&member.id));
        let has_killed_before = self.seen.values().any(|seen| seen.was_killed);
        let patience = if has_new { FORK_PATIENCE } else { KILL_PATIENCE };
        if since.elapsed() > patience {
            self.reached = EndingStep::Done;
            return;
        }
        // A member has forked while others were killed. Members must be stopped first, so that all of them can be
        // found.
        if has_new {
            self.pause = SHORTEST_PAUSE;
        }
        let frozen = if has_new && has_killed_before { self.freeze() } else { Vec::new() };
        self.kill_all(if frozen.is_empty() { members } else { &frozen });
    }

    /// Stops all members, including those that start in the meantime. Returns the members that are alive then.
    fn freeze(&mut self) -> Vec<Member> {
        let deadline = Instant::now() + FREEZE_PATIENCE;
        loop {
            // Nothing ends a look while members are being killed.
            let Some(TreeSnapshot { members, .. }) = self.look() else { return Vec::new() };
            let moving: Vec<_> = members.iter().filter(|member| !member.is_stopped).cloned().collect();
            if moving.is_empty() || Instant::now() > deadline {
                return members;
            }
            self.census.signal_all(&moving, Signal::STOP);
            self.census.chase(QUIET, FREEZE_PATIENCE);
        }
    }

    fn next_pause(&mut self, step_took: Duration) -> Progress {
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        match self.reached {
            // With very many processes a look is expensive. It must take no more than a fifth of the time.
            EndingStep::Grace { until, .. } => {
                Progress::Wait(pause.max(step_took * 4).min(until.saturating_duration_since(Instant::now())))
            }
            EndingStep::Killing { .. } | EndingStep::Done => Progress::Wait(pause),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        os::unix::process::CommandExt,
        process::{Command, Stdio},
    };

    use super::*;
    use crate::process::ProcessTree;

    /// Only the root of the tree is known, and it is a zombie by then.
    #[test]
    fn who_is_killed_before_the_first_look_takes_the_group_along() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 600 & exit 0"]).process_group(0).stdout(Stdio::piped());
        let mut root = shell.spawn().unwrap();
        let tree = ProcessTree::marked("TENURE_TEST_NOBODY".to_owned()).with_root(root.id());
        let killed = CancellationToken::new();
        killed.cancel();
        let pid = rustix::process::Pid::from_child(&root);
        let exited = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(pid), exited).unwrap();
        let mut ending = tree.ending(Duration::MAX).killed_by(killed);
        assert_eq!(ending.step(), Progress::Wait(Duration::ZERO));
        // The pipe closes when the last process of the group is gone.
        root.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
        root.wait().unwrap();
    }
}
