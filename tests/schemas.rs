//! Promises about where in a PostgreSQL database the leases are: the schema's name, and what is set for a role.

#![cfg(feature = "postgres")]

mod support;

use std::time::Duration;

use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Row as _};
use support::{
    NEWEST_SCHEMA,
    client::{Client, acquire, key, renew},
    postgres::{Database, Server},
};
use tenure::{
    AcquireError, EndReason, LeaseSupervisor, RunId, RunPhase, SessionKey, StopAnswer, StoreError,
    diagnosis::{Diagnosis, Examination, Verdict},
    store::{self, AcquireOutcome, Migrated, ReleaseOutcome, RenewOutcome, SharedStore},
};

/// The shortest for which a statement that is compiled first comes too late, or nearly.
const TTL: Duration = Duration::from_secs(2);

/// Two environments in one database.
#[tokio::test]
async fn supervisors_on_two_schemas_of_one_database_do_not_see_each_other() {
    let database = Server::shared().database().await;
    let urls = ["", "?schema=Staging-2"].map(|parameter| database.url() + parameter);
    let mut supervisors = Vec::new();
    for url in &urls {
        tenure::migrate(url).await.expect("it migrates");
        supervisors.push(LeaseSupervisor::builder(url).ttl(30 * TTL).start().await.expect("it starts"));
    }
    let [production, staging] = &supervisors[..] else { unreachable!("there are two") };
    let chat = key("chat");
    let ours = production.acquire(&chat).await.expect("it is free");
    let answer = staging.stop(&chat).await.expect("it asks");
    assert!(matches!(answer, StopAnswer::Idle), "{answer:?}");
    let theirs = staging.acquire(&chat).await.expect("it is free there, too");
    assert_ne!(ours.run_id(), theirs.run_id());
    assert!(matches!(production.acquire(&chat).await, Err(AcquireError::Busy(_))));

    for (supervisor, run) in [(production, &ours), (staging, &theirs)] {
        let listed = supervisor.list().await.expect("it lists");
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].holder.as_ref().map(|holder| holder.run_id), Some(run.run_id()));
    }
    assert!(matches!(staging.stop(&chat).await, Ok(StopAnswer::Asked(_))));
    let reason = tokio::time::timeout(Duration::from_secs(20), theirs.context().cancelled()).await;
    assert!(matches!(reason.expect("the hint comes, or a renewal"), EndReason::Stopped { .. }));
    assert!(ours.context().is_held());
}

/// The usual way to give a role its own place, whatever its search path leads to.
#[tokio::test]
async fn a_role_needs_no_more_than_one_schema_and_its_search_path_matters_nowhere() {
    let database = Server::shared().database().await;
    role(&database, "tenant", &["search_path = decoy, pg_catalog"]).await;
    let mut admin = database.admin().await;
    admin
        .execute(
            "CREATE SCHEMA agents AUTHORIZATION tenant; \
             CREATE SCHEMA decoy; GRANT USAGE ON SCHEMA decoy TO tenant; \
             CREATE TABLE decoy.session_lease (); CREATE TABLE decoy.migration (); \
             CREATE FUNCTION decoy.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS \
                $$ SELECT timestamptz '2000-01-01' $$; \
             CREATE FUNCTION decoy.next_fence(bigint) RETURNS bigint LANGUAGE sql AS $$ SELECT 1::bigint $$",
        )
        .await
        .expect("it creates");
    let url = format!("{}?schema=agents", database.url_as("tenant", "s3cret"));
    assert_eq!(tenure::migrate(&url).await, Ok(Migrated::new(0, NEWEST_SCHEMA)));
    let store = store::open(&url).expect("the URL is good");
    let mut client = Client::connect(&*store).await;
    let (key, run) = (key("s"), RunId::random());
    let first = client.granted(acquire(&key, run)).await;
    assert!(first.fence.as_i64() > 1_600_000_000_000_000, "{first:?}");
    client.renewed(renew(&key, run)).await;
    assert_eq!(client.refused(acquire(&key, RunId::random())).await.run_id, run);
    assert_eq!(client.release(&key, run).await, ReleaseOutcome::Released);
    let elsewhere = "SELECT count(*) FROM pg_class WHERE relname = 'session_lease' AND relkind = 'r'";
    assert_eq!(number(&mut admin, elsewhere).await, 2, "its own, and the decoy");
    let diagnosis = examined(&url).await;
    for check in ["schema", "rights"] {
        assert_eq!(finding(&diagnosis, check).0, Verdict::Fine, "{diagnosis:?}");
    }
}

/// A schema may be the host's own, with tables of the same names.
#[tokio::test]
async fn a_table_of_the_hosts_is_not_taken_for_ours() {
    let database = Server::shared().database().await;
    let mut admin = database.admin().await;
    let hosts = "CREATE SCHEMA host AUTHORIZATION app; CREATE TABLE host.migration (version text, run_on date); \
                 ALTER TABLE host.migration OWNER TO app";
    admin.execute(hosts).await.expect("it creates");
    let refused = tenure::migrate(&format!("{}?schema=host", database.url())).await.expect_err("it is taken");
    assert!(matches!(refused, StoreError::Url { .. }), "{refused:?}");
    assert!(refused.to_string().contains("name a schema of tenure's own"), "{refused}");
    let tables = "SELECT count(*) FROM pg_class WHERE relnamespace = 'host'::regnamespace AND relkind = 'r'";
    assert_eq!(number(&mut admin, tables).await, 1, "nothing was left behind");
}

/// For people who apply such things by hand.
#[tokio::test]
async fn the_printed_schema_is_that_of_the_name() {
    let database = Server::shared().database().await;
    let store = store::open(&format!("{}?schema=by-hand", database.url())).expect("the URL is good");
    let script = store.schema();
    assert!(!script.contains("tenure."), "{script}");
    database.admin().await.execute(AssertSqlSafe(script)).await.expect("it is SQL");
    let superuser = format!("{}?schema=by-hand", database.superuser_url());
    assert_eq!(tenure::migrate(&superuser).await, Ok(Migrated::new(NEWEST_SCHEMA, NEWEST_SCHEMA)));
    assert!(denied(&*store).await.to_string().contains("GRANT USAGE ON SCHEMA \"by-hand\""));
}

#[tokio::test]
async fn a_role_without_rights_learns_which_it_needs_in_the_schema_of_this_name() {
    let database = Server::shared().database().await;
    let url = |base: String| format!("{base}?schema=Prod");
    tenure::migrate(&url(database.url())).await.expect("it migrates");
    role(&database, "guest", &[]).await;
    let store = store::open(&url(database.url_as("guest", "s3cret"))).expect("the URL is good");
    let text = denied(&*store).await.to_string();
    let grants: Vec<_> =
        text.split("; ").filter_map(|part| part.find("GRANT").map(|at| &part[at..])).collect();
    assert_eq!(grants.len(), 5, "{text}");
    for grant in grants {
        assert!(grant.contains("\"Prod\""), "{grant}");
        let grant = format!("{grant} TO guest");
        database.admin().await.execute(AssertSqlSafe(grant)).await.expect("it is SQL");
    }
    Client::connect(&*store).await.granted(acquire(&key("s"), RunId::random())).await;
}

/// A prepared statement is found by its text: a text of its own each time would be planned each time.
#[tokio::test]
async fn statements_for_another_schema_are_prepared_once() {
    let database = Server::shared().database().await;
    let url = format!("{}?schema=other", database.url());
    tenure::migrate(&url).await.expect("it migrates");
    let store = store::open(&url).expect("the URL is good");
    let mut client = Client::connect(&*store).await;
    let (key, run) = (key("s"), RunId::random());
    for _ in 0..3 {
        client.granted(acquire(&key, run)).await;
        client.renewed(renew(&key, run)).await;
    }
    // Counted by the session itself, through a trigger of the host.
    let mut admin = database.admin().await;
    admin
        .execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                RAISE EXCEPTION 'prepared %', (SELECT count(*) FROM pg_prepared_statements); END $$; \
             CREATE TRIGGER note BEFORE DELETE ON other.session_lease FOR EACH ROW EXECUTE FUNCTION note()",
        )
        .await
        .expect("it creates");
    let item = store::Release { key, run_id: run, reason: None };
    let told = client.raw().release(&[item]).await.expect_err("the trigger raises").to_string();
    assert!(told.contains("prepared 4"), "the probe, acquire, renew, release: {told}");
}

/// I12: the text rides with the renewal, and is for people only.
#[tokio::test]
async fn i12_a_phase_that_the_encoding_lacks_costs_no_lease() {
    let database = encoded("LATIN1").await;
    let supervisor = LeaseSupervisor::builder(database.url())
        .ttl(TTL)
        .holder_label("日本")
        .start()
        .await
        .expect("it starts");
    let run = supervisor.acquire(&key("chat")).phase("🦀 Müller").await.expect("the texts are incidental");
    let neighbour = supervisor.acquire(&key("other")).await.expect("it is free");
    run.context().set_phase("日本").expect("it fits");
    neighbour.context().set_phase("Müller").expect("it fits");
    for _ in 0..30 {
        tokio::time::sleep(TTL / 10).await;
        assert!(run.context().is_held() && neighbour.context().is_held());
    }
    let phase = async |session: &str| {
        let status = supervisor.inspect(&key(session)).await.expect("it answers");
        let holder = status.holder.expect("it is held");
        (holder.label.as_str().to_owned(), holder.phase.as_str().to_owned())
    };
    assert_eq!(phase("chat").await, (r"\u{65e5}\u{672c}".to_owned(), r"\u{65e5}\u{672c}".to_owned()));
    assert_eq!(phase("other").await.1, "Müller", "what it has is stored as it is");

    let asked = supervisor.stop(&key("chat")).by("🦀").reason("日".repeat(300)).await;
    assert!(matches!(asked, Ok(StopAnswer::Asked(_))), "{asked:?}");
    assert!(matches!(run.context().cancelled().await, EndReason::Stopped { .. }));
    let holder = supervisor.inspect(&key("chat")).await.expect("it answers").holder;
    let request = holder.and_then(|holder| holder.stop).expect("it is in the row");
    assert_eq!(request.by.as_deref(), Some(r"\u{1f980}"));
    let reason = request.reason.expect("it is in the row");
    assert!(reason.ends_with("}...") && reason.len() <= 1_000, "{reason}");
}

/// EUC_JP has 日 but not 🦀; SQL_ASCII stores whatever it is given.
#[tokio::test]
async fn a_key_that_the_encoding_lacks_is_refused_by_name_and_held_by_nobody() {
    for (encoding, lacks, has) in [("LATIN1", "🦀", "é"), ("EUC_JP", "🦀", "日"), ("SQL_ASCII", "", "🦀")]
    {
        for parameter in ["", "?pgbouncer=true"] {
            let database = encoded(encoding).await;
            let store = store::open(&(database.url() + parameter)).expect("the URL is good");
            let mut client = Client::connect(&*store).await;
            let run = RunId::random();
            client.granted(acquire(&key(has), run)).await;
            client.renewed(renew(&key(has), run)).await;
            assert_eq!(client.holder(&key(has)).await.map(|holder| holder.run_id), Some(run));
            if lacks.is_empty() {
                continue;
            }
            let refused = client.raw().acquire(&[acquire(&key(lacks), run)]).await;
            assert!(matches!(refused, Err(StoreError::Unstorable { .. })), "{encoding}: {refused:?}");
            assert!(refused.unwrap_err().to_string().contains("UTF8"));
            let keys = ["a", lacks, has, lacks, "b"].map(key);
            let found = client.raw().inspect(&keys).await.expect("nobody can hold that");
            let held: Vec<_> = found.iter().map(Option::is_some).collect();
            assert_eq!(held, [false, false, true, false, false], "{encoding}");
            assert_eq!(client.release(&key(lacks), run).await, ReleaseOutcome::NotFound);
            let page = store::Page { account: Some(lacks.to_owned()), expired: true, after: None, limit: 10 };
            assert_eq!(client.raw().list(&page).await, Ok(Vec::new()));
        }
    }
}

/// I12, for whatever else is the matter with a text: here a rule of the host's.
#[tokio::test]
async fn i12_a_phase_that_the_host_forbids_costs_neither_its_lease_nor_its_neighbours_phase() {
    let database = Server::shared().database().await;
    tenure::migrate(&database.url()).await.expect("it migrates");
    let rule = "ALTER TABLE tenure.session_lease ADD CONSTRAINT polite CHECK (phase <> 'rude')";
    database.admin().await.execute(rule).await.expect("it adds");
    let store = store::open(&database.url()).expect("the URL is good");
    let mut client = Client::connect(&*store).await;
    let run = RunId::random();
    let keys: Vec<SessionKey> = (0..9).map(|n| key(format!("s{n}"))).collect();
    let mut items = Vec::new();
    for (n, key) in keys.iter().enumerate() {
        client.granted(acquire(key, run)).await;
        let phase = if n == 4 { "rude" } else { "kind" };
        items.push(store::Renew { phase: Some(RunPhase::new(phase).expect("it fits")), ..renew(key, run) });
    }
    let outcomes = client.raw().renew(&items).await.expect("the phase is incidental");
    assert!(outcomes.iter().all(|outcome| matches!(outcome, RenewOutcome::Renewed(_))), "{outcomes:?}");
    let found = client.raw().inspect(&keys).await.expect("it reads");
    let phases: Vec<_> = found.iter().flatten().map(|holder| holder.phase.as_str()).collect();
    assert_eq!(phases, ["kind", "kind", "kind", "kind", "starting", "kind", "kind", "kind", "kind"]);
}

/// What a role has set for other work must not decide how long a renewal takes.
#[tokio::test]
async fn what_is_set_for_a_role_costs_no_lease() {
    let database = Server::shared().database().await;
    tenure::migrate(&database.url()).await.expect("it migrates");
    let hostile = [
        "jit_above_cost = 0",
        "jit_inline_above_cost = 0",
        "jit_optimize_above_cost = 0",
        "enable_nestloop = off",
        "enable_indexscan = off",
        "enable_bitmapscan = off",
        "plan_cache_mode = force_custom_plan",
        "random_page_cost = 1000000",
        "statement_timeout = '1ms'",
        "lock_timeout = '1ms'",
        "idle_session_timeout = '200ms'",
        "exit_on_error = on",
        "synchronous_commit = off",
        "default_transaction_isolation = 'serializable'",
    ];
    role(&database, "tuned", &hostile).await;
    let mut admin = database.admin().await;
    // From PostgreSQL 17 on.
    let later = "SELECT count(*) FROM pg_settings WHERE name = 'transaction_timeout'";
    let has_later = number(&mut admin, later).await > 0;
    if has_later {
        admin.execute("ALTER ROLE tuned SET transaction_timeout = '2s'").await.expect("it sets");
    }
    database
        .admin()
        .await
        .execute(
            "GRANT USAGE ON SCHEMA tenure TO tuned; GRANT ALL ON ALL TABLES IN SCHEMA tenure TO tuned; \
             GRANT ALL ON ALL SEQUENCES IN SCHEMA tenure TO tuned",
        )
        .await
        .expect("it grants");
    let url = database.url_as("tuned", "s3cret");
    let supervisor = LeaseSupervisor::builder(&url).ttl(TTL).start().await.expect("it starts");
    let run = supervisor.acquire(&key("chat")).await.expect("it is free");
    tokio::time::sleep(2 * TTL).await;
    assert!(run.context().is_held());
    drop(run);
    let settings = settings_of_sessions(&database, &url).await;
    let ours = [
        ("enable_bitmapscan", "on"),
        ("enable_indexscan", "on"),
        ("enable_nestloop", "on"),
        ("exit_on_error", "off"),
        ("idle_session_timeout", "0"),
        ("jit", "off"),
        ("plan_cache_mode", "auto"),
        ("random_page_cost", "4"),
        ("synchronous_commit", "on"),
    ];
    for (name, value) in ours {
        assert!(settings.contains(&format!("{name}={value};")), "{name}: {settings}");
    }
    assert!(!has_later || settings.contains("transaction_timeout=0;"), "{settings}");
    // The examination needs its time, too, and tells what the role has.
    let diagnosis = examined(&url).await;
    let (_, found) = finding(&diagnosis, "timeouts");
    assert!(found.contains("statement_timeout 1 ms"), "{found}");
    assert!(diagnosis.findings.iter().all(|finding| finding.verdict < Verdict::Failure), "{diagnosis:?}");
}

/// As one of the store's own sessions has them, told by a trigger of the host.
async fn settings_of_sessions(database: &Database, url: &str) -> String {
    database
        .admin()
        .await
        .execute(
            "CREATE FUNCTION public.tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '%', \
                (SELECT string_agg(name || '=' || setting, ';') || ';' FROM pg_settings); END $$; \
             CREATE TRIGGER tell BEFORE DELETE ON tenure.session_lease FOR EACH ROW EXECUTE FUNCTION public.tell()",
        )
        .await
        .expect("it creates");
    let store: SharedStore = store::open(url).expect("the URL is good");
    let mut client = Client::connect(&*store).await;
    let (key, run_id) = (key("settings"), RunId::random());
    client.granted(acquire(&key, run_id)).await;
    let told = client.raw().release(&[store::Release { key: key.clone(), run_id, reason: None }]).await;
    assert!(matches!(client.acquire(acquire(&key, run_id)).await, AcquireOutcome::Granted(_)), "it lives on");
    told.expect_err("the trigger raises").to_string()
}

/// A role with the password `s3cret`, on the server, and what is set for it.
async fn role(database: &Database, name: &str, settings: &[&str]) {
    database.server().role_with_password(name, "s3cret").await;
    let mut admin = database.admin().await;
    for setting in settings {
        let set = format!("ALTER ROLE {name} SET {setting}");
        admin.execute(AssertSqlSafe(set)).await.expect("it sets");
    }
}

/// A migrated database with another encoding than UTF8.
async fn encoded(encoding: &str) -> Database {
    let database = Server::shared().database_with(&format!("ENCODING '{encoding}' LOCALE 'C'")).await;
    tenure::migrate(&database.url()).await.expect("it migrates");
    database
}

async fn denied(store: &dyn store::LeaseStore) -> StoreError {
    let error = store.connect(support::client::BOUNDS).await.err().expect("it may not");
    assert!(matches!(error, StoreError::PermissionDenied { .. }), "{error:?}");
    error
}

async fn number(admin: &mut PgConnection, sql: &'static str) -> i64 {
    admin.fetch_one(sql).await.expect("it reads").get(0)
}

async fn examined(url: &str) -> Diagnosis {
    let examination = Examination::of(url).lasting(Duration::from_millis(50));
    examination.run().await.unwrap_or_else(|error| panic!("{error}"))
}

fn finding(diagnosis: &Diagnosis, check: &str) -> (Verdict, String) {
    let found = diagnosis.findings.iter().find(|finding| finding.check == check);
    let found = found.unwrap_or_else(|| panic!("no finding {check}: {diagnosis:?}"));
    (found.verdict, found.found.clone())
}
