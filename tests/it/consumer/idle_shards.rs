//! Shards without messages: their blocking reads keep neither handlers nor pulls from the messages of another shard.

use super::gateways::{Site, TWO_CLIENTS, post, pull, pull_one, route, waiting};
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
    // A shard waits for 50 ms before it ends the reads of others, and may rest for 50 ms before that.
    watch.assert_within(6 * ms(200), ms(2000));
    assert_eq!(running.stop().await.acked, 18);
}

/// Its handlers never keep it waiting for long.
#[tokio::test]
async fn a_busy_shard_with_short_handlers_gets_all_of_them_at_once() {
    let settings = TopicSettings {
        shards: 16,
        lease: Duration::from_secs(60),
        ..settings()
    };
    let relay = relay_with("short", settings).await;
    let handler = delivery_fn(async |_: Delivery, _: Context| tokio::time::sleep(ms(30)).await);
    let consumer = Consumer::builder(relay.broker().clone())
        .topic("t", handler)
        .concurrency(16);
    let running = Running::start(consumer.build().unwrap());
    // Until its shards block.
    tokio::time::sleep(ms(300)).await;
    let watch = Stopwatch::start();
    let messages = numbered(400);
    for messages in messages.chunks(100) {
        let shard = Shard::new(0);
        let send = relay.broker().send(relay.topic(), shard, messages);
        send.await.unwrap();
    }
    running.until(|report| report.acked == 400).await;
    // 25 times 30 ms, if all handlers work.
    watch.assert_within(ms(1500), ms(1500));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_stays_does_not_wait_for_the_read_of_an_idle_shard() {
    let site = Site::start("[topics.t]\nshards = 8", "").await;
    let api = site.api(0);
    let watch = Stopwatch::start();
    let (rounds, mut took) = (4, Duration::ZERO);
    for _ in 0..rounds {
        // The pulls issue two permits: a shard that blocks holds one of them, and all other shards share the other.
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

/// Without a limit, a topic with many shards could use up the connections that Redis allows.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_has_a_part_of_the_connections_for_reads_and_still_gets_all_messages() {
    let more = format!("consumer.gateway.max_readers = 4\n{TWO_CLIENTS}");
    let site = Site::start("[topics.wide]\nshards = 8\n[topics.t]", &more).await;
    let [one, other] = ["abc", "def"].map(|token| site.api(0).clone().token(token));
    let blocked = async |expected: usize| {
        let clients: String = site.redis(&["CLIENT", "LIST"]).await;
        let blocked = clients.lines().filter(|client| client.contains(" flags=b"));
        match blocked.count() {
            count if count == expected => Ok(()),
            _ => Err(clients),
        }
    };
    let rounds = 10;
    let watch = Stopwatch::start();
    let mut took = Duration::ZERO;
    for _ in 0..rounds {
        // Each of the eight shards gets a permit.
        let pulled = pull(&one, "wide", json!({"max": 8, "wait": "20s"}));
        let send = async {
            eventually(SOON, || blocked(3)).await;
            site.send("wide", &[], "x").await;
            Instant::now()
        };
        let (pulled, sent) = tokio::join!(pulled, send);
        took += sent.elapsed();
        let ack = route(&pulled[0], "ack");
        post(&one, &ack, json!({})).await.expect(200);
    }
    watch.assert_took(took, rounds * ms(100), ms(2000));
    let wide = pull(&one, "wide", json!({"max": 8, "wait": "20s"}));
    let others = async {
        eventually(SOON, || blocked(3)).await;
        let pulled = pull(&other, "t", json!({"wait": "20s"}));
        let send = async {
            eventually(SOON, || blocked(4)).await;
            site.send("t", &[], "x").await;
            site.send("wide", &[], "x").await;
        };
        tokio::join!(pulled, send)
    };
    let (wide, (t, ())) = tokio::join!(wide, others);
    assert_eq!((wide.len(), t.len()), (1, 1));
}
