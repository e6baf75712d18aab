//! The signals by which `tenure run` itself is told to end.

use std::{fs, io};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens to SIGINT, SIGTERM, SIGHUP and SIGQUIT, and to SIGCONT.
pub(crate) struct Signals {
    listeners: Vec<(i32, Signal)>,
    continued: Signal,
}

impl Signals {
    /// A signal that was ignored when this process was started (`nohup`, a background job of a script) stays
    /// ignored, for CMD too.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let kinds =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()];
        let wanted = kinds.into_iter().filter(|kind| ignored & (1 << (kind.as_raw_value() - 1)) == 0);
        let listeners =
            wanted.map(|kind| Ok((kind.as_raw_value(), signal(kind)?))).collect::<io::Result<_>>()?;
        Ok(Self { listeners, continued: signal(SignalKind::from_raw(nix::libc::SIGCONT))? })
    }

    /// The next one that tells this process to end, by number.
    ///
    /// # Cancel safety
    /// Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> i32 {
        loop {
            if let Received::End(number) = self.next_of_all().await {
                return number;
            }
        }
    }

    /// The next one of all.
    ///
    /// # Cancel safety
    /// Dropping the future loses none.
    pub(crate) async fn next_of_all(&mut self) -> Received {
        tokio::select! {
            number = first(&mut self.listeners) => Received::End(number),
            Some(()) = self.continued.recv() => Received::Continued,
        }
    }
}

/// What a signal means for `tenure run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// End, by number.
    End(i32),
    /// This process goes on after a stop.
    Continued,
}

async fn first(listeners: &mut [(i32, Signal)]) -> i32 {
    if listeners.is_empty() {
        return std::future::pending().await;
    }
    let received = listeners.iter_mut().map(|(number, signal)| {
        Box::pin(async move {
            // It never ends while the runtime lives.
            signal.recv().await;
            *number
        })
    });
    futures::future::select_all(received).await.0
}

pub(crate) fn name(number: i32) -> String {
    nix::sys::signal::Signal::try_from(number)
        .map_or_else(|_| format!("signal {number}"), |signal| signal.to_string())
}

/// The mask of ignored signals: signal n is bit n − 1.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
