//! The wake: published when a message is due before the mover looks again, and only then.

use super::stage::{Asking, Stage, groups, reject};
use lisa_core::redis::Subscriber;
use lisa_core::time::When;
use lisa_core::topic::{Shard, TopicSettings};
use lisa_tests::Relay;
use lisa_tests::relay::{WORKER, id, message, ms, retry};
use redis::cmd;

/// Listens to the wakes of shard 0, and to a channel that signals that all wakes before it were seen.
struct Ear {
    subscriber: Subscriber,
    wake: String,
    end: String,
}

impl Ear {
    async fn open(relay: &Relay) -> Self {
        let wake = relay.topic().wake_channel(Shard::new(0)).to_owned();
        let end = format!("{wake}:end");
        let mut subscriber = relay.broker().connection().subscriber();
        subscriber.ssubscribe(&wake);
        subscriber.ssubscribe(&end);
        subscriber.subscribed().await;
        // Both count as woken, to cover any wake missed before.
        for _ in 0..2 {
            subscriber.next().await.expect("an open connection");
        }
        Self {
            subscriber,
            wake,
            end,
        }
    }

    /// Returns the number of wakes since the last call.
    async fn wakes(&mut self, relay: &Relay) -> usize {
        let _: u64 = relay.command(cmd("SPUBLISH").arg(&self.end).arg("")).await;
        let mut wakes = 0;
        loop {
            match self.subscriber.next().await {
                Some(channel) if channel == self.wake => wakes += 1,
                Some(_) => return wakes,
                None => panic!("the connection is closed"),
            }
        }
    }
}

#[tokio::test]
async fn a_send_wakes_only_for_what_is_due_before_the_alarm() {
    let relay = Relay::start("wake").await;
    let mut ear = Ear::open(&relay).await;
    relay.send(&[message("first", ms(500))]).await;
    assert_eq!(ear.wakes(&relay).await, 1);
    relay.move_due(200).await;
    relay
        .send(&[message("later", ms(501)), message("same", ms(500))])
        .await;
    assert_eq!(ear.wakes(&relay).await, 0);
    relay
        .send(&[message("before", ms(499)), message("much-later", ms(900))])
        .await;
    assert_eq!(ear.wakes(&relay).await, 1);
    relay.send(&[message("now", When::NOW)]).await;
    assert_eq!(ear.wakes(&relay).await, 0, "what is ready needs no mover");
    relay.assert_conserved().await;
}

#[tokio::test]
async fn nobody_is_woken_while_a_full_batch_is_followed_by_another() {
    let relay = Relay::start("wake").await;
    relay
        .send(&[message("a", ms(1)), message("b", ms(1))])
        .await;
    relay.step(1);
    relay.move_due(1).await;
    let mut ear = Ear::open(&relay).await;
    relay.send(&[message("c", ms(1))]).await;
    assert_eq!(ear.wakes(&relay).await, 0);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn whatever_puts_a_message_into_retry_wakes_the_mover() {
    let relay = Relay::start("wake").await;
    let mut ear = Ear::open(&relay).await;
    relay.put_in_garbage("dead").await;
    let failed = relay.hold("failed").await;
    let crashed = relay.hold("crashed").await;
    relay.age(crashed.attempt.entry, WORKER, ms(2000)).await;
    relay.move_due(200).await;
    relay.settle(&failed, retry(ms(5))).await;
    assert_eq!(ear.wakes(&relay).await, 1, "settle");
    relay.move_due(200).await;
    relay.reclaim().await;
    assert_eq!(ear.wakes(&relay).await, 1, "reclaim");
    relay.move_due(200).await;
    let seen = [(id("dead"), relay.now())];
    relay
        .broker()
        .requeue(relay.topic(), relay.group(), &seen)
        .await
        .unwrap();
    assert_eq!(ear.wakes(&relay).await, 1, "requeue");
    relay.move_due(200).await;
    let when = When::After(ms(1));
    relay
        .broker()
        .reschedule(relay.topic(), &id("failed"), None, when)
        .await
        .unwrap();
    assert_eq!(ear.wakes(&relay).await, 1, "reschedule");
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_recovered_entry_wakes_the_mover() {
    let relay = Relay::start("wake").await;
    relay.hold("a").await;
    relay.move_due(200).await;
    let mut remove = cmd("XGROUP");
    remove
        .arg("DELCONSUMER")
        .arg(relay.key("ready:default"))
        .arg("default")
        .arg(WORKER);
    let _: u64 = relay.command(&remove).await;
    let mut ear = Ear::open(&relay).await;
    relay
        .broker()
        .clean(relay.topic(), Shard::new(0), relay.group(), None)
        .await
        .unwrap();
    assert_eq!(ear.wakes(&relay).await, 1);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_resumed_topic_wakes_its_mover_and_a_paused_one_does_not() {
    let relay = Relay::start("wake").await;
    relay.move_due(200).await;
    let mut ear = Ear::open(&relay).await;
    relay.broker().pause(relay.topic(), true).await.unwrap();
    relay
        .send(&[message("a", ms(1)), message("b", When::NOW)])
        .await;
    assert_eq!(ear.wakes(&relay).await, 0);
    relay.broker().pause(relay.topic(), false).await.unwrap();
    assert_eq!(ear.wakes(&relay).await, 1);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_full_topic_wakes_its_mover_for_what_is_due_before_the_alarm() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.moved().await;
    let mut ear = Ear::open(&stage).await;
    stage.send(&[message("later", ms(60_000))]).await;
    assert_eq!(ear.wakes(&stage).await, 0);
    stage.send(&[message("now", When::NOW).key("k")]).await;
    assert_eq!(ear.wakes(&stage).await, 1);
    stage.moved().await;
    stage.run("a", "now", retry(ms(5))).await;
    assert_eq!(ear.wakes(&stage).await, 1, "settle");
    stage.moved().await;
    stage.run("b", "now", reject()).await;
    assert_eq!(ear.wakes(&stage).await, 0, "garbage");
    stage.requeue("b", "now", 0).await;
    assert_eq!(ear.wakes(&stage).await, 1, "requeue");
    stage.moved().await;
    stage.reschedule("later", ms(1)).await;
    assert_eq!(ear.wakes(&stage).await, 1, "reschedule");
    stage.pause_group("a", true).await;
    assert_eq!(ear.wakes(&stage).await, 0, "pause");
    stage.pause_group("a", false).await;
    assert_eq!(ear.wakes(&stage).await, 1, "resume");
    stage.broker().pause(stage.topic(), true).await.unwrap();
    stage.send(&[message("paused", When::NOW)]).await;
    assert_eq!(ear.wakes(&stage).await, 0);
}

#[tokio::test]
async fn a_merge_wakes_the_mover_for_its_earlier_due_time() {
    let stage = Stage::of(&["a"]).await;
    stage.send(&[message("m1", ms(900)).merge("x")]).await;
    stage.moved().await;
    let mut ear = Ear::open(&stage).await;
    stage.send(&[message("m2", ms(950)).merge("x")]).await;
    assert_eq!(ear.wakes(&stage).await, 0);
    stage.send(&[message("m3", ms(50)).merge("x")]).await;
    assert_eq!(ear.wakes(&stage).await, 1);
}

#[tokio::test]
async fn an_ack_wakes_the_mover_when_it_used_the_last_of_the_rate_up() {
    for (burst, wakes) in [(3, 0), (2, 1)] {
        let stage = Stage::with(TopicSettings {
            rate: Some("10/s".parse().unwrap()),
            burst: Some(burst),
            max_ready: Some(1),
            ..groups(&["a"])
        })
        .await;
        let batch = ["m1", "m2", "m3"].map(|name| message(name, ms(0)));
        stage.send(&batch).await;
        assert_eq!(stage.moved().await, (3, 60_000));
        let mut ear = Ear::open(&stage).await;
        stage.handle("a").await;
        assert_eq!(stage.ready("a").await, ["m2"]);
        assert_eq!(ear.wakes(&stage).await, wakes, "a burst of {burst}");
        let pause = if wakes == 1 { 100 } else { 60_000 };
        assert_eq!(stage.moved().await, (0, pause));
    }
}
