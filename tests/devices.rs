//! One session, several devices: every device is a process with a supervisor of its own.

#![cfg(any(feature = "postgres", feature = "sqlite"))]

mod support;

// Not part of `support`: a macro that a test binary does not use is a warning.
#[macro_use]
#[path = "support/every_backend.rs"]
mod every_backend;

use std::time::{Duration, Instant};

use futures::future::join_all;
use support::{
    backend::Reachable,
    background,
    device::{self, Answer, Claim, Device, key},
};
use tenure::{
    SessionState, Timing,
    clock::{Clock as _, SystemClock},
};
use uuid::Uuid;

/// The shortest there is.
const TTL: Duration = Duration::from_secs(1);
/// Of holders whose row must not change by a renewal while a test looks: the first comes after 9 s at the earliest.
const LONG_TTL: Duration = Duration::from_secs(60);
/// How much later than its lease's end a dead holder's session is free at the latest, for who asks all the time.
const TAKEOVER_SLACK: Duration = Duration::from_secs(1);

#[test]
fn worker_entry() {
    device::enter();
}

on_every_backend! {
    i1_of_two_devices_that_ask_at_once_one_wins_and_the_other_is_told_who
    i4_a_live_lease_outlasts_sixteen_contenders
    i4_a_refusal_of_another_device_writes_nothing
    i10_devices_on_different_sessions_do_not_wait_for_each_other
    i3_a_device_that_was_frozen_past_its_lease_can_neither_act_nor_renew_nor_release
    i7_the_lease_of_a_device_that_exits_expires_and_is_taken_over
    i7_the_lease_of_a_device_that_is_killed_expires_and_is_taken_over
    i7_devices_that_die_while_they_ask_leave_nothing_for_longer_than_a_lease
    i1_devices_of_one_name_are_two
    i1_a_device_restarted_under_its_old_name_is_another
}

async fn i1_of_two_devices_that_ask_at_once_one_wins_and_the_other_is_told_who(backend: impl Reachable) {
    const ROUNDS: usize = 1_000;
    const AT_ONCE: Duration = Duration::from_millis(10);
    let url = backend.url();
    let mut desktop = Device::start(&url, "desktop", LONG_TTL).await;
    let mut browser = Device::start(&url, "browser", LONG_TTL).await;
    let (mut close, mut desktop_won) = (0, 0);
    for round in 0.. {
        assert!(round < 3 * ROUNDS, "only {close} of {round} rounds were asked within {AT_ONCE:?}");
        let session = format!("chat-{round}");
        let at = SystemClock.now() + Duration::from_millis(1);
        desktop.ask(&session, at);
        browser.ask(&session, at);
        let (one, other) = futures::join!(desktop.asked(), browser.asked());
        match (&one.answer, &other.answer) {
            (Answer::Granted(run, fence), Answer::Busy(named)) => {
                assert_eq!(named_run(named), (*run, *fence, "desktop"), "{session}");
                desktop_won += 1;
            }
            (Answer::Busy(named), Answer::Granted(run, fence)) => {
                assert_eq!(named_run(named), (*run, *fence, "browser"), "{session}");
            }
            answers => panic!("{session}: {answers:?}"),
        }
        let apart = one.at.saturating_since(other.at).max(other.at.saturating_since(one.at));
        close += usize::from(apart <= AT_ONCE);
        if close == ROUNDS {
            break;
        }
    }
    println!("desktop won {desktop_won} of {ROUNDS}");
}

/// 5 ttls under a constant hail of requests: none is granted, and the holder renews all the time.
async fn i4_a_live_lease_outlasts_sixteen_contenders(backend: impl Reachable) {
    let url = backend.url();
    let mut holder = Device::start(&url, "holder", TTL).await;
    let mut contenders = devices(&url, 16, TTL).await;
    let (run, fence) = holder.granted("chat").await;

    let until = SystemClock.now() + 5 * TTL;
    for contender in &mut contenders {
        contender.hammer("chat", until);
    }
    let hammered = join_all(contenders.iter_mut().map(Device::hammered)).await;
    let refused: u64 = hammered.iter().map(|(refused, _)| refused).sum();
    let others: Vec<_> = hammered.into_iter().flat_map(|(_, others)| others).collect();
    println!("{refused} refusals; {} requests without an answer", others.len());
    assert!(!others.iter().any(|other| other.contains("granted ")), "{others:?}");
    assert!(refused > 160, "too little has happened: {others:?}");

    assert!(holder.is_held("chat").await);
    let (state, claim) = contenders[0].look("chat").await.unwrap();
    assert_eq!(state, SessionState::Running);
    assert_eq!(named_run(&claim.unwrap()), (run, fence, "holder"));
    assert!(holder.release("chat").await);
}

/// Versions and lock marks included, where there are any.
async fn i4_a_refusal_of_another_device_writes_nothing(backend: impl Reachable) {
    let url = backend.url();
    let mut holder = Device::start(&url, "holder", LONG_TTL).await;
    let mut contenders = devices(&url, 4, LONG_TTL).await;
    let granted = Instant::now();
    holder.granted("chat").await;
    let before = backend.image(&key("chat")).await;

    let until = SystemClock.now() + TTL;
    for contender in &mut contenders {
        contender.hammer("chat", until);
    }
    for (refused, others) in join_all(contenders.iter_mut().map(Device::hammered)).await {
        assert!(refused > 0 && others.is_empty(), "{others:?}");
    }
    for contender in &mut contenders {
        assert_eq!(contender.look("chat").await.unwrap().0, SessionState::Running);
    }
    assert_eq!(backend.image(&key("chat")).await, before);
    let first_renewal = Timing::for_ttl(LONG_TTL).unwrap().renew_interval().mul_f64(0.6);
    assert!(granted.elapsed() < first_renewal, "the machine was too slow to tell refusals from renewals");
}

async fn i10_devices_on_different_sessions_do_not_wait_for_each_other(backend: impl Reachable) {
    let url = backend.url();
    let mut devices = devices(&url, 8, LONG_TTL).await;
    for round in 0..20 {
        let at = SystemClock.now() + Duration::from_millis(1);
        for (index, device) in devices.iter_mut().enumerate() {
            device.ask(&format!("chat-{round}-{index}"), at);
        }
        for asked in join_all(devices.iter_mut().map(Device::asked)).await {
            assert!(matches!(asked.answer, Answer::Granted(..)), "{asked:?}");
        }
    }
}

/// What a stopped device does when it goes on: nothing that anybody else could notice.
async fn i3_a_device_that_was_frozen_past_its_lease_can_neither_act_nor_renew_nor_release(
    backend: impl Reachable,
) {
    let url = backend.url();
    let mut old = Device::start(&url, "old", TTL).await;
    let mut next = Device::start(&url, "next", LONG_TTL).await;
    let (_, old_fence) = old.granted("chat").await;
    old.watch("chat");
    // What is answered later was told later: the watch has begun.
    assert!(old.is_held("chat").await);

    old.process().freeze();
    let frozen_at = SystemClock.now();
    let takeover = take_over(&mut next, "chat").await;
    assert!(takeover.fence > old_fence);
    background::sleep((2 * TTL).saturating_sub(SystemClock.now().saturating_since(frozen_at))).await;
    let before = backend.image(&key("chat")).await;
    old.process().thaw();

    let lost = old.lost("chat").await;
    assert!(lost.last_held <= frozen_at, "it was held after it had been frozen");
    assert!(!old.is_held("chat").await);
    assert!(["Unconfirmed", "Superseded", "Expired"].contains(&lost.reason.as_str()), "{lost:?}");
    old.release("chat").await;
    match old.acquire("chat").await {
        Answer::Busy(named) => assert_eq!(named_run(&named), (takeover.run_id, takeover.fence, "next")),
        other => panic!("{other:?}"),
    }
    assert_eq!(backend.image(&key("chat")).await, before);
    assert!(next.is_held("chat").await);
    assert!(next.release("chat").await);
}

async fn i7_the_lease_of_a_device_that_exits_expires_and_is_taken_over(backend: impl Reachable) {
    let url = backend.url();
    let mut first = Device::start(&url, "first", TTL).await;
    let second = Device::start(&url, "second", TTL).await;
    first.granted("looked-at").await;
    let (_, fence) = first.granted("chat").await;
    first.quit().await;
    expires_and_is_taken_over(second, fence).await;
}

async fn i7_the_lease_of_a_device_that_is_killed_expires_and_is_taken_over(backend: impl Reachable) {
    let url = backend.url();
    let mut first = Device::start(&url, "first", TTL).await;
    let second = Device::start(&url, "second", TTL).await;
    first.granted("looked-at").await;
    let (_, fence) = first.granted("chat").await;
    first.process().kill();
    expires_and_is_taken_over(second, fence).await;
}

async fn expires_and_is_taken_over(mut second: Device, fence: i64) {
    let died_at = SystemClock.now();
    assert_eq!(second.look("chat").await.unwrap().0, SessionState::Running);
    let takeover = take_over(&mut second, "chat").await;
    let waited = SystemClock.now().saturating_since(died_at);
    assert!(waited <= TTL + TAKEOVER_SLACK, "free only {waited:?} after its holder's death");
    assert!(takeover.fence > fence);

    let expired = until_state(&mut second, "looked-at", SessionState::Expired).await.unwrap();
    assert_eq!(expired.label, "first");
    assert!(take_over(&mut second, "looked-at").await.fence > expired.fence);
    assert_eq!(second.look("looked-at").await.unwrap().0, SessionState::Running);
}

/// Killed at a random instant around a request: the session is free within a lease, and fences rise.
async fn i7_devices_that_die_while_they_ask_leave_nothing_for_longer_than_a_lease(backend: impl Reachable) {
    const DEVICES: usize = 12;
    let url = backend.url();
    let mut survivor = Device::start(&url, "survivor", TTL).await;
    let mut dying = devices(&url, DEVICES, TTL).await;
    let mut fences = Vec::new();
    for index in 0..DEVICES {
        let session = format!("chat-{index}");
        let (_, fence) = survivor.granted(&session).await;
        assert!(survivor.release(&session).await);
        fences.push(fence);
    }
    let at = SystemClock.now() + Duration::from_millis(2);
    for (index, device) in dying.iter_mut().enumerate() {
        device.ask(&format!("chat-{index}"), at);
    }
    background::sleep(Duration::from_millis(1)).await;
    for (index, device) in dying.iter_mut().enumerate() {
        background::sleep(Duration::from_micros(fastrand::u64(0..1_000))).await;
        match index % 3 {
            0 => device.process().send("quit"),
            _ => device.process().kill(),
        }
    }
    let died_at = SystemClock.now();
    let mut taken_over = 0;
    for (index, fence) in fences.iter().enumerate() {
        let takeover = take_over(&mut survivor, &format!("chat-{index}")).await;
        assert!(takeover.fence > *fence, "chat-{index}");
        taken_over += usize::from(takeover.before.is_some());
    }
    let waited = SystemClock.now().saturating_since(died_at);
    assert!(waited <= TTL + TAKEOVER_SLACK, "the last was free only {waited:?} after its holder's death");
    println!("{taken_over} of {DEVICES} died as holders");
}

async fn i1_devices_of_one_name_are_two(backend: impl Reachable) {
    let url = backend.url();
    let mut one = Device::start(&url, "api on host-1", TTL).await;
    let mut other = Device::start(&url, "api on host-1", TTL).await;
    let (one_node, other_node) = (one.node().await, other.node().await);
    assert_ne!(one_node, other_node);
    for round in 0..20 {
        let session = format!("chat-{round}");
        let at = SystemClock.now() + Duration::from_millis(1);
        one.ask(&session, at);
        other.ask(&session, at);
        let (from_one, from_other) = futures::join!(one.asked(), other.asked());
        let (run, named, node) = match (from_one.answer, from_other.answer) {
            (Answer::Granted(run, _), Answer::Busy(named)) => (run, named, one_node),
            (Answer::Busy(named), Answer::Granted(run, _)) => (run, named, other_node),
            answers => panic!("{session}: {answers:?}"),
        };
        assert_eq!((named.run_id, named.node), (run, node));
    }
}

async fn i1_a_device_restarted_under_its_old_name_is_another(backend: impl Reachable) {
    let url = backend.url();
    let mut before = Device::start(&url, "api on host-1", LONG_TTL).await;
    let (run, fence) = before.granted("chat").await;
    let node = before.node().await;
    before.process().kill();

    let mut after = Device::start(&url, "api on host-1", LONG_TTL).await;
    assert_ne!(after.node().await, node);
    match after.acquire("chat").await {
        Answer::Busy(named) => {
            assert_eq!(named_run(&named), (run, fence, "api on host-1"));
            assert_eq!(named.node, node);
        }
        other => panic!("a restart inherits nothing: {other:?}"),
    }
}

/// A failed renewal stops the work, and nobody claims the session for it any more: not the device itself, and not
/// what another device sees.
#[cfg(feature = "postgres")]
#[tokio::test]
async fn i9_a_device_cut_off_for_good_stops_and_nothing_claims_its_session() {
    use support::{postgres::Server, postgres_backend::PostgresBackend, proxy::Proxy};

    let backend = PostgresBackend::start(Server::shared(), "").await;
    for cut in [Proxy::cut, Proxy::swallow, Proxy::swallow_replies] {
        let proxy = Proxy::start(backend.database().server().address());
        let mut cut_off = Device::start(&proxy.url_for(backend.database()), "cut off", TTL).await;
        let mut other = Device::start(&backend.url(), "other", TTL).await;
        let (run, fence) = cut_off.granted("chat").await;
        cut_off.watch("chat");
        cut(&proxy);

        stops_and_claims_nothing(&mut cut_off, &mut other, (run, fence)).await;
        proxy.pass();
        // Without a restart, it sees how things are and can work again.
        until_state(&mut cut_off, "chat", SessionState::Running).await;
        cut_off.release("chat").await;
        assert!(other.is_held("chat").await);
        assert!(other.release("chat").await);
        take_over(&mut cut_off, "chat").await;
        assert!(cut_off.release("chat").await);
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn i9_a_device_that_can_not_write_for_good_stops_and_nothing_claims_its_session() {
    use support::sqlite_backend::SqliteBackend;

    let backend = SqliteBackend::start().await;
    let mut blocked = Device::start(&backend.url(), "blocked", TTL).await;
    let mut other = Device::start(&backend.url(), "other", TTL).await;
    blocked.granted("chat").await;
    blocked.watch("chat");
    let mut stranger = backend.raw().await;
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut stranger).await.unwrap();

    let lost = blocked.lost("chat").await;
    assert_eq!(lost.reason, "Unconfirmed");
    assert!(!blocked.is_held("chat").await);
    let expired = until_state(&mut other, "chat", SessionState::Expired).await.unwrap();
    assert!(matches!(blocked.acquire("another").await, Answer::Failed(_)));

    sqlx::raw_sql("ROLLBACK").execute(&mut stranger).await.unwrap();
    let takeover = take_over(&mut other, "chat").await;
    assert!(takeover.fence > expired.fence);
    assert_eq!(blocked.look("chat").await.unwrap().1.unwrap().run_id, takeover.run_id);
}

#[cfg(feature = "postgres")]
async fn stops_and_claims_nothing(cut_off: &mut Device, other: &mut Device, (run, fence): (Uuid, i64)) {
    let lost = cut_off.lost("chat").await;
    assert_eq!(lost.reason, "Unconfirmed");
    assert!(!cut_off.is_held("chat").await);
    assert!(cut_off.look("chat").await.is_err(), "it cannot know");
    assert!(matches!(cut_off.acquire("another").await, Answer::Failed(_)));

    let expired = until_state(other, "chat", SessionState::Expired).await.unwrap();
    assert_eq!((expired.run_id, expired.fence), (run, fence));
    assert!(lost.last_held < SystemClock.now());
    assert!(take_over(other, "chat").await.fence > fence);
    assert!(!cut_off.is_held("chat").await);
}

struct Takeover {
    run_id: Uuid,
    fence: i64,
    before: Option<Claim>,
}

/// Asks until the session is granted, and checks by the database's clock that it was not before its time.
async fn take_over(device: &mut Device, session: &str) -> Takeover {
    let mut before: Option<Claim> = None;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        assert!(Instant::now() < deadline, "{session} never became free; last held by {before:?}");
        match device.acquire(session).await {
            Answer::Granted(run_id, fence) => {
                let (_, claim) = device.look(session).await.unwrap();
                let since = claim.expect("it is held").since;
                let expired_at = before.as_ref().map_or(Duration::ZERO, |before| before.expires_at);
                assert!(since >= expired_at, "granted {:?} early", expired_at - since);
                return Takeover { run_id, fence, before };
            }
            Answer::Busy(claim) => before = Some(claim),
            Answer::Failed(error) => println!("{session}: {error}"),
        }
        background::sleep(Duration::from_millis(5)).await;
    }
}

/// Looks until the session is in this state; answers who holds or last held it.
async fn until_state(device: &mut Device, session: &str, wanted: SessionState) -> Option<Claim> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match device.look(session).await {
            Ok((state, claim)) if state == wanted => return claim,
            seen => assert!(Instant::now() < deadline, "{session} was never {wanted:?}; last seen: {seen:?}"),
        }
        background::sleep(Duration::from_millis(5)).await;
    }
}

async fn devices(url: &str, count: usize, ttl: Duration) -> Vec<Device> {
    let mut devices: Vec<_> =
        (0..count).map(|index| Device::launch(url, &format!("device {index}"), ttl)).collect();
    join_all(devices.iter_mut().map(Device::ready)).await;
    devices
}

fn named_run(claim: &Claim) -> (Uuid, i64, &str) {
    (claim.run_id, claim.fence, &claim.label)
}
