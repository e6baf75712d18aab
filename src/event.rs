//! What happens to runs, told to whoever listens.

use std::{pin::pin, time::Duration};

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
    Acquired {
        /// Which run.
        run: RunRef,
        /// The granted length.
        #[cfg_attr(feature = "serde", serde(rename = "ttl_ms", serialize_with = "millis"))]
        ttl: Duration,
    },
    /// A renewal is overdue or unanswered. The run goes on and retries.
    AtRisk {
        /// Which run.
        run: RunRef,
        /// How long it may still act if no renewal is confirmed.
        #[cfg_attr(feature = "serde", serde(rename = "trusted_for_ms", serialize_with = "millis"))]
        trusted_for: Duration,
        /// What the last attempt met; `None` when it has not been answered at all yet, or its row was locked.
        #[cfg_attr(feature = "serde", serde(serialize_with = "as_text"))]
        cause: Option<StoreError>,
    },
    /// A renewal was confirmed after all.
    Recovered {
        /// Which run.
        run: RunRef,
    },
    /// The run was told to stop; its work has its grace.
    Stopping {
        /// Which run.
        run: RunRef,
        /// Why.
        reason: EndReason,
    },
    /// The work has outlived its grace. The lease is kept until it ends, or trust does.
    Stuck {
        /// Which run.
        run: RunRef,
    },
    /// The run holds its session no more. After a loss its work may still be ending.
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

/// What an actor of the host is told: see [`LeaseSupervisorBuilder::events`](crate::LeaseSupervisorBuilder::events).
impl actix::Message for RunEvent {
    type Result = ();
}

/// Events kept for a slow listener; beyond, the oldest are dropped and counted.
const KEPT: usize = 1024;
const KEPT_OF_ONE_RUN: usize = 64;

/// Sends without ever waiting (invariant I10).
#[derive(Debug, Clone)]
pub(crate) struct EventSender(broadcast::Sender<RunEvent>);

impl EventSender {
    pub(crate) fn new() -> Self {
        Self(broadcast::Sender::new(KEPT))
    }

    /// The events of one run.
    pub(crate) fn of_one_run() -> Self {
        Self(broadcast::Sender::new(KEPT_OF_ONE_RUN))
    }

    pub(crate) fn send(&self, event: RunEvent) {
        // An error only says that nobody listens.
        let _ = self.0.send(event);
    }

    /// Where handles subscribe. It does not keep the events going when all who send have ended.
    pub(crate) fn source(&self) -> EventSource {
        EventSource(self.0.downgrade())
    }
}

/// Where events can be listened to, as long as somebody sends.
#[derive(Debug, Clone)]
pub(crate) struct EventSource(broadcast::WeakSender<RunEvent>);

impl EventSource {
    /// Ends when nobody sends any more, and may be polled after its end.
    pub(crate) fn subscribe(&self) -> impl Stream<Item = RunEvent> + Send + Unpin + 'static + use<> {
        let events = self.0.upgrade().map(|sender| sender.subscribe());
        // Without `fuse`, an unfold that is polled after its end panics.
        Box::pin(
            stream::unfold(events, async |events| {
                let mut events = events?;
                match events.recv().await {
                    Ok(event) => Some((event, Some(events))),
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

/// Tells an actor, one event at a time, until nobody sends any more or the actor has ended. What happens while it is
/// busy is kept by the sender; when the supervisor is over, which waits for nobody, its mailbox is given the rest.
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
                // Dropped, it would be withdrawn from the mailbox if the actor has not come to it yet.
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
