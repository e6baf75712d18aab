//! A transaction of the host's that pinned its lease commits before any other run is granted the session.

#![cfg(any(feature = "postgres", feature = "sqlite"))]

mod support;

#[cfg(feature = "postgres")]
#[path = "pinning/postgres.rs"]
mod postgres;
#[cfg(feature = "sqlite")]
#[path = "pinning/sqlite.rs"]
mod sqlite;
#[path = "pinning/stress.rs"]
mod stress;

use std::time::Duration;

use support::device::key;
use tenure::{LeaseSupervisor, Run};

/// The shortest there is.
const TTL: Duration = Duration::from_secs(1);
/// So long that nothing expires unless a test makes it.
const LONG_TTL: Duration = Duration::from_secs(60);

async fn supervisor(url: &str, ttl: Duration) -> LeaseSupervisor {
    let started = LeaseSupervisor::builder(url).holder_label("api").ttl(ttl).start().await;
    started.unwrap_or_else(|error| panic!("{error}"))
}

async fn held(supervisor: &LeaseSupervisor, session: &str) -> Run {
    supervisor.acquire(&key(session)).await.unwrap_or_else(|error| panic!("{session}: {error}"))
}
