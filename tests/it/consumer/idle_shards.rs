//! Shards without messages: their blocking reads keep no handler, and no pull, from the messages of another shard.

use super::gateways::{Site, post, pull_one, route, waiting};
use super::*;
use futures_util::future::{join_all, select_all};
use serde_json::json;

#[tokio::test]
async fn a_busy_shard_gets_the_handlers_that_idle_shards_hold() {
    let shards = 3;
    let settings = TopicSettings {
        shards,
        lease: Duration::from_secs(60),
        ..settings()
    };
    let relay = relay_with("handlers", settings).await;
    let (mut desk, handler) = Desk::new();
    let consumer = Consumer::builder(relay.broker().clone())
        .topic("t", handler)
        .concurrency(3);
    let running = Running::start(consumer.build().unwrap());
    let watch = Stopwatch::start();
    for shard in (0..shards).chain(0..shards).map(Shard::new) {
        let messages = numbered(3);
        let send = relay.broker().send(relay.topic(), shard, &messages);
        send.await.unwrap();
        for _ in 0..3 {
            desk.next().await;
        }
        desk.let_go(3);
    }
    // A shard waits for 50 ms before it ends the reads of others, and for one that rests as long.
    watch.assert_within(6 * ms(200), ms(2000));
    assert_eq!(running.stop().await.acked, 18);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_stays_does_not_wait_for_the_read_of_an_idle_shard() {
    let site = Site::start("[topics.t]\nshards = 8", "").await;
    let api = site.api(0);
    let watch = Stopwatch::start();
    let (rounds, mut took) = (4, Duration::ZERO);
    for _ in 0..rounds {
        // One of them gets the permit that a shard takes to block, the other one that all other shards share.
        let pulls = [(); 2].map(|()| Box::pin(pull_one(api, "t", "60s")));
        let first = async {
            eventually(SOON, || waiting(api, 2)).await;
            let sent = Instant::now();
            site.send("t", &[], "x").await;
            sent
        };
        let ((first, _, others), sent) = tokio::join!(select_all(pulls), first);
        site.send("t", &[], "x").await;
        let second = join_all(others).await.remove(0);
        took += sent.elapsed();
        for one in [first, second] {
            post(api, &route(&one, "ack"), json!({})).await.expect(200);
        }
    }
    watch.assert_took(took, 2 * rounds * ms(150), ms(2000));
    site.assert_drained("t").await;
}
