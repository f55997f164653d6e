//! The due time of an attempt. It stays the same however often and however late the attempt is delivered, until a retry, a
//! deferral, a requeue or a reschedule sets another one. Lateness is measured from it.

use super::stage::{Asking, SHARD, Stage, defer, groups, name, reject};
use lisa_core::broker::{Declare, Read, Verdict};
use lisa_core::message::PreparedMessage;
use lisa_core::time::{UnixMs, When};
use lisa_core::topic::{OnLate, TopicSettings};
use lisa_tests::relay::{START, WORKER, message, ms, retry};
use redis::cmd;

/// The due time of all messages, in ms after the start.
const DUE: u64 = 5;
/// The time that passes while a delivery is held.
const HELD: u64 = 3000;

/// Returns a verdict: the same attempt again after a pause.
fn hand_back(pause: u64) -> Verdict {
    let when = When::After(ms(pause));
    Verdict::HandBack { when }
}

/// Returns the attempt number of a delivery, and its due time in ms after the start.
fn attempt(read: &Read) -> (u32, u64) {
    (read.attempt.number, read.attempt.due.get() - START)
}

/// Lets time pass until the message is ready again.
async fn again(stage: &Stage, pause: u64) -> Read {
    stage.pass(pause).await;
    stage.begin("a", "m").await
}

async fn reclaim(stage: &Stage) {
    let (topic, group) = (stage.topic(), name("a"));
    let reclaimed = stage.broker().reclaim(topic, SHARD, &group, true).await;
    assert_eq!(reclaimed.unwrap().retry, 1);
}

/// A topic, and the options of a message, for each way from a due message to the stream.
fn ways() -> Vec<(TopicSettings, PreparedMessage)> {
    let plain = || message("m", ms(DUE));
    let window = TopicSettings {
        max_ready: Some(1),
        ..groups(&["a"])
    };
    let rate = TopicSettings {
        rate: Some("10/s".parse().unwrap()),
        ..groups(&["a"])
    };
    vec![
        (groups(&["a"]), plain()),
        (groups(&["a"]), plain().ttl(3_600_000)),
        (groups(&["a"]), plain().key("k")),
        (groups(&["a", "b"]), plain()),
        (window.clone(), plain()),
        (window, plain().key("k").priority(3)),
        (rate, plain()),
    ]
}

#[tokio::test]
async fn an_attempt_that_comes_again_uncounted_keeps_its_due_time() {
    for (settings, sent) in ways() {
        let stage = Stage::with(settings).await;
        stage.put(&[sent]).await;
        let mut read = again(&stage, DUE).await;
        for (verdict, pause) in [
            (hand_back(0), 0),
            (hand_back(250), 250),
            (Verdict::Lost, 0),
            (Verdict::Expired, 0),
        ] {
            assert_eq!(attempt(&read), (1, DUE), "before {verdict:?}");
            stage.step(HELD as i64);
            stage.end("a", &read, verdict).await;
            read = again(&stage, pause).await;
        }
        assert_eq!(attempt(&read), (1, DUE));
        stage.step(HELD as i64);
        stage.forget("a", &read).await;
        reclaim(&stage).await;
        read = again(&stage, 0).await;
        assert_eq!((attempt(&read), read.attempt.crashes), ((1, DUE), 1));
        let mut remove = cmd("XGROUP");
        let ready = stage.key("ready:a");
        remove.arg("DELCONSUMER").arg(ready).arg("a").arg(WORKER);
        let _: u64 = stage.command(&remove).await;
        let (topic, group) = (stage.topic(), name("a"));
        let cleaned = stage.broker().clean(topic, SHARD, &group, None).await;
        cleaned.unwrap();
        read = again(&stage, HELD).await;
        assert_eq!(attempt(&read), (1, DUE));
        // So does a retry: its due time is its own.
        stage.end("a", &read, retry(ms(100))).await;
        let due = stage.now().get() - START + 100;
        read = again(&stage, 100).await;
        assert_eq!(attempt(&read), (2, due));
        stage.step(HELD as i64);
        stage.end("a", &read, hand_back(250)).await;
        read = again(&stage, 250).await;
        assert_eq!(attempt(&read), (2, due));
        stage.assert_whole().await;
    }
}

#[tokio::test]
async fn a_retry_a_deferral_and_a_requeue_set_a_due_time() {
    for (settings, sent) in ways() {
        let stage = Stage::with(settings).await;
        stage.put(&[sent]).await;
        let after = || stage.now().get() - START;
        let mut read = again(&stage, DUE).await;
        for (verdict, number) in [(defer(100), 1), (retry(ms(100)), 2), (defer(100), 2)] {
            stage.step(HELD as i64);
            // A due time that was kept beside a pause is over with the attempt.
            stage.end("a", &read, hand_back(50)).await;
            read = again(&stage, 50).await;
            stage.end("a", &read, verdict).await;
            let due = after() + 100;
            read = again(&stage, 100 + HELD).await;
            assert_eq!(attempt(&read), (number, due));
        }
        stage.end("a", &read, reject()).await;
        let garbage = after();
        stage.step(HELD as i64);
        assert_eq!(stage.requeue("a", "m", garbage).await, 1);
        let due = after();
        read = again(&stage, HELD).await;
        assert_eq!(attempt(&read), (1, due));
        stage.assert_whole().await;
    }
}

#[tokio::test]
async fn a_reschedule_replaces_a_due_time_that_was_kept() {
    for (settings, sent) in ways() {
        let stage = Stage::with(settings).await;
        stage.put(&[sent]).await;
        let read = again(&stage, DUE).await;
        stage.end("a", &read, hand_back(60_000)).await;
        if stage.topic().settings().groups.len() > 1 {
            stage.run("b", "m", hand_back(60_000)).await;
        }
        let when = When::At(UnixMs::new(START + 10_000));
        assert_eq!(stage.reschedule("m", when).await, "rescheduled@10000");
        let read = again(&stage, 10_000 + HELD).await;
        assert_eq!(attempt(&read), (1, 10_000));
        stage.assert_whole().await;
    }
}

#[tokio::test]
async fn a_delivery_that_comes_again_after_the_maximum_lateness_is_too_late() {
    for on_late in [OnLate::Garbage, OnLate::Drop] {
        let stage = Stage::with(TopicSettings {
            max_lateness: Some(ms(HELD - 1)),
            on_late,
            ..groups(&["a"])
        })
        .await;
        stage.put(&[message("m", ms(DUE))]).await;
        let read = again(&stage, DUE).await;
        stage.step(HELD as i64);
        stage.forget("a", &read).await;
        reclaim(&stage).await;
        stage.moved().await;
        let garbage = i64::from(on_late == OnLate::Garbage);
        assert_eq!(stage.ready("a").await, [""; 0]);
        assert_eq!(stage.count("lapsed:a").await, garbage);
        assert_eq!(stage.count("expired:a").await, 1 - garbage);
        stage.assert_whole().await;
    }
}

#[tokio::test]
async fn a_hand_back_returns_the_slot_of_a_message_that_the_rate_held_back() {
    let stage = Stage::with(TopicSettings {
        rate: Some("1/s".parse().unwrap()),
        ..groups(&["a"])
    })
    .await;
    let all = ["m0", "m1", "m2"].map(|name| message(name, ms(0)));
    stage.put(&all).await;
    stage.handle("a").await;
    stage.pass(1000).await;
    // m1 was due a second before the rate released it.
    stage.run("a", "m1", hand_back(60_000)).await;
    assert_eq!(stage.ready("a").await, ["m2"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_message_takes_its_old_place_in_a_backlog_that_began_after_it() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.put(&[message("m", ms(DUE))]).await;
    let read = again(&stage, DUE).await;
    stage.end("a", &read, hand_back(50)).await;
    stage.pause_group("a", true).await;
    stage.put(&[message("later", ms(10))]).await;
    stage.pass(50).await;
    stage.pause_group("a", false).await;
    stage.moved().await;
    assert_eq!(stage.ready("a").await, ["m", "later"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_clock_that_stepped_back_does_not_delay_what_comes_again_at_once() {
    for (settings, sent) in ways() {
        let stage = Stage::with(settings).await;
        stage.put(&[sent]).await;
        let read = again(&stage, DUE).await;
        stage.step(-60_000);
        stage.end("a", &read, hand_back(0)).await;
        again(&stage, 200).await;
        stage.assert_whole().await;
    }
}

#[tokio::test]
async fn a_requeued_message_of_a_key_is_not_due_after_a_clock_that_stepped_back_since() {
    let stage = Stage::of(&["a"]).await;
    stage.put(&[message("m", ms(0)).key("k")]).await;
    stage.run("a", "m", reject()).await;
    stage.step(2);
    assert_eq!(stage.requeue("a", "m", 0).await, 1);
    stage.step(-2);
    stage.moved().await;
    assert_eq!(attempt(&stage.begin("a", "m").await), (1, 0));
}

/// A plain message has no record of its due time but that of the attempt, which a backlog must go by.
#[tokio::test]
async fn what_comes_again_to_a_topic_that_got_a_window_goes_before_what_was_due_later() {
    let stage = Stage::of(&["a"]).await;
    stage.put(&[message("first", ms(0))]).await;
    stage.run("a", "first", hand_back(50)).await;
    let windowed = TopicSettings {
        max_ready: Some(1),
        ..groups(&["a"])
    };
    let topic = stage.topic().name();
    let declared = (stage.broker()).declare(topic, &windowed, Declare::Update);
    declared.await.unwrap();
    stage
        .put(&[message("there", ms(0)), message("later", ms(40))])
        .await;
    stage.pass(60).await;
    assert_eq!(stage.drain("a").await, ["there", "first", "later"]);
    stage.assert_whole().await;
}
