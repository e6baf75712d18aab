//! What only the SQLite store promises: its file, its schema, its one writer and its coarse clock. What it has in
//! common with the other stores is in `conformance.rs`.
#![cfg(feature = "sqlite")]

#[path = "support/panics.rs"]
mod panics;

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
    time::Duration,
};

use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;
use tenure::{
    Label, LeaseSupervisor, NodeId, RunId, RunPhase, RunStage, SessionKey,
    diagnosis::Examination,
    store::{
        Acquire, AcquireOutcome, Bounds, Grant, LeaseConnection, LeaseStore, Page, Release, ReleaseOutcome,
        Renew, RenewOutcome, SqliteStore, StoreError,
    },
};
use tokio::sync::Barrier;

/// The version that a migration brings a file to.
const NEWEST_SCHEMA: u32 = 2;
const TTL: Duration = Duration::from_secs(30);
const BOUNDS: Bounds = Bounds { statement: Duration::from_secs(30), lock: Duration::from_secs(30) };

// ---- fences (I8)

#[tokio::test]
async fn quick_acquires_and_releases_never_repeat_a_fence() {
    let file = File::new();
    let mut store = file.open().await;
    let mut last = 0;
    for _ in 0..5000 {
        let run = RunId::random();
        let fence = granted(&mut *store, "chat", run).await.fence.as_i64();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        release(&mut *store, "chat", run).await;
    }
}

#[tokio::test]
async fn a_step_back_of_the_clock_never_lets_a_fence_fall() {
    let file = File::new();
    let mut store = file.open().await;
    let (released, expired) = (RunId::random(), RunId::random());
    granted(&mut *store, "released", released).await;
    granted(&mut *store, "expired", expired).await;

    // All that was written is a minute ahead of the clock now, as after a step back by a minute.
    file.execute("UPDATE tenure_session_lease SET fence = fence + 60000000, acquired_at = acquired_at + 60000, expires_at = expires_at + 60000").await;
    let before = file.number("SELECT min(fence) FROM tenure_session_lease").await;
    release(&mut *store, "released", released).await;
    file.execute("UPDATE tenure_session_lease SET expires_at = 0").await;

    for session in ["released", "expired", "never seen"] {
        let grant = granted(&mut *store, session, RunId::random()).await;
        assert!(grant.fence.as_i64() > before, "{session}: {} after {before}", grant.fence);
        assert!(
            grant.fence.as_i64() < before + 10_000_000,
            "{session}: the floor grew by more than it had to"
        );
    }
}

#[tokio::test]
async fn no_two_grants_of_one_file_share_a_fence() {
    let file = File::new();
    let mut store = file.open().await;
    let mut floor = 0;
    for _ in 0..20 {
        let items: Vec<_> = (0..50).map(|n| acquire(&format!("chat-{n}"), RunId::random())).collect();
        let fences: Vec<_> = store.acquire(&items).await.unwrap().into_iter().map(grant).collect();
        assert!(fences.iter().all(|grant| grant.fence.as_i64() > floor));
        assert_eq!(fences.iter().map(|grant| grant.fence).collect::<HashSet<_>>().len(), 50);
        floor = fences.iter().map(|grant| grant.fence.as_i64()).max().unwrap();
        file.execute("UPDATE tenure_session_lease SET expires_at = 0").await;
    }
}

// ---- one winner (I1)

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_racers_wins_and_every_loser_is_told_the_true_winner() {
    const RACERS: usize = 4;
    const ROUNDS: usize = 1000;
    let file = File::new();
    let start = Arc::new(Barrier::new(RACERS));
    let racers: Vec<_> = (0..RACERS)
        .map(|_| {
            let (start, store) = (Arc::clone(&start), file.store(""));
            tokio::spawn(async move {
                let mut store = store.connect(BOUNDS).await.unwrap();
                let mut seen = Vec::with_capacity(ROUNDS);
                for _ in 0..ROUNDS {
                    let run = RunId::random();
                    start.wait().await;
                    let outcome = store.acquire(&[acquire("chat", run)]).await;
                    start.wait().await;
                    let _ = store.release(&[Release { key: key("chat"), run_id: run, reason: None }]).await;
                    // Judged after the race: a racer that panicked would leave the others waiting for it.
                    seen.push(outcome.map(|mut outcomes| match outcomes.remove(0) {
                        AcquireOutcome::Granted(grant) => Some((run, grant.fence)),
                        AcquireOutcome::Busy(holder) => Some((holder.run_id, holder.fence)),
                        AcquireOutcome::Locked | AcquireOutcome::Full { .. } => None,
                    }));
                }
                seen
            })
        })
        .collect();
    let mut seen = Vec::new();
    for racer in racers {
        seen.push(racer.await.unwrap());
    }
    let mut last = 0;
    for round in 0..ROUNDS {
        let winners: HashSet<_> = seen.iter().map(|racer| racer[round].clone().unwrap()).collect();
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        let (_, fence) = winners.into_iter().next().flatten().expect("the winner stays, so it can be named");
        assert!(fence.as_i64() > last, "round {round}: {fence} after {last}");
        last = fence.as_i64();
    }
}

#[tokio::test]
async fn a_refusal_neither_writes_nor_waits_for_a_writer() {
    let file = File::new();
    let mut store = file.open().await;
    let holder = RunId::random();
    let granted = granted(&mut *store, "chat", holder).await;

    let mut watcher = file.raw().await;
    let before = (number(&mut watcher, "PRAGMA data_version").await, file.written());
    // With the write lock taken, and no patience at all, anything but a read fails.
    let mut writer = file.raw().await;
    execute(&mut writer, "BEGIN IMMEDIATE").await;
    let mut impatient = file
        .store("")
        .connect(Bounds { statement: Duration::ZERO, lock: Duration::ZERO })
        .await
        .expect("a new connection to a file that has its schema does not wait for a writer");
    for _ in 0..100 {
        match impatient.acquire(&[acquire("chat", RunId::random())]).await.unwrap().remove(0) {
            AcquireOutcome::Busy(busy) => assert_eq!((busy.run_id, busy.fence), (holder, granted.fence)),
            other => panic!("{other:?}"),
        }
    }
    let refused = impatient.acquire(&[acquire("other", RunId::random())]).await.unwrap_err();
    assert!(matches!(refused, StoreError::RolledBack { .. }) && !refused.is_uncertain(), "{refused}");
    execute(&mut writer, "ROLLBACK").await;

    assert_eq!(before, (number(&mut watcher, "PRAGMA data_version").await, file.written()));
    assert_eq!(file.number("SELECT count(*) FROM tenure_session_lease").await, 1);
}

// ---- the clock (I2, I5)

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_waited_for_a_writer_uses_the_clock_after_the_wait() {
    let file = File::new();
    let mut store = file.open().await;
    let (fresh, renewed, late) = (RunId::random(), RunId::random(), RunId::random());
    granted(&mut *store, "renewed", renewed).await;
    granted(&mut *store, "late", late).await;

    let mut writer = file.raw().await;
    execute(&mut writer, "BEGIN IMMEDIATE").await;
    let waiting = tokio::spawn(async move {
        let acquired = store.acquire(&[acquire("fresh", fresh)]).await.unwrap().remove(0);
        (store, acquired)
    });
    let at_the_end_of_the_wait = let_the_clock_pass(&mut writer, 300).await;
    execute(&mut writer, "COMMIT").await;
    let (mut store, acquired) = waiting.await.unwrap();
    let acquired = grant(acquired);
    assert!(acquired.acquired_at_micros >= at_the_end_of_the_wait * 1000, "{acquired:?}");
    assert_eq!(acquired.remaining, TTL);

    // A renewal whose lease runs out while it waits comes too late, however early it was sent.
    execute(&mut writer, "BEGIN IMMEDIATE").await;
    execute(
        &mut writer,
        "UPDATE tenure_session_lease SET expires_at = CAST(round(unixepoch('subsec') * 1000) AS INTEGER) + 6250
         WHERE session_id = 'late'",
    )
    .await;
    let waiting =
        tokio::spawn(
            async move { store.renew(&[renew("renewed", renewed), renew("late", late)]).await.unwrap() },
        );
    let at_the_end_of_the_wait = let_the_clock_pass(&mut writer, 300).await;
    execute(&mut writer, "COMMIT").await;
    let outcomes = waiting.await.unwrap();
    match &outcomes[0] {
        RenewOutcome::Renewed(renewed) => {
            assert!(renewed.clock_micros >= at_the_end_of_the_wait * 1000, "{renewed:?}");
            assert_eq!(renewed.remaining, TTL);
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(outcomes[1], RenewOutcome::Expired { .. }), "{outcomes:?}");
}

#[tokio::test]
async fn a_day_is_a_possible_ttl() {
    let file = File::new();
    let mut store = file.open().await;
    let day = Duration::from_secs(24 * 3600);
    let items = [Acquire { ttl: day, ..acquire("chat", RunId::random()) }];
    assert_eq!(grant(store.acquire(&items).await.unwrap().remove(0)).remaining, day);
}

// ---- the file

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixteen_tasks_may_open_one_new_file_at_once() {
    for _ in 0..10 {
        let file = File::new();
        let start = Arc::new(Barrier::new(16));
        let tasks: Vec<_> = (0..16)
            .map(|_| {
                let (start, store) = (Arc::clone(&start), file.store(""));
                tokio::spawn(async move {
                    start.wait().await;
                    store.connect(BOUNDS).await.map(drop)
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        assert_eq!(file.number("SELECT count(*) FROM tenure_migration").await, i64::from(NEWEST_SCHEMA));
    }
}

#[test]
fn sixteen_processes_may_open_one_new_file_at_once() {
    for _ in 0..5 {
        let file = File::new();
        let children: Vec<_> = (0..16).map(|_| child("acquire", &file.path()).spawn().unwrap()).collect();
        let outcomes: Vec<_> =
            children.into_iter().map(|child| said(&child.wait_with_output().unwrap())).collect();
        let won = outcomes.iter().filter(|outcome| outcome.starts_with("granted")).count();
        let lost = outcomes.iter().filter(|outcome| outcome.starts_with("busy")).count();
        assert_eq!((won, lost), (1, 15), "{outcomes:?}");
    }
}

#[tokio::test]
async fn a_file_that_was_replaced_no_longer_rules() {
    let file = File::new();
    let mut old = file.open().await;
    let run = RunId::random();
    granted(&mut *old, "chat", run).await;

    std::fs::remove_file(file.path()).unwrap();
    for suffix in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(file.dir.path().join(format!("t.db{suffix}")));
    }
    // Certain: whoever comes next makes a new file. A renewal makes none.
    let lost = old.renew(&[renew("chat", run)]).await.unwrap_err();
    assert!(matches!(&lost, StoreError::Lost { detail, .. } if detail.contains("was removed")), "{lost}");
    let gone = old.release(&[Release { key: key("chat"), run_id: run, reason: None }]).await.unwrap();
    assert_eq!((gone, file.siblings()), (vec![ReleaseOutcome::NotFound], vec![]));

    let mut new = file.open().await;
    let next = RunId::random();
    granted(&mut *new, "chat", next).await;
    let renewed = old.renew(&[renew("chat", run)]).await.unwrap();
    assert!(matches!(renewed[..], [RenewOutcome::Superseded { .. }]), "{renewed:?}");
    match old.acquire(&[acquire("chat", run)]).await.unwrap().remove(0) {
        AcquireOutcome::Busy(holder) => assert_eq!(holder.run_id, next),
        other => panic!("{other:?}"),
    }
    granted(&mut *old, "other", run).await;
    assert!(new.inspect(&[key("other")]).await.unwrap()[0].is_some(), "both work with the new file");
}

/// What was restored rules, and a run that has its row in it is not lost.
#[tokio::test]
async fn a_run_that_a_restored_file_still_knows_goes_on() {
    let file = File::new();
    let mut old = file.open().await;
    let (kept, newer) = (RunId::random(), RunId::random());
    granted(&mut *old, "kept", kept).await;
    execute(&mut file.raw().await, "PRAGMA wal_checkpoint(TRUNCATE)").await;
    let copy = file.dir.path().join("copy");
    let done = Command::new("cp").arg(file.path()).arg(&copy).status().unwrap();
    assert!(done.success());
    granted(&mut *old, "newer", newer).await;

    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(file.dir.path().join(format!("t.db{suffix}"))).unwrap();
    }
    std::fs::rename(copy, file.path()).unwrap();
    let outcomes = old.renew(&[renew("kept", kept), renew("newer", newer)]).await.unwrap();
    assert!(matches!(outcomes[..], [RenewOutcome::Renewed(_), RenewOutcome::Gone { .. }]), "{outcomes:?}");
}

/// I1: what was committed last is in the log, and the locks are in the shared memory. A file without them is an older
/// file, or one with a second writer.
#[tokio::test]
async fn a_file_whose_log_or_shared_memory_was_deleted_no_longer_rules() {
    for removed in [&["-wal"][..], &["-shm"], &["-wal", "-shm"]] {
        let file = File::new();
        let store = file.store("");
        let mut old = store.connect(BOUNDS).await.unwrap();
        let run = RunId::random();
        granted(&mut *old, "chat", run).await;
        old.renew(&[renew("chat", run)]).await.unwrap();
        for suffix in removed {
            std::fs::remove_file(file.dir.path().join(format!("t.db{suffix}"))).unwrap();
        }
        let acquires = [acquire("other", RunId::random())];
        for lost in [
            old.renew(&[renew("chat", run)]).await.unwrap_err(),
            old.acquire(&acquires).await.unwrap_err(),
            // A new connection of this process would share the memory of the old one.
            store.connect(BOUNDS).await.err().unwrap(),
        ] {
            assert!(matches!(&lost, StoreError::Lost { .. }), "{removed:?}: {lost:?}");
            assert!(lost.to_string().contains("end every process"), "{lost}");
        }
        old.close().await;
        store.connect(BOUNDS).await.unwrap().close().await;
    }
}

// ---- one file, one name

/// I1: each name has a log of its own, and neither shows what was granted under the other.
#[cfg(unix)]
#[tokio::test]
async fn a_file_with_two_names_is_refused_by_either_and_left_alone() {
    let file = File::new();
    file.open().await.close().await;
    let at = |name: &str| file.dir.path().join(name);
    let store = |name: &str| SqliteStore::new(&format!("sqlite://{}", at(name).display())).unwrap();
    std::fs::hard_link(file.path(), at("u.db")).unwrap();
    std::os::unix::fs::symlink(at("u.db"), at("link.db")).unwrap();
    for name in ["t.db", "u.db", "link.db"] {
        for refused in [refusal(&store(name)).await, store(name).migrate().await.unwrap_err()] {
            assert!(matches!(refused, StoreError::Url { .. }), "{name}: {refused:?}");
            assert!(refused.to_string().contains("2 names"), "{name}: {refused}");
        }
        let url = format!("sqlite://{}?mode=ro", at(name).display());
        let diagnosis = Examination::of(url).lasting(Duration::ZERO).run().await.unwrap();
        assert!(diagnosis.failure().unwrap().to_string().contains("2 names"), "{diagnosis:?}");
    }
    let mut siblings = file.siblings();
    siblings.sort();
    assert_eq!(siblings, ["link.db", "t.db", "u.db"], "nobody has made a log");

    std::fs::remove_file(file.path()).unwrap();
    granted(&mut *store("link.db").connect(BOUNDS).await.unwrap(), "chat", RunId::random()).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_name_that_is_made_later_lets_nobody_in_and_costs_its_holder_nothing() {
    let file = File::new();
    let holder = file.store("");
    let mut held = holder.connect(BOUNDS).await.unwrap();
    let run = RunId::random();
    granted(&mut *held, "chat", run).await;
    let other = file.dir.path().join("u.db");
    std::fs::hard_link(file.path(), &other).unwrap();
    let refused = refusal(&SqliteStore::new(&format!("sqlite://{}", other.display())).unwrap()).await;
    assert!(refused.to_string().contains("2 names"), "{refused}");
    let mut another = holder.connect(BOUNDS).await.unwrap();
    for store in [&mut held, &mut another] {
        let renewed = store.renew(&[renew("chat", run)]).await.unwrap();
        assert!(matches!(renewed[..], [RenewOutcome::Renewed(_)]), "{renewed:?}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_symbolic_link_leads_to_the_same_leases() {
    let file = File::new();
    let run = RunId::random();
    let mut holder = file.open().await;
    granted(&mut *holder, "chat", run).await;
    let directory = file.dir.path().join("elsewhere");
    std::fs::create_dir(&directory).unwrap();
    std::os::unix::fs::symlink("../t.db", directory.join("file.db")).unwrap();
    std::os::unix::fs::symlink("..", directory.join("up")).unwrap();
    for way in ["file.db", "up/t.db"] {
        let store = SqliteStore::new(&format!("sqlite://{}", directory.join(way).display())).unwrap();
        let mut by_link = store.connect(BOUNDS).await.unwrap();
        match by_link.acquire(&[acquire("chat", RunId::random())]).await.unwrap().remove(0) {
            AcquireOutcome::Busy(found) => assert_eq!(found.run_id, run),
            other => panic!("{way}: {other:?}"),
        }
    }
    // Where a link leads is what rules: another file there is another database.
    let by_link = SqliteStore::new(&format!("sqlite://{}", directory.join("file.db").display())).unwrap();
    let mut by_link = by_link.connect(BOUNDS).await.unwrap();
    std::fs::remove_file(directory.join("file.db")).unwrap();
    std::os::unix::fs::symlink("other.db", directory.join("file.db")).unwrap();
    assert!(matches!(by_link.renew(&[renew("chat", run)]).await, Err(StoreError::Lost { .. })));
}

#[tokio::test]
async fn a_host_application_may_share_its_file() {
    let file = File::new();
    let mut host =
        SqliteConnection::connect(&format!("sqlite://{}?mode=rwc", file.path().display())).await.unwrap();
    execute(&mut host, "CREATE TABLE _sqlx_migrations (version BIGINT PRIMARY KEY, note TEXT)").await;
    execute(&mut host, "INSERT INTO _sqlx_migrations VALUES (7, 'the host''s')").await;

    let mut store = file.open().await;
    granted(&mut *store, "chat", RunId::random()).await;
    assert_eq!(number(&mut host, "SELECT version FROM _sqlx_migrations").await, 7);
    let foreign = "SELECT count(*) FROM sqlite_schema WHERE name NOT LIKE 'tenure\\_%' ESCAPE '\\'
                   AND tbl_name <> '_sqlx_migrations'";
    assert_eq!(number(&mut host, foreign).await, 0);
}

#[tokio::test]
async fn what_is_no_database_is_refused_with_the_remedy_and_left_alone() {
    let file = File::new();

    let missing = file.dir.path().join("nowhere/t.db");
    let refused = refusal(&SqliteStore::new(&format!("sqlite://{}", missing.display())).unwrap()).await;
    assert!(matches!(refused, StoreError::Url { .. }), "{refused:?}");
    assert!(refused.to_string().contains("nowhere does not exist; create it"), "{refused}");
    assert!(!missing.parent().unwrap().exists());

    let directory = file.dir.path();
    let refused = refusal(&SqliteStore::new(&format!("sqlite://{}", directory.display())).unwrap()).await;
    assert!(matches!(refused, StoreError::Url { .. }), "{refused:?}");
    assert!(refused.to_string().contains("is a directory; name a file in it"), "{refused}");

    for text in ["dear diary", &"dear diary\n".repeat(1000)] {
        std::fs::write(file.path(), text).unwrap();
        for query in ["", "?mode=rw", "?mode=ro"] {
            let refused = refusal(&file.store(query)).await;
            assert!(matches!(refused, StoreError::Url { .. }), "{refused:?}");
            assert!(refused.to_string().contains("is not a SQLite database"), "{refused}");
        }
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), text);
    }

    let below = SqliteStore::new(&format!("sqlite://{}/t.db", file.path().display())).unwrap();
    let refused = refusal(&below).await;
    assert!(refused.to_string().contains("is not a directory"), "{refused}");
    assert_eq!(file.siblings(), ["t.db"]);
}

#[tokio::test]
async fn a_mode_that_may_not_create_creates_nothing() {
    let file = File::new();
    for query in ["?mode=rw", "?mode=ro"] {
        let store = file.store(query);
        for refused in [refusal(&store).await, store.migrate().await.unwrap_err()] {
            assert!(matches!(refused, StoreError::Url { .. }), "{refused:?}");
            assert!(refused.to_string().contains("mode=rwc"), "{refused}");
        }
        assert_eq!(file.siblings(), Vec::<String>::new());
    }

    std::fs::write(file.path(), "").unwrap();
    for query in ["?mode=rw", "?mode=ro"] {
        let refused = refusal(&file.store(query)).await;
        assert!(matches!(refused, StoreError::SchemaMissing { .. }), "{refused:?}");
        assert!(refused.to_string().contains("tenure migrate"), "{refused}");
        assert_eq!(std::fs::read(file.path()).unwrap(), b"");
        assert_eq!(file.siblings(), ["t.db"]);
    }

    let migrated = file.store("?mode=rw").migrate().await.unwrap();
    assert_eq!((migrated.from, migrated.to), (0, NEWEST_SCHEMA));
    let again = file.store("").migrate().await.unwrap();
    assert_eq!((again.from, again.to), (NEWEST_SCHEMA, NEWEST_SCHEMA));
    granted(&mut *file.store("?mode=rw").connect(BOUNDS).await.unwrap(), "chat", RunId::random()).await;
}

#[tokio::test]
async fn a_read_only_connection_reads_and_its_writes_are_denied() {
    let file = File::new();
    let run = RunId::random();
    let mut writer = file.open().await;
    granted(&mut *writer, "chat", run).await;

    let mut reader = file.store("?mode=ro").connect(BOUNDS).await.unwrap();
    assert_eq!(reader.inspect(&[key("chat")]).await.unwrap()[0].as_ref().unwrap().run_id, run);
    let page = Page { account: None, expired: false, after: None, limit: 10 };
    assert_eq!(reader.list(&page).await.unwrap().len(), 1);
    assert!(matches!(
        reader.acquire(&[acquire("chat", RunId::random())]).await.unwrap().remove(0),
        AcquireOutcome::Busy(_)
    ));
    for denied in [
        reader.acquire(&[acquire("other", RunId::random())]).await.unwrap_err(),
        reader.renew(&[renew("chat", run)]).await.unwrap_err(),
        reader.release(&[Release { key: key("chat"), run_id: run, reason: None }]).await.unwrap_err(),
    ] {
        assert!(matches!(denied, StoreError::PermissionDenied { .. }), "{denied:?}");
        assert!(denied.to_string().contains("mode=ro"), "{denied}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_write_protected_file_is_refused_before_anything_is_acquired() {
    use std::os::unix::fs::PermissionsExt as _;
    let allow = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let file = File::new();
    file.open().await.close().await;

    allow(&file.path(), 0o444);
    for directory in [0o777, 0o555] {
        allow(file.dir.path(), directory);
        let said = said(&unprivileged(child("acquire", &file.path())).output().unwrap());
        assert!(said.starts_with("refused permission: "), "{directory:o}: {said}");
        assert!(said.contains("let this user"), "{directory:o}: {said}");
    }
    allow(file.dir.path(), 0o777);
    assert_eq!(file.number("SELECT count(*) FROM tenure_session_lease").await, 0);

    // A directory in which this user may not create the file.
    allow(file.dir.path(), 0o555);
    let said = said(&unprivileged(child("acquire", &file.dir.path().join("new.db"))).output().unwrap());
    assert!(said.starts_with("refused permission: ") && said.contains("its directory"), "{said}");
    allow(file.dir.path(), 0o777);
}

/// The limit on the size of a file stands in for a full disk: the write of the commit fails.
#[cfg(unix)]
#[tokio::test]
async fn a_grant_whose_commit_failed_is_never_reported_as_granted() {
    let file = File::new();
    let mut store = file.open().await;
    let limited = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 256; exec \"$@\"", "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(CHILD)
        .env("TENURE_TEST_ROLE", "fill")
        .env("TENURE_TEST_FILE", file.path())
        .output()
        .unwrap();
    let said = said(&limited);
    let (granted, error) = said.split_once(' ').unwrap();
    assert!(error.contains("is unavailable"), "{said}");
    assert!(granted.parse::<i64>().unwrap() > 0, "{said}");
    let page = Page { account: None, expired: true, after: None, limit: u32::MAX };
    let stored = store.list(&page).await.unwrap().len();
    assert_eq!(stored as i64, granted.parse::<i64>().unwrap(), "{said}");
}

// ---- the schema

#[tokio::test]
async fn a_schema_from_the_future_is_accepted_only_while_it_is_compatible() {
    let file = File::new();
    file.open().await.close().await;

    file.execute("INSERT INTO tenure_migration VALUES (9, 1, 0)").await;
    granted(&mut *file.open().await, "chat", RunId::random()).await;
    let migrated = file.store("").migrate().await.unwrap();
    assert_eq!((migrated.from, migrated.to), (9, 9));

    file.execute("UPDATE tenure_migration SET compatible_from = 9 WHERE version = 9").await;
    for query in ["", "?mode=rw", "?mode=ro"] {
        for refused in [refusal(&file.store(query)).await, file.store(query).migrate().await.unwrap_err()] {
            assert!(
                matches!(
                    refused,
                    StoreError::SchemaTooNew { found: 9, compatible_from: 9, known: NEWEST_SCHEMA, .. }
                ),
                "{refused:?}"
            );
            assert!(refused.to_string().contains("upgrade tenure"), "{refused}");
        }
    }
    assert_eq!(file.number("SELECT count(*) FROM tenure_migration").await, i64::from(NEWEST_SCHEMA) + 1);
}

#[tokio::test]
async fn a_schema_that_vanished_is_named_with_the_remedy() {
    let file = File::new();
    let mut store = file.open().await;
    file.execute("DROP TABLE tenure_session_lease").await;
    let refused = store.renew(&[renew("chat", RunId::random())]).await.unwrap_err();
    assert!(matches!(refused, StoreError::SchemaMissing { .. }), "{refused:?}");
    assert!(refused.to_string().contains("tenure migrate"), "{refused}");
}

#[tokio::test]
async fn the_schema_refuses_what_the_protocol_does_not_allow() {
    let file = File::new();
    granted(&mut *file.open().await, "chat", RunId::random()).await;
    for (column, value) in [
        ("account_id", "''"),
        ("session_id", "printf('%256c', 'x')"),
        ("session_id", "CAST(x'610062' AS TEXT)"),
        ("run_id", "'not a uuid'"),
        ("fence", "0"),
        ("holder", "''"),
        ("phase", "printf('%65c', 'x')"),
        ("stage", "'paused'"),
        ("expires_at", "'soon'"),
        ("expires_at", "-1"),
    ] {
        let sql = format!("UPDATE tenure_session_lease SET {column} = {value}");
        let result = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut file.raw().await).await;
        assert!(result.is_err(), "{column} = {value}");
    }
}

/// I12: here for a rule of the host's.
#[tokio::test]
async fn i12_a_phase_that_the_host_forbids_costs_neither_its_lease_nor_its_neighbours_phase() {
    let file = File::new();
    let url = format!("sqlite://{}", file.path().display());
    let supervisor = LeaseSupervisor::builder(url).ttl(Duration::from_secs(2)).start().await.unwrap();
    let (rude, kind) = (supervisor.acquire(&key("rude")), supervisor.acquire(&key("kind")));
    let (rude, kind) = (rude.await.unwrap(), kind.await.unwrap());
    file.execute(
        "CREATE TRIGGER polite BEFORE UPDATE ON tenure_session_lease WHEN NEW.phase = 'rude' \
         BEGIN SELECT RAISE(ABORT, 'be polite'); END",
    )
    .await;
    for _ in 0..20 {
        rude.set_phase("rude").unwrap();
        kind.set_phase("kind").unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(rude.is_held() && kind.is_held());
    }
    let shown = supervisor.inspect(&key("kind")).await.unwrap().holder.unwrap();
    assert_eq!(shown.phase.as_str(), "kind");
    let shown = supervisor.inspect(&key("rude")).await.unwrap().holder.unwrap();
    assert_ne!(shown.phase.as_str(), "rude");
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_an_error_and_never_a_panic() {
    let file = File::new();
    let mut store = file.open().await;
    granted(&mut *store, "chat", RunId::random()).await;
    file.execute("UPDATE tenure_session_lease SET run_id = printf('%36c', 'z')").await;
    let unreadable = store.inspect(&[key("chat")]).await.unwrap_err();
    assert!(unreadable.to_string().contains("run_id"), "{unreadable}");
    let unreadable = store.acquire(&[acquire("chat", RunId::random())]).await.unwrap_err();
    assert!(unreadable.is_uncertain(), "{unreadable:?}");
}

// ---- keys

#[tokio::test]
async fn keys_come_back_byte_for_byte() {
    let file = File::new();
    let mut store = file.open().await;
    let texts = [
        "🦀 émoji",
        "e\u{301}",
        "é",
        "quo'te\"d",
        "new\nline\t\u{1}",
        "\\u0000",
        "[1]",
        "{\"a\": null}",
        "null",
        "Case",
        "case",
        " case ",
        "1",
        "1.0",
        "x'41'",
        "%_?1",
        "\u{10ffff}\u{feff}",
        &"x".repeat(255),
    ];
    let keys: Vec<_> = texts.iter().map(|text| SessionKey::new(text, text).unwrap()).collect();
    let items: Vec<_> =
        keys.iter().map(|key| Acquire { key: key.clone(), ..acquire("", RunId::random()) }).collect();
    for outcome in store.acquire(&items).await.unwrap() {
        grant(outcome);
    }
    for (holder, item) in store.inspect(&keys).await.unwrap().into_iter().zip(&items) {
        assert_eq!(holder.unwrap().run_id, item.run_id, "{:?}", item.key);
    }
    let page = Page { account: None, expired: false, after: None, limit: 100 };
    let listed: Vec<_> = store.list(&page).await.unwrap().into_iter().map(|(key, _)| key).collect();
    let mut sorted = keys.clone();
    sorted.sort();
    assert_eq!(listed, sorted);
    let items: Vec<_> = items
        .iter()
        .map(|item| Release { key: item.key.clone(), run_id: item.run_id, reason: None })
        .collect();
    assert!(store.release(&items).await.unwrap().iter().all(|outcome| *outcome == ReleaseOutcome::Released));
}

// ---- this binary as another process

const CHILD: [&str; 3] = ["--exact", "the_work_of_a_child_process", "--nocapture"];

/// Runs this same binary as another process in a role of [`the_work_of_a_child_process`].
fn child(role: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(CHILD).env("TENURE_TEST_ROLE", role).env("TENURE_TEST_FILE", path);
    command.stdout(std::process::Stdio::piped());
    command
}

/// To root every file is writable.
#[cfg(unix)]
fn unprivileged(mut command: Command) -> Command {
    use std::os::unix::process::CommandExt as _;
    if rustix::process::geteuid().is_root() {
        const NOBODY: u32 = 65534;
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.split_once("SAID ")).map(|(_, said)| said.to_owned());
    line.unwrap_or_else(|| panic!("{output:?}"))
}

/// Not a promise: what the other tests start as another process. Does nothing on its own.
#[tokio::test]
async fn the_work_of_a_child_process() {
    let Ok(path) = std::env::var("TENURE_TEST_FILE") else { return };
    let store = SqliteStore::new(&format!("sqlite://{path}")).unwrap();
    let said = match std::env::var("TENURE_TEST_ROLE").unwrap().as_str() {
        "acquire" => acquire_once(&store).await,
        "fill" => fill(&store).await,
        role => panic!("{role}"),
    };
    println!("\nSAID {said}");
}

async fn acquire_once(store: &SqliteStore) -> String {
    let outcome = match store.connect(BOUNDS).await {
        Ok(mut store) => store.acquire(&[acquire("chat", RunId::random())]).await,
        Err(error) => Err(error),
    };
    match outcome {
        Ok(outcomes) => match &outcomes[0] {
            AcquireOutcome::Granted(_) => "granted".to_owned(),
            AcquireOutcome::Busy(_) => "busy".to_owned(),
            AcquireOutcome::Locked => "locked".to_owned(),
            AcquireOutcome::Full { .. } => "full".to_owned(),
        },
        Err(StoreError::PermissionDenied { detail, .. }) => format!("refused permission: {detail}"),
        Err(error) => error.to_string(),
    }
}

async fn fill(store: &SqliteStore) -> String {
    let mut store = store.connect(BOUNDS).await.unwrap();
    for granted in 0.. {
        let item = acquire(&format!("{granted}-{}", "x".repeat(200)), RunId::random());
        if let Err(error) = store.acquire(&[item]).await {
            return format!("{granted} {error}");
        }
    }
    unreachable!("the limit on the size of a file comes first")
}

// ---- support

struct File {
    dir: TempDir,
}

impl File {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("t.db")
    }

    fn store(&self, query: &str) -> SqliteStore {
        SqliteStore::new(&format!("sqlite://{}{query}", self.path().display())).unwrap()
    }

    async fn open(&self) -> Box<dyn LeaseConnection> {
        self.store("").connect(BOUNDS).await.unwrap()
    }

    /// A connection that knows nothing of leases.
    async fn raw(&self) -> SqliteConnection {
        SqliteConnection::connect(&format!("sqlite://{}", self.path().display())).await.unwrap()
    }

    async fn execute(&self, sql: &'static str) {
        execute(&mut self.raw().await, sql).await;
    }

    async fn number(&self, sql: &'static str) -> i64 {
        number(&mut self.raw().await, sql).await
    }

    /// What shows a write: length and time of the file and of its write-ahead log. Never opened here, because
    /// closing a file drops all locks that this process has on it.
    fn written(&self) -> Vec<(u64, std::time::SystemTime)> {
        ["t.db", "t.db-wal"]
            .map(|name| self.dir.path().join(name).metadata().unwrap())
            .map(|found| (found.len(), found.modified().unwrap()))
            .to_vec()
    }

    fn siblings(&self) -> Vec<String> {
        let entries = self.dir.path().read_dir().unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

async fn execute(sqlite: &mut SqliteConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(sqlite).await.unwrap();
}

async fn number(sqlite: &mut SqliteConnection, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(sqlite).await.unwrap()
}

/// Waits until the database's clock has moved on by so many ms; answers its reading.
async fn let_the_clock_pass(sqlite: &mut SqliteConnection, millis: i64) -> i64 {
    const CLOCK: &str = "SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER)";
    let start = number(sqlite, CLOCK).await;
    loop {
        let now = number(sqlite, CLOCK).await;
        if now >= start + millis {
            return now;
        }
    }
}

async fn refusal(store: &SqliteStore) -> StoreError {
    match store.connect(BOUNDS).await {
        Ok(_) => panic!("{} was opened", store.location()),
        Err(error) => error,
    }
}

fn key(session: &str) -> SessionKey {
    SessionKey::new("acct", session).unwrap()
}

fn acquire(session: &str, run_id: RunId) -> Acquire {
    Acquire {
        key: key(if session.is_empty() { "unnamed" } else { session }),
        run_id,
        node: NodeId::random(),
        label: Label::new("a test").unwrap(),
        phase: RunPhase::default(),
        ttl: TTL,
        limit_per_account: None,
    }
}

fn renew(session: &str, run_id: RunId) -> Renew {
    Renew {
        key: key(session),
        run_id,
        ttl: TTL,
        safety_margin: TTL / 5,
        stage: RunStage::Running,
        phase: None,
    }
}

fn grant(outcome: AcquireOutcome) -> Grant {
    match outcome {
        AcquireOutcome::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

async fn granted(store: &mut dyn LeaseConnection, session: &str, run_id: RunId) -> Grant {
    grant(store.acquire(&[acquire(session, run_id)]).await.unwrap().remove(0))
}

async fn release(store: &mut dyn LeaseConnection, session: &str, run_id: RunId) {
    let outcomes = store.release(&[Release { key: key(session), run_id, reason: None }]).await.unwrap();
    assert_eq!(outcomes, [ReleaseOutcome::Released]);
}
