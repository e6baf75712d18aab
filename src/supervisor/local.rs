//! The runs of this process, found by their sessions.

use futures::channel::oneshot;

use super::LeaseSupervisor;
use crate::{actor::registry::FindRuns, run::RunContext, session::SessionKey};

impl LeaseSupervisor {
    /// The run of this supervisor that has a session, until the session was given back: to attach to its work
    /// ([`scope_handle`](RunContext::scope_handle)), or to stop it. Asks no database. `None` for a session of another
    /// supervisor.
    ///
    /// ```no_run
    /// # use tenure::{LeaseSupervisor, SessionKey};
    /// # async fn example(supervisor: LeaseSupervisor, key: SessionKey) -> Result<(), Box<dyn std::error::Error>> {
    /// let work = supervisor.local(&key).await.and_then(|run| run.scope_handle::<String>());
    /// match work {
    ///     Some(work) => println!("{}", work.attach().await?),
    ///     None => println!("no such work here"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn local(&self, key: &SessionKey) -> Option<RunContext> {
        self.find_runs(Some(key)).await.pop()
    }

    /// The runs of this supervisor whose sessions were not given back yet, in key order. Asks no database.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn runs(&self) -> Vec<RunContext> {
        let mut runs = self.find_runs(None).await;
        runs.sort_by(|one, other| one.key().cmp(other.key()));
        runs
    }

    async fn find_runs(&self, of: Option<&SessionKey>) -> Vec<RunContext> {
        let (reply, found) = oneshot::channel();
        let Ok(inner) = self.inner() else { return Vec::new() };
        inner.registry.do_send(FindRuns { of: of.cloned(), reply });
        // A supervisor that has ended has no runs.
        found.await.unwrap_or_default()
    }
}
