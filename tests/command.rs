//! The command `tenure`, as scripts and people meet it: exit codes, events, answers, and what becomes of CMD.
//!
//! The guardian and the foreground of a terminal have tests of their own in `guardian.rs`.

#![cfg(all(target_os = "linux", any(feature = "postgres", feature = "sqlite")))]

mod support;

// Not part of `support`: a macro that a test binary does not use is a warning.
#[macro_use]
#[path = "support/every_backend.rs"]
mod every_backend;

#[path = "command/busy.rs"]
mod busy;
#[cfg(feature = "postgres")]
#[path = "command/connections.rs"]
mod connections;
#[cfg(feature = "sqlite")]
#[path = "command/database.rs"]
mod database;
#[path = "command/doctor.rs"]
mod doctor;
#[path = "command/ending.rs"]
mod ending;
#[path = "command/events.rs"]
mod events;
#[path = "command/exit_codes.rs"]
mod exit_codes;
#[path = "command/failed.rs"]
mod failed;
#[cfg(feature = "sqlite")]
#[path = "command/files.rs"]
mod files;
#[cfg(feature = "postgres")]
#[path = "command/hidden.rs"]
mod hidden;
#[path = "command/history.rs"]
mod history;
#[cfg(feature = "sqlite")]
#[path = "command/inheriting.rs"]
mod inheriting;
#[path = "command/inside.rs"]
mod inside;
#[cfg(feature = "sqlite")]
#[path = "command/leaving.rs"]
mod leaving;
#[path = "command/limits.rs"]
mod limits;
#[path = "command/looking.rs"]
mod looking;
#[path = "command/mistakes.rs"]
mod mistakes;
#[path = "command/names.rs"]
mod names;
#[cfg(feature = "sqlite")]
#[path = "command/on_a_terminal.rs"]
mod on_a_terminal;
#[path = "command/operating.rs"]
mod operating;
#[cfg(feature = "postgres")]
#[path = "command/outages.rs"]
mod outages;
#[cfg(feature = "sqlite")]
#[path = "command/passing.rs"]
mod passing;
#[path = "command/phase.rs"]
mod phase;
#[cfg(feature = "sqlite")]
#[path = "command/reading.rs"]
mod reading;
#[path = "command/refused.rs"]
mod refused;
#[path = "command/scene.rs"]
#[allow(dead_code, unreachable_pub, reason = "a private module of two test binaries, written like a library")]
mod scene;
#[cfg(feature = "postgres")]
#[path = "command/secrets.rs"]
mod secrets;
#[path = "command/signals.rs"]
mod signals;
#[cfg(feature = "postgres")]
#[path = "command/standby.rs"]
mod standby;
#[path = "command/stopping.rs"]
mod stopping;
#[path = "command/watching.rs"]
mod watching;
