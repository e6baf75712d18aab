//! A SQLite file that is removed, moved or replaced under a supervisor: its runs are lost for certain and at once, and
//! it goes on with what stands at the path.
#![cfg(all(feature = "sqlite", unix))]

#[path = "support/panics.rs"]
mod panics;

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tenure::{AcquireError, EndReason, LeaseSupervisor, Run, RunEvent, SessionKey, StoreError};
use tokio::time::timeout;

/// Long: nothing here may wait for it.
const TTL: Duration = Duration::from_secs(120);
/// On a machine at full load; renewals come every 18 to 22 s of the ttl.
const AT_ONCE: Duration = Duration::from_secs(10);

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("real")).unwrap();
        symlink("real", dir.path().join("d")).unwrap();
        symlink("t.db", dir.path().join("real/link.db")).unwrap();
        Self { dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn supervisor(&self, hints: bool, ttl: Duration) -> LeaseSupervisor {
        let url = format!("sqlite://{}", self.at("d/link.db").display());
        LeaseSupervisor::builder(url).ttl(ttl).hints(hints).start().await.unwrap()
    }
}

fn key(session: &str) -> SessionKey {
    SessionKey::new("acct", session).unwrap()
}

async fn ended_within(run: &Run, time: Duration) -> EndReason {
    timeout(time, run.cancelled()).await.expect("it ends in time")
}

fn remove_all(directory: &Path) {
    for name in ["t.db", "t.db-wal", "t.db-shm"] {
        fs::remove_file(directory.join(name)).unwrap();
    }
}

type Change = fn(&Place);

/// I13: whoever comes next finds no row, so each of these is certain.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_file_is_gone_is_superseded_at_once_and_its_supervisor_goes_on() {
    let changes: [(&str, Change); 5] = [
        ("deleted", |place| remove_all(&place.at("real"))),
        ("renamed", |place| fs::rename(place.at("real/t.db"), place.at("real/u.db")).unwrap()),
        ("replaced", |place| {
            fs::write(place.at("real/new"), "").unwrap();
            for name in ["t.db-wal", "t.db-shm"] {
                fs::remove_file(place.at("real").join(name)).unwrap();
            }
            fs::rename(place.at("real/new"), place.at("real/t.db")).unwrap();
        }),
        ("its directory renamed, and another made", |place| {
            fs::rename(place.at("real"), place.at("moved")).unwrap();
            fs::create_dir(place.at("real")).unwrap();
        }),
        ("a link on the way turned", |place| {
            fs::create_dir(place.at("other")).unwrap();
            symlink("other", place.at("new")).unwrap();
            fs::rename(place.at("new"), place.at("d")).unwrap();
        }),
    ];
    for (what, change) in changes {
        let place = Place::new();
        let supervisor = place.supervisor(true, TTL).await;
        let runs =
            [supervisor.acquire(&key("a")).await.unwrap(), supervisor.acquire(&key("b")).await.unwrap()];
        change(&place);
        for run in &runs {
            assert_eq!(ended_within(run, AT_ONCE).await, EndReason::Superseded, "{what}");
        }
        let fence = runs[0].fence();
        drop(runs);
        let again = acquired_at_last(&supervisor, "a").await;
        assert!(again.fence() > fence, "{what}");
        let other = place.supervisor(true, TTL).await;
        match other.acquire(&key("a")).await {
            Err(AcquireError::Busy(busy)) => assert_eq!(busy.holder().run_id, again.run_id(), "{what}"),
            found => panic!("{what}: {found:?}"),
        }
    }
}

/// The old run's work has to be seen to have ended first.
async fn acquired_at_last(supervisor: &LeaseSupervisor, session: &str) -> Run {
    let until = Instant::now() + AT_ONCE;
    loop {
        match supervisor.acquire(&key(session)).await {
            Ok(run) => return run,
            Err(error) if Instant::now() > until => panic!("{error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_hints_the_next_renewal_finds_that_the_file_is_gone() {
    let place = Place::new();
    let supervisor = place.supervisor(false, Duration::from_secs(4)).await;
    let run = supervisor.acquire(&key("a")).await.unwrap();
    remove_all(&place.at("real"));
    assert_eq!(ended_within(&run, AT_ONCE).await, EndReason::Superseded);
}

/// A copy in the place of the file, beside the log that belongs to the file: SQLite would apply that to the copy, and two
/// that have opened one and the other would write to one log.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_file_was_replaced_beside_its_log_is_superseded_and_nothing_is_granted_by_that_process() {
    let place = Place::new();
    let supervisor = place.supervisor(true, TTL).await;
    let run = supervisor.acquire(&key("a")).await.unwrap();
    fs::copy(place.at("real/t.db"), place.at("real/copy")).unwrap();
    fs::rename(place.at("real/copy"), place.at("real/t.db")).unwrap();
    assert_eq!(ended_within(&run, AT_ONCE).await, EndReason::Superseded);
    let refused = supervisor.acquire(&key("b")).await.unwrap_err();
    assert!(refused.is_certain() && refused.to_string().contains("end every process"), "{refused}");
}

/// A second log beside the first, or a second set of locks: two that write would not see each other.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_log_or_locks_are_gone_is_superseded_and_nothing_is_granted_by_that_process() {
    for removed in [&["t.db-wal"][..], &["t.db-shm"], &["t.db-wal", "t.db-shm"]] {
        let place = Place::new();
        let supervisor = place.supervisor(true, TTL).await;
        let mut events = supervisor.events();
        let run = supervisor.acquire(&key("a")).await.unwrap();
        for name in removed {
            fs::remove_file(place.at("real").join(name)).unwrap();
        }
        assert_eq!(ended_within(&run, AT_ONCE).await, EndReason::Superseded, "{removed:?}");
        let refused = supervisor.acquire(&key("b")).await.unwrap_err();
        assert!(refused.is_certain() && refused.to_string().contains("end every process"), "{refused}");
        use futures::StreamExt as _;
        while let Some(event) = events.next().await {
            match event {
                RunEvent::AtRisk { cause: Some(StoreError::Lost { .. }), .. } => {
                    panic!("certain is not at risk")
                }
                RunEvent::Ended { reason, .. } => {
                    assert_eq!(reason, EndReason::Superseded);
                    break;
                }
                _ => {}
            }
        }
    }
}
