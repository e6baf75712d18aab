//! What the tests share: a throw-away PostgreSQL, faults, separate processes and a judge of histories.
//!
//! A test binary takes all of it with `mod support;`.

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(unreachable_pub, reason = "a private module of each test binary, written like a library")]

pub mod background;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod process_table;
