//! What tracing shows: the targets of events, and the span of a run.

use std::time::Duration;

use tracing::{Dispatch, Span, dispatcher, error_span};

use crate::{
    session::{FencingToken, RunId, SessionKey},
    text::printable,
};

/// Runs: their spans, and what happens to them.
pub(crate) const RUN: &str = "tenure::run";
/// Requests for sessions that were not granted.
pub(crate) const ACQUIRE: &str = "tenure::acquire";
/// Connections, statements, and what the database says.
pub(crate) const STORE: &str = "tenure::store";
/// The supervisor itself, and the machine that it lives on.
pub(crate) const SUPERVISOR: &str = "tenure::supervisor";
/// Answers to HTTP requests.
#[cfg(any(feature = "axum", feature = "actix-web"))]
pub(crate) const WEB: &str = "tenure::web";

/// The code that asks for a session, as tracing sees it. A run is granted on the supervisor's thread, where neither
/// that code's span nor its subscriber is the present one.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    subscriber: Dispatch,
    span: Span,
}

impl Origin {
    /// The present code.
    pub(crate) fn here() -> Self {
        Self { subscriber: dispatcher::get_default(Dispatch::clone), span: Span::current() }
    }

    /// The span of a run. It is no child of the asking code's span, because a run may outlive that.
    ///
    /// Its level is that of errors, so that whoever hears any event of a run also hears which run it is.
    pub(crate) fn run_span(&self, key: &SessionKey, run_id: RunId, fence: FencingToken) -> Span {
        dispatcher::with_default(&self.subscriber, || {
            let span = error_span!(
                target: RUN,
                parent: None,
                "run",
                account = &*printable(key.account()),
                session = &*printable(key.session()),
                %run_id,
                fence = fence.as_i64(),
            );
            span.follows_from(&self.span);
            span
        })
    }
}

/// A duration as the value of a field.
pub(crate) fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}
