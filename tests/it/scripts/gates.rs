//! The gates of a group: priority, window, rate. The tests check which messages they hold back, and when and in which
//! order they release them.

use super::stage::{Asking, Stage, defer, groups};
use lisa_core::broker::Verdict;
use lisa_core::message::PreparedMessage;
use lisa_core::state::Settled;
use lisa_core::time::When;
use lisa_core::topic::TopicSettings;
use lisa_tests::relay::{START, message, ms, retry};

async fn window(max_ready: u32, names: &[&str]) -> Stage {
    Stage::with(TopicSettings {
        max_ready: Some(max_ready),
        ..groups(names)
    })
    .await
}

async fn rate(rate: &str, burst: Option<u32>, names: &[&str]) -> Stage {
    Stage::with(TopicSettings {
        rate: Some(rate.parse().unwrap()),
        burst,
        ..groups(names)
    })
    .await
}

fn now(name: &str) -> PreparedMessage {
    message(name, When::NOW)
}

fn numbered(count: usize) -> Vec<PreparedMessage> {
    (0..count).map(|n| now(&format!("m{n:03}"))).collect()
}

#[tokio::test]
async fn the_higher_priority_goes_first_then_the_earlier_due_time_then_arrival() {
    let stage = window(1, &["a"]).await;
    stage.put(&[now("first")]).await;
    stage
        .send(&[
            message("low", ms(0)).priority(i32::MIN),
            message("high-late", ms(9)).priority(5),
            message("high-z", ms(5)).priority(5),
            message("high-a", ms(5)).priority(5),
            message("none", ms(3)),
            message("minus", ms(1)).priority(-1),
            message("top", ms(9)).priority(i32::MAX),
        ])
        .await;
    stage.pass(9).await;
    assert_eq!(
        stage.states().await[0],
        "backlog:a top*2147483647, high-z*5, high-a*5, high-late*5, none, minus*-1, low*-2147483648"
    );
    stage.assert_whole().await;
    assert_eq!(
        stage.drain("a").await,
        [
            "first",
            "top",
            "high-z",
            "high-a",
            "high-late",
            "none",
            "minus",
            "low"
        ]
    );
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn messages_are_picked_after_all_that_are_due_have_come_in() {
    let stage = window(2, &["a"]).await;
    stage
        .put(&[
            now("m1"),
            now("m2"),
            now("m3").priority(1),
            now("m4").priority(2),
        ])
        .await;
    assert_eq!(stage.ready("a").await, ["m4", "m3"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn the_window_counts_what_is_ready_and_what_is_in_flight() {
    let stage = window(2, &["a"]).await;
    stage.put(&numbered(4)).await;
    let reads = stage.take("a", 4).await;
    assert_eq!(reads.len(), 2);
    stage.moved().await;
    assert_eq!(
        stage.states().await,
        ["backlog:a m002, m003", "ready:a m000#1@0, m001#1@0"]
    );
    stage.end("a", &reads[0], Verdict::Ack).await;
    assert_eq!(stage.ready("a").await, ["m001", "m002"]);
    stage.end("a", &reads[1], retry(ms(5))).await;
    assert_eq!(stage.ready("a").await, ["m002", "m003"]);
    stage.assert_whole().await;
    stage.pass(5).await;
    assert_eq!(stage.states().await[1], "backlog:a m001");
    assert_eq!(stage.drain("a").await, ["m002", "m003", "m001"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn each_group_has_a_window_of_its_own() {
    let stage = window(1, &["a", "b"]).await;
    stage.put(&numbered(3)).await;
    assert_eq!(stage.drain("a").await.len(), 3);
    assert_eq!(
        stage.states().await,
        [
            "backlog:b m001, m002",
            "left m000=1, m001=1, m002=1",
            "ready:b m000#1@0"
        ]
    );
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_priority_brings_a_window_of_100() {
    let stage = Stage::of(&["a"]).await;
    stage.send(&numbered(150)).await;
    stage.send(&[now("urgent").priority(1)]).await;
    stage.moved().await;
    assert_eq!(stage.ready("a").await.len(), 150);
    stage.put(&[now("next").priority(1)]).await;
    assert_eq!(stage.states().await[0], "backlog:a urgent*1, next*1");
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_key_keeps_its_order_whatever_the_priority() {
    let stage = window(1, &["a"]).await;
    stage
        .put(&[now("m1").key("k"), now("m2").key("k").priority(9)])
        .await;
    assert_eq!(stage.ready("a").await, ["m1"]);
    assert_eq!(stage.drain("a").await, ["m1", "m2"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_holder_in_the_backlog_keeps_its_key() {
    let stage = window(1, &["a"]).await;
    stage
        .put(&[
            now("m0"),
            now("m1").key("k"),
            now("m2").key("k").priority(9),
        ])
        .await;
    assert_eq!(
        stage.states().await,
        [
            "backlog:a m1",
            "holder:a k=m1",
            "parked:a k>m2",
            "ready:a m0#1@0"
        ]
    );
    stage.assert_whole().await;
    assert_eq!(stage.drain("a").await, ["m0", "m1", "m2"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn an_attempt_that_a_gate_holds_back_keeps_its_due_time() {
    let stage = window(1, &["a"]).await;
    stage.put(&[now("m0")]).await;
    stage.put(&[now("m1")]).await;
    stage.step(50);
    stage.run("a", "m0", retry(ms(10))).await;
    assert!(stage.states().await.contains(&"ready:a m1#1@0".to_owned()));
    stage.pass(10).await;
    stage.step(30);
    stage.run("a", "m1", defer(5)).await;
    assert!(stage.states().await.contains(&"ready:a m0#2@60".to_owned()));
    stage.pass(5).await;
    stage.step(5);
    stage.run("a", "m0", Verdict::Ack).await;
    assert!(stage.states().await.contains(&"ready:a m1#1@95".to_owned()));
    stage.assert_whole().await;
    assert_eq!(stage.drain("a").await, ["m1"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_larger_window_lets_more_through() {
    let mut stage = window(1, &["a"]).await;
    stage.put(&numbered(4)).await;
    stage
        .update(TopicSettings {
            max_ready: Some(3),
            ..groups(&["a"])
        })
        .await;
    stage.moved().await;
    assert_eq!(stage.ready("a").await.len(), 3);
    stage.update(groups(&["a"])).await;
    stage.moved().await;
    assert_eq!(stage.ready("a").await.len(), 4);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_rate_lets_one_message_through_each_interval() {
    let stage = rate("10/s", Some(1), &["a"]).await;
    stage.send(&numbered(3)).await;
    assert_eq!(stage.moved().await, (3, 100));
    assert_eq!(stage.ready("a").await, ["m000"]);
    stage.step(99);
    assert_eq!(stage.moved().await, (0, 1));
    assert_eq!(stage.ready("a").await.len(), 1);
    stage.step(1);
    assert_eq!(stage.moved().await, (0, 100));
    assert_eq!(stage.ready("a").await.len(), 2);
    stage.step(100);
    assert_eq!(stage.moved().await, (0, 60_000));
    assert_eq!(
        stage.states().await,
        ["ready:a m000#1@0, m001#1@0, m002#1@0"]
    );
    stage.assert_whole().await;
}

/// Settings with a rate, and the burst of one message.
fn at_rate(text: &str) -> TopicSettings {
    TopicSettings {
        rate: Some(text.parse().unwrap()),
        burst: Some(1),
        ..groups(&["a"])
    }
}

#[tokio::test]
async fn a_faster_rate_does_not_wait_for_as_long_as_the_slower_one_would_have() {
    let mut stage = Stage::with(at_rate("1/h")).await;
    stage.put(&numbered(3)).await;
    assert_eq!(stage.ready("a").await, ["m000"]);
    stage.update(at_rate("10/s")).await;
    stage.moved().await;
    assert_eq!(stage.ready("a").await.len(), 1, "the burst is used up");
    stage.pass(100).await;
    assert_eq!(stage.ready("a").await, ["m000", "m001"]);
    stage.pass(100).await;
    assert_eq!(stage.ready("a").await.len(), 3);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_clock_that_steps_back_by_hours_does_not_hold_a_rate_up() {
    let stage = Stage::with(at_rate("10/s")).await;
    stage.step(2 * 3_600_000);
    stage.put(&numbered(3)).await;
    assert_eq!(stage.ready("a").await, ["m000"]);
    stage.step(-3_600_000);
    stage.moved().await;
    stage.pass(100).await;
    assert_eq!(stage.ready("a").await, ["m000", "m001"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn an_ack_does_not_let_a_rate_be_exceeded() {
    let stage = rate("10/s", Some(1), &["a"]).await;
    stage.put(&numbered(2)).await;
    stage.handle("a").await;
    assert_eq!(stage.ready("a").await, [""; 0]);
    stage.pass(100).await;
    assert_eq!(stage.drain("a").await, ["m001"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn what_is_handed_back_has_used_none_of_the_rate() {
    let stage = rate("10/s", Some(1), &["a"]).await;
    stage.put(&numbered(3)).await;
    let when = When::After(ms(60_000));
    let settled = stage.run("a", "m000", Verdict::HandBack { when }).await;
    assert!(matches!(settled, Settled::Deferred { .. }), "{settled:?}");
    assert_eq!(stage.ready("a").await, ["m001"]);
    // A message that reached a handler has used the rate, and no hand-back saves anything up.
    stage.handle("a").await;
    assert_eq!(stage.ready("a").await, [""; 0]);
    stage.pass(100).await;
    stage.step(5000);
    let when = When::After(ms(0));
    stage.run("a", "m002", Verdict::HandBack { when }).await;
    stage.put(&[now("x1"), now("x2")]).await;
    assert_eq!(stage.ready("a").await.len(), 1);
    stage.assert_whole().await;
}

#[tokio::test]
async fn what_is_handed_back_late_gives_nothing_back_that_is_free_by_itself() {
    let stage = rate("10/s", Some(2), &["a"]).await;
    stage.put(&numbered(1)).await;
    stage.step(10_000);
    stage
        .put(&["x1", "x2", "x3"].map(|name| message(name, ms(0))))
        .await;
    assert_eq!(stage.ready("a").await, ["m000", "x1", "x2"]);
    let when = When::After(ms(60_000));
    stage.run("a", "m000", Verdict::HandBack { when }).await;
    assert_eq!(stage.ready("a").await, ["x1", "x2"], "a burst is two");
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_quiet_time_is_worth_one_burst_and_no_more() {
    let stage = rate("10/s", Some(3), &["a"]).await;
    stage.step(10_000);
    stage.put(&numbered(5)).await;
    assert_eq!(stage.ready("a").await.len(), 3);
    stage.pass(100).await;
    assert_eq!(stage.ready("a").await.len(), 4);
    stage.pass(10_000).await;
    assert_eq!(stage.ready("a").await.len(), 5);
    stage
        .put(&["x1", "x2", "x3", "x4"].map(|name| message(name, ms(0))))
        .await;
    assert_eq!(stage.ready("a").await.len(), 7);
    stage.assert_whole().await;
}

#[tokio::test]
async fn no_span_of_time_has_more_than_its_share_and_none_is_lost() {
    for (text, burst, interval) in [("100/s", 5, 10.0), ("7/s", 1, 1000.0 / 7.0)] {
        let stage = rate(text, Some(burst), &["a"]).await;
        stage.send(&numbered(200)).await;
        let mut times: Vec<f64> = Vec::new();
        let mut time = 0;
        for _ in 0..60 {
            let (_, pause) = stage.moved().await;
            let ready = stage.ready("a").await.len();
            times.resize(ready, f64::from(time));
            let step = pause.clamp(1, 17);
            stage.step(i64::try_from(step).unwrap());
            time += u32::try_from(step).unwrap();
        }
        // GCRA: the n-th of any run comes no earlier than n - burst intervals after its first, but for the rounding to
        // ms.
        for (i, first) in times.iter().enumerate() {
            for (n, later) in times.iter().enumerate().skip(i) {
                let earliest = (n - i + 1) as f64 - f64::from(burst);
                assert!(
                    later - first >= earliest * interval - 1.0,
                    "{text}: {times:?}"
                );
            }
        }
        let least = f64::from(time - 17) / interval;
        assert!(times.len() as f64 >= least.floor(), "{text}: {times:?}");
        stage.assert_whole().await;
    }
}

#[tokio::test]
async fn each_group_has_the_whole_rate() {
    let stage = rate("10/s", Some(1), &["a", "b"]).await;
    stage.put(&numbered(2)).await;
    stage.pause_group("b", true).await;
    stage.pass(100).await;
    assert_eq!(stage.ready("a").await.len(), 2);
    assert_eq!(stage.ready("b").await.len(), 1);
    stage.pass(1000).await;
    stage.pause_group("b", false).await;
    stage.moved().await;
    assert_eq!(stage.ready("b").await.len(), 2);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_retry_is_counted_by_the_rate() {
    let stage = rate("10/s", Some(1), &["a"]).await;
    stage.put(&[now("m1")]).await;
    stage.run("a", "m1", retry(ms(5))).await;
    stage.pass(5).await;
    assert_eq!(
        stage.states().await,
        [
            format!("attempts:a m1=1 0@{} it failed", START + 5),
            "backlog:a m1".to_owned()
        ]
    );
    stage.pass(95).await;
    assert_eq!(stage.states().await[1], "ready:a m1#2@5");
    stage.assert_whole().await;
}

#[tokio::test]
async fn what_has_lapsed_takes_nothing_of_the_rate() {
    let stage = rate("10/s", Some(1), &["a"]).await;
    stage
        .send(&[
            now("m1").ttl(5),
            now("m2").ttl(5),
            message("m3", ms(1)),
            message("m4", ms(1)),
        ])
        .await;
    stage.pass(5).await;
    assert_eq!(stage.ready("a").await, ["m3"]);
    assert_eq!(stage.count("lapsed:a").await, 2);
    stage.pass(100).await;
    assert_eq!(stage.ready("a").await, ["m3", "m4"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn window_and_rate_hold_together() {
    let stage = Stage::with(TopicSettings {
        rate: Some("10/s".parse().unwrap()),
        burst: Some(3),
        max_ready: Some(2),
        ..groups(&["a"])
    })
    .await;
    stage.put(&numbered(6)).await;
    assert_eq!(stage.ready("a").await.len(), 2);
    stage.handle("a").await;
    assert_eq!(stage.ready("a").await.len(), 2);
    stage.handle("a").await;
    assert_eq!(stage.ready("a").await.len(), 1);
    stage.pass(100).await;
    assert_eq!(stage.ready("a").await.len(), 2);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_paused_group_keeps_its_rest_when_a_message_is_acked() {
    let stage = window(1, &["a"]).await;
    stage.put(&numbered(2)).await;
    stage.pause_group("a", true).await;
    stage.handle("a").await;
    assert_eq!(stage.states().await[0], "backlog:a m001");
    stage.pause_group("a", false).await;
    stage.moved().await;
    assert_eq!(stage.ready("a").await, ["m001"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_batch_bounds_what_the_gates_let_through() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.pause_group("b", true).await;
    let batch: Vec<_> = numbered(200)
        .into_iter()
        .map(|m| m.key("k").ttl(9000))
        .collect();
    let free: Vec<_> = (0..150).map(|n| now(&format!("f{n:03}"))).collect();
    stage.send(&batch).await;
    stage.send(&free).await;
    for _ in 0..6 {
        stage.moved().await;
    }
    stage.pause_group("b", false).await;
    let mut moves = 0;
    let mut before = 0;
    while stage.ready("b").await.len() < 151 {
        stage.move_due(40).await;
        let now = stage.ready("b").await.len();
        assert!(now - before <= 60, "{before} {now}");
        before = now;
        moves += 1;
        assert!(moves < 10);
    }
    stage.assert_whole().await;
}
