//! take_parked: delivers parked messages together with the holder of their key.

use super::stage::Asking;
use lisa_core::broker::{Read, TakenParked, Verdict};
use lisa_core::message::{EntryId, MessageId, PreparedMessage};
use lisa_core::state::Attempt;
use lisa_core::time::When;
use lisa_core::topic::{OnGarbage, Shard, TopicSettings};
use lisa_tests::Relay;
use lisa_tests::relay::{message, ms, retry, settings};

const WORKER: &str = "worker";

fn keyed(id: &str, key: &str) -> PreparedMessage {
    message(id, When::NOW).key(key)
}

async fn relay_of(messages: &[PreparedMessage], settings: TopicSettings) -> Relay {
    let relay = Relay::with("take_parked", settings).await;
    relay.send(messages).await;
    relay.move_due(100).await;
    relay
}

/// Takes messages behind what was read: up to `most` in all, and `each` of a key.
async fn take(relay: &Relay, read: &[Read], most: usize, each: usize) -> Vec<(MessageId, Attempt)> {
    let taken = take_with(relay, read, most, each).await;
    assert_eq!(taken.kept, read.len());
    taken.more
}

async fn take_with(relay: &Relay, read: &[Read], most: usize, each: usize) -> TakenParked {
    let items = read.iter();
    let items = items.map(|read| (read.id.clone().expect("a message"), read.attempt.entry));
    let items: Vec<(MessageId, EntryId)> = items.collect();
    let (topic, group) = (relay.topic(), relay.group());
    let taken = relay
        .broker()
        .take_parked(topic, Shard::new(0), group, WORKER, &items, most, each);
    taken.await.unwrap()
}

fn ids(taken: &[(MessageId, Attempt)]) -> Vec<&str> {
    taken.iter().map(|(id, _)| id.as_str()).collect()
}

fn as_read((id, attempt): (MessageId, Attempt)) -> Read {
    Read {
        id: Some(id),
        attempt,
    }
}

/// Reads all that is ready, by the ids.
async fn read_ids(relay: &Relay) -> Vec<String> {
    let read = relay.read(100).await.into_iter();
    read.map(|read| read.id.unwrap().to_string()).collect()
}

#[tokio::test]
async fn messages_of_a_key_come_together_and_those_behind_wait_for_all_of_them() {
    let sent = ["a1", "a2", "a3", "a4"].map(|id| keyed(id, "a"));
    let relay = relay_of(&sent, settings()).await;
    let first = relay.read(10).await;
    let taken = take(&relay, &first, 10, 3).await;
    assert_eq!(ids(&taken), ["a2", "a3"]);
    assert_eq!(relay.hash("holder:default").await["a"], " a1 a2 a3 ");
    let attempts = taken.iter().map(|(_, attempt)| attempt.number);
    assert_eq!(attempts.collect::<Vec<_>>(), [1, 1]);
    // In any order, the last one lets the key go on.
    for read in taken.into_iter().rev().map(as_read) {
        relay.settle(&read, Verdict::Ack).await;
        assert!(read_ids(&relay).await.is_empty());
    }
    relay.settle(&first[0], Verdict::Ack).await;
    assert_eq!(read_ids(&relay).await, ["a4"]);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn what_comes_again_of_them_keeps_the_order() {
    let sent = ["a1", "a2", "a3", "a4"].map(|id| keyed(id, "a"));
    let relay = relay_of(&sent, settings()).await;
    let first = relay.read(10).await.remove(0);
    let taken = take(&relay, std::slice::from_ref(&first), 10, 9).await;
    let [second, third, fourth] = <[_; 3]>::try_from(taken).unwrap().map(as_read);
    // The last one would come back first.
    relay.settle(&first, retry(ms(300))).await;
    relay.settle(&third, retry(ms(100))).await;
    relay
        .settle(&fourth, Verdict::HandBack { when: When::NOW })
        .await;
    relay.step(200);
    relay.move_due(100).await;
    assert!(read_ids(&relay).await.is_empty(), "the second is in flight");
    relay.settle(&second, Verdict::Ack).await;
    relay.move_due(100).await;
    assert!(read_ids(&relay).await.is_empty(), "the first waits");
    relay.step(100);
    for expected in ["a1", "a3", "a4"] {
        relay.move_due(100).await;
        let read = relay.read_one().await;
        assert_eq!(read.id.as_ref().unwrap().as_str(), expected);
        relay.settle(&read, Verdict::Ack).await;
    }
    relay.assert_drained().await;
}

#[tokio::test]
async fn what_is_ready_goes_behind_what_is_taken() {
    let sent = ["a1", "a2", "a3", "b1", "b2", "c1"].map(|id| keyed(id, &id[..1]));
    let relay = relay_of(&sent, settings()).await;
    let first = relay.read(2).await;
    let taken = take_with(&relay, &first, 2, 9).await;
    assert_eq!((taken.kept, ids(&taken.more)), (1, vec!["a2"]));
    let rest = relay.read(10).await;
    let attempts = rest.iter().map(|read| read.attempt.number);
    assert_eq!(attempts.collect::<Vec<_>>(), [1, 1]);
    let rest_ids = rest.iter().map(|read| read.id.as_ref().unwrap().as_str());
    assert_eq!(rest_ids.collect::<Vec<_>>(), ["b1", "c1"]);
    assert_eq!(relay.stats().await.groups[0].ready, 0);
    for read in first.iter().take(1).chain(&rest) {
        relay.settle(read, Verdict::Ack).await;
    }
    for one in taken.more.into_iter().map(as_read) {
        relay.settle(&one, Verdict::Ack).await;
    }
    assert_eq!(read_ids(&relay).await, ["b2", "a3"]);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn nothing_is_taken_past_many_that_are_ready_a_gate_or_another_holder() {
    let sent = ["a1", "a2", "a3", "b1", "b2"].map(|id| keyed(id, &id[..1]));
    let relay = relay_of(&sent, settings()).await;
    let others = (0..17).map(|n| message(&format!("o{n}"), When::NOW));
    relay.send(&others.collect::<Vec<_>>()).await;
    relay.move_due(100).await;
    let mut all = relay.read(2).await;
    assert!(take(&relay, &all, 10, 9).await.is_empty(), "17 are ready");
    all.extend(relay.read(1).await);
    assert_eq!(ids(&take(&relay, &all, 5, 2).await), ["a2", "b2"]);
    assert!(take(&relay, &all, 10, 9).await.is_empty(), "they are two");

    let limited = TopicSettings {
        max_ready: Some(10),
        ..settings()
    };
    let sent = ["a1", "a2"].map(|id| keyed(id, "a"));
    let relay = relay_of(&sent, limited).await;
    let first = relay.read(1).await;
    assert!(take(&relay, &first, 10, 9).await.is_empty(), "a window");
}

/// It still holds its key, so the next one would overtake it.
#[tokio::test]
async fn nothing_is_taken_for_a_delivery_that_is_settled() {
    let sent = ["a1", "a2"].map(|id| keyed(id, "a"));
    let relay = relay_of(&sent, settings()).await;
    let first = relay.read(1).await;
    relay.settle(&first[0], retry(ms(100))).await;
    assert!(take(&relay, &first, 10, 9).await.is_empty());
    assert_eq!(relay.hash("holder:default").await["a"], "a1");
    relay.step(100);
    relay.move_due(100).await;
    assert_eq!(read_ids(&relay).await, ["a1"]);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn garbage_that_blocks_a_key_blocks_it_after_the_others() {
    let blocking = TopicSettings {
        on_garbage: OnGarbage::Block,
        ..settings()
    };
    let sent = ["a1", "a2", "a3"].map(|id| keyed(id, "a"));
    let relay = relay_of(&sent, blocking).await;
    let first = relay.read(1).await;
    let taken = take(&relay, &first, 2, 9).await;
    let error = "no".to_owned();
    relay.settle(&first[0], Verdict::Reject { error }).await;
    let second = as_read(taken.into_iter().next().unwrap());
    relay.settle(&second, Verdict::Ack).await;
    assert!(read_ids(&relay).await.is_empty());
    assert_eq!(relay.hash("holder:default").await["a"], " a1 ");
    let (broker, topic, group) = (relay.broker(), relay.topic(), relay.group());
    let ids = ["a1".parse().unwrap()];
    let seen = broker.in_garbage(topic, group, &ids).await.unwrap();
    let requeued = broker.requeue(topic, group, &seen);
    assert_eq!(requeued.await.unwrap(), 1);
    relay.move_due(100).await;
    assert_eq!(read_ids(&relay).await, ["a1"]);
    assert_eq!(relay.hash("holder:default").await["a"], "a1");
    relay.assert_conserved().await;
}

#[tokio::test]
async fn the_first_key_fills_the_places_and_what_finds_none_is_ready_again() {
    let sent = ["a1", "a2", "a3"].map(|id| keyed(id, "a"));
    let sent = sent
        .into_iter()
        .chain(["b1", "c1"].map(|id| keyed(id, &id[..1])));
    let relay = relay_of(&sent.collect::<Vec<_>>(), settings()).await;
    let read = relay.read(3).await;
    let taken = take_with(&relay, &read, 3, 9).await;
    assert_eq!((taken.kept, ids(&taken.more)), (1, vec!["a2", "a3"]));
    let stale = relay.settle(&read[1], Verdict::Ack).await;
    assert_eq!(stale, lisa_core::state::Settled::Stale);
    // Not charged.
    for expected in ["b1", "c1"] {
        let read = relay.read_one().await;
        assert_eq!(read.id.as_ref().unwrap().as_str(), expected);
        assert_eq!(read.attempt.number, 1);
        relay.settle(&read, Verdict::Ack).await;
    }
    relay.settle(&read[0], Verdict::Ack).await;
    for one in taken.more.into_iter().map(as_read) {
        relay.settle(&one, Verdict::Ack).await;
    }
    relay.assert_drained().await;
}
