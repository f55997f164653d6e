//! lookup: where one message is, in every state.

use lisa_shared::broker::{DeadLetter, Found, Listed, Verdict};
use lisa_shared::message::Record;
use lisa_shared::state::{End, GarbageReason, State};
use lisa_shared::time::{UnixMs, When};
use lisa_tests::Relay;
use lisa_tests::relay::{START, WORKER, id, message, ms, retry};

async fn lookup(relay: &Relay, name: &str) -> Found {
    relay
        .broker()
        .lookup(relay.topic(), &id(name))
        .await
        .expect("an answer")
}

/// Looks a stored message up and checks its record.
async fn listed(relay: &Relay, name: &str) -> Listed {
    match lookup(relay, name).await {
        Found::Stored { listed, record, .. } => {
            let record = Record::decode(record).expect("an answer");
            assert_eq!(record, message(name, When::NOW).record);
            listed
        }
        unknown => panic!("{name}: {unknown:?}"),
    }
}

fn expected(name: &str, state: State, after: u64, attempt: u32) -> Listed {
    Listed {
        id: id(name),
        state,
        time: UnixMs::new(START + after),
        attempt,
        consumer: None,
        last_error: None,
        dead: None,
    }
}

#[tokio::test]
async fn a_message_is_found_in_every_state() {
    let relay = Relay::start("lookup").await;
    relay.send(&[message("a", ms(10))]).await;
    assert_eq!(
        listed(&relay, "a").await,
        expected("a", State::Waiting, 10, 1)
    );
    relay.step(10);
    relay.move_due(500).await;
    assert_eq!(
        listed(&relay, "a").await,
        expected("a", State::Ready, 10, 1)
    );
    let read = relay.read_one().await;
    let held = Listed {
        consumer: Some(WORKER.to_owned()),
        ..expected("a", State::InFlight, 10, 1)
    };
    assert_eq!(listed(&relay, "a").await, held);
    relay.settle(&read, retry(ms(20))).await;
    let failed = Listed {
        last_error: Some("it failed".to_owned()),
        ..expected("a", State::Retry, 30, 2)
    };
    assert_eq!(listed(&relay, "a").await, failed);
    relay.step(20);
    relay.move_due(500).await;
    let read = relay.read_one().await;
    let error = "no good at all".to_owned();
    relay
        .settle(
            &read,
            Verdict::Reject {
                error: error.clone(),
            },
        )
        .await;
    let dead = DeadLetter {
        reason: GarbageReason::Rejected,
        attempts: 2,
        error,
    };
    let buried = Listed {
        dead: Some(dead),
        ..expected("a", State::Garbage, 30, 2)
    };
    assert_eq!(listed(&relay, "a").await, buried);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn an_unknown_message_says_how_it_ended() {
    let relay = Relay::start("lookup").await;
    let read = relay.hold("done").await;
    relay.settle(&read, Verdict::Ack).await;
    relay.send(&[message("stopped", ms(5))]).await;
    relay
        .broker()
        .cancel(relay.topic(), &id("stopped"))
        .await
        .unwrap();
    relay.bury("bad").await;
    let seen = [(id("bad"), relay.now())];
    relay
        .broker()
        .purge(relay.topic(), relay.group(), &seen)
        .await
        .unwrap();
    let ends = [
        ("done", Some(End::Acked)),
        ("stopped", Some(End::Cancelled)),
        ("bad", Some(End::Purged)),
        ("never", None),
    ];
    for (name, end) in ends {
        assert_eq!(lookup(&relay, name).await, Found::Unknown { end }, "{name}");
    }
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_message_far_behind_on_the_stream_is_found() {
    let relay = Relay::start("lookup").await;
    for part in 0..3 {
        let batch: Vec<_> = (0..500)
            .map(|n| message(&format!("m{part}-{n}"), When::NOW))
            .collect();
        relay.send(&batch).await;
    }
    let found = listed(&relay, "m2-499").await;
    assert_eq!(found, expected("m2-499", State::Ready, 0, 1));
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_lookup_changes_nothing() {
    let relay = Relay::start("lookup").await;
    relay.bury("dead").await;
    relay.hold("held").await;
    let before = relay.snapshot().await;
    for name in ["dead", "held", "never"] {
        lookup(&relay, name).await;
    }
    assert_eq!(before.diff(&relay.snapshot().await), "");
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_lookup_of_a_wrong_type_is_an_error() {
    let relay = Relay::start("lookup").await;
    let keys = [
        "waiting",
        "payload",
        "retry:default",
        "attempts:default",
        "garbage:default",
        "tomb",
    ];
    let call = async || relay.broker().lookup(relay.topic(), &id("a")).await;
    relay
        .assert_wrong_types_are_refused_whole(&keys, call)
        .await;
    relay.assert_conserved().await;
}
