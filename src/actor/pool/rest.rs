//! Idle connections. They are pinged now and then, and closed when nobody needs them.

use std::{
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures::{
    FutureExt,
    channel::oneshot,
    future::{BoxFuture, Either, select},
};
use tokio::{sync::Notify, time::Instant};

use super::{Pool, PoolPlan};
use crate::{
    actor::call::answer,
    store::{LeaseConnection, StoreError, VerbKind},
    trace,
};

/// An idle connection.
pub(super) struct Idle {
    minded: BoxFuture<'static, Minded>,
    /// Sending on this ends the connection's rest. `None` once that was done: the connection is wanted, but a ping has
    /// to be answered first.
    pub(super) wanted: Option<oneshot::Sender<()>>,
    pub(super) since: Instant,
    pub(super) server: usize,
}

/// How the rest of an idle connection ended.
pub(super) enum Minded {
    Wanted(Box<dyn LeaseConnection>),
    Lost(StoreError),
}

impl Pool {
    /// Looks after the idle connections until nobody uses the pool any more, and then closes them.
    pub(super) async fn mind(self) {
        let over = self.inner.over.clone();
        loop {
            let lost = poll_fn(|cx| self.poll_idle(cx));
            let check = pin!(self.inner.plan.check.notified());
            match over.run_until_cancelled(select(lost, check)).await {
                Some(Either::Left((error, _))) => {
                    tracing::debug!(target: trace::STORE, %error, "an idle connection was lost");
                    self.keep();
                }
                Some(Either::Right(_)) => {}
                None => break,
            }
            self.follow();
            self.trim(self.inner.plan.linger);
        }
        self.inner.changed.notify_waiters();
        let idle = std::mem::take(&mut self.inner.state.borrow_mut().idle);
        futures::future::join_all(idle.into_iter().map(Idle::close)).await;
    }

    fn poll_idle(&self, cx: &mut Context<'_>) -> Poll<StoreError> {
        let (mut wanted, mut lost) = (Vec::new(), Poll::Pending);
        let mut state = self.inner.state.borrow_mut();
        state.minder = Some(cx.waker().clone());
        state.idle.retain_mut(|idle| match idle.minded.poll_unpin(cx) {
            Poll::Pending => true,
            Poll::Ready(Minded::Wanted(connection)) => {
                wanted.push(connection);
                false
            }
            Poll::Ready(Minded::Lost(error)) => {
                lost = Poll::Ready(error);
                false
            }
        });
        drop(state);
        // The caller that wanted the connection waits for it still, or has got another one.
        wanted.into_iter().for_each(|connection| self.put(connection));
        lost
    }

    /// Closes connections that have been idle for at least `longest`, except those that are to be kept.
    pub(super) fn trim(&self, longest: Duration) {
        let kept = self.kept();
        let mut state = self.inner.state.borrow_mut();
        while state.idle.len() + state.lent > kept
            && state.idle.front().is_some_and(|idle| idle.since.elapsed() >= longest)
            && let Some(idle) = state.idle.pop_front()
        {
            actix_rt::spawn(self.inner.plan.goodbyes.track_future(idle.close()));
        }
    }
}

impl Idle {
    pub(super) fn begin(connection: Box<dyn LeaseConnection>, plan: &PoolPlan) -> Self {
        let (wanted, is_wanted) = oneshot::channel();
        let (check, patience, verbs) = (plan.check.clone(), plan.patience, plan.verbs);
        let location = plan.store.location().to_owned();
        let server = connection.server();
        let minded = mind(connection, is_wanted, check, patience, verbs, location).boxed();
        Self { minded, wanted: Some(wanted), since: Instant::now(), server }
    }

    /// Ends the rest. `None` if a ping has to be answered first.
    pub(super) fn end(&mut self) -> Option<Minded> {
        let _ = self.wanted.take()?.send(());
        match self.minded.poll_unpin(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(minded) => Some(minded),
            Poll::Pending => None,
        }
    }

    async fn close(mut self) {
        if let Some(Minded::Wanted(connection)) = self.end() {
            connection.close().await;
        }
    }
}

/// Pings the connection now and then until it is wanted or lost. The connection is not handed out while a ping is under
/// way: a statement behind the ping would spend its own time on waiting for it.
async fn mind(
    mut connection: Box<dyn LeaseConnection>,
    mut is_wanted: oneshot::Receiver<()>,
    check: Arc<Notify>,
    patience: Duration,
    verbs: &'static [VerbKind],
    location: String,
) -> Minded {
    loop {
        if let Either::Left(_) = select(&mut is_wanted, pin!(check.notified())).await {
            return Minded::Wanted(connection);
        }
        let checked = async {
            connection.prepare(verbs).await?;
            connection.ping().await
        };
        if let Err(error) = answer(&location, patience, Box::pin(checked)).await {
            return Minded::Lost(error);
        }
    }
}
