//! A trigger of somebody's raises an error for some sessions: the statement that was to write them is rejected as a
//! whole, whatever else was in it. The same with exact figures is in `simulated/rejecting.rs`.

use tenure::{
    AcquireError, RunId, StoreError,
    store::{AcquireOutcome, Release, ReleaseOutcome, RenewOutcome},
};

use super::{
    support::{
        backend::Reachable,
        client::{Client, acquire, renew, stop},
    },
    *,
};

const TTL: Duration = Duration::from_secs(6);

on_every_backend! {
    i10_sessions_that_a_trigger_rejects_cost_no_other_and_heal
    a_trigger_that_swallows_rows_is_named_and_costs_no_other
}

/// For each row of a session named `bad…` that is inserted, updated or deleted.
trait Triggers: Reachable {
    /// Raises an error.
    async fn reject(&self, verb: &str);
    /// Raises none, and has the row not written.
    async fn swallow(&self, verb: &str);
    async fn accept(&self);
}

async fn i10_sessions_that_a_trigger_rejects_cost_no_other_and_heal(backend: impl Triggers) {
    let supervisor = supervisor(&backend.url(), TTL).await;
    let mut neighbours = held_all(&supervisor, 100).await;
    let (bad, worse) = (held(&supervisor, "bad").await, held(&supervisor, "bad, too").await);
    let mut events = supervisor.events();

    backend.reject("UPDATE").await;
    told_of(&mut events, "bad", |event| matches!(event, RunEvent::AtRisk { .. })).await;
    backend.accept().await;
    told_of(&mut events, "bad", |event| matches!(event, RunEvent::Recovered { .. })).await;
    assert!(bad.is_held() && worse.is_held());

    backend.reject("INSERT").await;
    for round in 0..3 {
        let new: Vec<_> = (0..10).map(|n| format!("new-{round}-{n}")).collect();
        let granted = join_all(new.iter().map(|name| held(&supervisor, name)));
        let (refused, granted) =
            futures::join!(supervisor.acquire(&key("bad as well")).into_future(), granted);
        match refused {
            Err(AcquireError::Refused(error)) => {
                assert!(error.to_string().contains("not this one"), "{error}")
            }
            other => panic!("{other:?}"),
        }
        assert!(join_all(granted.into_iter().map(Run::release)).await.iter().all(|ended| ended.released));
    }
    backend.accept().await;
    drop(held(&supervisor, "bad as well").await);

    backend.reject("DELETE").await;
    let releasing = neighbours.split_off(50).into_iter().map(Run::release);
    let (bad, worse, released) = futures::join!(bad.release(), worse.release(), join_all(releasing));
    assert!(!bad.released && !worse.released && released.iter().all(|ended| ended.released));
    for run in &neighbours {
        assert!(run.is_held(), "{run:?}");
    }
    backend.accept().await;
    drop(held_at_last(&supervisor, "bad").await);
}

/// To the database that is no error, and to a statement it looks like a lock or a race.
async fn a_trigger_that_swallows_rows_is_named_and_costs_no_other(backend: impl Triggers) {
    let says_so = |error: &str| error.contains("swallows") && error.contains("reject");
    let named = |answer: Result<(), StoreError>| match answer {
        Err(error @ StoreError::Rejected { .. }) => assert!(says_so(&error.to_string()), "{error}"),
        other => panic!("{other:?}"),
    };
    let (bad, run, good) = (key("bad"), RunId::random(), key("good"));
    let mut client = Client::connect(&*backend.store()).await;

    backend.swallow("INSERT").await;
    let supervisor = supervisor(&backend.url(), TTL).await;
    match supervisor.acquire(&bad).await {
        Err(AcquireError::Refused(error)) => assert!(says_so(&error.to_string()), "{error}"),
        other => panic!("{other:?}"),
    }
    named(client.raw().acquire(&[acquire(&bad, run)]).await.map(drop));
    let both = [acquire(&bad, run), acquire(&good, run)];
    let outcomes = client.raw().acquire(&both).await.unwrap();
    assert!(matches!(outcomes[..], [AcquireOutcome::Locked, AcquireOutcome::Granted(_)]), "{outcomes:?}");
    backend.accept().await;
    client.granted(acquire(&bad, run)).await;

    backend.swallow("UPDATE").await;
    named(client.raw().renew(&[renew(&bad, run)]).await.map(drop));
    let outcomes = client.raw().renew(&[renew(&bad, run), renew(&good, run)]).await.unwrap();
    assert!(matches!(outcomes[..], [RenewOutcome::Locked, RenewOutcome::Renewed(_)]), "{outcomes:?}");
    named(client.raw().request_stop(&stop(&bad, None, "ann", "why")).await.map(drop));
    backend.set_remaining(&good, -1).await;
    client.granted(acquire(&good, RunId::random())).await;
    backend.accept().await;

    backend.swallow("DELETE").await;
    named(client.raw().release(&[Release { key: bad.clone(), run_id: run, reason: None }]).await.map(drop));
    backend.accept().await;
    assert_eq!(client.release(&bad, run).await, ReleaseOutcome::Released);
}

async fn told_of(
    events: &mut (impl Stream<Item = RunEvent> + Unpin),
    session: &str,
    wanted: impl Fn(&RunEvent) -> bool,
) {
    let is_of = |event: &RunEvent| match event {
        RunEvent::AtRisk { run, .. } | RunEvent::Recovered { run, .. } => run.key == key(session),
        _ => false,
    };
    told(events, |event| is_of(event) && wanted(event)).await;
}

#[cfg(feature = "postgres")]
impl Triggers for super::support::postgres_backend::PostgresBackend {
    async fn reject(&self, verb: &str) {
        self.execute(&format!(
            "CREATE FUNCTION public.reject() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF coalesce(NEW.session_id, OLD.session_id) LIKE 'bad%' THEN
                    RAISE EXCEPTION 'not this one';
                END IF;
                RETURN coalesce(NEW, OLD);
             END $$;
             CREATE TRIGGER reject BEFORE {verb} ON tenure.session_lease
                FOR EACH ROW EXECUTE FUNCTION public.reject()"
        ))
        .await;
    }

    async fn swallow(&self, verb: &str) {
        self.execute(&format!(
            "CREATE FUNCTION public.reject() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF coalesce(NEW.session_id, OLD.session_id) LIKE 'bad%' THEN
                    RETURN NULL;
                END IF;
                RETURN coalesce(NEW, OLD);
             END $$;
             CREATE TRIGGER reject BEFORE {verb} ON tenure.session_lease
                FOR EACH ROW EXECUTE FUNCTION public.reject()"
        ))
        .await;
    }

    async fn accept(&self) {
        self.execute("DROP FUNCTION public.reject() CASCADE").await;
    }
}

#[cfg(feature = "sqlite")]
impl Triggers for super::support::sqlite_backend::SqliteBackend {
    async fn reject(&self, verb: &str) {
        let row = if verb == "DELETE" { "OLD" } else { "NEW" };
        self.execute(&format!(
            "CREATE TRIGGER reject BEFORE {verb} ON tenure_session_lease WHEN {row}.session_id LIKE 'bad%'
             BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        ))
        .await;
    }

    async fn swallow(&self, verb: &str) {
        let row = if verb == "DELETE" { "OLD" } else { "NEW" };
        self.execute(&format!(
            "CREATE TRIGGER reject BEFORE {verb} ON tenure_session_lease WHEN {row}.session_id LIKE 'bad%'
             BEGIN SELECT RAISE(IGNORE); END"
        ))
        .await;
    }

    async fn accept(&self) {
        self.execute("DROP TRIGGER reject").await;
    }
}
