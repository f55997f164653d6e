//! Ordering keys: one message of a key at a time in each group, by due time, then arrival, whatever happens to it.

use super::stage::{Asking, SHARD, Stage, defer, groups, name, reject};
use lisa_core::broker::Verdict;
use lisa_core::message::PreparedMessage;
use lisa_core::state::Settled;
use lisa_core::time::{UnixMs, When};
use lisa_core::topic::{OnExpired, OnGarbage, TopicSettings};
use lisa_tests::relay::{START, message, ms, retry};

fn keyed(name: &str) -> PreparedMessage {
    message(name, When::NOW).key("k")
}

/// A topic where m1 of key k is ready and m2 and m3 are behind it.
async fn three(settings: TopicSettings) -> Stage {
    let stage = Stage::with(settings).await;
    stage.put(&["m1", "m2", "m3"].map(keyed)).await;
    assert_eq!(
        stage.states().await,
        ["holder:a k=m1", "parked:a k>m2, k>m3", "ready:a m1#1@0"]
    );
    stage
}

#[tokio::test]
async fn an_ack_lets_the_next_message_of_its_key_through_without_a_mover() {
    let stage = three(groups(&["a"])).await;
    assert_eq!(stage.run("a", "m1", Verdict::Ack).await, Settled::Acked);
    assert_eq!(
        stage.states().await,
        [
            "holder:a k=m2",
            "parked:a k>m3",
            "ready:a m2#1@0",
            "tomb m1 acked@0"
        ]
    );
    stage.assert_whole().await;
    assert_eq!(stage.drain("a").await, ["m2", "m3"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn many_keys_go_on_with_one_ack() {
    let stage = Stage::of(&["a"]).await;
    let batch: Vec<_> = (0..100)
        .map(|n| message(&format!("m{n:03}"), ms(0)).key(&format!("k{}", n % 50)))
        .collect();
    stage.put(&batch).await;
    stage.moved().await;
    let reads = stage.take("a", 100).await;
    assert_eq!(reads.len(), 50);
    let acks: Vec<_> = reads
        .iter()
        .map(|read| lisa_tests::relay::settlement(read, Verdict::Ack))
        .collect();
    stage.end_all("a", &acks).await;
    let next: Vec<_> = (50..100).map(|n| format!("m{n:03}")).collect();
    assert_eq!(stage.ready("a").await, next);
    stage.assert_whole().await;
}

#[tokio::test]
async fn keys_that_look_alike_are_different() {
    let keys = [
        "a", "ab", "a ", "A", " ", "  ", "0", "00", "~", "ä", "äb", "№ 1/2",
    ];
    let long = ["x".repeat(255), "x".repeat(256)];
    let keys: Vec<&str> = keys
        .into_iter()
        .chain(long.iter().map(String::as_str))
        .collect();
    let stage = Stage::of(&["a"]).await;
    let message = |round: usize, n: usize| message(&format!("m{round}-{n}"), ms(0)).key(keys[n]);
    for round in [1, 2] {
        let batch: Vec<_> = (0..keys.len()).map(|n| message(round, n)).collect();
        stage.put(&batch).await;
    }
    for round in [1, 2] {
        let ready: Vec<_> = (0..keys.len()).map(|n| format!("m{round}-{n}")).collect();
        assert_eq!(stage.ready("a").await, ready);
        stage.assert_whole().await;
        for read in stage.take("a", keys.len()).await {
            stage.end("a", &read, Verdict::Ack).await;
        }
    }
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn parked_messages_are_in_the_order_of_due_times_then_arrival() {
    let stage = Stage::of(&["a"]).await;
    stage.put(&[message("first", ms(0)).key("k")]).await;
    let at = |name: &str, after| message(name, ms(after)).key("k");
    stage
        .send(&[at("z", 5), at("late", 9), at("a", 5), at("early", 1)])
        .await;
    stage.send(&[at("b", 5)]).await;
    stage.pass(9).await;
    let order = ["first", "early", "z", "a", "b", "late"];
    assert_eq!(stage.drain("a").await, order);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn messages_due_together_begin_in_the_order_of_arrival() {
    let stage = Stage::of(&["a"]).await;
    for name in ["z", "y", "a"] {
        stage.send(&[message(name, ms(50)).key("k")]).await;
    }
    stage.pass(60).await;
    assert_eq!(stage.drain("a").await, ["z", "y", "a"]);
}

#[tokio::test]
async fn a_retry_keeps_the_key() {
    let stage = three(groups(&["a"])).await;
    stage.run("a", "m1", retry(ms(50))).await;
    stage.pass(40).await;
    assert_eq!(
        stage.states().await,
        [
            "attempts:a m1=1 0 it failed",
            "holder:a k=m1",
            "parked:a k>m2, k>m3",
            "retry:a m1@50"
        ]
    );
    stage.assert_whole().await;
    stage.pass(10).await;
    assert_eq!(stage.drain("a").await, ["m1", "m2", "m3"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_deferral_keeps_the_key() {
    let stage = three(groups(&["a"])).await;
    stage.run("a", "m1", defer(50)).await;
    assert_eq!(stage.ready("a").await, [""; 0]);
    stage.pass(50).await;
    assert_eq!(stage.drain("a").await, ["m1", "m2", "m3"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_delivery_that_was_taken_back_keeps_the_key() {
    let stage = three(groups(&["a"])).await;
    let read = stage.begin("a", "m1").await;
    stage.forget("a", &read).await;
    let (broker, topic) = (stage.broker(), stage.topic());
    let report = broker.reclaim(topic, SHARD, &name("a"), true).await;
    assert_eq!(report.unwrap().retry, 1);
    assert_eq!(
        stage.states().await,
        [
            "attempts:a m1=0 1 the lease of worker ran out",
            "holder:a k=m1",
            "parked:a k>m2, k>m3",
            "retry:a m1@0"
        ]
    );
    stage.moved().await;
    assert_eq!(stage.states().await[3], "ready:a m1#1@0 c1");
    assert_eq!(stage.drain("a").await, ["m1", "m2", "m3"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_message_that_goes_to_garbage_lets_the_next_through() {
    let stage = three(groups(&["a"])).await;
    stage.run("a", "m1", reject()).await;
    assert_eq!(
        stage.states().await,
        [
            "garbage:a m1@0",
            "garbage_info:a m1=rejected 1 no good",
            "holder:a k=m2",
            "parked:a k>m3",
            "ready:a m2#1@0"
        ]
    );
    assert_eq!(stage.drain("a").await, ["m2", "m3"]);
    stage.assert_whole().await;
}

fn blocking() -> TopicSettings {
    TopicSettings {
        on_garbage: OnGarbage::Block,
        ..groups(&["a"])
    }
}

#[tokio::test]
async fn with_block_a_message_in_garbage_holds_its_key_until_it_is_requeued_and_done() {
    let stage = three(blocking()).await;
    stage.run("a", "m1", reject()).await;
    stage.put(&[keyed("m4")]).await;
    assert_eq!(
        stage.states().await,
        [
            "garbage:a m1@0",
            "garbage_info:a m1=rejected 1 no good",
            "holder:a k=m1",
            "parked:a k>m2, k>m3, k>m4"
        ]
    );
    stage.assert_whole().await;
    assert_eq!(stage.requeue("a", "m1", 0).await, 1);
    stage.moved().await;
    assert_eq!(stage.drain("a").await, ["m1", "m2", "m3", "m4"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn with_block_a_purge_lets_the_next_message_through() {
    let stage = three(blocking()).await;
    stage.run("a", "m1", reject()).await;
    assert_eq!(stage.purge("a", "m1", 0).await, 1);
    assert_eq!(
        stage.states().await,
        [
            "holder:a k=m2",
            "parked:a k>m3",
            "ready:a m2#1@0",
            "tomb m1 purged@0"
        ]
    );
    stage.assert_whole().await;
}

#[tokio::test]
async fn with_continue_a_purge_of_another_message_does_not_let_two_through() {
    let stage = three(groups(&["a"])).await;
    stage.run("a", "m1", reject()).await;
    assert_eq!(stage.purge("a", "m1", 0).await, 1);
    assert_eq!(stage.ready("a").await, ["m2"]);
    assert_eq!(stage.states().await[0], "holder:a k=m2");
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_requeued_message_takes_its_old_place_behind_the_one_that_runs() {
    let stage = three(groups(&["a"])).await;
    stage.run("a", "m1", reject()).await;
    stage.pass(7).await;
    assert_eq!(stage.requeue("a", "m1", 0).await, 1);
    stage.moved().await;
    assert!(
        stage
            .states()
            .await
            .contains(&"parked:a k>m1, k>m3".to_owned())
    );
    stage.step(10);
    stage.run("a", "m2", Verdict::Ack).await;
    let entry = "ready:a m1#1@7".to_owned();
    assert!(stage.states().await.contains(&entry));
    assert_eq!(stage.drain("a").await, ["m1", "m3"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn messages_of_a_key_that_are_requeued_together_come_by_their_due_times() {
    let stage = Stage::with(groups(&["a"])).await;
    let later = message("later", ms(20)).key("k");
    let sooner = message("sooner", ms(10)).key("k");
    stage.put(&[later, sooner]).await;
    stage.pass(20).await;
    for id in ["sooner", "later"] {
        stage.run("a", id, reject()).await;
    }
    for id in ["later", "sooner"] {
        assert_eq!(stage.requeue("a", id, 20).await, 1);
    }
    stage.step(5);
    stage.moved().await;
    let places = stage.states().await;
    assert!(
        places.contains(&"ready:a sooner#1@20".to_owned()),
        "{places:?}"
    );
    assert_eq!(stage.drain("a").await, ["sooner", "later"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn the_cancel_of_a_parked_message_leaves_the_others_in_order() {
    let stage = three(groups(&["a"])).await;
    assert_eq!(stage.cancel("m2").await, "cancelled");
    assert_eq!(
        stage.states().await,
        [
            "holder:a k=m1",
            "parked:a k>m3",
            "ready:a m1#1@0",
            "tomb m2 cancelled@0"
        ]
    );
    stage.assert_whole().await;
    assert_eq!(stage.drain("a").await, ["m1", "m3"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn the_cancel_of_a_holder_in_retry_lets_the_next_through() {
    let stage = three(groups(&["a"])).await;
    stage.run("a", "m1", retry(ms(50))).await;
    assert_eq!(stage.cancel("m1").await, "cancelled");
    assert_eq!(
        stage.states().await,
        [
            "holder:a k=m2",
            "parked:a k>m3",
            "ready:a m2#1@0",
            "tomb m1 cancelled@0"
        ]
    );
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_holder_that_is_rescheduled_releases_its_key_and_comes_last() {
    let stage = three(groups(&["a"])).await;
    stage.run("a", "m1", retry(ms(50))).await;
    assert_eq!(stage.reschedule("m1", ms(5)).await, "rescheduled@5");
    assert_eq!(
        stage.states().await,
        [
            "attempts:a m1=1 0 it failed",
            "holder:a k=m2",
            "parked:a k>m3",
            "ready:a m2#1@0",
            "retry:a m1@5"
        ]
    );
    stage.assert_whole().await;
    stage.pass(5).await;
    assert_eq!(stage.drain("a").await, ["m2", "m3", "m1"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_parked_message_that_is_rescheduled_waits_again() {
    let stage = three(groups(&["a"])).await;
    assert_eq!(stage.reschedule("m2", ms(5)).await, "rescheduled@5");
    assert_eq!(
        stage.states().await,
        [
            "holder:a k=m1",
            "parked:a k>m3",
            "ready:a m1#1@0",
            "waiting m2@5"
        ]
    );
    assert_eq!(stage.count("moved:a").await, 2);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_holder_whose_payload_is_lost_lets_the_next_through() {
    let stage = three(groups(&["a"])).await;
    stage.lose_payload("m1").await;
    assert_eq!(stage.run("a", "m1", Verdict::Lost).await, Settled::Lost);
    assert_eq!(stage.drain("a").await, ["m2", "m3"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_parked_message_without_its_payload_does_not_wedge_the_key() {
    let stage = three(groups(&["a"])).await;
    stage.lose_payload("m2").await;
    stage.run("a", "m1", Verdict::Ack).await;
    assert_eq!(stage.run("a", "m2", Verdict::Lost).await, Settled::Lost);
    assert_eq!(stage.drain("a").await, ["m3"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_stale_ack_does_not_let_a_second_message_through() {
    let stage = three(groups(&["a"])).await;
    let read = stage.begin("a", "m1").await;
    stage.end("a", &read, Verdict::Ack).await;
    let before = stage.snapshot().await;
    assert_eq!(stage.end("a", &read, Verdict::Ack).await, Settled::Stale);
    assert_eq!(stage.end("a", &read, reject()).await, Settled::Stale);
    assert_eq!(before.diff(&stage.snapshot().await), "");
}

#[tokio::test]
async fn each_group_has_its_own_pace_through_a_key() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.put(&["m1", "m2"].map(keyed)).await;
    stage.run("a", "m1", Verdict::Ack).await;
    stage.run("b", "m1", retry(ms(50))).await;
    assert_eq!(
        stage.states().await,
        [
            "attempts:b m1=1 0 it failed",
            "holder:a k=m2",
            "holder:b k=m1",
            "left m1=1, m2=2",
            "parked:b k>m2",
            "ready:a m2#1@0",
            "retry:b m1@50"
        ]
    );
    stage.assert_whole().await;
    stage.run("a", "m2", Verdict::Ack).await;
    stage.pass(50).await;
    assert_eq!(stage.drain("b").await, ["m1", "m2"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn messages_without_a_key_pass_those_that_are_parked() {
    let stage = three(groups(&["a"])).await;
    stage.put(&[message("free", ms(0))]).await;
    assert_eq!(stage.ready("a").await, ["m1", "free"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_long_chain_of_lapsed_messages_is_cut_and_goes_on() {
    let stage = Stage::with(TopicSettings {
        on_expired: OnExpired::Drop,
        ..groups(&["a"])
    })
    .await;
    let batch: Vec<_> = (0..100)
        .map(|n| keyed(&format!("m{n:02}")).ttl(if n == 0 { 1000 } else { 5 }))
        .collect();
    stage.put(&batch).await;
    stage.put(&[keyed("good")]).await;
    let read = stage.begin("a", "m00").await;
    stage.step(5);
    stage.end("a", &read, Verdict::Ack).await;
    let lapsed = stage.count("expired:a").await;
    assert!((1..99).contains(&lapsed), "{lapsed}");
    stage.assert_whole().await;
    let alarm = u64::try_from(stage.count("alarm").await).unwrap();
    assert!(alarm <= START + 5, "the mover is not woken");
    let mut moves = 0;
    while stage.ready("a").await.is_empty() && moves < 10 {
        stage.moved().await;
        moves += 1;
    }
    assert_eq!(stage.count("expired:a").await, 99);
    assert_eq!(stage.drain("a").await, ["good"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_retry_and_a_new_message_of_one_key_keep_their_order_when_the_mover_is_late() {
    let stage = three(groups(&["a"])).await;
    stage.run("a", "m1", retry(ms(10))).await;
    stage
        .send(&[message("new", When::At(UnixMs::new(START + 5))).key("k")])
        .await;
    stage.pass(100).await;
    assert_eq!(stage.drain("a").await, ["m1", "m2", "m3", "new"]);
    stage.assert_nothing_is_left().await;
}

/// One that a group has done already waits in the retry sets of the others when it is rescheduled.
#[tokio::test]
async fn of_two_due_at_the_same_time_the_first_to_arrive_goes_first_though_it_waits_among_the_retries()
 {
    let stage = Stage::of(&["a", "b"]).await;
    stage.put(&["m1", "m2"].map(keyed)).await;
    for id in ["m1", "m2"] {
        assert_eq!(stage.run("b", id, Verdict::Ack).await, Settled::Acked);
    }
    assert_eq!(stage.reschedule("m2", ms(5)).await, "rescheduled@5");
    stage.send(&[message("m3", ms(5)).key("k")]).await;
    assert_eq!(stage.run("a", "m1", Verdict::Ack).await, Settled::Acked);
    stage.pass(5).await;
    assert_eq!(stage.drain("a").await, ["m2", "m3"]);
    stage.assert_whole().await;
}
