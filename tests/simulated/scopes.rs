//! A scope: it ends when its work and all that the work started have ended, and only then the session is free.

use std::{
    cell::{Cell, RefCell},
    future::{pending, poll_fn},
    pin::pin,
    rc::Rc,
    task::Poll,
};

use tenure::{AcquireError, EndReason, RunContext, SessionState, testing::simulate};
use tokio::{task::spawn_local, time::Instant};

use super::*;

fn stopped() -> EndReason {
    EndReason::stopped(None, Some("tea".into()))
}

async fn ever<T>() -> T {
    pending().await
}

#[test]
fn a_scope_waits_for_what_its_work_has_started_and_does_not_cancel_it() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let store = sim.store.clone();
        let done = Rc::new(RefCell::new(Vec::new()));
        let began = Instant::now();
        let value = run
            .scope(async |ctx| {
                for (name, pause) in [("local", 3 * TTL), ("last", 5 * TTL)] {
                    let (done, store, ctx, inner) = (done.clone(), store.clone(), ctx.clone(), ctx.clone());
                    drop(ctx.spawn_local(async move {
                        tokio::time::sleep(pause).await;
                        assert!(inner.is_held() && !store.is_empty(), "{name}");
                        done.borrow_mut().push(name);
                    }));
                }
                7
            })
            .await
            .unwrap();
        assert_eq!((value, &done.borrow()[..]), (7, &["local", "last"][..]));
        assert!(began.elapsed() >= 5 * TTL && sim.store.is_empty());
    });
}

#[test]
fn a_sub_task_gives_its_value() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let (sent, local) = run
            .scope(async |ctx| {
                let local = Rc::new(3);
                let sent = ctx.spawn(async { 4 });
                let here = ctx.spawn_local(async move { *local });
                (sent.await, here.await)
            })
            .await
            .unwrap();
        assert_eq!((sent, local), (Ok(4), Ok(3)));
    });
}

#[test]
fn a_scope_within_spawn_local_may_use_what_is_not_send() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let count = Rc::new(Cell::new(0));
        let counted = count.clone();
        let scope = spawn_local(run.scope(async move |ctx| {
            let shared = counted.clone();
            ctx.spawn_local(async move { shared.set(shared.get() + 1) }).await.unwrap();
            counted.set(counted.get() + 1);
        }));
        scope.await.unwrap().unwrap();
        assert_eq!(count.get(), 2);
    });
}

/// I6: cancel, keep renewing, all has ended, release.
#[test]
fn i6_sub_tasks_that_are_slow_to_stop_keep_the_session_until_the_last_has_ended() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let context = run.context();
        let scope = spawn_local(run.scope(async |ctx| {
            for n in 1..=4 {
                let token = ctx.token();
                drop(ctx.spawn(async move {
                    token.cancelled().await;
                    tokio::time::sleep(seconds(n)).await;
                }));
            }
            ctx.cancelled().await
        }));
        sim.sleep(seconds(1)).await;
        context.stop("tea");
        context.cancelled().await;
        let told = Instant::now();
        sim.sleep(millis(3_900)).await;
        assert_eq!(supervisor.inspect(&key("chat")).await.unwrap().state, SessionState::Stopping);
        let error = scope.await.unwrap().unwrap_err();
        assert!(told.elapsed() >= seconds(4) && told.elapsed() < millis(4_500), "{:?}", told.elapsed());
        assert_eq!((error.reason(), error.ended().released), (&stopped(), true));
        assert_eq!(error.into_value(), Some(stopped()));
        assert!(sim.store.is_empty());
    });
}

#[test]
fn sub_tasks_that_ignore_a_stop_are_dropped_after_its_grace() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let context = run.context();
        let task = context.spawn(ever::<()>());
        let scope = spawn_local(run.scope(async |_| ()));
        sim.sleep(TTL).await;
        assert!(!scope.is_finished(), "although the work has returned");
        context.stop("tea");
        let told = Instant::now();
        assert_eq!(task.await, Err(stopped()));
        assert!(told.elapsed() >= seconds(5) && told.elapsed() < millis(5_100), "{:?}", told.elapsed());
        assert_eq!(scope.await.unwrap().unwrap_err().reason(), &stopped());
        assert!(sim.store.is_empty());
    });
}

#[test]
fn i3_sub_tasks_of_a_lost_run_are_dropped_half_a_margin_after_trust() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let context = run.context();
        let task = context.spawn(ever::<()>());
        let scope = spawn_local(run.scope(async |_| ()));
        sim.store.set_fault(tenure::store::memory::Fault::Frozen);
        assert_eq!(context.cancelled().await, EndReason::Unconfirmed);
        let lost = Instant::now();
        assert_eq!(task.await, Err(EndReason::Unconfirmed));
        assert!(lost.elapsed() <= MARGIN / 2 + millis(5), "{:?}", lost.elapsed());
        assert_eq!(scope.await.unwrap().unwrap_err().reason(), &EndReason::Unconfirmed);
    });
}

/// I6: what cannot be dropped, here because nobody polls it, keeps the lease, visibly stuck.
#[test]
fn i6_a_sub_task_that_cannot_be_dropped_keeps_the_session_for_ever() {
    simulate(async |sim| {
        let (supervisor, other) = (supervisor(&sim).await, supervisor(&sim).await);
        let run = held(&supervisor, "chat").await;
        let context = run.context();
        let blocked = context.track(async {});
        let scope = spawn_local(run.scope(async |_| ()));
        context.stop("tea");
        sim.sleep(20 * TTL).await;
        assert!(!scope.is_finished());
        assert_eq!(other.inspect(&key("chat")).await.unwrap().state, SessionState::Stuck);
        assert!(matches!(other.acquire(&key("chat")).await, Err(AcquireError::Busy(_))));
        assert_eq!(blocked.await, Err(stopped()), "at last it is polled");
        let error = scope.await.unwrap().unwrap_err();
        assert!(error.ended().released && !error.ended().gave_up);
        drop(held(&other, "chat").await);
    });
}

#[test]
fn a_stuck_limit_gives_such_a_sub_task_up_and_says_so() {
    simulate(async |sim| {
        let supervisor = sim.supervisor().ttl(TTL).stuck_limit(seconds(60)).start_here().await.unwrap();
        let mut events = supervisor.events();
        let run = held(&supervisor, "chat").await;
        let context = run.context();
        let blocked = context.track(async {});
        let scope = spawn_local(run.scope(async |_| ()));
        context.stop("tea");
        context.cancelled().await;
        let told = Instant::now();
        let error = scope.await.unwrap().unwrap_err();
        // The grace, what a kill may take, and the limit.
        assert!(told.elapsed() >= seconds(68) && told.elapsed() < seconds(69), "{:?}", told.elapsed());
        assert!(error.ended().gave_up && error.ended().released, "{error}");
        assert!(error.to_string().contains("given up"), "{error}");
        let ended = loop {
            if let RunEvent::Ended { gave_up, .. } = events.next().await.unwrap() {
                break gave_up;
            }
        };
        assert!(ended);
        let next = held(&supervisor, "chat").await;
        drop(blocked);
        sim.sleep(TTL).await;
        assert!(next.is_held(), "the end of what was given up means nothing to the next run");
    });
}

#[test]
fn i7_a_panic_in_a_sub_task_ends_the_run_and_frees_the_session() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let began = Instant::now();
        let error = run
            .scope(async |ctx| {
                let failed = ctx.spawn(async { panic!("the tool failed") });
                assert_eq!(failed.await.unwrap_err() as EndReason, EndReason::Panicked);
                ctx.cancelled().await
            })
            .await
            .unwrap_err();
        assert_eq!(error.reason(), &EndReason::Panicked);
        assert_eq!(error.into_value(), Some(EndReason::Panicked), "the work was told, and returned");
        assert!(began.elapsed() < seconds(1) && sim.store.is_empty());
        drop(held(&supervisor, "chat").await);
    });
}

#[test]
fn i7_a_panic_of_the_work_ends_what_it_has_started_and_frees_the_session() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let task = Rc::new(RefCell::new(None));
        let kept = task.clone();
        let scope = spawn_local(run.scope(async move |ctx: RunContext| {
            let token = ctx.token();
            *kept.borrow_mut() = Some(ctx.spawn(async move { token.cancelled().await }));
            panic!("the work failed");
        }));
        assert!(scope.await.unwrap_err().is_panic());
        let task = task.borrow_mut().take().unwrap();
        assert_eq!(task.await, Ok(()));
        sim.sleep(seconds(1)).await;
        assert!(sim.store.is_empty());
    });
}

#[test]
fn i7_a_sub_task_that_is_cut_off_ends_the_run() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let context = run.context();
        let mut part = Box::pin(context.track(ever::<()>()));
        assert!(part.as_mut().now_or_never().is_none());
        drop(part);
        assert_eq!(context.cancelled().await, EndReason::Dropped);
        assert!(run.release().await.released);
    });
}

#[test]
fn nothing_is_started_for_a_run_whose_work_has_ended() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let context = run.context();
        run.scope(async |_| ()).await.unwrap();
        let begun = Rc::new(Cell::new(false));
        let late = begun.clone();
        let late = context.spawn_local(async move { late.set(true) });
        assert_eq!(late.await, Err(EndReason::Completed));
        assert!(!begun.get());
    });
}

#[test]
fn work_of_a_run_that_was_stopped_before_it_began_never_begins() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        run.stop("tea");
        run.cancelled().await;
        let begun = Cell::new(false);
        let error = run.scope(async |_| begun.set(true)).await.unwrap_err();
        assert!(!begun.get());
        assert_eq!(error.reason(), &stopped());
        assert!(sim.store.is_empty());
    });
}

#[test]
fn nested_scopes_end_apart_and_the_inner_one_first() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let (outer, store) = (held(&supervisor, "outer").await, sim.store.clone());
        outer
            .scope(async |ctx| {
                let inner = held(&supervisor, "inner").await;
                store.take_away(&key("inner"), TTL);
                let lost = inner.scope(async |inner| inner.cancelled().await).await.unwrap_err();
                assert_eq!(lost.reason(), &EndReason::Superseded);
                assert!(ctx.is_held(), "another session");
            })
            .await
            .unwrap();

        let outer = held(&supervisor, "outer").await;
        let context = outer.context();
        let scope = spawn_local(outer.scope(async move |ctx| {
            let inner = held(&supervisor, "another").await;
            inner.scope(async |_| ctx.cancelled().await).await.unwrap()
        }));
        sim.sleep(seconds(1)).await;
        context.stop("tea");
        assert_eq!(scope.await.unwrap().unwrap_err().into_value(), Some(stopped()));
        assert!(sim.store.row(&key("another")).is_none() && sim.store.row(&key("outer")).is_none());
    });
}

/// I7: wherever its caller drops it.
#[test]
fn i7_a_scope_dropped_at_any_await_frees_its_session_within_a_second() {
    let mut polls = 0;
    loop {
        let completed = simulate(async move |sim| {
            let supervisor = supervisor(&sim).await;
            sim.store.set_delay(millis(20));
            let run = held(&supervisor, "chat").await;
            let completed = {
                let mut scope = pin!(run.scope(async |ctx| {
                    tokio::time::sleep(millis(5)).await;
                    let token = ctx.token();
                    let told = ctx.spawn(async move {
                        tokio::select! {
                            () = token.cancelled() => {}
                            () = tokio::time::sleep(millis(30)) => {}
                        }
                    });
                    drop(told);
                    tokio::task::yield_now().await;
                    ctx.spawn_local(tokio::time::sleep(millis(5))).await.unwrap();
                }));
                let mut left = polls;
                let polled = poll_fn(|cx| match left {
                    0 => Poll::Ready(None),
                    _ => {
                        left -= 1;
                        scope.as_mut().poll(cx).map(Some)
                    }
                });
                polled.await.is_some()
            };
            sim.sleep(seconds(1)).await;
            assert!(sim.store.is_empty(), "dropped after {polls} polls");
            let renewals = sim.store.statements().renewals;
            sim.sleep(3 * TTL).await;
            assert_eq!(sim.store.statements().renewals, renewals, "dropped after {polls} polls");
            completed
        });
        if completed {
            break;
        }
        polls += 1;
    }
    assert!(polls >= 4, "the scope was dropped at {polls} places only");
}

#[test]
fn i6_a_dropped_scope_keeps_the_session_until_what_it_started_has_ended() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let context = run.context();
        let scope = spawn_local(run.scope(async |ctx| {
            let token = ctx.token();
            let slow = ctx.spawn(async move {
                token.cancelled().await;
                tokio::time::sleep(seconds(3)).await;
            });
            drop(slow);
        }));
        sim.sleep(seconds(1)).await;
        scope.abort();
        assert_eq!(context.cancelled().await, EndReason::Dropped);
        sim.sleep(millis(2_900)).await;
        assert!(!sim.store.is_empty());
        sim.sleep(millis(200)).await;
        assert!(sim.store.is_empty());
    });
}

#[test]
fn i6_releasing_a_guard_ends_what_works_under_it_first() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let token = run.token();
        let slow = run.context().spawn(async move {
            token.cancelled().await;
            tokio::time::sleep(seconds(3)).await;
        });
        let began = Instant::now();
        let ended = run.release().await;
        assert!(began.elapsed() >= seconds(3));
        assert_eq!(slow.now_or_never(), Some(Ok(())), "before the release");
        assert_eq!((ended.reason, ended.released), (EndReason::Completed, true));
    });
}

#[test]
fn work_bound_to_its_run_outlives_its_caller_and_answers_whoever_attaches() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let caller = spawn_local(async move {
            let handle = run.spawn_scope(|ctx| async move {
                tokio::time::sleep(3 * TTL).await;
                ctx.is_held()
            });
            let attached = handle.attach();
            (handle, attached)
        });
        let (handle, attached) = caller.await.unwrap();
        drop(attached);
        sim.sleep(TTL).await;
        assert!(handle.context().is_held() && !handle.is_finished());
        let (one, other) = futures::join!(handle.attach(), handle.clone().attach());
        assert!(one.unwrap() && other.unwrap() && handle.is_finished());
        assert!(handle.attach().await.unwrap(), "also afterwards");
        assert!(sim.store.is_empty());

        let run = held(&supervisor, "chat").await;
        let context = run.context();
        drop(run.spawn_scope(|ctx| async move { ctx.cancelled().await }));
        sim.sleep(3 * TTL).await;
        assert!(context.is_held(), "nobody holds a handle");
    });
}

#[test]
fn whoever_joins_takes_a_value_that_cannot_be_cloned() {
    /// Neither `Clone` nor `Sync`.
    #[derive(Debug, PartialEq)]
    struct Once(Cell<u8>);
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let work = |ctx: RunContext| async move {
            tokio::time::sleep(TTL).await;
            assert!(ctx.is_held());
            Once(Cell::new(7))
        };
        let handle = held(&supervisor, "chat").await.spawn_scope(work);
        assert!(handle.clone().join().now_or_never().is_none(), "a join that is dropped takes nothing");
        let second = handle.clone();
        assert_eq!(handle.join().await.unwrap(), Once(Cell::new(7)));
        let taken = second.join().await.unwrap_err();
        assert_eq!((taken.reason(), taken.value()), (&EndReason::Completed, None));
        assert!(taken.to_string().contains("taken"), "{taken}");

        let handle = held(&supervisor, "chat").await.spawn_scope(|ctx| async move {
            ctx.cancelled().await;
            Once(Cell::new(8))
        });
        sim.sleep(seconds(1)).await;
        handle.context().stop("tea");
        let error = handle.join().await.unwrap_err();
        assert_eq!((error.reason(), error.value()), (&stopped(), Some(&Once(Cell::new(8)))));

        let handle = held(&supervisor, "chat").await.spawn_scope(|_| async { panic!("the work failed") });
        let error: tenure::ScopeError<Once> = handle.join().await.unwrap_err();
        assert_eq!((error.reason(), error.value()), (&EndReason::Panicked, None));
    });
}

/// Its value is neither `Send` nor `'static`.
#[test]
fn an_error_of_a_scope_comes_apart_into_the_end_and_the_value() {
    type Anything = Box<dyn std::error::Error + Send + Sync>;
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let name = String::from("chat");
        let cut_short = async || {
            let run = held(&supervisor, &name).await;
            run.scope(async |ctx| {
                ctx.stop("tea");
                ctx.cancelled().await;
                Rc::new(name.as_str())
            })
            .await
            .unwrap_err()
        };
        let error = cut_short().await;
        assert_eq!(error.value().map(|name| **name), Some("chat"));
        let (ended, value) = error.into_parts();
        assert_eq!((ended.reason, ended.released, value), (stopped(), true, Some(Rc::new("chat"))));
        let error = cut_short().await.erase();
        assert_eq!((error.reason(), error.value()), (&stopped(), None));
        let error: Anything = error.into();
        assert!(error.to_string().contains("tea"), "{error}");
    });
}

#[test]
fn whoever_attaches_learns_of_every_end() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let handle = run.spawn_scope(|ctx| async move { ctx.cancelled().await });
        sim.sleep(seconds(1)).await;
        handle.context().stop("tea");
        assert_eq!(handle.attach().await.unwrap_err().into_value(), Some(stopped()));

        let run = held(&supervisor, "chat").await;
        let handle = run.spawn_scope(|_| async move { panic!("the work failed") });
        let error: tenure::ScopeError<()> = handle.attach().await.unwrap_err();
        assert_eq!(error.reason(), &EndReason::Panicked);
        sim.sleep(seconds(1)).await;
        assert!(sim.store.is_empty());
    });
}

#[test]
fn whoever_attaches_to_work_that_panics_waits_for_what_it_had_started() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let run = held(&supervisor, "chat").await;
        let began = Instant::now();
        let handle = run.spawn_scope(|ctx| async move {
            let inner = ctx.clone();
            drop(ctx.spawn(async move {
                inner.cancelled().await;
                tokio::time::sleep(seconds(3)).await;
            }));
            panic!("the work failed");
        });
        sim.sleep(seconds(1)).await;
        assert!(!handle.is_finished());
        let error: tenure::ScopeError<()> = handle.attach().await.unwrap_err();
        assert!(began.elapsed() >= seconds(3), "{:?}", began.elapsed());
        assert_eq!((error.reason(), error.ended().released), (&EndReason::Panicked, true));
        assert!(sim.store.is_empty());
    });
}

/// Says whether the run was held when this was dropped.
struct DropsUnder(RunContext, Rc<Cell<Option<bool>>>);

impl Drop for DropsUnder {
    fn drop(&mut self) {
        self.1.set(Some(self.0.is_held()));
    }
}

#[test]
fn i6_work_that_never_began_is_dropped_before_its_run() {
    simulate(async |sim| {
        let supervisor = supervisor(&sim).await;
        let was_held = Rc::new(Cell::new(None));

        let run = held(&supervisor, "chat").await;
        let work = DropsUnder(run.context(), was_held.clone());
        drop(run.scope(async move |_| drop(work)));
        assert_eq!(was_held.take(), Some(true));

        let run = held(&supervisor, "chat").await;
        let work = DropsUnder(run.context(), was_held.clone());
        drop(run.context().track(async move { drop(work) }));
        assert_eq!(was_held.take(), Some(true));
        drop(run);
    });
}

/// Scenario: a stop and the completion at the same instant, in both orders.
#[test]
fn i3_a_stop_and_a_completion_at_the_same_instant_are_one_reason_for_everybody() {
    for stop_first in [false, true] {
        simulate(async move |sim| {
            let supervisor = supervisor(&sim).await;
            let mut events = supervisor.events();
            let run = held(&supervisor, "chat").await;
            let context = run.context();
            let result = run
                .scope(async |ctx| {
                    if stop_first {
                        ctx.stop("tea");
                        ctx.token().cancelled().await;
                    }
                })
                .await;
            if !stop_first {
                context.stop("tea");
            }
            sim.sleep(TTL).await;
            let told = first_end(&mut events);
            let first = if stop_first { stopped() } else { EndReason::Completed };
            assert_eq!((&told, context.cancelled().await), (&first, first.clone()));
            match result {
                Ok(()) => assert_eq!(first, EndReason::Completed),
                Err(error) => assert_eq!((error.reason().clone(), error.into_value()), (first, Some(()))),
            }
        });
    }
}
