//! Expiry: the time until which a message, or an attempt, is worth making, and its outcome after that.

use super::stage::{Asking, SHARD, Stage, defer, groups, name, reject};
use lisa_core::broker::Verdict;
use lisa_core::state::Settled;
use lisa_core::time::UnixMs;
use lisa_core::topic::{OnExpired, OnLate, TopicSettings};
use lisa_tests::relay::{START, message, ms, retry};

fn dropping() -> TopicSettings {
    TopicSettings {
        on_expired: OnExpired::Drop,
        ..groups(&["a"])
    }
}

fn late(max: u64, on_late: OnLate) -> TopicSettings {
    TopicSettings {
        max_lateness: Some(ms(max)),
        on_late,
        ..groups(&["a"])
    }
}

fn at(after: u64) -> UnixMs {
    UnixMs::new(START + after)
}

#[tokio::test]
async fn an_entry_says_when_its_attempt_lapses() {
    let stage = Stage::of(&["a"]).await;
    stage
        .send(&[
            message("ttl", ms(5)).ttl(30),
            message("instant", ms(5)).expires(20),
            message("none", ms(4)),
        ])
        .await;
    stage.pass(5).await;
    assert_eq!(
        stage.states().await,
        ["ready:a none#1@4, ttl#1@5 x35, instant#1@5 x20"]
    );
    let reads = stage.take("a", 3).await;
    let expires: Vec<_> = reads.iter().map(|read| read.attempt.expires).collect();
    assert_eq!(expires, [None, Some(at(35)), Some(at(20))]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_topic_has_a_ttl_for_those_who_name_none() {
    let stage = Stage::with(TopicSettings {
        ttl: Some(ms(50)),
        ..groups(&["a"])
    })
    .await;
    stage
        .put(&[message("m1", ms(0)), message("m2", ms(0)).ttl(7)])
        .await;
    assert_eq!(stage.states().await, ["ready:a m1#1@0 x50, m2#1@0 x7"]);
}

#[tokio::test]
async fn a_message_lapses_at_the_millisecond_and_not_before() {
    let stage = Stage::of(&["a"]).await;
    stage.send(&[message("m1", ms(0)).ttl(10)]).await;
    stage.send(&[message("m2", ms(0)).ttl(9)]).await;
    stage.pass(9).await;
    assert_eq!(
        stage.states().await,
        [
            "garbage:a m2@9",
            "garbage_info:a m2=expired 0 its ttl is over",
            "ready:a m1#1@0 x10"
        ]
    );
    let counts = (stage.count("lapsed:a").await, stage.count("moved:a").await);
    assert_eq!(counts, (1, 2));
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_lapsed_message_may_be_dropped() {
    let stage = Stage::with(dropping()).await;
    stage.send(&[message("m", ms(0)).ttl(9).key("k")]).await;
    stage.pass(9).await;
    assert_eq!(stage.states().await, ["tomb m purged@9"]);
    assert_eq!(stage.count("expired:a").await, 1);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_message_lapses_in_each_group_by_itself() {
    let stage = Stage::with(TopicSettings {
        on_expired: OnExpired::Drop,
        ..groups(&["a", "b"])
    })
    .await;
    stage.pause_group("b", true).await;
    stage.put(&[message("m", ms(0)).ttl(9)]).await;
    stage.step(9);
    stage.pause_group("b", false).await;
    stage.moved().await;
    assert_eq!(stage.states().await, ["left m=1", "ready:a m#1@0 x9"]);
    stage.assert_whole().await;
    assert_eq!(
        stage.run("a", "m", Verdict::Expired).await,
        Settled::Expired
    );
    assert_eq!(stage.states().await, ["tomb m purged@9"]);
    let counts = (
        stage.count("expired:a").await,
        stage.count("expired:b").await,
    );
    assert_eq!(counts, (1, 1));
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn an_attempt_that_starts_too_late_goes_where_the_topic_says() {
    let expected = [
        (
            OnLate::Garbage,
            vec![
                "garbage:a m@10",
                "garbage_info:a m=expired 0 it is too late",
            ],
        ),
        (OnLate::Drop, vec!["tomb m purged@10"]),
        (OnLate::Deliver, vec!["ready:a m#1@0 x60000"]),
    ];
    for (on_late, places) in expected {
        let stage = Stage::with(late(10, on_late)).await;
        // With options in use, a topic is full whatever becomes of late attempts.
        stage.send(&[message("m", ms(0)).expires(60_000)]).await;
        stage.pass(10).await;
        assert_eq!(stage.states().await, places);
        stage.assert_whole().await;
    }
}

#[tokio::test]
async fn an_attempt_that_starts_just_in_time_is_made() {
    let stage = Stage::with(late(10, OnLate::Garbage)).await;
    stage.send(&[message("m", ms(0))]).await;
    stage.pass(9).await;
    assert_eq!(stage.states().await, ["ready:a m#1@0 x10"]);
}

#[tokio::test]
async fn an_attempt_lapses_by_what_comes_first() {
    let stage = Stage::with(late(20, OnLate::Garbage)).await;
    stage
        .put(&[
            message("m1", ms(0)),
            message("m2", ms(0)).ttl(7),
            message("m3", ms(0)).ttl(100),
        ])
        .await;
    assert_eq!(
        stage.states().await,
        ["ready:a m1#1@0 x20, m2#1@0 x7, m3#1@0 x20"]
    );
}

#[tokio::test]
async fn each_attempt_may_be_late_by_itself() {
    let stage = Stage::with(late(20, OnLate::Drop)).await;
    stage.put(&[message("m", ms(0))]).await;
    stage.run("a", "m", retry(ms(500))).await;
    stage.pass(519).await;
    assert_eq!(
        stage.states().await,
        ["attempts:a m=1 0 it failed", "ready:a m#2@500 x520"]
    );
    stage.run("a", "m", retry(ms(500))).await;
    stage.pass(520).await;
    assert_eq!(stage.states().await, ["tomb m purged@1039"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_consumer_ends_what_it_finds_lapsed() {
    for (settings, settled, places) in [
        (
            groups(&["a"]),
            Settled::Garbage,
            vec![
                "garbage:a m@9",
                "garbage_info:a m=expired 0 its ttl is over",
            ],
        ),
        (dropping(), Settled::Expired, vec!["tomb m purged@9"]),
    ] {
        let stage = Stage::with(settings).await;
        stage.put(&[message("m", ms(0)).ttl(9)]).await;
        let read = stage.begin("a", "m").await;
        stage.step(9);
        assert_eq!(stage.end("a", &read, Verdict::Expired).await, settled);
        assert_eq!(stage.states().await, places);
        let before = stage.snapshot().await;
        let again = stage.end("a", &read, Verdict::Expired).await;
        assert_eq!(again, Settled::Stale);
        assert_eq!(before.diff(&stage.snapshot().await), "");
        stage.assert_whole().await;
    }
}

#[tokio::test]
async fn what_a_consumer_finds_late_goes_where_the_topic_says() {
    for (on_late, settled, places) in [
        (
            OnLate::Garbage,
            Settled::Garbage,
            vec!["garbage:a m@9", "garbage_info:a m=expired 0 it is too late"],
        ),
        (OnLate::Drop, Settled::Expired, vec!["tomb m purged@9"]),
    ] {
        let stage = Stage::with(late(9, on_late)).await;
        stage.put(&[message("m", ms(0)).ttl(50)]).await;
        let read = stage.begin("a", "m").await;
        stage.step(9);
        assert_eq!(stage.end("a", &read, Verdict::Expired).await, settled);
        assert_eq!(stage.states().await, places);
        stage.assert_whole().await;
    }
}

#[tokio::test]
async fn what_has_not_lapsed_by_the_clock_of_redis_comes_again() {
    let stage = Stage::of(&["a"]).await;
    stage.put(&[message("m", ms(0)).ttl(9)]).await;
    let read = stage.begin("a", "m").await;
    stage.step(8);
    let settled = stage.end("a", &read, Verdict::Expired).await;
    assert_eq!(settled, Settled::Deferred { at: at(8) });
    assert_eq!(stage.states().await, ["retry:a m@0"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_retry_past_the_ttl_ends_at_once() {
    for (settings, settled, places) in [
        (
            groups(&["a"]),
            Settled::Garbage,
            vec![
                "garbage:a m@3",
                "garbage_info:a m=expired 1 it expires before its next attempt: it failed",
            ],
        ),
        (dropping(), Settled::Expired, vec!["tomb m purged@3"]),
    ] {
        let stage = Stage::with(settings).await;
        stage.put(&[message("m", ms(0)).ttl(9)]).await;
        stage.step(3);
        let read = stage.begin("a", "m").await;
        assert_eq!(stage.end("a", &read, retry(ms(6))).await, settled);
        assert_eq!(stage.states().await, places);
        stage.assert_whole().await;
    }
}

#[tokio::test]
async fn a_retry_or_deferral_before_the_ttl_is_made_and_a_deferral_past_it_is_not() {
    let stage = Stage::with(dropping()).await;
    stage.put(&[message("m", ms(0)).ttl(9)]).await;
    let settled = stage.run("a", "m", retry(ms(8))).await;
    assert_eq!(settled, Settled::Retry { at: at(8) });
    stage.pass(8).await;
    assert_eq!(stage.states().await[1], "ready:a m#2@8 x9");
    let read = stage.begin("a", "m").await;
    assert_eq!(stage.end("a", &read, defer(1)).await, Settled::Expired);
    assert_eq!(stage.states().await, ["tomb m purged@8"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_reclaim_past_the_ttl_ends_the_message() {
    for drop in [false, true] {
        let stage = Stage::with(if drop { dropping() } else { groups(&["a"]) }).await;
        stage
            .put(&["m1", "m2"].map(|name| message(name, ms(0)).ttl(9).key("k")))
            .await;
        let read = stage.begin("a", "m1").await;
        stage.forget("a", &read).await;
        stage.step(9);
        let (broker, topic) = (stage.broker(), stage.topic());
        let report = broker
            .reclaim(topic, SHARD, &name("a"), true)
            .await
            .unwrap();
        assert_eq!(
            (report.garbage, report.expired),
            if drop { (0, 1) } else { (1, 0) }
        );
        let places = if drop {
            vec!["tomb m1 purged@9, m2 purged@9"]
        } else {
            vec![
                "garbage:a m1@9, m2@9",
                "garbage_info:a m1=expired 0 its ttl is over: the lease of worker ran out, m2=expired 0 its ttl is over",
            ]
        };
        assert_eq!(stage.states().await, places);
        stage.assert_whole().await;
    }
}

#[tokio::test]
async fn what_expires_keeps_the_error_of_its_last_attempt() {
    let stage = Stage::of(&["a"]).await;
    let names = ["retried", "handled", "deferred"];
    stage
        .put(&names.map(|name| message(name, ms(0)).ttl(9)))
        .await;
    stage.run("a", "retried", retry(ms(8))).await;
    let handled = stage.begin("a", "handled").await;
    let deferred = stage.begin("a", "deferred").await;
    stage.end("a", &deferred, retry(ms(1))).await;
    stage.pass(1).await;
    let deferred = stage.begin("a", "deferred").await;
    // It was not handled again before it expired; the handler was still running; it cannot be in time.
    stage.end("a", &deferred, defer(30)).await;
    stage.step(8);
    stage.end("a", &handled, retry(ms(1))).await;
    stage.moved().await;
    assert_eq!(
        stage.states().await[1],
        "garbage_info:a deferred=expired 1 it expires before its next attempt: it failed, \
         handled=expired 1 its ttl is over: it failed, retried=expired 1 its ttl is over: it failed"
    );
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_requeue_in_one_group_leaves_the_expiry_to_the_others() {
    let mut stage = Stage::of(&["a", "a-b", "b"]).await;
    stage.pause_group("b", true).await;
    stage.put(&[message("m", ms(0)).ttl(9)]).await;
    for group in ["a", "a-b"] {
        stage.run(group, "m", reject()).await;
    }
    assert_eq!(stage.requeue("a-b", "m", 0).await, 1);
    stage.step(9);
    stage.pause_group("b", false).await;
    stage.moved().await;
    assert_eq!(stage.ready("b").await, Vec::<String>::new());
    assert_eq!(stage.ready("a-b").await, ["m"]);
    // It does not expire there, through failures and another requeue.
    stage.run("a-b", "m", retry(ms(50))).await;
    stage.pass(50).await;
    stage.run("a-b", "m", reject()).await;
    assert_eq!(stage.requeue("a-b", "m", 59).await, 1);
    stage.moved().await;
    // Nor in another group in which it is requeued.
    assert_eq!(stage.requeue("a", "m", 0).await, 1);
    stage.moved().await;
    for group in ["a", "a-b"] {
        assert_eq!(stage.drain(group).await, ["m"]);
    }
    stage.refresh().await;
    assert_eq!(stage.purge("b", "m", 9).await, 1);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_requeued_message_does_not_lapse_again() {
    let stage = Stage::of(&["a"]).await;
    stage.send(&[message("m", ms(0)).ttl(9)]).await;
    stage.pass(9).await;
    assert_eq!(stage.requeue("a", "m", 9).await, 1);
    stage.pass(90).await;
    let left = ["attempts:a m=0 0 its ttl is over", "ready:a m#1@9"];
    assert_eq!(stage.states().await, left);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_ttl_counts_from_the_new_due_time_and_an_instant_stays() {
    let stage = Stage::of(&["a"]).await;
    stage
        .send(&[
            message("ttl", ms(5)).ttl(30),
            message("instant", ms(5)).expires(200),
        ])
        .await;
    for name in ["ttl", "instant"] {
        assert_eq!(stage.reschedule(name, ms(100)).await, "rescheduled@100");
    }
    stage.pass(100).await;
    assert_eq!(
        stage.states().await,
        ["ready:a ttl#1@100 x130, instant#1@100 x200"]
    );
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_message_that_lapses_in_a_backlog_is_found_when_it_is_picked() {
    let stage = Stage::with(TopicSettings {
        max_ready: Some(1),
        ..dropping()
    })
    .await;
    stage
        .put(&[
            message("m1", ms(0)),
            message("m2", ms(0)).ttl(9),
            message("m3", ms(1)),
        ])
        .await;
    stage.pass(1).await;
    assert_eq!(stage.states().await[0], "backlog:a m2, m3");
    stage.step(8);
    stage.run("a", "m1", Verdict::Ack).await;
    assert_eq!(
        stage.states().await,
        ["ready:a m3#1@1", "tomb m1 acked@9, m2 purged@9"]
    );
    stage.assert_whole().await;
}
