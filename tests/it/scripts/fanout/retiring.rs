//! A retiring group: it gets no new messages, and drains or is dropped in batches.

use crate::scripts::stage::{Asking, SHARD, Stage, groups, name, reject};
use lisa_core::broker::{Removed, Retired, Retirement, Verdict};
use lisa_core::topic::{OnGarbage, TopicSettings};
use lisa_tests::relay::{message, ms, retry};

const DRAIN: Option<Retirement> = Some(Retirement::Drain);
pub(in crate::scripts) const DROP: Option<Retirement> = Some(Retirement::Drop);

pub(in crate::scripts) async fn retire(
    stage: &Stage,
    group: &str,
    how: Option<Retirement>,
) -> Retired {
    let (broker, topic) = (stage.broker(), stage.topic());
    broker.retire(topic, &name(group), how).await.unwrap()
}

pub(in crate::scripts) async fn remove(stage: &Stage, group: &str) -> Removed {
    let (broker, topic) = (stage.broker(), stage.topic());
    broker
        .remove_group(topic, SHARD, &name(group))
        .await
        .unwrap()
}

#[tokio::test]
async fn a_retiring_group_gets_nothing_new_and_finishes_what_it_has() {
    let mut stage = Stage::of(&["a", "b"]).await;
    stage.put(&[message("m1", ms(0))]).await;
    assert_eq!(retire(&stage, "b", DRAIN).await, Retired::Done);
    assert_eq!(retire(&stage, "b", DRAIN).await, Retired::Same);
    assert_eq!(
        stage.stats().await.groups[1].retiring,
        Some(Retirement::Drain)
    );
    stage.put(&[message("m2", ms(0))]).await;
    assert_eq!(
        stage.states().await,
        ["left m1=2", "ready:a m1#1@0, m2#1@0", "ready:b m1#1@0"]
    );
    assert_eq!(remove(&stage, "b").await, Removed::Kept);
    stage.run("b", "m1", retry(ms(0))).await;
    assert_eq!(remove(&stage, "b").await, Removed::Kept);
    stage.moved().await;
    stage.handle("b").await;
    let gone = Removed::Gone {
        dropped: 0,
        epoch: 2,
    };
    assert_eq!(remove(&stage, "b").await, gone);
    stage.refresh().await;
    assert_eq!(stage.topic().groups(), [name("a")]);
    assert_eq!(stage.conf("groups").await, Some("a".to_owned()));
    assert_eq!(stage.drain("a").await, ["m1", "m2"]);
    let folded = (stage.count("moved:-").await, stage.count("acked:-").await);
    assert_eq!(folded, (1, 1));
    let stats = stage.hash("stats").await;
    assert!(!stats.keys().any(|name| name.ends_with(":b")), "{stats:?}");
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_retiring_group_may_be_dropped_after_all() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.put(&[message("m", ms(0))]).await;
    retire(&stage, "b", DRAIN).await;
    assert_eq!(remove(&stage, "b").await, Removed::Kept);
    assert_eq!(retire(&stage, "b", DROP).await, Retired::Done);
    assert!(matches!(
        remove(&stage, "b").await,
        Removed::Gone { dropped: 1, .. }
    ));
}

#[tokio::test]
async fn while_every_group_that_is_not_retiring_is_paused_messages_stay_waiting() {
    let stage = Stage::of(&["a", "b"]).await;
    retire(&stage, "b", DRAIN).await;
    stage.pause_group("a", true).await;
    stage.send(&[message("m", ms(0))]).await;
    assert_eq!(stage.moved().await, (0, 60_000));
    assert_eq!(stage.states().await, ["waiting m@0"]);
}

#[tokio::test]
async fn a_dropped_group_loses_what_it_has_wherever_it_is() {
    let mut stage = Stage::of(&["a", "b"]).await;
    let names = ["dead", "again", "held", "ready"];
    stage
        .put(&names.map(|name| message(name, ms(0)).key(name)))
        .await;
    stage.run("b", "dead", reject()).await;
    stage.run("b", "again", retry(ms(5))).await;
    let held = stage.begin("b", "held").await;
    stage.put(&[message("parked", ms(0)).key("held")]).await;
    stage.pause_group("b", true).await;
    stage.put(&[message("gated", ms(0)).key("gated")]).await;
    assert_eq!(
        stage.states().await[..4],
        [
            "attempts:b again=1 0 it failed",
            "backlog:b gated",
            "garbage:b dead@0",
            "garbage_info:b dead=rejected 1 no good",
        ]
    );
    retire(&stage, "b", DROP).await;
    let gone = Removed::Gone {
        dropped: 6,
        epoch: 2,
    };
    assert_eq!(remove(&stage, "b").await, gone);
    stage.refresh().await;
    assert_eq!(stage.count("dropped:-").await, 6);
    assert_eq!(stage.conf("paused:b").await, None);
    assert_eq!(
        stage.states().await,
        [
            "holder:a again=again, dead=dead, gated=gated, held=held, ready=ready",
            "left again=1, dead=1, gated=1, held=1, parked=1, ready=1",
            "parked:a held>parked",
            "ready:a dead#1@0, again#1@0, held#1@0, ready#1@0, gated#1@0"
        ]
    );
    stage.assert_whole().await;
    let settlement = lisa_tests::relay::settlement(&held, Verdict::Ack);
    let late = stage
        .broker()
        .settle(stage.topic(), SHARD, &name("b"), &[settlement])
        .await;
    assert!(late.is_err(), "{late:?}");
    assert_eq!(stage.drain("a").await.len(), 6);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_large_group_is_dropped_in_batches() {
    let mut stage = Stage::of(&["a", "b"]).await;
    let batch: Vec<_> = (0..100)
        .map(|n| message(&format!("m{n:03}"), ms(0)))
        .collect();
    stage.send(&batch).await;
    for _ in 0..5 {
        stage.moved().await;
    }
    let held = stage.take("b", 100).await;
    assert_eq!(held.len(), 100);
    retire(&stage, "b", DROP).await;
    assert_eq!(remove(&stage, "b").await, Removed::More { dropped: 50 });
    stage.assert_whole().await;
    for read in [&held[0], &held[49]] {
        let settled = stage.end("b", read, Verdict::Ack).await;
        assert_eq!(settled, lisa_core::state::Settled::Stale);
    }
    let settled = stage.end("b", &held[50], Verdict::Ack).await;
    assert_eq!(settled, lisa_core::state::Settled::Acked);
    stage.assert_whole().await;
    let gone = Removed::Gone {
        dropped: 49,
        epoch: 2,
    };
    assert_eq!(remove(&stage, "b").await, gone);
    stage.refresh().await;
    stage.assert_whole().await;
    assert_eq!(stage.drain("a").await.len(), 100);
    stage.assert_nothing_is_left().await;
}

/// Runs `more` calls that drop a batch before the group is kept after all.
async fn keep_after(more: usize) {
    const KEYS: usize = 60;
    let stage = Stage::with(TopicSettings {
        on_garbage: OnGarbage::Block,
        ..groups(&["a", "b"])
    })
    .await;
    let put = async |stem: &str| {
        let of_key = |n| message(&format!("{stem}{n:02}"), ms(0)).key(&format!("k{n}"));
        let messages: Vec<_> = (0..KEYS).map(of_key).collect();
        stage.send(&messages).await;
        while stage.stats().await.waiting > 0 {
            stage.moved().await;
        }
    };
    put("head").await;
    // Heads in retry, in garbage and ready; behind each of them a parked one.
    stage.run("b", "head00", retry(ms(5))).await;
    for n in 1..=30 {
        stage.run("b", &format!("head{n:02}"), reject()).await;
    }
    put("next").await;
    assert_eq!(stage.stats().await.groups[1].parked, KEYS as u64);
    retire(&stage, "b", DROP).await;
    for _ in 0..more {
        assert_eq!(remove(&stage, "b").await, Removed::More { dropped: 50 });
        stage.assert_whole().await;
    }
    assert_eq!(retire(&stage, "b", None).await, Retired::Done);
    assert_eq!(stage.count("dropped:b").await, 50 * more as i64);
    let garbage = stage.stats().await.groups[1].garbage;
    assert_eq!(stage.hash("garbage_info:b").await.len() as u64, garbage);

    // Each key continues once its head is done or purged, also with new messages.
    put("new").await;
    stage.pass(5).await;
    for n in 1..=30 {
        stage.purge("b", &format!("head{n:02}"), 0).await;
    }
    stage.drain("b").await;
    stage.drain("a").await;
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_group_that_is_kept_while_it_is_dropped_has_no_key_that_stands_still() {
    for more in 1..=2 {
        keep_after(more).await;
    }
}

#[tokio::test]
async fn a_message_that_only_a_dropped_group_owes_is_gone() {
    let mut stage = Stage::of(&["a", "b"]).await;
    stage.put(&[message("m", ms(0)).key("k").ttl(50)]).await;
    stage.run("a", "m", Verdict::Ack).await;
    retire(&stage, "b", DROP).await;
    remove(&stage, "b").await;
    stage.refresh().await;
    stage.assert_nothing_is_left().await;
}
