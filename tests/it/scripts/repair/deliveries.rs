//! Repairs of deliveries and of consumers.

use super::*;

#[tokio::test]
async fn a_delivery_that_nobody_holds_comes_again() {
    let stage = Stage::of(&["a"]).await;
    stage.put(&[message("m", ms(0))]).await;
    let read = stage.begin("a", "m").await;
    let mut remove = cmd("XGROUP");
    remove
        .arg("DELCONSUMER")
        .arg(stage.key("ready:a"))
        .arg("a")
        .arg(WORKER);
    let _: u64 = stage.command(&remove).await;
    let (found, _) = found_and_repaired(&stage).await;
    let entry = read.attempt.entry;
    assert_eq!(
        found,
        [format!(
            "entry m of a: entry {entry} was delivered and is not pending"
        )]
    );
    stage.moved().await;
    assert_eq!(stage.drain("a").await, ["m"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn what_is_held_and_not_on_the_stream_is_delivered_again() {
    let stage = Stage::of(&["a"]).await;
    stage.put(&[message("m", ms(0)), message("n", ms(0))]).await;
    let read = stage.begin("a", "m").await;
    let entry = read.attempt.entry.to_string();
    by_hand(&stage, &["XDEL", "ready:a", &entry]).await;
    let (found, repaired) = found_and_repaired(&stage).await;
    assert_eq!(
        found,
        [
            "orphan m: nothing refers to it".to_owned(),
            format!("entry of a: entry {entry} is pending and not on the stream"),
            "counters of a: 1 more were moved than there are".to_owned(),
        ]
    );
    assert_eq!(repaired.len(), 2, "{repaired:?}");
    stage.moved().await;
    assert_eq!(stage.drain("a").await, ["n", "m"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn an_entry_without_a_message_is_removed() {
    let stage = Stage::of(&["a"]).await;
    by_hand(&stage, &["XADD", "ready:a", "*", "what", "ever"]).await;
    let (found, repaired) = found_and_repaired(&stage).await;
    assert_eq!(
        found,
        [
            "ghost of a: in ready:a",
            "counters of a: 1 more are there than were moved"
        ]
    );
    assert_eq!(repaired.len(), 2, "{repaired:?}");
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_consumer_that_has_gone_is_forgotten_unless_it_holds_something() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.put(&[message("m", ms(0))]).await;
    stage.begin("a", "m").await;
    stage.handle("b").await;
    // Idle times are Redis's own.
    tokio::time::sleep(ms(5)).await;
    let examine = async |repair| {
        let how = Examination {
            repair,
            consumer_idle: ms(1),
            rest: 0,
        };
        let (broker, topic) = (stage.broker(), stage.topic());
        broker.examine(topic, how).await.unwrap()
    };
    let found = examine(false).await;
    assert!(!found.is_healthy());
    let words: Vec<_> = found
        .findings
        .iter()
        .map(|f| {
            (
                f.fault.as_str(),
                f.outcome.as_str(),
                f.group.as_str(),
                f.id.as_str(),
            )
        })
        .collect();
    assert_eq!(
        words,
        [
            ("consumer", "said", "a", WORKER),
            ("consumer", "found", "b", WORKER)
        ]
    );
    assert!(examine(true).await.is_healthy());
    let consumers = async |group| {
        let (broker, topic) = (stage.broker(), stage.topic());
        broker.consumers(topic, SHARD, &name(group)).await.unwrap()
    };
    assert_eq!(consumers("a").await.len(), 1);
    assert_eq!(consumers("b").await.len(), 0);
}
