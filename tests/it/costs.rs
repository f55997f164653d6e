//! The relay's costs in Redis, counted and not timed: calls and commands per message, commands per second at rest,
//! bytes per message. Each bound here is a promise: justify every increase.
//!
//! Speed is measured by the benches.

mod features;
mod ledger;
mod rest;
mod size;

use futures_util::future::join_all;
use ledger::Ledger;
use lisa_core::broker::{Examination, MAX_SEND_BATCH, Settlement, Verdict};
use lisa_core::message::{NewId, PreparedMessage};
use lisa_core::redis::Extra;
use lisa_core::time::When;
use lisa_core::topic::{Shard, TopicSettings};
use lisa_producer::Producer;
use lisa_tests::relay::{WORKER, connection, id, message, ms, retry, settings, settlement};
use lisa_tests::{Relay, SOON, Server, yardstick};
use redis::cmd;
use std::collections::BTreeSet;

const BATCH: usize = 200;

/// A relay on its own server, with scripts loaded and the reader connected.
async fn warm(server: &Server) -> Relay {
    let relay = Relay::on(server, &connection(server).await, "costs", settings()).await;
    let read = relay.hold("warm").await;
    let ids = [id("warm")];
    let records = relay
        .broker()
        .records(relay.topic(), Shard::new(0), &ids, Extra::Small);
    assert!(records.await.unwrap()[0].is_some());
    relay.settle(&read, Verdict::Ack).await;
    relay.move_due(1).await;
    relay
}

/// The bytes that keys of shard 0 take; one that is not there takes none.
async fn bytes_of(relay: &Relay, keys: &[&str]) -> usize {
    let mut bytes = 0;
    for key in keys {
        let mut usage = cmd("MEMORY");
        usage.arg("USAGE").arg(relay.key(key));
        let of_key: Option<usize> = relay.command(usage.arg("SAMPLES").arg(0)).await;
        bytes += of_key.unwrap_or(0);
    }
    bytes
}

fn fresh(count: usize, size: usize, when: impl Into<When>) -> Vec<PreparedMessage> {
    let when = when.into();
    let message = |_| PreparedMessage {
        new_id: NewId::generated(),
        when,
        ..PreparedMessage::new(vec![b'x'; size])
    };
    (0..count).map(message).collect()
}

#[tokio::test]
async fn each_batch_is_one_call_and_few_commands() {
    let server = Server::start();
    let (relay, ledger) = (warm(&server).await, Ledger::open(&server).await);
    ledger.page().await;
    let mut total = 0;

    relay.send(&fresh(BATCH, 100, ms(10))).await;
    let page = ledger.page().await;
    println!("send {BATCH}: {page}");
    let sends = BATCH / MAX_SEND_BATCH;
    page.costs(&[("EVALSHA", sends)], 12 * sends);
    total += page.requests() + page.inside();

    relay.step(10);
    relay.move_due(BATCH as u16).await;
    let page = ledger.page().await;
    println!("move {BATCH}: {page}");
    page.costs(&[("EVALSHA", 1)], BATCH + 12);
    total += page.requests() + page.inside();

    let mut reads = Vec::new();
    for _ in 0..BATCH / 100 {
        let read = relay.read(100).await;
        let ids: Vec<_> = read.iter().filter_map(|read| read.id.clone()).collect();
        let records = relay
            .broker()
            .records(relay.topic(), Shard::new(0), &ids, Extra::Small);
        assert!(records.await.unwrap().iter().all(Option::is_some));
        reads.extend(read);
        let page = ledger.page().await;
        page.costs(&[("XREADGROUP", 1), ("HMGET", 1)], 0);
        total += page.requests();
    }
    assert_eq!(reads.len(), BATCH);

    let acks: Vec<_> = reads
        .iter()
        .map(|read| Settlement {
            caller_id: false,
            ..settlement(read, Verdict::Ack)
        })
        .collect();
    relay.settle_all(&acks).await;
    let page = ledger.page().await;
    println!("ack {BATCH}: {page}");
    page.costs(&[("EVALSHA", 1)], 12);
    total += page.requests() + page.inside();

    let each = total as f64 / BATCH as f64;
    println!("{each:.3} commands a message from end to end");
    assert!(each <= 1.25, "{each}");
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_large_payload_costs_no_more_commands_than_a_small_one() {
    let server = Server::start();
    let (relay, ledger) = (warm(&server).await, Ledger::open(&server).await);
    let mut counts = Vec::new();
    for size in [1, 100_000] {
        ledger.page().await;
        relay.send(&fresh(20, size, ms(10))).await;
        relay.step(10);
        relay.move_due(BATCH as u16).await;
        for read in relay.read(100).await {
            relay.settle(&read, Verdict::Ack).await;
        }
        let page = ledger.page().await;
        counts.push((page.asked(), page.inside));
    }
    assert_eq!(counts[0], counts[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_sends_at_once_are_few_calls() {
    let server = Server::start();
    let (relay, ledger) = (warm(&server).await, Ledger::open(&server).await);
    let producer = Producer::new(relay.broker().clone());
    ledger.page().await;
    let sends = (0..1000).map(|_| producer.send_bytes("t", "x").delay(ms(10)).into_future());
    for sent in join_all(sends).await {
        sent.unwrap();
    }
    let page = ledger.page().await;
    println!("1000 sends: {page}");
    assert!(page.requests["EVALSHA"] <= 40, "{page}");
    assert!(page.requests() <= 40, "{page}");
}

#[tokio::test]
async fn a_waiting_message_of_100_bytes_takes_at_most_330_bytes() {
    const COUNT: usize = 50_000;
    let server = Server::start();
    let relay = warm(&server).await;
    for _ in 0..COUNT / BATCH {
        relay.send(&fresh(BATCH, 100, ms(10))).await;
    }
    let each = bytes_of(&relay, &["waiting", "payload"]).await / COUNT;
    println!("{each} bytes a message");
    assert!(each <= 330, "{each}");
}

/// A script blocks every client while it runs. The machine may be slow, which is measured, and may delay the script:
/// for each script, the best of several rounds counts.
#[tokio::test]
async fn no_call_of_full_size_takes_two_milliseconds() {
    let server = Server::start();
    let relay = warm(&server).await;
    let shard = Shard::new(0);
    // The scripts that were slow in every round so far.
    let mut slow: Option<BTreeSet<String>> = None;
    for _ in 0..30 {
        let limit = (2000.0 * yardstick::slowness(&relay).await) as u64;
        let mut set = cmd("CONFIG");
        set.arg(&["SET", "slowlog-log-slower-than"]).arg(limit);
        let () = relay.command(&set).await;
        relay.send(&fresh(BATCH, 100, ms(10))).await;
        relay.step(10);
        relay.move_due(BATCH as u16).await;
        let first = relay.read(BATCH).await;
        let later: Vec<_> = first
            .iter()
            .map(|read| settlement(read, retry(ms(10))))
            .collect();
        relay.settle_all(&later).await;
        relay.step(10);
        relay.move_due(BATCH as u16).await;
        let again = relay.read(BATCH).await;
        assert_eq!(again.len(), BATCH);
        let bad = |read| {
            let error = "no good".to_owned();
            settlement(read, Verdict::Reject { error })
        };
        relay
            .settle_all(&again.iter().map(bad).collect::<Vec<_>>())
            .await;
        let seen: Vec<_> = again
            .iter()
            .map(|read| (read.id.clone().unwrap(), relay.now()))
            .collect();
        let requeued = relay
            .broker()
            .requeue(relay.topic(), relay.group(), &seen)
            .await
            .unwrap();
        assert_eq!(requeued, BATCH as u64);
        relay.move_due(BATCH as u16).await;
        let last = relay.read(BATCH).await;
        for read in &last {
            relay.set_idle(read.attempt.entry, WORKER, ms(2000)).await;
        }
        relay.clock_past(last[BATCH - 1].attempt.entry).await;
        while relay.reclaim().await.more {}
        relay
            .broker()
            .clean(relay.topic(), shard, relay.group(), None)
            .await
            .unwrap();
        relay.step(10_000);
        relay.move_due(BATCH as u16).await;
        let acks = relay.read(BATCH).await;
        let acks: Vec<_> = acks
            .iter()
            .map(|read| settlement(read, Verdict::Ack))
            .collect();
        assert_eq!(acks.len(), BATCH);
        relay.settle_all(&acks).await;
        type Entry = (i64, i64, u64, Vec<Vec<u8>>, String, String);
        let entries: Vec<Entry> = relay.command(cmd("SLOWLOG").arg("GET").arg(100)).await;
        let scripts = entries.iter().filter(|entry| entry.3[0] == b"EVALSHA");
        let name = |entry: &Entry| String::from_utf8_lossy(&entry.3[1]).into_owned();
        let now: BTreeSet<_> = scripts.map(name).collect();
        let still = match slow {
            Some(before) => &before & &now,
            None => now,
        };
        let done = still.is_empty();
        slow = Some(still);
        if done {
            break;
        }
    }
    assert_eq!(slow, Some(BTreeSet::new()), "slow in every round");
    relay.assert_drained().await;
}

#[tokio::test]
async fn an_examination_looks_at_few_messages_in_one_call() {
    let server = Server::start();
    let (relay, ledger) = (warm(&server).await, Ledger::open(&server).await);
    for _ in 0..10 {
        relay.send(&fresh(BATCH, 100, ms(10))).await;
    }
    ledger.page().await;
    let how = Examination {
        rest: 0,
        ..Examination::of(relay.topic(), false)
    };
    let checkup = relay.broker().examine(relay.topic(), how).await.unwrap();
    assert_eq!(checkup.messages, 10 * BATCH as u64);
    let page = ledger.page().await;
    let each = page.inside() / page.requests["EVALSHA"];
    assert!(each <= 70, "{each} commands a call: {page}");
}

#[tokio::test]
async fn a_plain_topic_touches_no_key_of_a_feature() {
    let server = Server::start();
    let relay = Relay::on(&server, &connection(&server).await, "plain", settings()).await;
    let ledger = Ledger::open(&server).await;
    let sent = [message("now", When::NOW), message("later", ms(10))];
    relay.send(&sent).await;
    relay.step(10);
    relay.move_due(BATCH as u16).await;
    let reads = relay.read(10).await;
    relay.settle(&reads[0], Verdict::Ack).await;
    let hot = [
        "attempts:default",
        "conf",
        "payload",
        "ready:default",
        "retry:default",
    ];
    let hot = hot
        .into_iter()
        .chain(["into", "stats", "tomb", "waiting", "wake"]);
    let hot: BTreeSet<String> = hot.map(str::to_owned).collect();
    let page = ledger.page().await;
    assert_eq!(page.keys(), hot, "{page}");

    relay.settle(&reads[1], retry(ms(10))).await;
    relay.step(10);
    relay.move_due(BATCH as u16).await;
    let read = relay.read_one().await;
    relay.age(read.attempt.entry, WORKER, ms(2000)).await;
    relay.reclaim().await;
    relay.put_in_garbage("bad").await;
    let seen = [(id("bad"), relay.now())];
    relay
        .broker()
        .requeue(relay.topic(), relay.group(), &seen)
        .await
        .unwrap();
    for id in [id("later"), id("bad")] {
        relay
            .broker()
            .lookup(relay.topic(), &id, None)
            .await
            .unwrap();
        relay
            .broker()
            .reschedule(relay.topic(), &id, None, ms(10).into())
            .await
            .unwrap();
        relay
            .broker()
            .cancel(relay.topic(), &id, None)
            .await
            .unwrap();
    }
    relay
        .broker()
        .clean(relay.topic(), Shard::new(0), relay.group(), None)
        .await
        .unwrap();
    relay.assert_drained().await;
    assert_eq!(relay.hash("conf").await["class"], "plain");
}

/// Otherwise, each of them would declare and read all shards.
#[tokio::test]
async fn calls_that_find_shards_undeclared_restore_them_once() {
    let server = Server::start();
    let settings = TopicSettings {
        shards: 60,
        ..settings()
    };
    let relay = Relay::on(&server, &connection(&server).await, "costs", settings).await;
    let confs: Vec<String> = relay.command(cmd("KEYS").arg("*:conf")).await;
    let lost = confs.iter().filter(|conf| !conf.contains(":0}"));
    let gone: usize = relay
        .command(cmd("DEL").arg(lost.collect::<Vec<_>>()))
        .await;
    assert_eq!(gone, 59);
    let ledger = Ledger::open(&server).await;
    ledger.page().await;
    let send = async |shard: Shard| {
        let message = message(&format!("m{shard}"), ms(60_000));
        relay.broker().send(relay.topic(), shard, &[message]).await
    };
    for sent in join_all(relay.topic().shards().map(send)).await {
        sent.unwrap();
    }
    let page = ledger.page().await;
    // Of each shard: a refused send, a look, a declaration, its groups twice, the send, and at first the script. 60 restorations would
    // make that 60 times as many.
    assert!(page.requests() < 60 * 12, "{page}");
}
