//! The order of a key, whose messages are on old and new shards.

use std::time::Duration;

use lisa_core::broker::{Migration, Verdict};
use lisa_core::message::PreparedMessage;
use lisa_core::state::Settled;
use lisa_core::time::When;
use lisa_core::topic::{Shard, TopicSettings};
use lisa_tests::Relay;
use lisa_tests::relay::{self, id, ms, settings};

use super::{HOUR, ack, keyed, migrate_out, next_of, open, send};

#[tokio::test]
async fn a_message_of_a_key_waits_for_an_earlier_one_in_flight_on_the_old_shard() {
    let settings = TopicSettings {
        shards: 1,
        ..settings()
    };
    let mut relay = Relay::with("reshard", settings).await;
    send(relay.broker(), relay.topic(), keyed("first", "k", ms(0))).await;
    relay.step(1);
    relay.move_due(50).await;
    let first = relay.read_one().await;
    let topic = open(&relay, 4).await;
    assert_eq!(
        migrate_out(relay.broker(), &topic).await,
        2,
        "a payload and an entry"
    );
    send(relay.broker(), &topic, keyed("second", "k", ms(0))).await;
    relay.step(1000);
    relay.set_topic(topic.clone());
    let shard = topic.shard_of_message(&keyed("second", "k", ms(0)));
    let idle = Duration::from_secs(5);
    relay
        .broker()
        .move_due(&topic, shard, 50, idle)
        .await
        .unwrap();
    assert!(relay.read_as(shard, "worker", 9).await.is_empty());
    // The handler of the first fails: it comes again before the second.
    let failed = relay::settlement(&first, relay::retry(ms(0)));
    let settled = relay
        .broker()
        .settle(&topic, Shard::new(0), relay.group(), &[failed])
        .await;
    assert!(matches!(settled.unwrap()[0], Settled::Retry { .. }));
    assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
    let mut order = Vec::new();
    for _ in 0..2 {
        relay.step(1);
        relay
            .broker()
            .move_due(&topic, shard, 50, idle)
            .await
            .unwrap();
        let reads = relay.read_as(shard, "worker", 9).await;
        assert_eq!(reads.len(), 1);
        order.push((
            reads[0].id.clone().unwrap().to_string(),
            reads[0].attempt.number,
        ));
        let settled = relay::settlement(&reads[0], Verdict::Ack);
        relay
            .broker()
            .settle(&topic, shard, relay.group(), &[settled])
            .await
            .unwrap();
    }
    assert_eq!(order, [("first".to_owned(), 2), ("second".to_owned(), 1)]);
}

/// Some of a key's messages are being migrated when its next one is released on the old shard.
#[tokio::test]
async fn the_next_of_a_key_does_not_overtake_those_that_went_before() {
    const PARKED: usize = 120;
    let mut relay = Relay::start("reshard").await;
    for n in 0..=PARKED {
        let message = keyed(&format!("m-{n}"), "k", ms(n as u64));
        send(relay.broker(), relay.topic(), message).await;
    }
    relay.step(1000);
    while relay.stats().await.waiting > 0 {
        relay.move_due(50).await;
    }
    let first = relay.read_one().await;
    let topic = open(&relay, 2).await;
    let old = Shard::new(0);
    let mut migration = Migration::default();
    let step = relay
        .broker()
        .migrate_out(&topic, old, &mut migration)
        .await;
    assert!((1..PARKED as u64 / 2).contains(&step.unwrap().count));
    let acked = relay::settlement(&first, Verdict::Ack);
    let settled = relay
        .broker()
        .settle(&topic, old, relay.group(), &[acked])
        .await;
    assert_eq!(settled.unwrap(), [Settled::Acked]);
    assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
    relay.set_topic(topic.clone());
    let shard = topic.shard_of_message(&keyed("m", "k", HOUR));
    for n in 1..=PARKED {
        let read = next_of(&relay, &topic, shard).await;
        assert_eq!(read.id, Some(id(&format!("m-{n}"))));
        ack(&relay, &topic, shard, &read).await;
    }
}

#[tokio::test]
async fn of_two_that_are_due_together_the_one_that_came_first_goes_first() {
    let mut relay = Relay::start("reshard").await;
    let due = When::At(relay.at(5000));
    let at_once = |name: &str| PreparedMessage {
        when: due,
        ..keyed(name, "k", HOUR)
    };
    for n in 0..9 {
        send(relay.broker(), relay.topic(), at_once(&format!("old-{n}"))).await;
    }
    let topic = open(&relay, 2).await;
    // Closed, so that the next one goes to its new shard before the others.
    let ids = relay
        .broker()
        .migrate_out(&topic, Shard::new(0), &mut Migration::default())
        .await;
    assert_eq!(ids.unwrap().count, 9);
    let new = at_once("new");
    let shard = topic.shard_of_message(&new);
    send(relay.broker(), &topic, new).await;
    migrate_out(relay.broker(), &topic).await;
    relay.set_topic(topic.clone());
    relay.step(5000);
    let mut order = Vec::new();
    for _ in 0..10 {
        let read = next_of(&relay, &topic, shard).await;
        order.push(read.id.clone().unwrap().to_string());
        ack(&relay, &topic, shard, &read).await;
    }
    let expected: Vec<String> = (0..9)
        .map(|n| format!("old-{n}"))
        .chain(["new".to_owned()])
        .collect();
    assert_eq!(order, expected);
}

#[tokio::test]
async fn what_waited_behind_its_key_or_a_window_keeps_its_due_time() {
    for max_ready in [None, Some(1)] {
        let settings = TopicSettings {
            shards: 1,
            max_ready,
            ..settings()
        };
        let mut relay = Relay::with("reshard", settings).await;
        let due = relay.now();
        for name in ["m1", "m2", "m3"] {
            send(relay.broker(), relay.topic(), keyed(name, "k", ms(0))).await;
        }
        let others = ["n1", "n2", "n3"].map(|name| relay::message(name, ms(0)));
        for other in others {
            send(relay.broker(), relay.topic(), other).await;
        }
        relay.move_due(50).await;
        // Moved later than it was due.
        relay.step(1000);
        let topic = open(&relay, 2).await;
        assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
        let topic = relay.broker().known(topic.name()).unwrap();
        relay.set_topic(topic.clone());
        relay.step(8000);
        let mut came = Vec::new();
        for _ in 0..6 {
            for shard in topic.shards() {
                let moved = relay.broker().move_due(&topic, shard, 50, HOUR).await;
                moved.unwrap();
                for read in relay.read_as(shard, "worker", 9).await {
                    assert_eq!(read.attempt.due, due, "{read:?}");
                    came.push(read.id.clone().unwrap().to_string());
                    ack(&relay, &topic, shard, &read).await;
                }
            }
        }
        came.sort();
        assert_eq!(came, ["m1", "m2", "m3", "n1", "n2", "n3"]);
    }
}
