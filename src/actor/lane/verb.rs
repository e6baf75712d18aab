//! The kinds of statements that have lanes.

use futures::future::BoxFuture;

use crate::{
    actor::pool::Need,
    session::SessionKey,
    store::{
        Acquire, AcquireOutcome, LeaseConnection, Release, ReleaseOutcome, Renew, RenewOutcome, StoreError,
    },
};

/// A kind of statement.
pub(crate) trait Verb: 'static {
    /// For logs.
    const NAME: &'static str;
    /// How much waits for a connection.
    const NEED: Need;
    type Item: Unpin + Send + 'static;
    type Outcome: Send + 'static;

    /// Keys are unique within a batch.
    fn key(item: &Self::Item) -> &SessionKey;

    /// The database's clock, in microseconds since 1970, where the outcome carries it.
    fn clock_micros(outcome: &Self::Outcome) -> Option<i64>;

    fn call<'a>(connection: &'a mut dyn LeaseConnection, items: &'a [Self::Item]) -> Call<'a, Self::Outcome>;
}

type Call<'a, O> = BoxFuture<'a, Result<Vec<O>, StoreError>>;

pub(crate) enum Acquiring {}
pub(crate) enum Renewing {}
pub(crate) enum Releasing {}

impl Verb for Acquiring {
    const NAME: &'static str = "acquire";
    const NEED: Need = Need::Patient;
    type Item = Acquire;
    type Outcome = AcquireOutcome;

    fn key(item: &Acquire) -> &SessionKey {
        &item.key
    }

    fn clock_micros(_: &AcquireOutcome) -> Option<i64> {
        None
    }

    fn call<'a>(connection: &'a mut dyn LeaseConnection, items: &'a [Acquire]) -> Call<'a, AcquireOutcome> {
        connection.acquire(items)
    }
}

impl Verb for Renewing {
    const NAME: &'static str = "renew";
    const NEED: Need = Need::Urgent;
    type Item = Renew;
    type Outcome = RenewOutcome;

    fn key(item: &Renew) -> &SessionKey {
        &item.key
    }

    fn clock_micros(outcome: &RenewOutcome) -> Option<i64> {
        outcome.clock_micros()
    }

    fn call<'a>(connection: &'a mut dyn LeaseConnection, items: &'a [Renew]) -> Call<'a, RenewOutcome> {
        connection.renew(items)
    }
}

impl Verb for Releasing {
    const NAME: &'static str = "release";
    const NEED: Need = Need::Urgent;
    type Item = Release;
    type Outcome = ReleaseOutcome;

    fn key(item: &Release) -> &SessionKey {
        &item.key
    }

    fn clock_micros(_: &ReleaseOutcome) -> Option<i64> {
        None
    }

    fn call<'a>(connection: &'a mut dyn LeaseConnection, items: &'a [Release]) -> Call<'a, ReleaseOutcome> {
        connection.release(items)
    }
}
