//! Groups of one instance, through the library: every consumer gets every message, and one that was silent for too long
//! continues in a fresh group.

use super::*;
use lisa_consumer::Subscription;
use lisa_core::broker::{Removed, Retirement};
use lisa_core::topic::Group;
use std::collections::BTreeSet;

/// A relay whose consumers report once a second that they are alive.
async fn instances(stem: &str) -> Relay {
    let settings = TopicSettings {
        instance_ttl: Duration::from_secs(5),
        ..settings()
    };
    relay_with(stem, settings).await
}

/// Waits until there are this many groups of instances; returns their names.
async fn joined(relay: &Relay, count: usize) -> BTreeSet<Group> {
    eventually(SOON, async || {
        let groups = relay.stats().await.groups.into_iter();
        let groups = groups.filter(|group| group.instance);
        let names: BTreeSet<Group> = groups.map(|group| group.group).collect();
        match names.len() {
            found if found == count => Ok(names),
            _ => Err(format!("{names:?}")),
        }
    })
    .await
}

/// Sends messages and moves them to all groups.
async fn put(relay: &Relay, names: &[&str]) {
    let messages: Vec<_> = names.iter().map(|name| message(name, When::NOW)).collect();
    relay.send(&messages).await;
    let moved = relay.move_due(50).await;
    assert!(
        matches!(moved, Moved::Moved { count, .. } if count > 0),
        "{moved:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn each_consumer_with_a_group_of_its_own_gets_each_message_once() {
    let relay = instances("instances").await;
    let done = || delivery_fn(|_, _| async {});
    let by_name = Consumer::builder(relay.broker().clone())
        .group("{instance}")
        .topic("t", done());
    let subscription = Subscription::of_instance(relay.topic().name().clone(), done());
    let by_subscription = Consumer::builder(relay.broker().clone()).subscription(subscription);
    let running =
        [by_name, by_subscription].map(|builder| Running::start(builder.build().unwrap()));
    joined(&relay, 2).await;
    put(&relay, &["a", "b", "c"]).await;
    for one in running {
        one.until(|report| report.acked == 3).await;
        assert_eq!(one.stop().await.acked, 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_whose_own_group_goes_away_takes_another_one_and_gets_what_becomes_due_then() {
    let relay = instances("instance-lapsed").await;
    let consumer = Consumer::builder(relay.broker().clone())
        .group("{instance}")
        .topic("t", delivery_fn(|_, _| async {}));
    let running = Running::start(consumer.build().unwrap());
    let first = joined(&relay, 1).await.pop_first().unwrap();
    put(&relay, &["a"]).await;
    running.until(|report| report.acked == 1).await;

    // As the manager does when an instance is silent.
    let (broker, topic) = (relay.broker(), relay.topic());
    let drop = Some(Retirement::Drop);
    broker.retire(topic, &first, drop).await.unwrap();
    let both = joined(&relay, 2).await;
    assert!(both.contains(&first), "{both:?}");
    let removed = broker.remove_group(topic, Shard::new(0), &first).await;
    assert!(matches!(removed, Ok(Removed::Gone { .. })), "{removed:?}");
    assert!(!joined(&relay, 1).await.contains(&first));
    put(&relay, &["b"]).await;
    running.until(|report| report.acked == 2).await;
    running.stop().await;
}
