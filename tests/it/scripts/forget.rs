//! forget: drops tombstones past the dedup window in bounded steps; an id past the window is new, dropped or not.

use lisa_core::broker::{Forgotten, Verdict};
use lisa_core::message::{Options, PreparedMessage};
use lisa_core::state::{CancelOutcome, End, SendOutcome};
use lisa_core::time::UnixMs;
use lisa_core::topic::{Shard, TopicSettings};
use lisa_tests::Relay;
use lisa_tests::relay::{START, id, message, ms, settings};
use redis::cmd;

async fn with_window(window: u64) -> Relay {
    let settings = TopicSettings {
        dedup_window: ms(window),
        ..settings()
    };
    Relay::with("forget", settings).await
}

async fn forget(relay: &Relay) -> (u64, u64) {
    let forgotten = relay.broker().forget(relay.topic(), Shard::new(0)).await;
    let Forgotten { dropped, left } = forgotten.expect("an answer");
    (dropped, left)
}

async fn cancel(relay: &Relay, name: &str) -> CancelOutcome {
    let cancelled = relay.broker().cancel(relay.topic(), &id(name), None).await;
    cancelled.expect("an answer")
}

#[tokio::test]
async fn an_id_is_forgotten_when_the_dedup_window_is_over() {
    let relay = with_window(1000).await;
    let read = relay.hold("a").await;
    relay.settle(&read, Verdict::Ack).await;
    relay.step(1000);
    assert_eq!(forget(&relay).await, (0, 0));
    assert_eq!(relay.zset("tomb").await.len(), 1);
    relay.step(1);
    assert_eq!(forget(&relay).await, (1, 0));
    assert_eq!(relay.zset("tomb").await.len(), 0);
    assert_eq!(forget(&relay).await, (0, 0));
    relay.assert_conserved().await;
}

#[tokio::test]
async fn an_id_is_forgotten_early_if_its_message_ended_before_an_instant() {
    let relay = with_window(60_000).await;
    for name in ["a", "b"] {
        let read = relay.hold(name).await;
        relay.settle(&read, Verdict::Ack).await;
        relay.step(1);
    }
    let before = async |instant: u64| {
        let (topic, shard) = (relay.topic(), Shard::new(0));
        let forgotten = relay
            .broker()
            .forget_before(topic, shard, UnixMs::new(instant));
        forgotten.await.expect("an answer").dropped
    };
    assert_eq!(before(START).await, 0);
    assert_eq!(before(START + 1).await, 1);
    assert_eq!(relay.zset("tomb").await.len(), 1);
    // It may be in the future.
    assert_eq!(before(START + 1000).await, 1);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn tombstones_are_dropped_in_bounded_batches_the_oldest_first() {
    let relay = with_window(1000).await;
    let mut add = cmd("ZADD");
    add.arg(relay.key("tomb"));
    let mut into = cmd("HSET");
    into.arg(relay.key("into"));
    for n in 0..1250 {
        add.arg((START + n / 500) * 4 + 2).arg(format!("m{n:04}"));
        into.arg(format!("m{n:04}")).arg("survivor");
    }
    let () = relay.command(&add).await;
    let () = relay.command(&into).await;
    relay.step(1002);
    assert_eq!(forget(&relay).await, (500, 500));
    assert!(!relay.zset("tomb").await.contains_key("m0499"));
    assert!(!relay.hash("into").await.contains_key("m0499"));
    assert_eq!(forget(&relay).await, (500, 0));
    assert_eq!(forget(&relay).await, (0, 0));
    let left = (
        relay.zset("tomb").await.len(),
        relay.hash("into").await.len(),
    );
    assert_eq!(left, (250, 250));
    // The tombstones were deleted by hand.
    let () = relay.command(cmd("DEL").arg(relay.key("tomb"))).await;
    assert_eq!(forget(&relay).await, (0, 0));
    assert_eq!(relay.hash("into").await.len(), 0);
}

/// It makes no difference whether `clean` has run since.
#[tokio::test]
async fn an_id_that_is_older_than_the_window_is_no_duplicate_although_its_tombstone_is_there() {
    for keyed in [false, true] {
        let relay = with_window(1000).await;
        let sent = |name: &str| PreparedMessage {
            options: Options {
                key: keyed.then(|| "k".parse().unwrap()),
                ..Options::default()
            },
            ..message(name, ms(5))
        };
        relay.send(&[sent("a")]).await;
        cancel(&relay, "a").await;
        relay.step(1000);
        let again = relay.send(&[sent("a")]).await;
        assert_eq!(again[0].ended, Some(End::Cancelled), "keyed {keyed}");
        relay.step(1);
        let again = relay.send(&[sent("a")]).await;
        assert_eq!(again[0].outcome, SendOutcome::Waiting, "keyed {keyed}");
        assert_eq!(relay.zset("tomb").await.len(), 0, "it has not ended");
        relay.assert_conserved().await;
    }
}
