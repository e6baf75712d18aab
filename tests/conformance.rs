//! One suite of promises, the same for every backend: [`tenure::store`]'s contract, tested.
//!
//! A backend joins with a [`Backend`] and one line with `conformance!`.

mod support;

// Not part of `support`: a promise that no backend is asked for shall be a warning (dead code).
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "testing"))]
#[macro_use]
#[path = "support/conformance.rs"]
mod suite;

#[cfg(feature = "postgres")]
mod postgres {
    use super::support::{postgres::Server, postgres_backend::PostgresBackend};

    conformance!(PostgresBackend::start(Server::shared(), ""));
}

/// As behind PgBouncer: the same statements, with their values in the text; in a schema of another name.
#[cfg(feature = "postgres")]
mod postgres_in_text {
    use super::support::{postgres::Server, postgres_backend::PostgresBackend};

    conformance!(PostgresBackend::start(Server::shared(), "?pgbouncer=true&schema=Staging-2"));
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use super::support::sqlite_backend::SqliteBackend;

    conformance!(SqliteBackend::start());
}

#[cfg(feature = "testing")]
mod memory {
    use super::support::memory_backend::MemoryBackend;

    conformance!(MemoryBackend::start());
}
