//! stats: every state and counter at one instant, and an error where a sum does not hold.

use super::stage::{Asking, SHARD, Stage, groups, name, reject};
use lisa_core::broker::{Retirement, SHORT_LEASES, Verdict};
use lisa_core::state::State;
use lisa_core::time::{UnixMs, When};
use lisa_core::topic::{OnExpired, TopicSettings};
use lisa_tests::Relay;
use lisa_tests::relay::{START, WORKER, message, ms, retry, settings};
use redis::cmd;

#[tokio::test]
async fn each_state_is_counted() {
    let relay = Relay::start("stats").await;
    relay.put_in_garbage("dead").await;
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
    assert_eq!(
        (stats.overdue_ms, stats.paused),
        (45, false),
        "the ready one"
    );
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
async fn each_group_has_its_own_counts_and_sum() {
    let stage = Stage::with(TopicSettings {
        max_ready: Some(2),
        ..groups(&["a", "b"])
    })
    .await;
    let batch = ["m1", "m2", "m3", "m4", "m5"].map(|name| message(name, ms(0)));
    stage.put(&batch).await;
    stage
        .put(&[
            message("k1", ms(1)).key("k").expires(3),
            message("k2", ms(1)).key("k"),
        ])
        .await;
    stage.run("a", "m1", Verdict::Ack).await;
    stage.run("a", "m2", retry(ms(500))).await;
    stage.run("a", "m3", reject()).await;
    stage.begin("a", "m4").await;
    stage.pause_group("b", true).await;
    stage.pass(1).await;
    stage.send(&[message("later", ms(90))]).await;
    let stats = stage.stats().await;
    let counts: Vec<_> = stats
        .groups
        .iter()
        .map(|g| {
            (
                g.backlog,
                g.parked,
                g.ready,
                g.in_flight,
                g.retry,
                g.garbage,
            )
        })
        .collect();
    assert_eq!(counts, [(1, 1, 1, 1, 1, 1), (4, 1, 2, 0, 0, 0)]);
    assert_eq!((stats.waiting, &*stats.class), (1, "general"));
    assert_eq!(stats.counters["moved"], 7);
    assert_eq!(stats.conservation_error, 0);
}

#[tokio::test]
async fn both_sums_hold_through_every_end_in_every_group() {
    let mut stage = Stage::with(TopicSettings {
        on_expired: OnExpired::Drop,
        ..groups(&["a", "b", "c"])
    })
    .await;
    let names = ["acked", "stopped", "lapses", "purged", "lost", "dropped"];
    stage.pause_group("b", true).await;
    let sent = names.map(|name| message(name, ms(0)).key(name).merge(name));
    stage
        .put(&sent.map(|m| {
            if m.id.as_str() == "lapses" {
                m.ttl(5)
            } else {
                m
            }
        }))
        .await;
    stage
        .send(&[
            message("once", ms(50)).merge("x"),
            message("twice", ms(50)).merge("x"),
        ])
        .await;
    stage.assert_conserved().await;
    stage.step(5);
    for group in ["a", "c"] {
        stage.run(group, "acked", Verdict::Ack).await;
        stage.run(group, "stopped", Verdict::Ack).await;
        stage.run(group, "lapses", Verdict::Expired).await;
        stage.run(group, "purged", reject()).await;
        stage.assert_conserved().await;
    }
    stage.lose_payload("lost").await;
    stage.run("a", "lost", Verdict::Lost).await;
    assert_eq!(stage.cancel("stopped").await, "cancelled");
    assert_eq!(stage.purge("a", "purged", 5).await, 1);
    stage.pause_group("b", false).await;
    stage.moved().await;
    // The record is still missing in the other groups.
    let stats = stage.stats().await;
    assert_eq!((stats.conservation_error, stats.missing_records()), (0, 1));
    let (broker, topic) = (stage.broker(), stage.topic());
    let how = Some(Retirement::Drop);
    broker.retire(topic, &name("c"), how).await.unwrap();
    broker.remove_group(topic, SHARD, &name("c")).await.unwrap();
    stage.refresh().await;
    let stats = stage.stats().await;
    assert_eq!((stats.conservation_error, stats.missing_records()), (0, 1));
    let ends = [
        "acked",
        "cancelled",
        "dropped",
        "expired",
        "lost",
        "merged",
        "purged",
    ];
    let counts = ends.map(|end| stats.counters[end]);
    assert_eq!(counts, [4, 1, 3, 3, 1, 1, 1]);
}

#[tokio::test]
async fn a_copy_that_vanishes_from_any_place_of_any_group_shows() {
    let stage = Stage::with(TopicSettings {
        max_ready: Some(1),
        ..groups(&["a", "b"])
    })
    .await;
    stage
        .put(&[
            message("dead", ms(0)),
            message("again", ms(0)).key("k"),
            message("parked", ms(0)).key("k"),
            message("gated", ms(0)).priority(-1),
        ])
        .await;
    stage.run("b", "dead", reject()).await;
    stage.run("b", "again", retry(ms(5))).await;
    stage.assert_conserved().await;
    let mut missing = 0;
    for place in [
        "garbage:b",
        "retry:b",
        "parked:b",
        "ready:b",
        "backlog:a",
        "ready:a",
        "parked:a",
    ] {
        let removed: u64 = stage.command(cmd("DEL").arg(stage.key(place))).await;
        assert_eq!(removed, 1, "{place}");
        missing += if place == "backlog:a" { 2 } else { 1 };
        assert_eq!(stage.stats().await.conservation_error, missing, "{place}");
    }
}

#[tokio::test]
async fn each_group_has_the_age_of_what_is_due_and_what_is_ready() {
    let stage = Stage::of(&["a", "b"]).await;
    stage
        .put(&[message("m1", ms(0)), message("m2", ms(0))])
        .await;
    stage.step(50);
    stage.put(&[message("m3", ms(0))]).await;
    let begun = stage.begin("a", "m1").await;
    stage.begin("a", "m2").await;
    stage.begin("b", "m1").await;
    stage.send(&[message("waits", ms(200))]).await;
    stage.step(100);
    let ages = async || {
        let stats = stage.stats().await;
        let of_group = |index: usize| {
            let group = &stats.groups[index];
            (group.oldest_due_age_ms, group.oldest_ready_age_ms)
        };
        (of_group(0), of_group(1), stats.overdue_ms)
    };
    // In `a` only the third is unread, in `b` the second. Foreign groups do not count.
    for (stream, from) in [("ready:a", "0"), ("ready:b", "$")] {
        let mut create = cmd("XGROUP");
        create
            .arg("CREATE")
            .arg(stage.key(stream))
            .arg("z")
            .arg(from);
        let () = stage.command(&create).await;
    }
    assert_eq!(ages().await, ((100, 100), (150, 150), 150));
    // Due and not moved, it is behind in both groups.
    stage.step(2_000);
    assert_eq!(ages().await, ((2_100, 2_100), (2_150, 2_150), 2_150));
    stage.run("b", "m2", Verdict::Ack).await;
    stage.run("b", "m3", Verdict::Ack).await;
    stage.run("a", "m3", Verdict::Ack).await;
    assert_eq!(ages().await, ((1_900, 0), (1_900, 0), 1_900));
    // A retry counts from the time of its next attempt.
    stage.end("a", &begun, retry(ms(500))).await;
    stage.pause_group("a", true).await;
    stage.moved().await;
    stage.run("b", "waits", Verdict::Ack).await;
    assert_eq!(ages().await.1, (0, 0));
    stage.step(1_000);
    assert_eq!(ages().await.0, (2_900, 0));
    stage.assert_conserved().await;
}

#[tokio::test]
async fn what_is_held_back_or_parked_is_as_old_as_its_due_time() {
    let stage = Stage::with(TopicSettings {
        max_ready: Some(1),
        ..groups(&["a"])
    })
    .await;
    let oldest = async || stage.stats().await.groups[0].oldest_due_age_ms;
    stage.put(&[message("first", ms(0)).key("k")]).await;
    stage.begin("a", "first").await;
    assert_eq!(oldest().await, 0);
    stage.put(&[message("gated", ms(0)).priority(-1)]).await;
    stage.step(40);
    stage.put(&[message("urgent", ms(0)).priority(1)]).await;
    stage.step(60);
    // The less urgent one is the older one.
    assert_eq!(oldest().await, 100);
    assert_eq!(stage.cancel("gated").await, "cancelled");
    assert_eq!(oldest().await, 60);
    stage.put(&[message("late", ms(0)).priority(-1)]).await;
    stage.step(5);
    assert_eq!(oldest().await, 65);
    for name in ["late", "urgent"] {
        assert_eq!(stage.cancel(name).await, "cancelled");
    }
    assert_eq!(oldest().await, 0);
    stage.put(&[message("parked", ms(0)).key("k")]).await;
    stage.step(70);
    let group = &stage.stats().await.groups[0];
    assert_eq!((group.parked, group.oldest_due_age_ms), (1, 70));
    assert_eq!(group.oldest_ready_age_ms, 0);
}

#[tokio::test]
async fn the_oldest_parked_message_counts_whatever_its_key() {
    let stage = Stage::of(&["a"]).await;
    let keyed = |name: &str, key| message(name, ms(0)).key(key);
    let first = [keyed("k-first", "k"), keyed("l-first", "l")];
    stage.put(&first).await;
    assert_eq!(stage.take("a", 2).await.len(), 2);
    stage.put(&[keyed("l-parked", "l")]).await;
    stage.step(10);
    let many: Vec<_> = (0..20).map(|n| keyed(&format!("k{n}"), "k")).collect();
    stage.put(&many).await;
    stage.step(7);
    let group = &stage.stats().await.groups[0];
    assert_eq!((group.parked, group.oldest_due_age_ms), (21, 17));
    stage.assert_conserved().await;
}

#[tokio::test]
async fn a_retry_that_is_not_moved_is_as_old_as_its_due_time() {
    let stage = Stage::of(&["a"]).await;
    stage.put(&[message("m", ms(0))]).await;
    stage.run("a", "m", retry(ms(500))).await;
    let oldest = async || stage.stats().await.groups[0].oldest_due_age_ms;
    stage.step(400);
    assert_eq!(oldest().await, 0);
    stage.step(300);
    assert_eq!(oldest().await, 200);
    stage.assert_conserved().await;
}

#[tokio::test]
async fn a_group_that_retires_is_not_behind_with_what_it_will_not_get() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.send(&[message("m", ms(10))]).await;
    let how = Some(Retirement::Drain);
    let (broker, topic) = (stage.broker(), stage.topic());
    broker.retire(topic, &name("b"), how).await.unwrap();
    stage.step(30);
    let stats = stage.stats().await;
    let ages: Vec<_> = stats.groups.iter().map(|g| g.oldest_due_age_ms).collect();
    assert_eq!(ages, [20, 0]);
}

#[tokio::test]
async fn a_consumer_counts_while_it_reports_also_before_its_first_message() {
    let settings = TopicSettings {
        shards: 2,
        ..settings()
    };
    let relay = Relay::with("readers", settings).await;
    let (broker, topic, group) = (relay.broker(), relay.topic(), relay.group());
    let consumers = async || relay.stats().await.groups[0].consumers;
    assert_eq!(consumers().await, 0);
    for shard in topic.shards() {
        broker.announce(topic, shard, group, "one").await.unwrap();
    }
    assert_eq!(consumers().await, 1, "each consumer reads all shards");
    let shard = topic.first_shard();
    broker.announce(topic, shard, group, "two").await.unwrap();
    assert_eq!(consumers().await, 2);
    for shard in topic.shards() {
        broker
            .drop_consumer(topic, shard, group, "one")
            .await
            .unwrap();
    }
    assert_eq!(consumers().await, 1);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn what_holds_a_delivery_with_a_lease_of_its_own_is_no_consumer() {
    let relay = Relay::start("leases").await;
    let (broker, topic, group) = (relay.broker(), relay.topic(), relay.group());
    let counts = async || {
        let group = relay.stats().await.groups.remove(0);
        (group.consumers, group.in_flight)
    };
    let (long, short) = (relay.hold("long").await, relay.hold("short").await);
    assert_eq!(counts().await, (1, 2), "it has just read");
    let shard = topic.first_shard();
    for (read, lease) in [(&long, ms(7_200_000)), (&short, ms(1))] {
        let entries = [read.attempt.entry];
        let leased = broker.lease(topic, shard, group, WORKER, &entries, lease);
        assert_eq!(leased.await.unwrap().held, entries);
    }
    // A gateway that reads no longer removes its consumer, whatever its clients hold.
    let dropped = broker.drop_consumer(topic, shard, group, WORKER).await;
    assert!(dropped.unwrap());
    assert_eq!(counts().await, (0, 2));
    // The manager touches both.
    let idle = settings().lease;
    relay
        .set_idle(short.attempt.entry, SHORT_LEASES, idle)
        .await;
    relay.age(long.attempt.entry, "worker-leases", idle).await;
    assert_eq!(relay.reclaim().await.held, 2);
    assert_eq!(counts().await, (0, 2));
    let page = broker.list(topic, group, State::InFlight, None, 10).await;
    let holders = page.unwrap().items.into_iter().map(|item| item.consumer);
    let expected = [WORKER, SHORT_LEASES].map(|name| Some(name.to_owned()));
    assert_eq!(holders.collect::<Vec<_>>(), expected);
    relay.assert_conserved().await;
}
