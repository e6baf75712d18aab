//! Proves in a transaction of the host that a run still holds its session.

use super::RunContext;
use crate::{
    host::HostConnection,
    pin::{self, PinError, Pinned},
    trace,
};

impl RunContext {
    /// Proves, in the host's own transaction, that this run still holds its session, and keeps every other run out of
    /// the session until the transaction ends. [`pin`](crate::pin) says what that costs. Rolling back to a savepoint
    /// that was set before the pin gives the pin up.
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # async fn example(ctx: tenure::RunContext, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = pool.begin().await?;
    /// ctx.pin(&mut *tx).await?;
    /// // What is written now is committed before any later run begins, or not at all.
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// The transaction must be on the database that holds the leases. A run that was told to stop still holds its
    /// session while its work ends, so it can pin.
    ///
    /// # Errors
    /// [`PinError`]: roll the transaction back.
    ///
    /// # Cancel safety
    /// As with every query of sqlx: if you drop the future, drop the transaction too.
    pub async fn pin<C: HostConnection + ?Sized>(&self, connection: &mut C) -> Result<Pinned, PinError> {
        // I3: a run that this process knows to be lost stays lost, whatever the row still says.
        if let Some(reason) = self.shared.reason().filter(|reason| reason.is_loss()) {
            return Err(PinError::Ended(reason.clone()));
        }
        let is_trusted = || self.shared.is_renewed();
        let pinned =
            pin::pin_trusted(connection, &self.shared.schema, self.key(), self.run_id(), is_trusted).await?;
        if C::IS_ONLY_WRITER {
            self.warn_of_little_time();
        }
        Ok(pinned)
    }

    fn warn_of_little_time(&self) {
        let (left, bound) = (self.shared.renewed_for(), self.shared.timing.renew_timeout());
        if left < bound {
            tracing::warn!(
                target: trace::RUN,
                parent: &self.span(),
                trusted_for_ms = trace::millis(left),
                renew_timeout_ms = trace::millis(bound),
                "a pinned transaction on SQLite holds up renewals, and little trusted time is left: commit it quickly"
            );
        }
    }
}
