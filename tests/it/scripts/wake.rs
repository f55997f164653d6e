//! The wake: published when something is due before the mover looks again, and only then.

use lisa_shared::link::Subscriber;
use lisa_shared::time::When;
use lisa_shared::topic::Shard;
use lisa_tests::Relay;
use lisa_tests::relay::{WORKER, id, message, ms, retry};
use redis::cmd;

/// Listens to the wakes of shard 0, and to a channel that tells that all wakes before it were seen.
struct Ear {
    subscriber: Subscriber,
    wake: String,
    end: String,
}

impl Ear {
    async fn open(relay: &Relay) -> Self {
        let wake = relay.topic().wake_channel(Shard::new(0)).to_owned();
        let end = format!("{wake}:end");
        let mut subscriber = relay.broker().link().subscriber();
        subscriber.ssubscribe(&wake);
        subscriber.ssubscribe(&end);
        subscriber.subscribed().await;
        Self {
            subscriber,
            wake,
            end,
        }
    }

    /// How many wakes came since the last question.
    async fn wakes(&mut self, relay: &Relay) -> usize {
        let _: u64 = relay.command(cmd("SPUBLISH").arg(&self.end).arg("")).await;
        let mut wakes = 0;
        loop {
            match self.subscriber.next().await {
                Some(channel) if channel == self.wake => wakes += 1,
                Some(_) => return wakes,
                None => panic!("the link is closed"),
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
    relay.move_due(500).await;
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
    relay.bury("dead").await;
    let failed = relay.hold("failed").await;
    let crashed = relay.hold("crashed").await;
    relay.age(crashed.attempt.entry, WORKER, ms(2000)).await;
    relay.move_due(500).await;
    relay.settle(&failed, retry(ms(5))).await;
    assert_eq!(ear.wakes(&relay).await, 1, "settle");
    relay.move_due(500).await;
    relay.reclaim().await;
    assert_eq!(ear.wakes(&relay).await, 1, "reclaim");
    relay.move_due(500).await;
    let seen = [(id("dead"), relay.now())];
    relay
        .broker()
        .requeue(relay.topic(), relay.group(), &seen)
        .await
        .unwrap();
    assert_eq!(ear.wakes(&relay).await, 1, "requeue");
    relay.move_due(500).await;
    let when = When::After(ms(1));
    relay
        .broker()
        .reschedule(relay.topic(), &id("failed"), when)
        .await
        .unwrap();
    assert_eq!(ear.wakes(&relay).await, 1, "reschedule");
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_recovered_entry_wakes_the_mover() {
    let relay = Relay::start("wake").await;
    relay.hold("a").await;
    relay.move_due(500).await;
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
    relay.move_due(500).await;
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
