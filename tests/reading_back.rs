//! What is told to others can be read back, also what a later release tells.

#![cfg(all(feature = "serde", feature = "testing"))]

#[path = "support/panics.rs"]
mod panics;

use std::{
    fmt::Debug,
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};
use tenure::{
    Busy, EndReason, Ended, FencingToken, Holder, Limit, RunId, RunRef, SessionKey, SessionStatus,
    StopRequest,
    testing::{busy, ended, holder, run_ref},
};

/// With a field that this release does not know.
fn reads_back<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + Debug>(value: &T) {
    let mut written = serde_json::to_value(value).unwrap();
    assert_eq!(&serde_json::from_value::<T>(written.clone()).unwrap(), value);
    add_unknown(&mut written);
    assert_eq!(&serde_json::from_value::<T>(written).unwrap(), value);
}

/// To every object that has named fields, however deep.
fn add_unknown(value: &mut Value) {
    let Value::Object(fields) = value else { return };
    fields.values_mut().for_each(add_unknown);
    // An object of one variant names that and nothing else.
    if !fields.keys().any(|name| name.starts_with("max_")) {
        fields.insert("of_a_later_release".to_owned(), json!([1]));
    }
}

/// Whole milliseconds: what is written has no more.
fn instant() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(1_767_225_600_123)
}

fn asked_to_stop() -> Holder {
    let mut holder = holder("phone").unwrap();
    (holder.since, holder.expires_at) = (instant(), instant() + Duration::from_secs(30));
    holder.expires_in = Duration::from_millis(2_001);
    holder.stop = Some(StopRequest::new(instant(), Some("desk".to_owned()), None));
    holder
}

#[test]
fn a_client_reads_the_refusal_that_a_server_wrote() {
    reads_back(&busy(asked_to_stop()));
    let written = serde_json::to_string(&busy(asked_to_stop())).unwrap();
    let refusal: Busy = serde_json::from_str(&written).unwrap();
    assert_eq!(refusal.holder().label.as_str(), "phone");
    assert_eq!(refusal.retry_after(), Duration::from_secs(3));
}

#[test]
fn holders_stop_requests_and_states_read_back() {
    let key = SessionKey::new("acct-1", "chat-9").unwrap();
    reads_back(&asked_to_stop());
    reads_back(&StopRequest::new(instant(), None, Some("done".to_owned())));
    reads_back(&SessionStatus::idle(key.clone()));
    reads_back(&SessionStatus::held(key.clone(), asked_to_stop()));
    let mut stale = serde_json::to_value(SessionStatus::idle(key)).unwrap();
    for behind in [json!(null), json!(1_500)] {
        stale["standby"] = json!({ "server": "db-2", "behind_ms": behind });
        reads_back(&serde_json::from_value::<SessionStatus>(stale.clone()).unwrap());
    }
}

#[test]
fn ends_and_runs_read_back() {
    let limits = [Limit::MaxDuration(Duration::from_secs(9)), Limit::MaxSilence(Duration::from_millis(1))];
    let stopped = EndReason::stopped(Some("desk".to_owned()), Some("enough".to_owned()));
    let failed = EndReason::failed("no such model".to_owned());
    assert_eq!(serde_json::to_value(&failed).unwrap(), json!({ "reason": "failed", "why": "no such model" }));
    let reasons = [EndReason::Completed, failed, stopped, EndReason::Unconfirmed].into_iter();
    for reason in reasons.chain(limits.map(EndReason::timed_out)) {
        reads_back::<Ended>(&ended(reason));
    }
    let key = SessionKey::new("acct-1", "chat-9").unwrap();
    reads_back::<RunRef>(&run_ref(key, RunId::random(), FencingToken::new(7).unwrap()));
}

#[test]
fn what_no_constructor_would_make_is_not_read() {
    let mut holder = serde_json::to_value(asked_to_stop()).unwrap();
    holder["label"] = json!("");
    assert!(serde_json::from_value::<Holder>(holder.clone()).is_err());
    holder["label"] = json!("phone");
    holder["since"] = json!("yesterday");
    assert!(serde_json::from_value::<Holder>(holder).is_err());
}
