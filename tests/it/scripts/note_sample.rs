//! note_sample and observe: the history of a topic, which is bounded and has each time once.

use lisa_core::broker::{Resolution, Sample};
use lisa_core::time::UnixMs;
use lisa_tests::Relay;
use std::time::Duration;

const MINUTE: u64 = 60_000;

fn sample(sent: u64) -> Sample {
    Sample {
        sent,
        ..Sample::default()
    }
}

/// Notes a sample of a minute, and returns true if it was added.
async fn note(relay: &Relay, minute: u64, sent: u64, again: bool) -> bool {
    let (topic, of) = (relay.topic(), (Resolution::Minute, 3));
    let (time, sample) = (UnixMs::new(minute * MINUTE), sample(sent).pack());
    let first = (topic, topic.first_shard());
    let noted = relay.broker().note_sample(first, of, time, &sample, again);
    noted.await.unwrap()
}

/// Returns the minutes of the samples from a minute on, each with the number of messages sent.
async fn noted(relay: &Relay, since: u64) -> Vec<(u64, u64)> {
    let since = UnixMs::new(since * MINUTE);
    let samples = relay
        .broker()
        .samples(relay.topic(), Resolution::Minute, since);
    let samples = samples.await.unwrap().into_iter();
    samples
        .map(|(time, sample)| (time.get() / MINUTE, sample.sent))
        .collect()
}

#[tokio::test]
async fn a_minute_has_one_sample_and_an_unchanged_one_is_left_out() {
    let relay = Relay::start("note_sample").await;
    assert!(note(&relay, 10, 1, false).await);
    // Another manager has counted a moment later.
    assert!(!note(&relay, 10, 2, false).await);
    assert!(!note(&relay, 9, 2, true).await);
    assert!(!note(&relay, 11, 1, false).await);
    assert!(note(&relay, 12, 1, true).await);
    assert_eq!(noted(&relay, 0).await, [(10, 1), (12, 1)]);
    // Those from a minute on, and the one before.
    assert_eq!(noted(&relay, 12).await, [(10, 1), (12, 1)]);
    assert_eq!(noted(&relay, 13).await, [(12, 1)]);
    relay.assert_drained().await;
}

#[tokio::test]
async fn the_oldest_samples_go() {
    let relay = Relay::start("note_sample").await;
    for minute in 10..20 {
        assert!(note(&relay, minute, minute, false).await);
    }
    assert_eq!(noted(&relay, 0).await, [(17, 17), (18, 18), (19, 19)]);
}

#[tokio::test]
async fn a_history_of_a_clock_that_was_ahead_begins_again() {
    let relay = Relay::start("note_sample").await;
    let now = relay.broker().connection().clock().now_ms() / MINUTE;
    assert!(note(&relay, now + 5, 1, false).await);
    assert!(!note(&relay, now, 2, false).await);
    assert_eq!(noted(&relay, 0).await, []);
    assert!(note(&relay, now, 2, false).await);
    assert_eq!(noted(&relay, 0).await, [(now, 2)]);
}

#[tokio::test]
async fn the_lateness_of_deliveries_becomes_part_of_the_next_sample() {
    let relay = Relay::start("note_sample").await;
    let broker = relay.broker();
    let lateness = broker.lateness_of(relay.topic().name());
    for ms in [1, 2, 2, 70_000] {
        lateness.observe(Duration::from_millis(ms));
    }
    for _ in 0..2 {
        // The second call has nothing to add.
        broker.report_lateness().await.unwrap();
    }
    assert!(note(&relay, 10, 1, false).await);
    lateness.observe(Duration::from_millis(2));
    broker.report_lateness().await.unwrap();
    // Nothing but the lateness has changed.
    assert!(note(&relay, 11, 1, false).await);
    let samples = broker.samples(relay.topic(), Resolution::Minute, UnixMs::default());
    let samples: Vec<_> = samples.await.unwrap().into_values().collect();
    let since = samples[1].lateness_since(&samples[0]).unwrap();
    assert_eq!((samples[0].lateness[0], samples[0].lateness[1]), (1, 2));
    assert_eq!(samples[0].lateness[15], 1);
    assert_eq!((since[1], since.iter().sum::<u64>()), (1, 1));
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_shard_that_is_gone_gets_no_history() {
    let relay = Relay::start("note_sample").await;
    let lateness = relay.broker().lateness_of(relay.topic().name());
    lateness.observe(Duration::ZERO);
    let _: u64 = relay
        .command(redis::cmd("DEL").arg(relay.key("conf")))
        .await;
    assert!(!note(&relay, 10, 1, true).await);
    relay.broker().report_lateness().await.unwrap();
    let keys: Vec<String> = relay
        .snapshot()
        .await
        .iter()
        .map(|(key, _)| key.to_owned())
        .collect();
    assert!(
        !keys
            .iter()
            .any(|key| key.contains("series") || key.contains("observed")),
        "{keys:?}"
    );
}
