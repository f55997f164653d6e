//! Messages of one caller's id under different keys, which meet on one shard.

use std::time::Duration;

use lisa_shared::broker::{Departure, Verdict};
use lisa_shared::state::SendOutcome;
use lisa_shared::topic::{Shard, TopicSettings};
use lisa_tests::Relay;
use lisa_tests::relay::{settings, settlement};

use super::{HOUR, keyed, open, send};

/// Lets a shard hand over until it says that it can wait; not for ever.
async fn until_rest(relay: &Relay, shard: u16) -> u64 {
    let mut departure = Departure::default();
    let shard = Shard::new(shard);
    for _ in 0..20 {
        let topic = relay.broker().known(relay.topic().name()).unwrap();
        if !topic.is_leaving(shard) {
            return 0;
        }
        let step = relay.broker().hand_over(&topic, shard, &mut departure);
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
