//! move_due: nothing early, everything due in the order of time, never more than the batch.

use lisa_core::broker::Moved;
use lisa_core::time::UnixMs;
use lisa_tests::Relay;
use lisa_tests::relay::{START, message, ms, retry};
use redis::cmd;
use std::time::Duration;

fn moved(count: u64, pause: u64) -> Moved {
    let pause = ms(pause);
    Moved::Moved { count, pause }
}

#[tokio::test]
async fn nothing_moves_one_millisecond_early() {
    let relay = Relay::start("move").await;
    relay.send(&[message("a", ms(100))]).await;
    relay.step(99);
    let before = relay.entries().await;
    assert_eq!(relay.move_due(200).await, moved(0, 1));
    assert_eq!(relay.entries().await, before);
    relay.step(1);
    assert_eq!(relay.move_due(200).await, moved(1, 60_000));
    assert_eq!(relay.entries().await, [("a".into(), 1, START + 100)]);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn an_empty_topic_is_looked_at_again_after_the_idle_time() {
    let relay = Relay::start("move").await;
    assert_eq!(relay.move_due(1).await, moved(0, 60_000));
    assert_eq!(
        relay.hash("stats").await["alarm"],
        (START + 60_000).to_string()
    );
    relay.assert_drained().await;
}

#[tokio::test]
async fn waiting_and_retry_are_merged_by_time() {
    let relay = Relay::start("move").await;
    for (id, delay) in [("r1", 20), ("r2", 40)] {
        let read = relay.hold(id).await;
        relay.settle(&read, retry(ms(delay))).await;
    }
    relay
        .send(&[
            message("w1", ms(10)),
            message("w3", ms(30)),
            message("w2", ms(20)),
        ])
        .await;
    relay.step(50);
    assert_eq!(relay.move_due(200).await, moved(5, 60_000));
    let due = |id: &str, attempt, after| (id.to_owned(), attempt, START + after);
    assert_eq!(
        relay.entries().await,
        [
            due("w1", 1, 10),
            due("w2", 1, 20),
            due("r1", 2, 20),
            due("w3", 1, 30),
            due("r2", 2, 40)
        ]
    );
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_full_batch_says_that_more_may_be_due() {
    let relay = Relay::start("move").await;
    let batch: Vec<_> = (0..3).map(|n| message(&format!("m{n}"), ms(10))).collect();
    relay.send(&batch).await;
    relay.step(10);
    assert_eq!(relay.move_due(2).await, moved(2, 0));
    assert_eq!(relay.hash("stats").await["alarm"], "0");
    assert_eq!(relay.move_due(2).await, moved(1, 60_000));
    assert_eq!(relay.move_due(2).await, moved(0, 60_000));
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_batch_of_200_moves_200_of_201() {
    let relay = Relay::start("move").await;
    let batch: Vec<_> = (0..201)
        .map(|n| message(&format!("m{n:03}"), ms(10)))
        .collect();
    relay.send(&batch[..200]).await;
    relay.send(&batch[200..]).await;
    relay.step(10);
    assert_eq!(relay.move_due(200).await, moved(200, 0));
    assert_eq!(
        relay.zset("waiting").await,
        [("m200".into(), START + 10)].into()
    );
    assert_eq!(relay.move_due(200).await, moved(1, 60_000));
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_call_takes_half_as_many_while_more_than_a_million_others_wait() {
    let relay = Relay::start("move").await;
    let batch: Vec<_> = (0..50)
        .map(|n| message(&format!("m{n:02}"), ms(10)))
        .collect();
    relay.send(&batch).await;
    let add = "for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do redis.call('ZADD', KEYS[1], ARGV[3], 'x' .. i) end";
    let fill = async |from: u64, to: u64| {
        let mut fill = cmd("EVAL");
        fill.arg(add).arg(1).arg(relay.key("waiting"));
        let () = relay
            .command(fill.arg(from).arg(to).arg(START + 99_000))
            .await;
    };
    for thousand in 0..1000 {
        fill(thousand * 1000, thousand * 1000 + 999).await;
    }
    relay.step(10);
    assert_eq!(relay.move_due(20).await, moved(10, 0));
    let () = relay
        .command(
            cmd("ZREMRANGEBYRANK")
                .arg(relay.key("waiting"))
                .arg(-40)
                .arg(-1),
        )
        .await;
    assert_eq!(relay.move_due(20).await, moved(20, 0), "a million wait");
}

#[tokio::test]
async fn a_paused_topic_moves_nothing() {
    let relay = Relay::start("move").await;
    relay.send(&[message("a", ms(10))]).await;
    relay.broker().pause(relay.topic(), true).await.unwrap();
    relay.step(20);
    let before = relay.snapshot().await;
    assert_eq!(relay.move_due(200).await, Moved::Paused);
    assert_eq!(before.diff(&relay.snapshot().await), "");
    relay.broker().pause(relay.topic(), false).await.unwrap();
    assert_eq!(relay.move_due(200).await, moved(1, 60_000));
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_message_without_its_payload_moves_and_is_settled_as_lost() {
    let relay = Relay::start("move").await;
    relay.send(&[message("a", ms(10))]).await;
    relay.lose_payload("a").await;
    relay.step(10);
    assert_eq!(relay.move_due(200).await, moved(1, 60_000));
    let read = relay.read_one().await;
    let settled = relay.settle(&read, lisa_core::broker::Verdict::Lost).await;
    assert_eq!(settled, lisa_core::state::Settled::Lost);
    relay.assert_drained().await;
}

/// The script counts the messages of each ms of such a batch, and reads no scores.
#[tokio::test]
async fn a_full_batch_that_is_due_within_few_ms_keeps_each_due_time() {
    let relay = Relay::start("move").await;
    let due = |index: u64| 10 + index / 15 + index / 60 * 3;
    let messages: Vec<_> = (0..120)
        .map(|index| message(&format!("m{index:03}"), ms(due(index))))
        .collect();
    relay.send(&messages).await;
    relay.step(30);
    // Within 7 ms, one of them without a message; then within 4 ms, with the first ms of the batch begun before.
    for (batch, more) in [(70, 0), (49, 0), (1, 0), (1, 60_000)] {
        let count = if more == 0 { u64::from(batch) } else { 0 };
        assert_eq!(relay.move_due(batch).await, moved(count, more));
    }
    let entry = |index| (format!("m{index:03}"), 1, START + due(index));
    assert_eq!(
        relay.entries().await,
        (0..120).map(entry).collect::<Vec<_>>()
    );
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_pause_ends_with_the_beginning_of_a_millisecond_of_rediss_clock() {
    for keyed in [false, true] {
        let relay = Relay::start("move").await;
        relay.broker().set_virtual_now(UnixMs::new(0));
        let clock = async || {
            let (seconds, micros): (u64, u64) = relay.command(&cmd("TIME")).await;
            Duration::from_micros(seconds * 1_000_000 + micros)
        };
        let mut next = message("a", ms(3_600_000));
        next.options.key = keyed.then(|| "k".parse().unwrap());
        relay.send(&[next]).await;
        // A pause from a rounded time would pass in some short calls, but not in 20, and in all calls of a millisecond.
        let (mut short, mut tries) = (0, 0);
        while short < 20 && tries < 5000 {
            let before = clock().await;
            let Moved::Moved { count: 0, pause } = relay.move_due(1).await else {
                panic!("nothing is due");
            };
            let after = clock().await;
            tries += 1;
            short += u32::from(after - before < Duration::from_micros(500));
            // Within the call, the clock and the pause add up to whole milliseconds.
            let (first, last) = (before + pause, after + pause);
            assert!(
                first.as_millis() < last.as_millis() || first.subsec_micros() % 1000 == 0,
                "no millisecond begins between {first:?} and {last:?}"
            );
        }
    }
}
