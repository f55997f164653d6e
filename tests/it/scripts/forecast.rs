//! The forecast: how many messages are due before some instants.

use lisa_core::time::UnixMs;
use lisa_core::topic::TopicSettings;
use lisa_tests::Relay;
use lisa_tests::relay::{START, message, ms, retry, settings};

#[tokio::test]
async fn the_counts_before_each_instant_are_those_of_waiting_and_retry() {
    for shards in [1, 3, 65] {
        let settings = TopicSettings {
            shards,
            ..settings()
        };
        let relay = Relay::with("forecast", settings).await;
        let broker = relay.broker();
        for (n, due) in [10, 20, 20, 30, 99].into_iter().enumerate() {
            let message = message(&format!("m{n}"), ms(due));
            let shard = relay.topic().shard_of(&message.id);
            let sent = broker.send(relay.topic(), shard, &[message]).await;
            sent.unwrap();
        }
        let instants = [0, 10, 11, 21, 31].map(|after| UnixMs::new(START + after));
        let forecast = broker.forecast(relay.topic(), &instants).await.unwrap();
        assert_eq!(forecast.is_estimate, shards > 64);
        assert_eq!(forecast.waiting.counts.len(), instants.len());
        if shards <= 64 {
            assert_eq!(forecast.waiting.counts, [0, 0, 1, 3, 4]);
            assert_eq!(forecast.waiting.total, 5);
        }
    }
}

#[tokio::test]
async fn a_retry_counts_at_its_next_attempt() {
    let relay = Relay::start("forecast").await;
    let held = relay.hold("a").await;
    relay.settle(&held, retry(ms(50))).await;
    let now = relay.now().get();
    let instants = [now, now + 50, now + 51].map(UnixMs::new);
    let forecast = relay.broker().forecast(relay.topic(), &instants).await;
    let forecast = forecast.unwrap();
    let retry = &forecast.retry[relay.group()];
    assert_eq!((&retry.counts[..], retry.total), (&[0, 0, 1][..], 1));
    assert_eq!(forecast.waiting.total, 0);
}
