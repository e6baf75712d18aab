//! The pause after a refused log-in. No connection of the store repeats the log-in before the pause is over. Each would
//! be refused again, and after many failures servers lock the account or delay all log-ins.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::login::Login;
use crate::store::StoreError;

/// The refusals of one server.
#[derive(Default)]
pub(super) struct Pause(Mutex<Option<RefusedLogin>>);

struct RefusedLogin {
    /// The log-in that the server refused. `None` if there was no password, or if a function gives each log-in.
    login: Option<Login>,
    error: StoreError,
    /// How many refusals there were in a row.
    times: u32,
    until: Instant,
}

impl Pause {
    /// Fails if this log-in may not be tried now. After a refusal, only one caller tries at a time: other callers get
    /// the earlier refusal until that attempt has succeeded, or the next pause is over. A password that differs from
    /// the refused one may be tried at once.
    pub(super) fn begin(&self, login: Option<&Login>, longest: Duration) -> Result<(), StoreError> {
        match &mut *self.lock() {
            Some(refused) if refused.login.as_ref() == login => {
                let now = Instant::now();
                if now < refused.until {
                    return Err(refused.error.clone());
                }
                refused.until = now + length(refused.times, longest);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn refused(&self, login: Option<Login>, error: &StoreError, longest: Duration) {
        let mut refused = self.lock();
        let times = refused.as_ref().map_or(0, |before| before.times).saturating_add(1);
        let until = Instant::now() + length(times, longest);
        *refused = Some(RefusedLogin { login, error: error.clone(), times, until });
    }

    pub(super) fn succeeded(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<RefusedLogin>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The length of a pause. The first is an eighth of the longest, and each further one is twice as long. All have
/// jitter.
fn length(times: u32, longest: Duration) -> Duration {
    let full = (longest / 16).saturating_mul(1 << times.min(4)).min(longest);
    full.mul_f64(0.75 + 0.25 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(4);

    fn refusal() -> StoreError {
        StoreError::PermissionDenied { location: "db".to_owned(), detail: "no".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn one_at_a_time_tries_again_what_was_refused_and_after_a_pause() {
        let (pause, old) = (Pause::default(), Some(Login::with_password("old")));
        assert_eq!(pause.begin(old.as_ref(), LONGEST), Ok(()));
        pause.refused(old.clone(), &refusal(), LONGEST);
        assert_eq!(pause.begin(old.as_ref(), LONGEST), Err(refusal()));
        tokio::time::advance(LONGEST / 8).await;
        assert_eq!(pause.begin(old.as_ref(), LONGEST), Ok(()));
        assert_eq!(pause.begin(old.as_ref(), LONGEST), Err(refusal()), "the first has not been answered yet");
        tokio::time::advance(LONGEST).await;
        assert_eq!(pause.begin(old.as_ref(), LONGEST), Ok(()), "the first got no answer");
        pause.succeeded();
        assert_eq!(pause.begin(old.as_ref(), LONGEST), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn another_password_is_tried_at_once() {
        let pause = Pause::default();
        pause.refused(Some(Login::with_password("old")), &refusal(), LONGEST);
        assert_eq!(pause.begin(Some(&Login::with_password("new")), LONGEST), Ok(()));
        assert_eq!(pause.begin(None, LONGEST), Ok(()));
    }

    #[test]
    fn pauses_grow_to_the_longest() {
        let lengths: Vec<_> = [1, 2, 3, 4, 5, 99].map(|times| length(times, LONGEST)).into();
        for (length, full) in lengths.iter().zip([500, 1_000, 2_000, 4_000, 4_000, 4_000]) {
            let full = Duration::from_millis(full);
            assert!(*length <= full && *length >= full * 3 / 4, "{lengths:?}");
        }
    }
}
