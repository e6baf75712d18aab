//! A gate admits no write of a run after one of a later run.

mod support;

#[cfg(all(feature = "tower", feature = "sqlite"))]
#[path = "fence_gate/http.rs"]
mod http;
#[cfg(feature = "postgres")]
#[path = "fence_gate/postgres.rs"]
mod postgres;
#[cfg(feature = "sqlite")]
#[path = "fence_gate/sqlite.rs"]
mod sqlite;

use std::{
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

use futures::{FutureExt as _, future::join_all};
use support::client::key;
use tenure::{
    FencingToken,
    fence_gate::{FenceGate, Refused},
};

const WRITERS: usize = 16;

fn token(number: i64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

#[test]
fn worker_entry() {
    #[cfg(all(feature = "tower", feature = "sqlite"))]
    support::process::enter(http::work);
}

#[test]
fn a_smaller_fence_is_refused_and_told_the_greatest_and_an_equal_one_passes() {
    let gate = FenceGate::new();
    let (chat, other) = (key("chat"), key("other"));
    for fence in [5, 5, 9, 9] {
        assert_eq!(gate.admit(&chat, token(fence)).map(|admitted| admitted.fence), Ok(token(fence)));
    }
    for fence in [8, 5, 1] {
        let late = gate.clone().admit(&chat, token(fence)).unwrap_err();
        assert!(
            matches!(late, Refused::Late { fence: refused, seen, .. } if (refused, seen) == (token(fence), token(9)))
        );
        assert!(late.to_string().contains('9') && late.to_string().contains(&fence.to_string()), "{late}");
    }
    assert!(gate.admit(&other, token(1)).is_ok(), "sessions have nothing to do with each other");
    assert_eq!((gate.seen(&chat), gate.seen(&key("new"))), (Some(token(9)), None));
}

/// Once a fence was admitted, a smaller one never is: not even to one who asks at the same time and is told later.
#[test]
fn sixteen_writers_are_never_admitted_after_a_later_run() {
    const ROUNDS: i64 = 5_000;
    let (gate, chat) = (FenceGate::new(), key("chat"));
    let (admitted, together) = (AtomicI64::new(0), Barrier::new(WRITERS));
    let refused = AtomicI64::new(0);
    thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                together.wait();
                for round in 1..ROUNDS {
                    let fence = (round - fastrand::i64(0..20)).max(1);
                    let before = admitted.load(Ordering::SeqCst);
                    match gate.admit(&chat, token(fence)) {
                        Ok(_) => {
                            assert!(fence >= before, "{fence} was admitted after {before}");
                            admitted.fetch_max(fence, Ordering::SeqCst);
                        }
                        Err(Refused::Late { seen, .. }) => {
                            assert!(seen.as_i64() > fence);
                            refused.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    assert!(refused.into_inner() > ROUNDS, "too little was refused");
}

/// A passage is as long as a write: the writes are in the order of the runs, whoever is slow.
#[tokio::test(flavor = "multi_thread")]
async fn what_sixteen_writers_write_under_a_passage_is_in_the_order_of_runs() {
    let (gate, written) = (FenceGate::new(), Arc::new(Mutex::new(Vec::new())));
    let next = Arc::new(AtomicI64::new(1));
    let writers = (0..WRITERS).map(|_| {
        let (gate, written, next) = (gate.clone(), written.clone(), next.clone());
        tokio::spawn(async move {
            for _ in 0..200 {
                // Now and then a new run, at other times the latest.
                let step = i64::from(fastrand::u8(0..4) == 0);
                let run: FencingToken = token(next.fetch_add(step, Ordering::SeqCst));
                for _ in 0..3 {
                    let Ok(passage) = gate.enter(&key("chat"), run).await else { break };
                    if fastrand::bool() {
                        tokio::task::yield_now().await;
                    }
                    written.lock().unwrap().push(passage.admitted().fence);
                }
            }
        })
    });
    for writer in join_all(writers).await {
        writer.unwrap();
    }
    let written = written.lock().unwrap();
    assert!(written.is_sorted(), "a write came late");
    assert!(written.len() > 200, "only {} were written", written.len());
}

#[tokio::test]
async fn a_later_run_enters_when_the_writes_of_earlier_ones_are_over_and_keeps_new_ones_out() {
    let (gate, chat) = (FenceGate::new(), key("chat"));
    let earlier = gate.enter(&chat, token(5)).await.unwrap();
    let same = gate.enter(&chat, token(5)).now_or_never().expect("one run writes many times").unwrap();
    let mut later = Box::pin(gate.enter(&chat, token(9)));
    assert!((&mut later).now_or_never().is_none());
    let refused = gate.enter(&chat, token(5)).now_or_never().expect("it waits for nobody");
    assert!(matches!(refused, Err(Refused::Late { seen, .. }) if seen == token(9)));
    drop((earlier, same));
    let passage = later.now_or_never().expect("nobody is in its way").unwrap();

    // One that was given up while it waited is remembered all the same.
    let given_up = gate.enter(&chat, token(11)).now_or_never();
    assert!(given_up.is_none());
    drop(passage);
    assert!(gate.enter(&chat, token(9)).await.is_err());
    assert!(gate.enter(&chat, token(11)).await.is_ok());
}

#[test]
fn a_gate_that_starts_anew_vouches_only_for_what_was_issued_since() {
    let start = SystemTime::now();
    let fence = |ago: i64| token(micros(start) - ago);
    let gate = FenceGate::starting_at(start);
    assert_eq!(gate.vouches_from(), fence(0));
    let old = gate.admit(&key("chat"), fence(1)).unwrap();
    let new = gate.admit(&key("chat"), fence(0)).unwrap();
    assert_eq!((old.is_vouched, new.is_vouched), (false, true));

    let strict = FenceGate::starting_at(start).strict();
    let refused = strict.admit(&key("chat"), fence(1));
    assert!(
        matches!(refused, Err(Refused::Unvouched { fence: old, from, .. }) if (old, from) == (fence(1), fence(0)))
    );
    assert!(refused.unwrap_err().to_string().contains("acquire the session anew"));
    assert!(strict.admit(&key("chat"), fence(0)).is_ok());
    assert_eq!(strict.snapshot().len(), 1, "what is refused takes no room");
}

#[test]
fn a_gate_that_is_given_back_what_it_knew_has_forgotten_nothing() {
    let gate = FenceGate::new();
    gate.admit(&key("chat"), token(9)).unwrap();
    let restored = FenceGate::restore(gate.snapshot());
    assert!(
        matches!(restored.admit(&key("chat"), token(5)), Err(Refused::Late { seen, .. }) if seen == token(9))
    );
    assert!(restored.admit(&key("other"), token(5)).unwrap().is_vouched);
}

#[tokio::test]
async fn a_gate_that_forgets_old_sessions_says_so_and_never_one_that_is_being_written() {
    let now = SystemTime::now();
    let fence = |ago: i64| token(micros(now) - ago);
    let gate = FenceGate::starting_at(now - Duration::from_secs(60)).strict();
    gate.admit(&key("old"), fence(2)).unwrap();
    let passage = gate.enter(&key("busy"), fence(2)).await.unwrap();
    gate.admit(&key("new"), fence(0)).unwrap();
    gate.forget_before(now);
    assert_eq!(gate.vouches_from(), fence(0));
    let mut left: Vec<_> = gate.snapshot().into_iter().map(|(key, _)| key.session().to_owned()).collect();
    left.sort();
    assert_eq!(left, ["busy", "new"]);
    // The later run of the forgotten session has written already, for all the gate knows.
    assert!(matches!(gate.admit(&key("old"), fence(3)), Err(Refused::Unvouched { .. })));
    let later = gate.clone();
    let later =
        tokio::spawn(
            async move { later.enter(&key("busy"), token(micros(SystemTime::now()))).await.is_ok() },
        );
    tokio::task::yield_now().await;
    assert!(!later.is_finished(), "it waits for the write under way");
    drop(passage);
    assert!(later.await.unwrap());
}

fn micros(instant: SystemTime) -> i64 {
    let since_1970 = instant.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    since_1970.as_micros().try_into().unwrap()
}
