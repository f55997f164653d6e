//! purge: garbage is removed for good, by hand or because it is old; its ids are remembered.

use lisa_core::message::MessageId;
use lisa_core::state::SendOutcome;
use lisa_core::time::{UnixMs, When};
use lisa_core::topic::{GarbageSettings, Shard, TopicSettings};
use lisa_tests::Relay;
use lisa_tests::relay::{START, id, message, ms, settings, settlement};

async fn purge(relay: &Relay, seen: &[(MessageId, UnixMs)]) -> u64 {
    relay
        .broker()
        .purge(relay.topic(), relay.group(), seen)
        .await
        .expect("an answer")
}

fn seen(name: &str, time: u64) -> Vec<(MessageId, UnixMs)> {
    vec![(id(name), UnixMs::new(time))]
}

#[tokio::test]
async fn a_purged_message_is_gone_and_its_id_a_duplicate() {
    let relay = Relay::start("purge").await;
    relay.put_in_garbage("a").await;
    assert_eq!(purge(&relay, &seen("a", START)).await, 1);
    assert_eq!(
        relay.zset("tomb").await,
        [("a".into(), START * 4 + 3)].into()
    );
    let again = relay.send(&[message("a", When::NOW)]).await;
    assert_eq!(again[0].outcome, SendOutcome::Duplicate);
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_repeated_or_outdated_purge_finds_nothing() {
    let relay = Relay::start("purge").await;
    relay.put_in_garbage("a").await;
    let before = relay.snapshot().await;
    assert_eq!(purge(&relay, &seen("a", START - 1)).await, 0);
    assert_eq!(purge(&relay, &seen("never", START)).await, 0);
    assert_eq!(before.diff(&relay.snapshot().await), "");
    purge(&relay, &seen("a", START)).await;
    let before = relay.snapshot().await;
    assert_eq!(purge(&relay, &seen("a", START)).await, 0);
    assert_eq!(before.diff(&relay.snapshot().await), "");
    relay.assert_drained().await;
}

#[tokio::test]
async fn more_than_one_call_can_hold_is_purged() {
    let relay = Relay::start("purge").await;
    let names: Vec<_> = (0..201).map(|n| format!("m{n}")).collect();
    let batch: Vec<_> = names.iter().map(|name| message(name, When::NOW)).collect();
    relay.send(&batch[..200]).await;
    relay.send(&batch[200..]).await;
    let error = "no good".to_owned();
    let verdict = lisa_core::broker::Verdict::Reject { error };
    let reads = relay.read(201).await;
    let settlements: Vec<_> = reads
        .iter()
        .map(|read| settlement(read, verdict.clone()))
        .collect();
    relay.settle_all(&settlements).await;
    let all: Vec<_> = names.iter().flat_map(|name| seen(name, START)).collect();
    assert_eq!(purge(&relay, &all).await, 201);
    relay.assert_drained().await;
}

#[tokio::test]
async fn what_is_older_than_the_topic_keeps_it_is_purged_and_nothing_younger() {
    let garbage = GarbageSettings {
        max_age: ms(5000),
        topic: None,
    };
    let settings = TopicSettings {
        garbage,
        ..settings()
    };
    let relay = Relay::with("purge", settings).await;
    let purge_old = async || {
        relay
            .broker()
            .purge_old(relay.topic(), Shard::new(0), relay.group())
            .await
            .unwrap()
    };
    relay.put_in_garbage("old").await;
    relay.step(1);
    relay.put_in_garbage("young").await;
    relay.step(4999);
    assert_eq!(purge_old().await, 0);
    relay.step(1);
    assert_eq!(purge_old().await, 1);
    assert_eq!(
        relay.zset("garbage:default").await,
        [("young".into(), START + 1)].into()
    );
    relay.assert_conserved().await;
}
