//! note_total: the history of all topics together, which is bounded and has each time once.

use lisa_core::broker::{Resolution, Sample};
use lisa_core::time::UnixMs;
use lisa_tests::Relay;
use std::time::Duration;

const MINUTE: u64 = 60_000;

fn total(sent: u64) -> Sample {
    Sample {
        sent,
        topics: 3,
        missing: 5,
        ..Sample::default()
    }
}

/// Notes the sums at a minute, and returns true if they were added.
async fn note(relay: &Relay, resolution: Resolution, minute: u64, sent: u64) -> bool {
    let time = UnixMs::new(minute * MINUTE);
    let (broker, total) = (relay.broker(), total(sent));
    let noted = broker.note_total((resolution, 3), time, &total).await;
    noted.unwrap()
}

/// Returns the minutes of the samples, each with its sums.
async fn noted(relay: &Relay, resolution: Resolution) -> Vec<(u64, Sample)> {
    let samples = relay
        .broker()
        .total_samples(resolution, UnixMs::default())
        .await;
    let samples = samples.unwrap().into_iter();
    samples
        .map(|(time, sample)| (time.get() / MINUTE, sample))
        .collect()
}

#[tokio::test]
async fn a_minute_has_one_sample_and_the_oldest_ones_go() {
    let relay = Relay::start("note_total").await;
    let minute = Resolution::Minute;
    assert!(note(&relay, minute, 10, 1).await);
    // Another manager has summed a moment later.
    assert!(!note(&relay, minute, 10, 2).await);
    assert!(!note(&relay, minute, 9, 2).await);
    // Quiet minutes are noted, too.
    assert!(note(&relay, minute, 11, 1).await);
    assert_eq!(
        noted(&relay, minute).await,
        [(10, total(1)), (11, total(1))]
    );
    for later in 12..20 {
        assert!(note(&relay, minute, later, later).await);
    }
    let kept = [17, 18, 19].map(|minute| (minute, total(minute)));
    assert_eq!(noted(&relay, minute).await, kept);
    let quarter = Resolution::Quarter;
    assert_eq!(noted(&relay, quarter).await, []);
    assert!(note(&relay, quarter, 15, 1).await);
    assert_eq!(noted(&relay, quarter).await, [(15, total(1))]);
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_history_of_a_clock_that_was_ahead_begins_again() {
    let relay = Relay::start("note_total").await;
    let now = relay.broker().connection().clock().now_ms() / MINUTE;
    let minute = Resolution::Minute;
    assert!(note(&relay, minute, now + 5, 1).await);
    assert!(!note(&relay, minute, now, 2).await);
    assert_eq!(noted(&relay, minute).await, []);
    assert!(note(&relay, minute, now, 2).await);
    assert_eq!(noted(&relay, minute).await, [(now, total(2))]);
}

#[tokio::test]
async fn the_lateness_of_deliveries_of_all_topics_becomes_part_of_the_next_sample() {
    let relay = Relay::start("note_total").await;
    let broker = relay.broker();
    let lateness = broker.lateness_of(relay.topic().name());
    for ms in [2, 2, 70_000] {
        lateness.observe(Duration::from_millis(ms));
    }
    for _ in 0..2 {
        // The second call has nothing to add.
        broker.report_lateness().await.unwrap();
    }
    assert!(note(&relay, Resolution::Minute, 10, 1).await);
    let samples = noted(&relay, Resolution::Minute).await;
    let lateness = samples[0].1.lateness;
    assert_eq!((lateness[1], lateness[15]), (2, 1));
    assert_eq!(lateness.iter().sum::<u64>(), 3);
    relay.assert_drained().await;
}
