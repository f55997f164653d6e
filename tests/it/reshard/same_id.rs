//! Messages with the same caller-chosen id under different keys, which collide on one shard.

use std::time::Duration;

use lisa_core::broker::{Migration, Verdict};
use lisa_core::message::route_of_key;
use lisa_core::state::{CancelOutcome, SendOutcome};
use lisa_core::topic::{Shard, TopicSettings};
use lisa_tests::Relay;
use lisa_tests::relay::{self, id, ms, settings, settlement};

use super::{HOUR, keyed, migrate_out, open, send};

/// Migrates a shard until it reports that it can wait, within a limit.
async fn until_rest(relay: &Relay, shard: u16) -> u64 {
    let mut migration = Migration::default();
    let shard = Shard::new(shard);
    for _ in 0..20 {
        let topic = relay.broker().known(relay.topic().name()).unwrap();
        if !topic.is_retiring(shard) {
            return 0;
        }
        let step = relay.broker().migrate_out(&topic, shard, &mut migration);
        let step = step.await.unwrap();
        if !step.more {
            return step.left;
        }
    }
    panic!("shard {shard} has no rest");
}

/// Keys of messages that go to each of two shards.
fn keys_of_both(relay: &Relay) -> [String; 2] {
    let key_of = |shard: u16| {
        let keys = (0..).map(|n| format!("k-{n}"));
        let mut keys = keys.filter(|key| {
            let message = keyed("m", key, HOUR);
            relay.topic().shard_of_message(&message).get() == shard
        });
        keys.next().unwrap()
    };
    [key_of(0), key_of(1)]
}

fn two_shards() -> TopicSettings {
    TopicSettings {
        shards: 2,
        ..settings()
    }
}

#[tokio::test]
async fn many_that_must_go_back_leave_the_old_shard_at_rest() {
    let relay = Relay::with("same-id", two_shards()).await;
    for key in &keys_of_both(&relay) {
        for n in 0..60 {
            let message = keyed(&format!("m-{n}"), key, HOUR);
            send(relay.broker(), relay.topic(), message).await;
        }
    }
    open(&relay, 1).await;
    assert_eq!(until_rest(&relay, 0).await, 0);
    assert_eq!(until_rest(&relay, 1).await, 60);
}

#[tokio::test]
async fn one_that_must_go_back_holds_up_nothing_and_follows_when_the_other_has_ended() {
    let mut relay = Relay::with("same-id", two_shards()).await;
    let [first, second] = keys_of_both(&relay);
    for (key, delay) in [(&first, 2 * HOUR), (&second, HOUR)] {
        let sent = send(relay.broker(), relay.topic(), keyed("m", key, delay)).await;
        assert_eq!(sent, SendOutcome::Waiting);
    }
    let topic = open(&relay, 1).await;
    assert_eq!(until_rest(&relay, 0).await, 0);
    assert_eq!(until_rest(&relay, 1).await, 1, "it had to go back");
    relay.step(3 * 3_600_000);
    relay.set_topic(topic.clone());
    let shard = Shard::new(2);
    for left in [1, 0] {
        assert_eq!(until_rest(&relay, 1).await, left);
        let idle = Duration::from_secs(5);
        relay
            .broker()
            .move_due(&topic, shard, 50, idle)
            .await
            .unwrap();
        let read = relay.read_as(shard, "worker", 9).await;
        assert_eq!(read.len(), 1);
        let acked = [settlement(&read[0], Verdict::Ack)];
        let settled = relay.broker().settle(&topic, shard, relay.group(), &acked);
        settled.await.unwrap();
    }
    let stats = relay.broker().stats(&topic).await.unwrap();
    assert_eq!((stats.counters["acked"], stats.conservation_error), (2, 0));
}

#[tokio::test]
async fn what_must_go_back_goes_back_though_the_answer_was_lost() {
    let relay = Relay::with("same-id", two_shards()).await;
    for key in &keys_of_both(&relay) {
        send(relay.broker(), relay.topic(), keyed("m", key, HOUR)).await;
    }
    let topic = open(&relay, 1).await;
    assert_eq!(until_rest(&relay, 0).await, 0);
    let one_step = async || {
        let mut migration = Migration::default();
        let shard = Shard::new(1);
        let step = relay.broker().migrate_out(&topic, shard, &mut migration);
        step.await.unwrap()
    };
    // The batch is refused; the process with the answer is gone, and the next one asks again.
    assert_eq!(one_step().await.count, 0);
    assert_eq!(until_rest(&relay, 1).await, 1);
    let stats = relay.broker().stats(&topic).await.unwrap();
    assert_eq!((stats.waiting, stats.conservation_error), (2, 0));
}

#[tokio::test]
async fn two_messages_of_one_id_that_meet_on_a_shard_are_there_one_after_the_other() {
    let settings = TopicSettings {
        shards: 3,
        ..settings()
    };
    let relay = Relay::with("reshard", settings).await;
    // Keys whose shards differ among three and are one among two.
    let keys = (0..).map(|n| format!("k-{n}"));
    let route = |key: &String| route_of_key(key);
    let mut keys = keys.filter(|key| route(key) % 2 == 0);
    let first = keys.next().unwrap();
    let other = keys
        .find(|key| route(key) % 3 != route(&first) % 3)
        .unwrap();
    for key in [&first, &other] {
        send(relay.broker(), relay.topic(), keyed("twin", key, HOUR)).await;
    }
    let topic = open(&relay, 2).await;
    assert_eq!(
        migrate_out(relay.broker(), &topic).await,
        1,
        "one had to stay"
    );
    let stats = relay.broker().stats(&topic).await.unwrap();
    assert_eq!((stats.waiting, stats.conservation_error), (2, 0));
    for (key, left) in [(&first, 1), (&other, 0)] {
        let key = key.parse().unwrap();
        let cancelled = relay.broker().cancel(&topic, &id("twin"), Some(&key)).await;
        assert!(matches!(
            cancelled.unwrap(),
            CancelOutcome::Cancelled { .. }
        ));
        migrate_out(relay.broker(), &topic).await;
        let stats = relay.broker().stats(&topic).await.unwrap();
        assert_eq!((stats.waiting, stats.conservation_error), (left, 0));
    }
}

#[tokio::test]
async fn the_one_that_stayed_follows_when_the_other_has_ended() {
    let settings = TopicSettings {
        shards: 3,
        ..settings()
    };
    let mut relay = Relay::with("reshard", settings).await;
    let keys: Vec<String> = (0..200).map(|n| format!("k-{n}")).collect();
    let route = |key: &&String| route_of_key(key);
    let first = keys.iter().find(|key| route(key) % 2 == 0).unwrap();
    let meets = |key: &&String| route(key) % 2 == 0 && route(key) % 3 != route(&first) % 3;
    let other = keys.iter().find(meets).unwrap();
    for key in [first, other] {
        send(relay.broker(), relay.topic(), keyed("twin", key, ms(1000))).await;
    }
    let topic = open(&relay, 2).await;
    migrate_out(relay.broker(), &topic).await;
    // A batch whose answer was lost is stored again, and the same answer comes back.
    assert_eq!(migrate_out(relay.broker(), &topic).await, 1);
    relay.set_topic(topic.clone());
    relay.step(1000);
    let mut delivered = 0;
    for _ in 0..2 {
        for shard in topic.shards().filter(|shard| !topic.is_retiring(*shard)) {
            relay
                .broker()
                .move_due(&topic, shard, 50, HOUR)
                .await
                .unwrap();
            for read in relay.read_as(shard, "worker", 9).await {
                let ack = relay::settlement(&read, Verdict::Ack);
                relay
                    .broker()
                    .settle(&topic, shard, relay.group(), &[ack])
                    .await
                    .unwrap();
                delivered += 1;
            }
        }
        migrate_out(relay.broker(), &topic).await;
    }
    assert_eq!(delivered, 2);
    let stats = relay.broker().stats(&topic).await.unwrap();
    assert_eq!(
        (stats.waiting, stats.migrating, stats.conservation_error),
        (0, None, 0)
    );
}
