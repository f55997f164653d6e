//! stats: every state and counter at one instant, and an error where a sum does not hold.

use lisa_shared::broker::Verdict;
use lisa_shared::time::{UnixMs, When};
use lisa_shared::topic::TopicSettings;
use lisa_tests::Relay;
use lisa_tests::relay::{START, message, ms, retry, settings};
use redis::cmd;

#[tokio::test]
async fn each_state_is_counted() {
    let relay = Relay::start("stats").await;
    relay.bury("dead").await;
    let failed = relay.hold("failed").await;
    relay.settle(&failed, retry(ms(500))).await;
    let done = relay.hold("done").await;
    relay.settle(&done, Verdict::Ack).await;
    relay.hold("held").await;
    relay
        .send(&[
            message("ready", When::NOW),
            message("b", ms(50)),
            message("a", ms(40)),
        ])
        .await;
    relay.step(45);
    let stats = relay.stats().await;
    let group = &stats.groups[0];
    assert_eq!((stats.waiting, group.ready, group.in_flight), (2, 1, 1));
    assert_eq!((group.retry, group.garbage), (1, 1));
    assert_eq!(stats.next_due, Some(UnixMs::new(START + 40)));
    assert_eq!((stats.overdue_ms, stats.paused), (5, false));
    let counters = [
        ("accepted", 7),
        ("acked", 1),
        ("moved", 5),
        ("rejected", 1),
        ("retried", 1),
    ];
    let counters = counters.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(stats.counters, counters.into());
    assert_eq!(stats.conservation_error, 0);
}

#[tokio::test]
async fn the_shards_are_added_up() {
    let settings = TopicSettings {
        shards: 3,
        ..settings()
    };
    let relay = Relay::with("stats", settings).await;
    let mut sent = 0;
    for n in 0..30 {
        let message = message(&format!("m{n}"), ms(n));
        let shard = relay.topic().shard_of(&message.id);
        relay
            .broker()
            .send(relay.topic(), shard, &[message])
            .await
            .unwrap();
        sent += 1;
    }
    let stats = relay.stats().await;
    assert_eq!(stats.waiting + stats.groups[0].ready, sent);
    assert_eq!(stats.counters["accepted"], 30);
    assert_eq!(stats.next_due, Some(UnixMs::new(START + 1)));
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_message_that_vanishes_shows_as_a_conservation_error() {
    let relay = Relay::start("stats").await;
    relay
        .send(&[message("a", ms(5)), message("b", When::NOW)])
        .await;
    relay.assert_conserved().await;
    let _: u64 = relay
        .command(cmd("ZREM").arg(relay.key("waiting")).arg("a"))
        .await;
    assert_eq!(relay.stats().await.conservation_error, 1);
    let _: u64 = relay
        .command(
            cmd("XTRIM")
                .arg(relay.key("ready:default"))
                .arg(&["MAXLEN", "0"]),
        )
        .await;
    assert_eq!(relay.stats().await.conservation_error, 2);
}

#[tokio::test]
async fn without_its_group_nothing_is_in_flight() {
    let relay = Relay::start("stats").await;
    relay.hold("a").await;
    let mut destroy = cmd("XGROUP");
    destroy
        .arg("DESTROY")
        .arg(relay.key("ready:default"))
        .arg("default");
    let _: u64 = relay.command(&destroy).await;
    let group = &relay.stats().await.groups[0];
    assert_eq!((group.ready, group.in_flight), (1, 0));
    relay.assert_conserved().await;
}

#[tokio::test]
async fn stats_of_a_wrong_type_are_an_error() {
    let relay = Relay::start("stats").await;
    let keys = [
        "conf",
        "stats",
        "waiting",
        "ready:default",
        "retry:default",
        "garbage:default",
    ];
    let call = async || relay.broker().stats(relay.topic()).await;
    relay
        .assert_wrong_types_are_refused_whole(&keys, call)
        .await;
    relay.assert_conserved().await;
}
