//! note_counts: keeps the newest counts of each topic in one key.

use lisa_core::broker::Counts;
use lisa_core::time::UnixMs;
use lisa_core::topic::Topic;
use lisa_tests::Relay;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(60);

/// Notes the counts of `t` as of a time, by a manager.
async fn note(relay: &Relay, manager: &str, at: UnixMs) {
    let stats = relay.stats().await;
    let settings = relay.topic().settings();
    let packed = Counts::pack(Ok((&stats, settings)), at);
    let counts = [(relay.topic().name(), at, packed.as_str())];
    let noted = relay.broker().note_counts(manager, &counts, false).await;
    noted.unwrap();
}

/// Returns the manager that counted `t`, and the time of its counts.
async fn noted(relay: &Relay) -> Option<(String, u64)> {
    let snapshot = relay.broker().snapshot().await.unwrap();
    let topic = snapshot.topics.into_iter().next()?;
    let counts = topic.counts.expect("counts");
    assert_eq!(counts.stats, relay.stats().await);
    Some((topic.manager, topic.as_of.get()))
}

#[tokio::test]
async fn only_newer_counts_replace_those_of_a_topic() {
    let relay = Relay::start("note_counts").await;
    assert_eq!(noted(&relay).await, None);
    note(&relay, "m1", UnixMs::new(2000)).await;
    assert_eq!(noted(&relay).await, Some(("m1".to_owned(), 2000)));
    for old in [1000, 2000] {
        note(&relay, "m2", UnixMs::new(old)).await;
        assert_eq!(noted(&relay).await, Some(("m1".to_owned(), 2000)));
    }
    note(&relay, "m2", UnixMs::new(3000)).await;
    assert_eq!(noted(&relay).await, Some(("m2".to_owned(), 3000)));
    relay.assert_drained().await;
}

#[tokio::test]
async fn counts_from_before_the_clock_was_set_back_are_replaced() {
    let relay = Relay::start("note_counts").await;
    let now = relay.broker().connection().clock().now_ms();
    let far = now + 70_000;
    note(&relay, "m1", UnixMs::new(far)).await;
    assert_eq!(noted(&relay).await, Some(("m1".to_owned(), far)));
    note(&relay, "m1", UnixMs::new(now)).await;
    assert_eq!(noted(&relay).await, Some(("m1".to_owned(), now)));
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_complete_run_renews_the_counts_that_it_does_not_write() {
    let relay = Relay::start("note_counts").await;
    note(&relay, "m1", UnixMs::new(1000)).await;
    let broker = relay.broker();
    broker.note_counts("m2", &[], true).await.unwrap();
    assert_eq!(noted(&relay).await, Some(("m1".to_owned(), 1000)));
    let before = broker.connection().clock().now_ms();
    broker.note_counts("m1", &[], true).await.unwrap();
    let (_, as_of) = noted(&relay).await.unwrap();
    assert!(as_of + 1000 > before, "{as_of} {before}");
    relay.assert_drained().await;
}

#[tokio::test]
async fn what_is_left_over_of_topics_and_managers_is_removed() {
    let relay = Relay::start("note_counts").await;
    let broker = relay.broker();
    let other: Topic = "other".parse().unwrap();
    let packed = Counts::pack(Err("damaged"), UnixMs::new(1));
    let counts = [(&other, UnixMs::new(1), packed.as_str())];
    // It is not registered.
    broker.note_counts("m1", &counts, true).await.unwrap();
    assert_eq!(noted(&relay).await, None);
    note(&relay, "m1", UnixMs::new(1000)).await;
    broker.heartbeat("m2", LEASE).await.unwrap();
    broker.note_counts("m2", &[], true).await.unwrap();
    let key = "v1:{registry}:snapshot";
    let fields = async || {
        let all = relay.snapshot().await;
        let fields = all.hash(key).into_keys().map(|field| field.to_string());
        let fields = fields.collect::<Vec<_>>();
        fields.join(" ")
    };
    assert_eq!(fields().await, ":m1 :m2 t");
    // `m1` has no lease.
    broker.prune_snapshot("m2").await.unwrap();
    assert_eq!(fields().await, ":m2 t");
    let registry = format!("{}:v1:{{registry}}:topics", broker.namespace());
    let _: u64 = relay
        .command(redis::cmd("HDEL").arg(&registry).arg("t"))
        .await;
    broker.prune_snapshot("m2").await.unwrap();
    assert_eq!(fields().await, ":m2");
}
