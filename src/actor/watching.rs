//! Polls sessions for watchers. All watchers of a process share the polls.
//!
//! Polling has its own connection and its own thread, so no renewal waits for it, however many watch (invariant I10).
//! The watched sessions are polled twice a second while one of them is held, once a second otherwise, and at once when
//! a run of this process changes. One statement is under way at a time, for as many sessions as one statement takes.
//! Sessions that are to be polled meanwhile gather for the next statement.
//!
//! Nothing is shown for longer than it is known. A lease is not shown as held after its expiry, and no state is shown
//! as known after the database has been silent for too long. Only the silence of the whole database counts: a session
//! whose turn has not come yet keeps its last state.

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
    trace,
    watch::Observed,
};

mod known;
mod line;
mod looking;
mod watched;

use line::Line;
use looking::Looking;
use watched::EndWaiter;

/// Asks for watching, from any thread and any runtime.
#[derive(Clone)]
pub(crate) struct Watching(mpsc::UnboundedSender<Command>);

/// What the polling works with.
pub(crate) struct Watcher {
    store: SharedStore,
    clock: SharedClock,
    /// How long a statement may take: as long as connecting or a query may, whichever is longer, but at least 2 s and
    /// at most 30 s.
    bounds: Bounds,
    /// The events of this process's runs, so that watchers see them at once.
    events: EventSource,
    commands: Commands,
}

type Commands = Peekable<mpsc::UnboundedReceiver<Command>>;

enum Command {
    /// A caller wants to watch a session.
    Watch(SessionKey, oneshot::Sender<watch::Receiver<Option<Observed>>>),
    /// A caller waits until a run no longer holds its session.
    AwaitEnd(SessionKey, EndWaiter),
    /// A session may have changed.
    Nudge(SessionKey),
}

impl Watching {
    /// What is known of a session, now and after every change. Ends with the supervisor.
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

    /// Waits until the run no longer holds its session. Only answers of the database from `since` on count.
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

    /// Says that the session may have changed, so that its watchers see that soon.
    pub(crate) fn nudge(&self, key: SessionKey) {
        self.tell(Command::Nudge(key));
    }

    fn tell(&self, command: Command) {
        // If the supervisor has ended, the command is dropped, and its reply channel with it.
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

    /// Polls on this thread until the supervisor ends.
    pub(crate) async fn serve(self, over: CancellationToken) {
        let line = Line::new(self.store, self.clock.clone(), self.bounds);
        Looking::new(line, self.clock).serve(self.commands, self.events.subscribe(), over).await;
    }

    /// Polls on a thread of its own, which starts when somebody first watches. Returns when that thread has ended.
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
                // Do not wait for a DNS lookup: it blocks a thread for as long as the resolver takes.
                runtime.shutdown_background();
                drop(last_word);
            })
        });
        match started {
            Ok(thread) => {
                // An error means that the thread has panicked. Watching has then ended.
                let _ = hand_over.send((self, over));
                let _ = ended.await;
                let _ = thread.join();
            }
            Err(error) => {
                tracing::warn!(
                    target: trace::SUPERVISOR,
                    %error,
                    "no thread for watching: it shares the supervisor's thread"
                );
                self.serve(over).await;
            }
        }
    }

    /// Waits until somebody watches. `false` when nobody can any more.
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
