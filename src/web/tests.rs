//! Each error has one answer, on both frameworks, and the answer tells the client no secret.

use std::{
    cell::RefCell,
    io::{self, Write},
    sync::Once,
    time::{Duration, UNIX_EPOCH},
};

use ::actix_web::{ResponseError, body::MessageBody};
use ::axum::{body::to_bytes, response::IntoResponse};
use futures::executor::block_on;
use serde_json::Value;

use super::Problem;
use crate::{
    config::Timing,
    end::{EndReason, Limit},
    error::{AcquireError, Busy, Closed, QueryError, ScopeError, StopError},
    session::{InvalidText, SessionKey},
    store::StoreError,
    testing::{busy, ended, holder},
};

/// What must never reach a client.
const SECRET: &str = "SECRET";

/// An answer as it is sent: its status, its headers in order of their names, its body.
#[derive(Debug, PartialEq)]
struct Sent {
    status: u16,
    headers: Vec<(String, Vec<u8>)>,
    body: String,
}

impl Sent {
    fn by_axum(error: impl IntoResponse) -> Self {
        let response = error.into_response();
        let pairs = response.headers().iter();
        let headers = pairs.map(|(name, value)| (name.to_string(), value.as_bytes().to_owned()));
        let (status, headers) = (response.status().as_u16(), sorted(headers.collect()));
        let body = block_on(to_bytes(response.into_body(), usize::MAX)).unwrap();
        Self { status, headers, body: String::from_utf8(body.to_vec()).unwrap() }
    }

    fn by_actix_web(error: &impl ResponseError) -> Self {
        let response = error.error_response();
        assert_eq!(response.status(), error.status_code());
        let pairs = response.headers().iter();
        let headers = pairs.map(|(name, value)| (name.to_string(), value.as_bytes().to_owned()));
        let (status, headers) = (response.status().as_u16(), sorted(headers.collect()));
        let body = response.into_body().try_into_bytes().unwrap();
        Self { status, headers, body: String::from_utf8(body.to_vec()).unwrap() }
    }

    fn header(&self, wanted: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(name, _)| name == wanted)?;
        Some(str::from_utf8(value).unwrap())
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

fn sorted(mut headers: Vec<(String, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
    headers.sort();
    headers
}

/// The answer to an error, which is the same by each way, and keeps the rules of every answer.
fn sent<E>(error: E) -> Sent
where
    E: IntoResponse + ResponseError,
    Problem: for<'a> From<&'a E>,
{
    listen();
    let problem = Problem::from(&error);
    let by_actix_web = Sent::by_actix_web(&error);
    assert_eq!(Sent::by_actix_web(&problem), by_actix_web);
    let by_axum = Sent::by_axum(error);
    assert_eq!(Sent::by_axum(problem.clone()), by_axum);
    assert_eq!(by_axum, by_actix_web, "the frameworks differ");

    let (sent, json) = (by_axum, by_actix_web.json());
    assert_eq!(sent.header("content-type"), Some("application/problem+json"));
    assert_eq!(sent.header("cache-control"), Some("no-store"));
    assert_eq!(json["status"], sent.status, "{json}");
    assert_eq!(json["type"], problem.name(), "{json}");
    assert!(
        ["title", "detail"].iter().all(|member| json[*member].as_str().is_some_and(|text| !text.is_empty()))
    );
    assert!(!sent.body.contains(SECRET), "{json}");
    sent
}

/// Status, type and `Retry-After` of an answer.
type Short = (u16, String, Option<String>);

fn short<E>(error: E) -> Short
where
    E: IntoResponse + ResponseError,
    Problem: for<'a> From<&'a E>,
{
    let sent = sent(error);
    let name =
        sent.json()["type"].as_str().and_then(|name| name.strip_prefix("urn:tenure:")).unwrap().to_owned();
    (sent.status, name, sent.header("retry-after").map(str::to_owned))
}

fn expected(status: u16, name: &str, retry_after: Option<&str>) -> Short {
    (status, name.to_owned(), retry_after.map(str::to_owned))
}

fn store_errors() -> [(StoreError, Short); 9] {
    let (location, detail) = (|| format!("db.{SECRET}.internal"), || format!("password={SECRET}"));
    let mends_itself = || expected(503, "unavailable", Some("1"));
    let stays = || expected(500, "misconfigured", None);
    [
        (StoreError::Unavailable { location: location(), detail: detail() }, mends_itself()),
        (StoreError::RolledBack { location: location(), detail: detail() }, mends_itself()),
        (StoreError::Rejected { location: location(), detail: detail() }, stays()),
        (StoreError::Unstorable { location: location(), detail: detail() }, expected(400, "invalid", None)),
        (StoreError::Lost { location: location(), detail: detail() }, stays()),
        (StoreError::SchemaMissing { location: location(), detail: detail() }, stays()),
        (StoreError::SchemaTooNew { location: location(), found: 9, compatible_from: 9, known: 1 }, stays()),
        (StoreError::PermissionDenied { location: location(), detail: detail() }, stays()),
        (StoreError::Url { detail: detail() }, stays()),
    ]
}

fn too_long() -> InvalidText {
    SessionKey::new("acct-1", "x".repeat(300)).unwrap_err()
}

#[test]
fn a_busy_session_is_409_with_the_holder_as_a_client_reads_it() {
    let mut holder = holder("phone").unwrap();
    // JSON has whole milliseconds.
    (holder.since, holder.expires_at) = (UNIX_EPOCH, UNIX_EPOCH + Duration::from_millis(2_500));
    holder.expires_in = Duration::from_millis(2_500);
    let busy = busy(holder);
    let answers = [sent(busy.clone()), sent(AcquireError::Busy(Box::new(busy.clone())))];
    for answer in answers {
        assert_eq!((answer.status, answer.header("retry-after")), (409, Some("3")));
        assert_eq!(serde_json::from_str::<Busy>(&answer.body).unwrap(), busy);
    }
}

#[test]
fn errors_that_pass_are_503_with_retry_after_and_others_tell_whose_they_are() {
    for (error, answer) in store_errors() {
        assert_eq!(short(AcquireError::Refused(error.clone())), answer, "{error:?}");
        assert_eq!(short(QueryError::Store(error.clone())), answer, "{error:?}");
        assert_eq!(short(StopError::Store(error.clone())), answer, "{error:?}");
        // Whatever the database said last: the next answer may be another.
        let passes = expected(503, "unavailable", Some("1"));
        assert_eq!(short(AcquireError::Unavailable(error.clone())), passes, "{error:?}");
        assert_eq!(short(AcquireError::NotAcquired(error.clone())), passes, "{error:?}");
        assert!(Problem::from(QueryError::Store(error)).to_string().contains(SECRET), "the log says all");
    }
    let limit = AcquireError::AccountLimit { account: "acct-1".to_owned(), limit: 3, running: 3 };
    assert_eq!(short(limit), expected(429, "account-limit", Some("1")));
    assert_eq!(short(AcquireError::Draining), expected(503, "draining", Some("1")));
    assert_eq!(short(Closed), expected(503, "closed", Some("1")));
    for error in [
        short(AcquireError::Closed(Closed)),
        short(QueryError::Closed(Closed)),
        short(StopError::Closed(Closed)),
    ] {
        assert_eq!(error, expected(503, "closed", Some("1")));
    }
    assert_eq!(short(too_long()), expected(400, "invalid", None));
    assert_eq!(short(AcquireError::Invalid(too_long())), expected(400, "invalid", None));
    assert_eq!(short(StopError::Invalid(too_long())), expected(400, "invalid", None));
    let config = Timing::for_ttl(Duration::ZERO).unwrap_err();
    assert_eq!(short(AcquireError::Config(config)), expected(500, "misconfigured", None));
}

#[test]
fn a_run_that_ended_early_says_why_as_a_client_reads_it() {
    let (by, reason) = (Some("ann".to_owned()), Some("wrong branch".to_owned()));
    let passes = || expected(503, "ended", Some("1"));
    let ends = [
        (EndReason::Stopped { by, reason }, expected(410, "stopped", None)),
        (
            EndReason::TimedOut { limit: Limit::MaxDuration(Duration::from_secs(60)) },
            expected(504, "timed-out", None),
        ),
        (EndReason::Panicked, expected(500, "failed", None)),
        (EndReason::Completed, expected(410, "taken", None)),
        (EndReason::Dropped, passes()),
        (EndReason::Shutdown, passes()),
        (EndReason::Superseded, passes()),
        (EndReason::Expired, passes()),
        (EndReason::Unconfirmed, passes()),
    ];
    for (reason, answer) in ends {
        assert_eq!(short(reason.clone()), answer);
        let ended = ended(reason.clone());
        // Not a text and not `Clone`, as the value of work may be.
        struct Value;
        assert_eq!(short(ScopeError::new(ended.clone(), Some(Value))), answer);
        let sent = sent(ScopeError::<()>::new(ended, None));
        assert_eq!(serde_json::from_str::<EndReason>(&sent.body).unwrap(), reason, "{}", sent.body);
    }
}

#[test]
fn the_error_of_the_work_is_for_the_log_only() {
    let failed = EndReason::failed(format!("key {SECRET} was refused"));
    let error = ScopeError::<()>::new(ended(failed.clone()), None);
    assert!(
        Problem::from(&error).to_string().contains(SECRET)
            && Problem::from(&failed).to_string().contains(SECRET)
    );
    assert_eq!(short(failed), expected(500, "failed", None));
    assert_eq!(short(error), expected(500, "failed", None));
}

#[test]
fn what_the_client_is_not_told_is_logged_once_per_answer() {
    let missing =
        || StoreError::SchemaMissing { location: "the-database".to_owned(), detail: "no table".to_owned() };
    let invalid = logged(|| drop(AcquireError::Invalid(too_long()).into_response()));
    assert_eq!(invalid, "", "a client's mistake is no news");
    for log in [
        logged(|| drop(AcquireError::Refused(missing()).into_response())),
        logged(|| drop(AcquireError::Refused(missing()).error_response())),
    ] {
        assert_eq!(log.lines().count(), 1, "{log}");
        assert!(log.contains("ERROR tenure::web") && log.contains("the-database"), "{log}");
    }
    let passes = logged(|| drop(AcquireError::NotAcquired(missing()).into_response()));
    assert!(passes.contains("WARN tenure::web") && passes.contains("no table"), "{passes}");
}

/// What is logged meanwhile, on this thread.
fn logged(answer: impl FnOnce()) -> String {
    listen();
    LOG.take();
    answer();
    String::from_utf8(LOG.take()).unwrap()
}

thread_local! {
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Before the first answer of each test: what is logged while a listener is set up may be lost to it for good.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing_subscriber::fmt().with_ansi(false).with_writer(|| ToLog).init());
}

struct ToLog;

impl Write for ToLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
