//! Events: what happens to runs, for listeners.

use std::{pin::pin, sync::Arc, time::Duration};

use actix::Recipient;
use futures::{
    FutureExt, StreamExt,
    future::{Either, select},
    stream::{self, Stream},
};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

#[cfg(feature = "serde")]
use crate::session::millis;
use crate::{
    end::EndReason,
    session::{FencingToken, RunId, SessionKey},
    store::StoreError,
};

/// Which run an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct RunRef {
    /// Its session.
    pub key: SessionKey,
    /// Its id.
    pub run_id: RunId,
    /// Its fencing token.
    pub fence: FencingToken,
}

/// Something happened to a run of this supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum RunEvent {
    /// The database granted a session.
    #[non_exhaustive]
    Acquired {
        /// Which run.
        run: RunRef,
        /// The granted length.
        #[cfg_attr(feature = "serde", serde(rename = "ttl_ms", serialize_with = "millis"))]
        ttl: Duration,
    },
    /// A renewal is overdue or unanswered. The run goes on and retries.
    #[non_exhaustive]
    AtRisk {
        /// Which run.
        run: RunRef,
        /// How long it may still act if no renewal is confirmed.
        #[cfg_attr(feature = "serde", serde(rename = "trusted_for_ms", serialize_with = "millis"))]
        trusted_for: Duration,
        /// The error of the last attempt. `None` if it has not been answered yet, or if its row was locked.
        #[cfg_attr(feature = "serde", serde(serialize_with = "as_text"))]
        cause: Option<StoreError>,
    },
    /// A renewal was confirmed after all.
    #[non_exhaustive]
    Recovered {
        /// Which run.
        run: RunRef,
    },
    /// The run was told to stop. Its work has its grace.
    #[non_exhaustive]
    Stopping {
        /// Which run.
        run: RunRef,
        /// Why.
        reason: EndReason,
    },
    /// The work has outlived its grace. The lease is kept until the work ends or trust ends.
    #[non_exhaustive]
    Stuck {
        /// Which run.
        run: RunRef,
    },
    /// The run no longer holds its session. After a loss its work may still be ending.
    #[non_exhaustive]
    Ended {
        /// Which run.
        run: RunRef,
        /// The first reason.
        reason: EndReason,
        /// Whether the database confirmed the release.
        released: bool,
        /// Whether the session was given up while the work may still act: see
        /// [`stuck_limit`](crate::LeaseSupervisorBuilder::stuck_limit).
        gave_up: bool,
    },
    /// This listener was too slow and has missed this many events.
    Missed(u64),
}

/// An event is a message to an actor of the host: see
/// [`LeaseSupervisorBuilder::events`](crate::LeaseSupervisorBuilder::events).
impl actix::Message for RunEvent {
    type Result = ();
}

/// How many events are kept for a slow listener. Beyond that the oldest are dropped and counted.
const KEPT: usize = 1024;
const KEPT_OF_ONE_RUN: usize = 64;

/// Sends without ever waiting (invariant I10).
///
/// The channel has room for all events that it keeps from the beginning, so it holds pointers to them.
#[derive(Debug, Clone)]
pub(crate) struct EventSender(broadcast::Sender<Arc<RunEvent>>);

impl EventSender {
    pub(crate) fn new() -> Self {
        Self(broadcast::Sender::new(KEPT))
    }

    /// The events of one run.
    pub(crate) fn of_one_run() -> Self {
        Self(broadcast::Sender::new(KEPT_OF_ONE_RUN))
    }

    pub(crate) fn send(&self, event: RunEvent) {
        // An error means only that nobody listens.
        let _ = self.0.send(Arc::new(event));
    }

    /// Where handles subscribe. A source does not keep the channel open after the last sender is gone.
    pub(crate) fn source(&self) -> EventSource {
        EventSource(self.0.downgrade())
    }
}

/// Where listeners subscribe to events.
#[derive(Debug, Clone)]
pub(crate) struct EventSource(broadcast::WeakSender<Arc<RunEvent>>);

impl EventSource {
    /// A stream of the events from now on. It ends when the last sender is gone, and may be polled after its end.
    pub(crate) fn subscribe(&self) -> impl Stream<Item = RunEvent> + Send + Unpin + 'static + use<> {
        let events = self.0.upgrade().map(|sender| sender.subscribe());
        // Without `fuse`, an unfold that is polled after its end panics.
        Box::pin(
            stream::unfold(events, async |events| {
                let mut events = events?;
                match events.recv().await {
                    Ok(event) => Some((Arc::unwrap_or_clone(event), Some(events))),
                    Err(broadcast::error::RecvError::Lagged(missed)) => {
                        Some((RunEvent::Missed(missed), Some(events)))
                    }
                    Err(broadcast::error::RecvError::Closed) => None,
                }
            })
            .fuse(),
        )
    }
}

/// Sends events to an actor, one at a time, until the stream or the actor has ended. While the actor is busy, the
/// channel keeps the events. When the supervisor ends, it waits for no actor: all remaining events go into the mailbox
/// at once.
pub(crate) async fn forward(
    mut events: impl Stream<Item = RunEvent> + Unpin,
    to: Recipient<RunEvent>,
    over: CancellationToken,
) {
    while let Either::Left((Some(event), _)) = select(events.next(), pin!(over.cancelled())).await {
        match select(Box::pin(to.send(event)), pin!(over.cancelled())).await {
            Either::Left((Ok(()), _)) => {}
            Either::Left((Err(_ended), _)) => return,
            Either::Right((_, unanswered)) => {
                // Dropping the request would withdraw the event from the mailbox if the actor has not handled it yet.
                std::mem::forget(unanswered);
                break;
            }
        }
    }
    while let Some(Some(event)) = events.next().now_or_never() {
        to.do_send(event);
    }
}

#[cfg(feature = "serde")]
fn as_text<S: serde::Serializer>(cause: &Option<StoreError>, serializer: S) -> Result<S::Ok, S::Error> {
    use serde::Serialize as _;
    cause.as_ref().map(ToString::to_string).serialize(serializer)
}
