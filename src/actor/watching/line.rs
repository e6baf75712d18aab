//! The watchers' own connection. It carries one poll at a time, and is replaced when it is lost.
//!
//! A poll has a short time-out, so that a database that is back is noticed soon. On a slow line a fixed time-out would
//! fail every poll. So the time-out depends on how long it took to connect, and connecting is never given up for being
//! slow: further attempts are made beside the first.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use tokio::time::{Instant, timeout};

use crate::{
    actor::{
        call::answer,
        pool::{Opened, connect},
    },
    clock::{BootInstant, SharedClock},
    session::{Holder, SessionKey},
    store::{Bounds, LeaseConnection, SharedStore, StoreError},
    watch::Standby,
};

pub(super) struct Line {
    store: SharedStore,
    clock: SharedClock,
    /// How long a statement may take: as long as connecting or a query may, whichever is longer, but at least 2 s and
    /// at most 30 s. So this is always longer than [`PATIENCE`].
    bounds: Bounds,
    state: State,
}

enum State {
    Down,
    Connecting(BoxFuture<'static, Result<Open, StoreError>>),
    Up(Open),
    Looking(BoxFuture<'static, LookReturn>),
}

struct Open {
    connection: Box<dyn LeaseConnection>,
    /// How long a poll may take on this connection.
    patience: Duration,
}

struct LookReturn {
    open: Option<Open>,
    result: Result<LookResult, StoreError>,
}

/// The answer to a poll.
pub(super) struct LookResult {
    pub(super) keys: Vec<SessionKey>,
    /// Just before the statement was sent.
    pub(super) sent_at: BootInstant,
    /// In the order of the keys.
    pub(super) holders: Vec<Option<Holder>>,
    /// The standby that answered, if it was not the server that takes writes.
    pub(super) standby: Option<Standby>,
}

/// The outcome of connecting, or of a poll.
pub(super) enum LookOutcome {
    Connected,
    Seen(LookResult),
    Failed(StoreError),
}

/// How long a poll may take on an ordinary line. Also how long an attempt to connect may be silent before another is
/// made beside it. With the pause that follows, a database that is back is noticed within two seconds, even if one poll
/// is lost.
const PATIENCE: Duration = Duration::from_millis(1_200);
/// How long closing the connection may take.
const GOODBYE: Duration = Duration::from_millis(300);

impl Line {
    pub(super) fn new(store: SharedStore, clock: SharedClock, bounds: Bounds) -> Self {
        Self { store, clock, bounds, state: State::Down }
    }

    /// Whether a poll or an attempt to connect is under way. It will have an [outcome](Self::poll).
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.state, State::Connecting(_) | State::Looking(_))
    }

    /// Whether a poll can be sent now.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    pub(super) fn connect(&mut self) {
        let connecting = open(self.store.clone(), self.bounds);
        self.state = State::Connecting(connecting.boxed());
    }

    /// Sends a poll, if the line is up. Each key may occur once, and there may be no more keys than one statement
    /// takes.
    pub(super) fn look(&mut self, keys: Vec<SessionKey>) {
        self.state = match std::mem::replace(&mut self.state, State::Down) {
            State::Up(open) => {
                let location = self.store.location().to_owned();
                let looking = open.look(keys, self.clock.clone(), self.bounds.statement, location);
                State::Looking(looking.boxed())
            }
            other => other,
        };
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<LookOutcome> {
        let (state, outcome) = match &mut self.state {
            State::Connecting(connecting) => match std::task::ready!(connecting.poll_unpin(cx)) {
                Ok(open) => (State::Up(open), LookOutcome::Connected),
                Err(error) => (State::Down, LookOutcome::Failed(error)),
            },
            State::Looking(looking) => {
                let LookReturn { open, result } = std::task::ready!(looking.poll_unpin(cx));
                (
                    open.map_or(State::Down, State::Up),
                    result.map_or_else(LookOutcome::Failed, LookOutcome::Seen),
                )
            }
            State::Down | State::Up(_) => return Poll::Pending,
        };
        self.state = state;
        Poll::Ready(outcome)
    }

    pub(super) async fn close(self) {
        if let State::Up(open) = self.state {
            let _ = timeout(GOODBYE, open.connection.close()).await;
        }
    }
}

impl Open {
    async fn look(
        mut self,
        keys: Vec<SessionKey>,
        clock: SharedClock,
        longest: Duration,
        location: String,
    ) -> LookReturn {
        let (sent_at, began) = (clock.now(), Instant::now());
        let result = answer(&location, self.patience, self.connection.inspect(&keys)).await;
        self.patience = (3 * began.elapsed()).clamp(PATIENCE, longest);
        // After an uncertain end the connection may still be busy with the statement, so it is never used again.
        let is_usable = result.as_ref().map_or_else(|error| !error.is_uncertain(), |_| true);
        let standby = self.connection.standby();
        let result = result.map(|holders| LookResult { keys, sent_at, holders, standby });
        LookReturn { open: is_usable.then_some(self), result }
    }
}

/// Connects. The time-out for a statement bounds this.
async fn open(store: SharedStore, bounds: Bounds) -> Result<Open, StoreError> {
    let longest = bounds.statement;
    let opened = timeout(longest, connect(store.clone(), bounds, PATIENCE, &[])).await;
    let Opened { connection, took } =
        opened.unwrap_or_else(|_elapsed| Err(StoreError::silent(store.location(), longest)))?;
    // Connecting takes at least as many round trips as a poll.
    let patience = (2 * took).clamp(PATIENCE, longest);
    Ok(Open { connection, patience })
}
