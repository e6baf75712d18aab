//! Looking at sessions for those who watch them: all of a process share one statement per look.
//!
//! The looks go over a connection of their own, from a thread of their own: however many watch, no renewal waits for
//! it (invariant I10). A session is looked at twice a second while somebody holds one, once a second otherwise, and at
//! once when a run of this process changes. One statement is under way at a time, for as many sessions as one takes;
//! what wants a look meanwhile gathers for the next.
//!
//! What is shown never outlives what is known: a lease not its expiry, and nothing the database's silence. The
//! silence is the database's, not a session's: whose turn has not come yet is still as it was.

use std::{pin::Pin, thread};

use futures::{
    StreamExt as _,
    channel::{mpsc, oneshot},
    stream::{self, Peekable, Stream},
};
use tokio::{runtime, sync::watch};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::{BootInstant, SharedClock},
    error::Closed,
    event::EventSource,
    session::{RunId, SessionKey},
    store::{Bounds, SharedStore},
    watch::Observed,
};

mod known;
mod line;
mod looking;
mod watched;

use line::Line;
use looking::Looking;
use watched::EndWaiter;

/// The way to watch, from any thread and any runtime.
#[derive(Clone)]
pub(crate) struct Watching(mpsc::UnboundedSender<Command>);

/// What is served to those who watch.
pub(crate) struct Watcher {
    store: SharedStore,
    clock: SharedClock,
    /// A statement may take as long as connecting may, or a look on the slowest line.
    bounds: Bounds,
    /// What runs of this process do shows at once.
    events: EventSource,
    commands: Commands,
}

type Commands = Peekable<mpsc::UnboundedReceiver<Command>>;

enum Command {
    /// Somebody wants to watch a session.
    Watch(SessionKey, oneshot::Sender<watch::Receiver<Option<Observed>>>),
    /// Somebody waits until a run does not hold its session any more.
    AwaitEnd(SessionKey, EndWaiter),
    /// A session may have changed.
    Nudge(SessionKey),
}

impl Watching {
    /// What is known of a session, now and after every change; ends with the supervisor.
    pub(crate) fn observe(&self, key: &SessionKey) -> impl Stream<Item = Observed> + Send + Unpin + use<> {
        let (reply, answer) = oneshot::channel();
        self.tell(Command::Watch(key.clone(), reply));
        // Without `fuse`, an unfold that is polled after its end panics.
        Box::pin(
            stream::unfold(Observing::Asked(answer), async |observing| {
                let (mut shown, last) = match observing {
                    Observing::Asked(answer) => (answer.await.ok()?, None),
                    Observing::Since(last, shown) => (shown, Some(last)),
                };
                loop {
                    let observed = shown.borrow_and_update().clone();
                    let is_new = |observed: &Observed| {
                        !last.as_ref().is_some_and(|last| last.shows_the_same_as(observed))
                    };
                    if let Some(observed) = observed.filter(is_new) {
                        return Some((observed.clone(), Observing::Since(Box::new(observed), shown)));
                    }
                    shown.changed().await.ok()?;
                }
            })
            .fuse(),
        )
    }

    /// Waits until the run does not hold its session any more, as the database says from `since` on.
    pub(crate) fn until_gone(
        &self,
        key: &SessionKey,
        run_id: RunId,
        since: BootInstant,
    ) -> impl Future<Output = Result<(), Closed>> + Send + use<> {
        let (reply, gone) = oneshot::channel();
        self.tell(Command::AwaitEnd(key.clone(), EndWaiter { run_id, since, reply }));
        async move { gone.await.map_err(|oneshot::Canceled| Closed) }
    }

    /// The session may have changed: those who watch it are to see that soon.
    pub(crate) fn nudge(&self, key: SessionKey) {
        self.tell(Command::Nudge(key));
    }

    fn tell(&self, command: Command) {
        // A supervisor that has ended drops the command, and with it the way to answer.
        let _ = self.0.unbounded_send(command);
    }
}

enum Observing {
    Asked(oneshot::Receiver<watch::Receiver<Option<Observed>>>),
    Since(Box<Observed>, watch::Receiver<Option<Observed>>),
}

impl Watcher {
    pub(crate) fn new(
        store: SharedStore,
        clock: SharedClock,
        bounds: Bounds,
        events: EventSource,
    ) -> (Watching, Self) {
        let (sender, commands) = mpsc::unbounded();
        (Watching(sender), Self { store, clock, bounds, events, commands: commands.peekable() })
    }

    /// Looks, on this thread, until the supervisor is over.
    pub(crate) async fn serve(self, over: CancellationToken) {
        let line = Line::new(self.store, self.clock.clone(), self.bounds);
        Looking::new(line, self.clock).serve(self.commands, self.events.subscribe(), over).await;
    }

    /// The same on a thread of its own, which there is from when somebody first watches. Returns when it has ended.
    pub(crate) async fn serve_apart(mut self, over: CancellationToken) {
        if over.run_until_cancelled(self.until_wanted()).await != Some(true) {
            return;
        }
        let (hand_over, handed_over) = oneshot::channel::<(Self, CancellationToken)>();
        let (last_word, ended) = oneshot::channel::<()>();
        let started = runtime::Builder::new_current_thread().enable_all().build().and_then(|runtime| {
            thread::Builder::new().name("tenure-watch".to_owned()).spawn(move || {
                runtime.block_on(async {
                    if let Ok((watcher, over)) = handed_over.await {
                        watcher.serve(over).await;
                    }
                });
                // A name that is being looked up must not keep it.
                runtime.shutdown_background();
                drop(last_word);
            })
        });
        match started {
            Ok(thread) => {
                // An error says that the thread has panicked: then nobody is watched for any more.
                let _ = hand_over.send((self, over));
                let _ = ended.await;
                let _ = thread.join();
            }
            Err(error) => {
                tracing::warn!(%error, "no thread for those who watch: they share the supervisor's");
                self.serve(over).await;
            }
        }
    }

    /// `false` when nobody can watch any more.
    async fn until_wanted(&mut self) -> bool {
        loop {
            match Pin::new(&mut self.commands).peek().await {
                Some(Command::Nudge(_)) => self.commands.next().await,
                Some(_) => return true,
                None => return false,
            };
        }
    }
}
