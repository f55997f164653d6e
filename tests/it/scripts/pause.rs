//! pause: sets the flag, and returns whether it changed.

use lisa_core::topic::TopicSettings;
use lisa_tests::Relay;
use lisa_tests::relay::settings;

#[tokio::test]
async fn pausing_and_resuming_change_something_only_once() {
    let relay = Relay::start("pause").await;
    let pause = async |paused| relay.broker().pause(relay.topic(), paused).await.unwrap();
    assert!(!pause(false).await);
    for paused in [true, false] {
        assert!(pause(paused).await);
        assert_eq!(relay.stats().await.paused, paused);
        let before = relay.snapshot().await;
        assert!(!pause(paused).await);
        assert_eq!(before.diff(&relay.snapshot().await), "");
    }
    relay.assert_drained().await;
}

#[tokio::test]
async fn every_shard_is_paused() {
    let settings = TopicSettings {
        shards: 3,
        ..settings()
    };
    let relay = Relay::with("pause", settings).await;
    assert!(relay.broker().pause(relay.topic(), true).await.unwrap());
    let snapshot = relay.snapshot().await;
    for shard in 0..3 {
        let conf = snapshot.hash(&relay.short_key(shard, "conf"));
        assert_eq!(conf[b"paused".as_slice()], "1");
    }
    relay.assert_drained().await;
}
