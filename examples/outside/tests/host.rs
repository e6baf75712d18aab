//! A host tests its code with what `tenure` gives it.

use std::time::Duration;

use actix::{Actor, Handler, Message};
use outside::{Failure, Ledger, Report, at_work, begin, idle, report, short_turn, stop, turn};
use tenure::{
    Busy, EndReason, RunContext, SessionKey,
    store::memory::Fault,
    testing::{self, Simulation, simulate},
};

fn key() -> SessionKey {
    SessionKey::new("acct-1", "chat-9").unwrap()
}

#[test]
fn a_turn_is_refused_while_another_run_holds_the_session() {
    simulate(async |sim: Simulation| {
        let supervisor = sim.supervisor().holder_label("phone").start_here().await.unwrap();
        assert!(turn(&supervisor, &key(), "hello").await.unwrap().starts_with("HELLO under fence"));
        assert_eq!(short_turn(&supervisor, "one two").await.unwrap(), 2);

        let run = supervisor.acquire(&key()).await.unwrap();
        assert_eq!(at_work(&supervisor, "acct-1").await.unwrap(), ["chat-9: phone"]);
        match turn(&supervisor, &key(), "hello").await {
            Err(Failure::Busy { holder, after }) => {
                assert_eq!((holder.run_id, after), (run.run_id(), Duration::from_secs(5)));
            }
            other => panic!("{other:?}"),
        }
        let held: RunContext = run.context();
        let work = run.scope(async |ctx| ctx.cancelled().await);
        let session = key();
        let (cut, was_held) = futures::join!(work, stop(&supervisor, &session));
        assert!(matches!(cut.unwrap_err().reason(), EndReason::Stopped { .. }) && was_held.unwrap());
        assert!(!held.is_held());
        idle(&supervisor, &key()).await;
    });
}

#[test]
fn a_report_is_for_the_one_who_asks_first() {
    simulate(async |sim: Simulation| {
        let supervisor = sim.supervisor().start_here().await.unwrap();
        let work = begin(&supervisor, &key()).await.unwrap();
        let Report { pages } = report(&supervisor, &key()).await.unwrap();
        assert_eq!(pages, ["acct-1/chat-9"]);
        assert_eq!(work.join().await.unwrap_err().into_value().map(|report| report.pages), None);
    });
}

#[test]
fn a_lost_run_is_cut_short_and_in_the_ledger() {
    simulate(async |sim: Simulation| {
        let ledger = Ledger::default().start();
        let supervisor = sim.supervisor().events(ledger.clone().recipient()).start_here().await.unwrap();
        let run = supervisor.acquire(&key()).await.unwrap();
        sim.store.set_fault(Fault::Unreachable);
        let cut = run.scope(async |ctx| ctx.cancelled().await).await.unwrap_err();
        assert_eq!(cut.into_value(), Some(EndReason::Unconfirmed));
        assert_eq!(ledger.send(Ends).await.unwrap(), [EndReason::Unconfirmed]);
    });
}

#[derive(Message)]
#[rtype(result = "Vec<EndReason>")]
struct Ends;

impl Handler<Ends> for Ledger {
    type Result = Vec<EndReason>;

    fn handle(&mut self, _: Ends, _: &mut actix::Context<Self>) -> Vec<EndReason> {
        self.ended.clone()
    }
}

#[test]
fn a_client_reads_the_refusal() {
    let busy = testing::busy(testing::holder("phone").unwrap());
    let read: Busy = serde_json::from_value(serde_json::to_value(&busy).unwrap()).unwrap();
    assert_eq!((read.holder().run_id, read.retry_after()), (busy.holder().run_id, busy.retry_after()));
}

/// It panics in a program that links two providers.
#[cfg(feature = "tls")]
#[test]
fn the_rest_of_the_program_has_one_provider_of_tls() {
    let client = rustls::ClientConfig::builder().with_root_certificates(rustls::RootCertStore::empty());
    assert!(!client.with_no_client_auth().crypto_provider().cipher_suites.is_empty());
}
