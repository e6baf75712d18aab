//! What the tests share: backends, a throw-away PostgreSQL, faults, separate processes and a judge of histories.
//!
//! A test binary takes all of it with `mod support;`.

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(unreachable_pub, reason = "a private module of each test binary, written like a library")]

pub mod backend;
pub mod background;
pub mod client;
pub mod device;
pub mod faketime;
pub mod history;
#[cfg(feature = "testing")]
pub mod memory_backend;
pub mod operating;
pub mod panics;
#[cfg(feature = "postgres")]
pub mod pgbouncer;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "postgres")]
pub mod postgres_backend;
pub mod process;
pub mod process_table;
pub mod proxy;
#[cfg(feature = "sqlite")]
pub mod sqlite_backend;

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    thread,
    time::{Duration, Instant},
};

/// The version that a migration brings a schema to.
pub const NEWEST_SCHEMA: u32 = 2;

/// A port outside the range that the system hands out to outgoing connections: nobody takes it while its owner
/// is down for a while.
pub fn free_address() -> SocketAddr {
    for _ in 0..1_000 {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, fastrand::u16(20_000..32_000)));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free TCP port between 20000 and 32000");
}

/// Waits, blocking and bounded, for something that cannot be awaited.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "not so after a minute: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
