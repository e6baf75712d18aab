//! Measures the cost of the supervisor itself: one step of the state machine, `is_held`, and a round trip through
//! registry and lane on the in-memory store, which answers at once.

use std::{hint::black_box, sync::Arc};

use criterion::{Criterion, criterion_group, criterion_main};
use tenure::{
    LeaseSupervisor, SessionKey,
    clock::{Clock, SystemClock},
    store::MemoryStore,
    testing::MachineCycle,
};

fn machine(c: &mut Criterion) {
    let mut cycle = MachineCycle::new();
    c.bench_function("machine/one renewal: timer, sent, confirmed", |b| b.iter(|| black_box(cycle.renew())));
}

fn held(c: &mut Criterion) {
    let (runtime, supervisor) = started();
    let run = runtime.block_on(async { supervisor.acquire(&key("held")).await }).expect("nobody holds it");
    c.bench_function("held/is_held", |b| b.iter(|| black_box(run.is_held())));
    c.bench_function("held/the boot clock alone", |b| b.iter(|| black_box(SystemClock.now())));
}

fn round_trip(c: &mut Criterion) {
    let (runtime, supervisor) = started();
    let free = key("free");
    let run = runtime.block_on(async { supervisor.acquire(&key("busy")).await }).expect("nobody holds it");
    c.bench_function("round trip/acquire and release", |b| {
        b.to_async(&runtime)
            .iter(|| async { supervisor.acquire(&free).await.expect("it was released").release().await });
    });
    c.bench_function("round trip/refused from memory", |b| {
        b.to_async(&runtime).iter(|| async { supervisor.acquire(run.key()).await.expect_err("it is held") });
    });
}

fn started() -> (tokio::runtime::Runtime, LeaseSupervisor) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let store = Arc::new(MemoryStore::new(Arc::new(SystemClock)));
    let supervisor =
        runtime.block_on(LeaseSupervisor::builder_on(store).start()).expect("it needs no database");
    (runtime, supervisor)
}

fn key(session: &str) -> SessionKey {
    SessionKey::new("bench", session).expect("within bounds")
}

criterion_group!(benches, machine, held, round_trip);
criterion_main!(benches);
