//! Actors of the host that are told of runs.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Once,
};

use actix::{Actor, ActorFutureExt, Addr, AsyncContext, Context, Handler, ResponseActFuture, WrapFuture};
use tenure::{EndReason, testing::simulate};

use super::*;

/// Takes its time for every event.
struct Listener {
    pause: Duration,
    heard: Rc<RefCell<Vec<RunEvent>>>,
}

impl Listener {
    fn start(pause: Duration) -> (Addr<Self>, Rc<RefCell<Vec<RunEvent>>>) {
        let heard = Rc::default();
        let listener = Self { pause, heard: Rc::clone(&heard) };
        (listener.start(), heard)
    }
}

impl Actor for Listener {
    type Context = Context<Self>;
}

impl Handler<RunEvent> for Listener {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, event: RunEvent, _: &mut Context<Self>) -> Self::Result {
        self.heard.borrow_mut().push(event);
        Box::pin(tokio::time::sleep(self.pause).into_actor(self).map(|(), _, _| ()))
    }
}

#[derive(actix::Message)]
#[rtype(result = "()")]
struct Die;

impl Handler<Die> for Listener {
    type Result = ();

    fn handle(&mut self, _: Die, ctx: &mut Context<Self>) {
        ctx.notify_later(Die, Duration::ZERO);
        actix::ActorContext::stop(ctx);
    }
}

#[test]
fn an_actor_is_told_of_one_run_or_of_all() {
    simulate(async |sim| {
        let ((all, of_all), (one, of_one)) =
            (Listener::start(Duration::ZERO), Listener::start(Duration::ZERO));
        let supervisor =
            sim.supervisor().ttl(TTL).events(all.clone().recipient()).start_here().await.unwrap();
        let told = supervisor.acquire(&key("told")).events(one.clone().recipient()).await.unwrap();
        let other = held(&supervisor, "other").await;
        let told_id = told.run_id();
        told.stop("tea");
        told.cancelled().await;
        drop(told);
        drop(other);
        sim.sleep(seconds(1)).await;

        let of_one = of_one.borrow();
        match &of_one[..] {
            [
                RunEvent::Acquired { run: first, .. },
                RunEvent::Stopping { run: second, .. },
                RunEvent::Ended { run: third, reason: EndReason::Stopped { .. }, released: true, .. },
            ] => assert!([first, second, third].iter().all(|run| run.run_id == told_id)),
            other => panic!("{other:?}"),
        }
        assert_eq!(of_all.borrow().len(), 5, "{of_all:?}");
    });
}

/// I10: each event takes the listener ten seconds.
#[test]
fn i10_a_slow_actor_delays_no_renewal_and_is_told_what_it_missed() {
    simulate(async |sim| {
        let (slow, heard) = Listener::start(seconds(10));
        let supervisor = sim.supervisor().ttl(TTL).events(slow.recipient()).start_here().await.unwrap();
        let kept = held(&supervisor, "kept").await;
        for _ in 0..600 {
            drop(held(&supervisor, "chat").await);
            sim.sleep(seconds(1)).await;
            assert!(kept.is_held() && kept.trusted_for() > seconds(15), "{:?}", kept.trusted_for());
        }
        let told = heard.borrow().len();
        assert!((50..=62).contains(&told), "one at a time: {told}");
        // One that was kept waiting, and a gap.
        sim.sleep(seconds(20)).await;
        let heard = heard.borrow();
        assert!(heard.iter().any(|event| matches!(event, RunEvent::Missed(_))), "{heard:?}");
    });
}

#[test]
fn a_slow_actor_delays_no_shutdown_and_hears_of_every_end_all_the_same() {
    simulate(async |sim| {
        let (slow, heard) = Listener::start(seconds(10));
        let supervisor =
            sim.supervisor().ttl(TTL).events(slow.clone().recipient()).start_here().await.unwrap();
        let run = supervisor.acquire(&key("chat")).events(slow.recipient()).await.unwrap();
        let _work = tokio::task::spawn_local(run.scope(async |ctx| ctx.cancelled().await));
        sim.sleep(millis(1)).await;
        let began = tokio::time::Instant::now();
        supervisor.shutdown(seconds(5)).await;
        assert!(began.elapsed() < millis(100), "{:?}", began.elapsed());
        sim.sleep(millis(1)).await;
        let heard = heard.borrow();
        let ends = heard.iter().filter(|event| matches!(event, RunEvent::Ended { .. })).count();
        assert_eq!((ends, heard.len()), (2, 6), "{heard:?}");
    });
}

#[test]
fn an_actor_that_has_died_disturbs_nobody() {
    simulate(async |sim| {
        let (dying, heard) = Listener::start(Duration::ZERO);
        let supervisor =
            sim.supervisor().ttl(TTL).events(dying.clone().recipient()).start_here().await.unwrap();
        dying.do_send(Die);
        sim.sleep(millis(1)).await;
        let run = supervisor.acquire(&key("chat")).events(dying.recipient()).await.unwrap();
        sim.sleep(5 * TTL).await;
        assert!(run.is_held());
        assert!(run.release().await.released);
        assert!(heard.borrow().is_empty());
    });
}

/// How often a thread has panicked, from when it first looks.
fn panics_of_this_thread() -> u32 {
    thread_local!(static PANICS: Cell<u32> = const { Cell::new(0) });
    static COUNTING: Once = Once::new();
    COUNTING.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            report(panic);
        }));
    });
    PANICS.get()
}

#[test]
fn telling_an_actor_of_a_run_that_ends_panics_nowhere() {
    simulate(async |sim| {
        let before = panics_of_this_thread();
        let ((all, of_all), (one, of_one)) =
            (Listener::start(Duration::ZERO), Listener::start(Duration::ZERO));
        let supervisor = sim.supervisor().ttl(TTL).events(all.recipient()).start_here().await.unwrap();
        let run = supervisor.acquire(&key("chat")).events(one.recipient()).await.unwrap();
        assert!(run.release().await.released);
        sim.sleep(seconds(1)).await;
        assert_eq!(of_one.borrow().len(), 2, "{of_one:?}");
        supervisor.shutdown(Duration::ZERO).await;
        sim.sleep(seconds(1)).await;
        assert_eq!(of_all.borrow().len(), 2, "{of_all:?}");
        assert_eq!(panics_of_this_thread(), before);
    });
}

/// What a `select!` loop does that also waits for something else.
#[test]
fn streams_may_be_polled_after_their_end() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let (mut events, mut watched) = (supervisor.events(), supervisor.watch(&key("chat")));
        let mut trust = run.trust();
        drop(run);
        supervisor.shutdown(Duration::ZERO).await;
        while events.next().await.is_some() {}
        while watched.next().await.is_some() {}
        while trust.next().await.is_some() {}
        for _ in 0..2 {
            assert!(events.next().await.is_none());
            assert!(watched.next().await.is_none());
            assert!(trust.next().await.is_none());
        }
        let mut late = (supervisor.events(), supervisor.watch(&key("chat")));
        for _ in 0..2 {
            assert!(late.0.next().await.is_none());
            assert!(late.1.next().await.is_none());
        }
    });
}
