//! Every general script over a connection that breaks: wherever it breaks, the work is done once.

use super::calls::{CASES, FREE, Verb, second_answers, two_groups};
use lisa_core::broker::{Broker, BrokerError};
use lisa_core::redis::{Connection, ConnectionSettings};
use lisa_tests::relay::ms;
use lisa_tests::{FaultProxy, Mode, Server};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The ways in which a call's connection breaks.
const CUTS: [(&str, Mode); 4] = [
    ("before the request", Mode::CutRequestsAfter(0)),
    ("in the request", Mode::CutRequestsAfter(100)),
    ("before the reply", Mode::CutRepliesAfter(0)),
    ("in the reply", Mode::CutRepliesAfter(3)),
];
/// The length of the network failure.
const CUT_FOR: Duration = ms(30);

#[tokio::test]
async fn every_script_does_its_work_once_wherever_its_connection_breaks() {
    let server = Server::shared();
    let second = second_answers();
    // After an outage nothing is reclaimed for three seconds.
    let cases = CASES
        .iter()
        .filter(|case| !matches!(case.call, Verb::Reclaim));
    for (case, (place, mode)) in cases.flat_map(|case| CUTS.map(|cut| (case, cut))) {
        let what = format!("{}, cut {place}", case.what);
        let twin = two_groups().await;
        case.call.prepare(&twin).await;
        let first = case.call.call(&twin).await.unwrap();

        let busy = two_groups().await;
        case.call.prepare(&busy).await;
        let stage = &busy.stage;
        let proxy = FaultProxy::start(server.port()).await;
        let url = server.url_through(&proxy).parse().unwrap();
        let connection =
            Connection::new(ConnectionSettings::new(url), &CancellationToken::new()).unwrap();
        let namespace = stage.broker().namespace().clone();
        let broker = Broker::new(connection, namespace, Duration::from_secs(20), None);
        broker.set_virtual_now(stage.broker().now());
        broker.topic(stage.topic().name()).await.unwrap();
        proxy.set(mode).await;
        let heal = async {
            tokio::time::sleep(CUT_FOR).await;
            proxy.set(Mode::Pass).await;
        };
        let (outcome, ()) = tokio::join!(case.call.call_by(&busy, &broker), heal);
        match outcome {
            Err(BrokerError::UnknownGroup { .. }) if matches!(case.call, Verb::RemoveGroup) => {}
            outcome => {
                let outcome = outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
                let again = second.get(case.what).copied().unwrap_or(&first);
                let is_known = outcome == first || outcome == again;
                assert!(is_known || FREE.contains(&case.what), "{what}: {outcome}");
            }
        }
        // It is done: the same call finds nothing more to do.
        let before = stage.snapshot().await;
        let _ = case.call.call(&busy).await;
        let written = before.diff(&stage.snapshot().await);
        let written: Vec<&str> = written
            .lines()
            .filter(|line| !line.contains("duplicates"))
            .collect();
        assert_eq!(written, Vec::<&str>::new(), "{what}");
        stage.assert_whole().await;
    }
}
