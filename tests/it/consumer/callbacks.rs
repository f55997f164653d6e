//! Callbacks: the outcome of a message as another message, whatever happens in between.

use super::*;
use bytes::Bytes;
use lisa_consumer::{Handler, Subscription};
use lisa_core::broker::TopicHandle;
use lisa_core::message::{CallbackOutcome, EntryId, MessageId, Record};
use lisa_core::topic::{Size, Topic};
use lisa_producer::{NewMessage, Producer, SendError};
use std::collections::BTreeMap;

fn topic(name: &str) -> Topic {
    name.parse().unwrap()
}

async fn declare(relay: &Relay, name: &str, settings: TopicSettings) -> Arc<TopicHandle> {
    let topic = topic(name);
    let declared = relay.broker().declare(&topic, &settings, Declare::Create);
    declared.await.unwrap()
}

/// A handler that counts its runs and then does as the closure says.
fn counting(outcome: fn() -> Outcome) -> (Arc<AtomicUsize>, impl Handler) {
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let handler = delivery_fn(move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        async move { outcome() }
    });
    (runs, handler)
}

/// Consumes topic `t`.
fn start(relay: &Relay, subscription: Subscription) -> Running {
    let consumer = Consumer::builder(relay.broker().clone()).subscription(subscription);
    Running::start(consumer.build().unwrap())
}

fn subscription(handler: impl Handler) -> Subscription {
    Subscription::new(topic("t"), "default".parse().unwrap(), handler)
}

/// The stored messages of a topic with one shard, by id.
async fn stored(relay: &Relay, name: &str) -> BTreeMap<MessageId, Record> {
    let payload = relay
        .snapshot()
        .await
        .hash(&format!("v1:{{{name}:0}}:payload"));
    let record = |(id, record): (&lisa_tests::snapshot::Text, &lisa_tests::snapshot::Text)| {
        let record = Record::decode(Bytes::copy_from_slice(&record.0)).expect("a record");
        (id.to_string().parse().expect("an id"), record)
    };
    payload.iter().map(record).collect()
}

/// Waits until a topic has this many messages.
async fn until_stored(relay: &Relay, name: &str, count: usize) -> BTreeMap<MessageId, Record> {
    eventually(SOON, async || match stored(relay, name).await {
        messages if messages.len() == count => Ok(messages),
        messages => Err(format!("{messages:#?}")),
    })
    .await
}

fn facts(record: &Record) -> Vec<(&str, &str)> {
    let headers = record.headers.iter();
    headers
        .filter_map(|(name, value)| Some((name.strip_prefix("lisa-callback-")?, value)))
        .collect()
}

/// Acknowledges everything in a topic, so that it has room.
async fn empty(relay: &Relay, topic: &Arc<TopicHandle>) {
    let broker = relay.broker();
    let (shard, group) = (Shard::new(0), &topic.groups()[0]);
    eventually(SOON, async || {
        let moved = broker.move_due(topic, shard, 100, ms(60_000)).await;
        moved.map_err(|error| error.to_string())?;
        let mut reader = broker.server(topic, shard).unwrap().reader().await.unwrap();
        let read = broker.read(&mut reader, topic, shard, group, "other", 100, ms(1));
        let read = read.await.unwrap();
        let settlements: Vec<_> = read
            .iter()
            .map(|read| relay::settlement(read, lisa_core::broker::Verdict::Ack))
            .collect();
        broker
            .settle(topic, shard, group, &settlements)
            .await
            .unwrap();
        match settlements.len() {
            0 => Err("nothing to acknowledge".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_success_is_reported_with_the_payload_the_key_and_the_facts() {
    let relay = relay("callback").await;
    let done = declare(&relay, "done", settings()).await;
    let (_, handler) = counting(|| Outcome::Ack);
    let running = start(&relay, subscription(handler).success_topic(topic("done")));
    let keys = [None, Some("k".to_owned()), Some("k".repeat(256))];
    for (number, key) in keys.iter().enumerate() {
        let mut sent = message(&format!("m{number}"), When::NOW);
        sent.record.headers.insert("tenant", "x").unwrap();
        sent.options.key = key.as_deref().map(|key| key.parse().unwrap());
        relay.send(&[sent]).await;
        relay.move_due(100).await;
    }
    running.until(|report| report.acked == 3).await;
    let callbacks = stored(&relay, "done").await;
    assert_eq!(callbacks.len(), 3, "{callbacks:#?}");
    for (id, record) in &callbacks {
        assert!(id.as_str().starts_with("success:"), "{id}");
        let of = record.headers.get("lisa-callback-id").unwrap();
        let expected = [
            ("attempts", "1"),
            ("group", "default"),
            ("hops", "1"),
            ("id", of),
            ("outcome", "success"),
            ("topic", "t"),
        ];
        assert_eq!(facts(record), expected);
        assert_eq!(record.headers.get("tenant"), Some("x"));
        assert_eq!(record.payload, format!("payload of {of}"));
        let number: usize = of.strip_prefix('m').unwrap().parse().unwrap();
        let ids = std::slice::from_ref(id);
        let key = relay.broker().ordering_keys(&done, Shard::new(0), ids);
        let key = key.await.unwrap().remove(0).map(|key| key.to_string());
        assert_eq!(key, keys[number]);
    }
    running.stop().await;
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_dies_between_callback_and_ack_sends_no_second_callback() {
    let relay = relay("callback-dies").await;
    declare(&relay, "done", settings()).await;
    let (runs, handler) = counting(|| Outcome::Ack);
    let handler = Arc::new(handler);
    let reporting = || subscription(handler.clone()).success_topic(topic("done"));
    // An ack counts in these, so it fails.
    let (stats, aside) = (relay.key("stats"), relay.key("stats:aside"));
    relay.send(&[message("a", When::NOW)]).await;
    let () = relay.command(cmd("RENAME").arg(&stats).arg(&aside)).await;
    let () = relay
        .command(cmd("SET").arg(&stats).arg("in the way"))
        .await;
    let doomed = start(&relay, reporting());
    let callbacks = until_stored(&relay, "done", 1).await;
    doomed.until(|report| report.unsettled == 1).await;
    let name = doomed.consumer.name().to_owned();
    doomed.run.abort();
    let () = relay.command(cmd("DEL").arg(&stats)).await;
    let () = relay.command(cmd("RENAME").arg(&aside).arg(&stats)).await;
    let entry = in_flight(&relay).await;
    relay.age(entry, &name, ms(2000)).await;
    assert_eq!(relay.reclaim().await.retry, 1);
    relay.move_due(100).await;
    let running = start(&relay, reporting());
    running.until(|report| report.acked == 1).await;
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert_eq!(stored(&relay, "done").await, callbacks);
    running.stop().await;
    relay.assert_conserved().await;
}

/// Returns the only delivery in flight.
async fn in_flight(relay: &Relay) -> EntryId {
    let stream = relay.snapshot().await;
    let stream = stream.stream("v1:{t:0}:ready:default");
    let mut pending = stream.groups["default".as_bytes()].pending.keys();
    pending.next().expect("one in flight").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_reported_each_time_whatever_moved_it_there() {
    let relay = relay("callback-garbage").await;
    declare(&relay, "failed", settings()).await;
    let (_, handler) = counting(|| Outcome::reject("no\nluck"));
    // It waits for the first consumer.
    relay.send(&[message("a", When::NOW)]).await;
    let running = start(&relay, subscription(handler).garbage_topic(topic("failed")));
    let first = until_stored(&relay, "failed", 1).await;
    let (id, record) = first.first_key_value().unwrap();
    assert!(id.as_str().starts_with("garbage:"), "{id}");
    let expected = [
        ("attempts", "1"),
        ("error", "no luck"),
        ("group", "default"),
        ("hops", "1"),
        ("id", "a"),
        ("outcome", "garbage"),
        ("reason", "rejected"),
        ("topic", "t"),
    ];
    assert_eq!(facts(record), expected);
    assert_eq!(record.payload, "payload of a");
    running.until(|report| report.garbage_hooks == 1).await;
    assert!(relay.zset("garbage_hook:default").await.is_empty());

    let (broker, group) = (relay.broker(), relay.group());
    let time = UnixMs::new(relay.zset("garbage:default").await["a"]);
    let in_garbage = [(relay::id("a"), time)];
    let requeued = broker.requeue(relay.topic(), group, &in_garbage);
    assert_eq!(requeued.await.unwrap(), 1);
    relay.move_due(100).await;
    running.until(|report| report.garbage_hooks == 2).await;
    assert_eq!(stored(&relay, "failed").await.len(), 2, "another outcome");
    running.stop().await;
    assert!(relay.zset("garbage:default").await.contains_key("a"));

    // The manager moves one whose lease ran out, while no consumer runs.
    let mut last = message("b", When::NOW);
    last.record.max_attempts = Some(1);
    relay.send(&[last]).await;
    let entries = [relay.read_one().await.attempt.entry];
    let started = broker.renew(relay.topic(), Shard::new(0), group, relay::WORKER, &entries);
    started.await.unwrap();
    relay.age(entries[0], relay::WORKER, ms(2000)).await;
    assert_eq!(relay.reclaim().await.garbage, 1);
    let (_, handler) = counting(|| Outcome::Ack);
    let running = start(&relay, subscription(handler).garbage_topic(topic("failed")));
    let callbacks = until_stored(&relay, "failed", 3).await;
    let of_b = callbacks
        .values()
        .find(|record| record.headers.get("lisa-callback-id") == Some("b"));
    assert_eq!(
        of_b.unwrap().headers.get("lisa-callback-reason"),
        Some("exhausted")
    );
    running.stop().await;
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_runs_after_its_callback_and_only_the_hook_is_repeated() {
    let relay = relay("callback-hook").await;
    declare(&relay, "failed", settings()).await;
    let hooks = Arc::new(AtomicUsize::new(0));
    let count = hooks.clone();
    let handler = delivery_fn(|_, _| async { Outcome::reject("never") });
    let handler = handler.on_garbage(move |_, _| {
        let run = count.fetch_add(1, Ordering::SeqCst);
        async move { if run == 0 { Err("not now") } else { Ok(()) } }
    });
    let running = start(&relay, subscription(handler).garbage_topic(topic("failed")));
    relay.send(&[message("a", When::NOW)]).await;
    running.until(|report| report.garbage_hooks == 1).await;
    assert_eq!(hooks.load(Ordering::SeqCst), 2);
    assert_eq!(stored(&relay, "failed").await.len(), 1);
    running.stop().await;
    relay.assert_conserved().await;
}

fn one_message() -> TopicSettings {
    TopicSettings {
        max_messages: Some(1),
        ..settings()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_topic_slows_the_reading_and_no_handler_runs_twice() {
    let relay = relay("callback-held").await;
    let done = declare(&relay, "done", one_message()).await;
    let (runs, handler) = counting(|| Outcome::Ack);
    let reporting = subscription(handler).success_topic(topic("done"));
    let running = start(&relay, reporting.concurrency(1));
    relay.send(&[message("a", When::NOW)]).await;
    running.until(|report| report.acked == 1).await;
    relay
        .send(&["b", "c"].map(|id| message(id, When::NOW)))
        .await;
    for (acked, runs_before) in [(2, 2), (3, 3)] {
        eventually(SOON, async || match running.consumer.warnings() {
            warnings
                if warnings
                    .concat()
                    .contains("done has reached its max_messages") =>
            {
                Ok(())
            }
            warnings => Err(format!("{warnings:?}")),
        })
        .await;
        assert_eq!(runs.load(Ordering::SeqCst), runs_before, "one is held");
        empty(&relay, &done).await;
        running.until(|report| report.acked == acked).await;
    }
    assert_eq!(running.consumer.warnings(), [""; 0]);
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    assert_eq!(stored(&relay, "done").await.len(), 1);
    let report = running.stop().await;
    assert_eq!((report.deferred, report.retried), (0, 0));
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_for_garbage_waits_until_its_topic_has_room() {
    let relay = relay("callback-garbage-full").await;
    let failed = declare(&relay, "failed", one_message()).await;
    let (runs, handler) = counting(|| Outcome::reject("never"));
    let reporting = subscription(handler).garbage_topic(topic("failed"));
    // Shorter than the lease: the hook is taken again.
    let running = start(&relay, reporting.handler_timeout(ms(300)));
    relay.send(&[message("a", When::NOW)]).await;
    running.until(|report| report.garbage_hooks == 1).await;
    relay.send(&[message("b", When::NOW)]).await;
    running.until(|report| report.garbage == 2).await;
    let hook = async || {
        let hooks = relay.zset("garbage_hook:default").await;
        hooks.get("b").copied().ok_or("no hook")
    };
    let first = eventually(SOON, hook).await;
    eventually(SOON, async || match hook().await {
        Ok(time) if time >= first + 2 * settings().lease.as_millis() as u64 => Ok(()),
        other => Err(format!("{other:?} after {first}")),
    })
    .await;
    empty(&relay, &failed).await;
    running.until(|report| report.garbage_hooks == 2).await;
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    let callbacks = stored(&relay, "failed").await;
    let ids = callbacks
        .values()
        .map(|record| record.headers.get("lisa-callback-id"));
    assert_eq!(ids.collect::<Vec<_>>(), [Some("b")]);
    running.stop().await;
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_stays_full_defers_uncounted() {
    let relay = relay("callback-full").await;
    let done = declare(&relay, "done", one_message()).await;
    let (runs, handler) = counting(|| Outcome::Ack);
    let reporting = subscription(handler).success_topic(topic("done"));
    let running = start(&relay, reporting.handler_timeout(ms(400)));
    let mut last = message("b", When::NOW);
    last.record.max_attempts = Some(1);
    relay.send(&[message("a", When::NOW)]).await;
    running.until(|report| report.acked == 1).await;
    relay.send(&[last]).await;
    running.until(|report| report.deferred == 1).await;
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    let retry = relay.zset("retry:default").await;
    assert!(retry.contains_key("b"), "{retry:?}");
    empty(&relay, &done).await;
    let b = relay::id("b");
    let deliver = relay
        .broker()
        .reschedule(relay.topic(), &b, None, When::NOW);
    deliver.await.unwrap();
    relay.move_due(100).await;
    running.until(|report| report.acked == 2).await;
    let callbacks = stored(&relay, "done").await;
    let attempts = callbacks
        .values()
        .map(|record| record.headers.get("lisa-callback-attempts"));
    assert_eq!(attempts.collect::<Vec<_>>(), [Some("1")]);
    let report = running.stop().await;
    assert_eq!((report.retried, report.garbage), (0, 0));
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_held_for_a_topic_that_does_not_exist_is_handed_back_at_a_shutdown() {
    let relay = relay("callback-unknown").await;
    let (runs, handler) = counting(|| Outcome::Ack);
    let handler = Arc::new(handler);
    let reporting = || subscription(handler.clone()).success_topic(topic("done"));
    let running = start(&relay, reporting());
    relay.send(&[message("a", When::NOW)]).await;
    eventually(SOON, async || match running.consumer.warnings() {
        warnings if warnings.concat().contains("topic done is not registered") => Ok(()),
        warnings => Err(format!("{warnings:?}")),
    })
    .await;
    let report = running.stop().await;
    assert_eq!((report.acked, report.deferred, report.unsettled), (0, 1, 0));
    declare(&relay, "done", settings()).await;
    relay.move_due(100).await;
    let running = start(&relay, reporting());
    running.until(|report| report.acked == 1).await;
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert_eq!(stored(&relay, "done").await.len(), 1);
    running.stop().await;
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ninth_callback_in_a_row_is_not_sent() {
    let relay = relay("callback-hops").await;
    declare(&relay, "done", settings()).await;
    let (_, handler) = counting(|| Outcome::Ack);
    let running = start(&relay, subscription(handler).success_topic(topic("done")));
    for hops in ["7", "8", "99"] {
        let of = relay::id(&format!("hops-{hops}"));
        let group = "default".parse().unwrap();
        let id = MessageId::of_callback(
            CallbackOutcome::Success,
            &topic("before"),
            &group,
            &of,
            None,
        );
        let mut sent = message(id.as_str(), When::NOW);
        let headers = &mut sent.record.headers;
        headers.insert_any("lisa-callback-hops", hops).unwrap();
        relay.send(&[sent]).await;
    }
    running.until(|report| report.acked == 3).await;
    let callbacks = stored(&relay, "done").await;
    let hops = callbacks
        .values()
        .map(|record| record.headers.get("lisa-callback-hops"));
    assert_eq!(hops.collect::<Vec<_>>(), [Some("8")]);
    running.stop().await;
    relay.assert_conserved().await;
}

/// As an older version stored it, which let senders set these headers.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_only_says_that_it_is_a_callback_has_one_of_its_own() {
    let relay = relay("callback-forged").await;
    declare(&relay, "done", settings()).await;
    let (_, handler) = counting(|| Outcome::Ack);
    let running = start(&relay, subscription(handler).success_topic(topic("done")));
    let mut sent = message("forged", When::NOW);
    let headers = &mut sent.record.headers;
    headers.insert_any("lisa-callback-hops", "8").unwrap();
    relay.send(&[sent]).await;
    running.until(|report| report.acked == 1).await;
    let callbacks = stored(&relay, "done").await;
    let (_, record) = callbacks.first_key_value().expect("a callback");
    assert_eq!(record.headers.get("lisa-callback-hops"), Some("1"));
    running.stop().await;
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_sender_can_take_the_place_of_a_callback() {
    let relay = relay("callback-forestalled").await;
    let done = declare(&relay, "done", settings()).await;
    let producer = Producer::new(relay.broker().clone());
    let (of, group) = (relay::id("paid"), "default".parse().unwrap());
    let (outcome, to) = (CallbackOutcome::Success, done.name().clone());
    let id = MessageId::of_callback(outcome, &topic("t"), &group, &of, None);
    let forged = || NewMessage::new("forged");
    for message in [
        forged().id(id.as_str()),
        forged().header("lisa-callback-hops", "8"),
        forged().replace("other").id(id.as_str()),
    ] {
        let batch = producer
            .send_batch(&to, vec![message.clone()])
            .await
            .unwrap();
        let single = producer.send_message(&to, message).await;
        for result in [single, batch.into_iter().next().unwrap()] {
            assert!(matches!(result, Err(SendError::Invalid(_))), "{result:?}");
        }
    }
    let (_, handler) = counting(|| Outcome::Ack);
    let running = start(&relay, subscription(handler).success_topic(topic("done")));
    relay.send(&[message("paid", When::NOW)]).await;
    running.until(|report| report.acked == 1).await;
    let callbacks = stored(&relay, "done").await;
    assert_eq!(callbacks[&id].payload, "payload of paid");
    running.stop().await;
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_the_topic_does_not_allow_is_omitted() {
    for (stem, max_payload, max_bytes) in [
        ("callback-payload", 999, None),
        ("callback-bytes", 2000, Some(Size::new(1000))),
    ] {
        let relay = relay(stem).await;
        let small = TopicSettings {
            max_payload: Size::new(max_payload),
            max_bytes,
            ..settings()
        };
        declare(&relay, "done", small).await;
        let (_, handler) = counting(|| Outcome::Ack);
        let running = start(&relay, subscription(handler).success_topic(topic("done")));
        let mut large = message("a", When::NOW);
        large.record.payload = vec![b'x'; 1000].into();
        relay.send(&[large]).await;
        running.until(|report| report.acked == 1).await;
        let callbacks = stored(&relay, "done").await;
        let (_, record) = callbacks.first_key_value().unwrap();
        assert!(record.payload.is_empty());
        let omitted = record.headers.get("lisa-callback-omitted-payload-bytes");
        assert_eq!(omitted, Some("1000"));
        running.stop().await;
        relay.assert_conserved().await;
    }
}

#[tokio::test]
async fn callbacks_without_an_end_are_refused() {
    let relay = relay("callback-cycle").await;
    let reporting = |from: &str, to: &str| {
        let (_, handler) = counting(|| Outcome::Ack);
        Subscription::new(topic(from), "default".parse().unwrap(), handler).success_topic(topic(to))
    };
    let build = |subscriptions: Vec<Subscription>| {
        let mut builder = Consumer::builder(relay.broker().clone());
        for subscription in subscriptions {
            builder = builder.subscription(subscription);
        }
        builder.build()
    };
    assert!(build(vec![reporting("a", "b"), reporting("b", "c")]).is_ok());
    let cycle = build(vec![reporting("a", "b"), reporting("b", "a")])
        .err()
        .unwrap();
    assert_eq!(cycle.to_string(), "callbacks form a cycle: b → a → b");
}
