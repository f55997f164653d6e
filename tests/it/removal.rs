//! Removing a topic while it is in use: nothing of it is left, no late process brings it back, and a new one of its name is sound.

use std::sync::Arc;
use std::time::Duration;

use lisa_core::broker::{
    Broker, BrokerError, Declare, Removal, Resolution, Retirement, ShardRemoval, TopicHandle,
    Verdict,
};
use lisa_core::message::PreparedMessage;
use lisa_core::state::{SendOutcome, Settled};
use lisa_core::topic::{Group, Shard, Topic, TopicSettings};
use lisa_tests::relay::{connection, message, ms, settings, settlement};
use lisa_tests::{Relay, SOON, Server};
use redis::cmd;

use crate::reshard::{HOUR, migrate_out, open};

/// Three shards with messages in each state; `late` is a process that knows the topic as it was.
struct Removing {
    relay: Relay,
    late: Broker,
}

fn of_shards(shards: u16) -> TopicSettings {
    TopicSettings {
        shards,
        key_index: true,
        ..settings()
    }
}

impl Removing {
    async fn start() -> Self {
        let relay = Relay::with("removal", of_shards(3)).await;
        let late = process(&relay).await;
        Self { relay, late }
    }

    fn name(&self) -> &Topic {
        self.relay.topic().name()
    }

    /// Sends one message to each shard, and returns them.
    async fn send(&self, prefix: &str, due: Duration) -> Vec<PreparedMessage> {
        let mut sent = Vec::new();
        for shard in self.relay.topic().shards() {
            let all = (0..).map(|n| message(&format!("{prefix}{n}"), due));
            let mut here = all.filter(|one| self.relay.topic().shard_of(&one.id) == shard);
            let one = here.next().unwrap();
            let sends =
                self.relay
                    .broker()
                    .send(self.relay.topic(), shard, std::slice::from_ref(&one));
            assert_ne!(sends.await.unwrap()[0].outcome, SendOutcome::Duplicate);
            sent.push(one);
        }
        sent
    }

    async fn begin(&self, how: Removal) -> Arc<TopicHandle> {
        let broker = self.relay.broker();
        broker.remove_topic(self.name(), how, None).await.unwrap();
        broker.topic(self.name()).await.unwrap()
    }

    /// Takes the step of a manager on each shard, the first one last. Returns the answer of that.
    async fn step(&self, broker: &Broker) -> ShardRemoval {
        let topic = broker.topic(self.name()).await.unwrap();
        let mut last = ShardRemoval::Left(0);
        for shard in [1, 2, 0].map(|n| topic.shards().nth(n).unwrap()) {
            last = broker.remove_shard(&topic, shard).await.unwrap();
        }
        last
    }

    /// Asserts that nothing of the topic is left but the record of its removal, which ends by itself.
    async fn assert_nothing_is_left(&self, open: u16) {
        let snapshot = self.relay.snapshot().await;
        let record = format!("v1:{{t:{open}}}:conf");
        for (key, _) in snapshot.iter().filter(|(key, _)| key.starts_with("v1:{t:")) {
            if open > 0 && key == "v1:{t:0}:conf" {
                assert_eq!(snapshot.hash(key).len(), 1, "it only has `next`");
                continue;
            }
            assert_eq!(*key, record, "{snapshot}");
            let full = format!("{}:{key}", self.relay.broker().namespace());
            let left: i64 = self.relay.command(cmd("PTTL").arg(&full)).await;
            assert!((1..=24 * 3_600_000).contains(&left), "{key} has {left} ms");
            let fields: Vec<String> = self.relay.command(cmd("HKEYS").arg(&full)).await;
            assert_eq!(fields, ["removed", "last_epoch", "version"]);
        }
        let listed = snapshot.hash("v1:{registry}:topics");
        assert!(!listed.contains_key(b"t".as_slice()), "{snapshot}");
    }
}

/// Another process, which knows the topic.
async fn process(relay: &Relay) -> Broker {
    let namespace = relay.broker().namespace().clone();
    let broker = Broker::new(connection(Server::shared()).await, namespace, SOON, None);
    broker.set_virtual_now(relay.now());
    broker.topic(relay.topic().name()).await.unwrap();
    broker
}

fn is_removed<T: std::fmt::Debug>(result: Result<T, BrokerError>) -> bool {
    match result {
        Err(BrokerError::UnknownTopic(_)) => true,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_topic_that_is_removed_by_force_leaves_nothing_and_nobody_brings_it_back() {
    let test = Removing::start().await;
    let (relay, late) = (&test.relay, &test.late);
    test.send("waits", HOUR).await;
    relay.put_in_garbage("garbage").await;
    test.send("held", ms(0)).await;
    relay.move_due(50).await;
    let held = relay.read_one().await;
    let stale = late.topic(test.name()).await.unwrap();

    let topic = test.begin(Removal::Force).await;
    assert_eq!(topic.removal(), Some(Removal::Force));
    let new = message("new", HOUR);
    let refused = late
        .send(&stale, Shard::new(1), std::slice::from_ref(&new))
        .await;
    assert_eq!(refused.unwrap_err().to_string(), "topic t is being removed");
    assert_eq!(test.step(relay.broker()).await, ShardRemoval::Gone);
    test.assert_nothing_is_left(0).await;

    let ack = [settlement(&held, Verdict::Ack)];
    let settled = late.settle(&stale, Shard::new(0), relay.group(), &ack);
    assert!(is_removed(settled.await));
    for shard in stale.shards() {
        assert!(is_removed(
            late.send(&stale, shard, std::slice::from_ref(&new)).await
        ));
        assert!(is_removed(
            late.move_due(&stale, shard, 50, SOON).await.map(|_| ())
        ));
    }
    for mode in [Declare::Create, Declare::UpdateAt(3)] {
        let declared = late.declare(test.name(), &of_shards(3), mode).await;
        match mode {
            Declare::Create => assert!(is_removed(declared)),
            _ => assert_eq!(declared.unwrap_err().to_string(), "topic t does not exist"),
        }
    }
    assert!(is_removed(late.reshard(test.name(), 4).await));
    assert!(is_removed(
        late.remove_topic(test.name(), Removal::Drain, None).await
    ));
    assert_eq!(late.redeclare_lost().await.unwrap(), []);
    assert_eq!(late.refresh().await.unwrap().len(), 0);
    assert!(late.known(test.name()).is_none());
    test.assert_nothing_is_left(0).await;
}

#[tokio::test]
async fn what_a_process_writes_that_has_not_noticed_yet_leaves_nothing() {
    let test = Removing::start().await;
    let stale = test.late.topic(test.name()).await.unwrap();
    test.begin(Removal::Force).await;
    assert_eq!(test.step(test.relay.broker()).await, ShardRemoval::Gone);
    let (late, group, first) = (&test.late, test.relay.group(), Shard::new(0));
    let minute = (Resolution::Minute, 10);
    let noted = late.note_sample((&stale, first), minute, test.relay.now(), "2", true);
    assert!(!noted.await.unwrap());
    let own = Group::for_instance();
    assert!(is_removed(late.join(&stale, &own).await));
    assert!(is_removed(
        late.enable_garbage_hook(&stale, first, group).await
    ));
    assert!(is_removed(late.pause(&stale, true).await));
    assert!(is_removed(
        late.retire(&stale, group, Some(Retirement::Drop)).await
    ));
    test.assert_nothing_is_left(0).await;
    let created = late
        .declare(test.name(), &of_shards(1), Declare::Update)
        .await;
    assert_eq!(created.unwrap().groups(), std::slice::from_ref(group));
}

/// The keys of a shard, as a replica has them that is promoted before it has received their removal.
async fn copy_of(relay: &Relay, shard: u16) -> Vec<(String, Vec<u8>)> {
    let pattern = format!("{}:v1:{{t:{shard}}}:*", relay.broker().namespace());
    let keys: Vec<String> = relay.command(cmd("KEYS").arg(pattern)).await;
    let mut copy = Vec::new();
    for key in keys {
        copy.push((key.clone(), relay.command(cmd("DUMP").arg(&key)).await));
    }
    copy
}

async fn promote(relay: &Relay, copy: &[(String, Vec<u8>)]) {
    for (key, value) in copy {
        let mut restore = cmd("RESTORE");
        restore.arg(key).arg(0).arg(value).arg("REPLACE");
        let _: String = relay.command(&restore).await;
    }
}

#[tokio::test]
async fn a_removal_whose_end_a_failover_has_lost_ends_when_the_topic_is_created_again() {
    let test = Removing::start().await;
    let relay = &test.relay;
    test.send("old", HOUR).await;
    test.begin(Removal::Force).await;
    let (first, second) = (copy_of(relay, 0).await, copy_of(relay, 1).await);
    assert!(first.len() > 2 && second.len() > 2);
    assert_eq!(test.step(relay.broker()).await, ShardRemoval::Gone);
    let create = async || {
        let declare = relay.broker();
        let settings = of_shards(3);
        let declare = declare.declare(test.name(), &settings, Declare::Update);
        declare.await
    };

    // The registry, on another server, does not list it any more.
    promote(relay, &first).await;
    let refused = create().await.unwrap_err();
    assert_eq!(refused.to_string(), "topic t is being removed");
    let listed = relay.broker().refresh().await.unwrap();
    assert_eq!(listed[0].removal(), Some(Removal::Force));
    assert_eq!(test.step(relay.broker()).await, ShardRemoval::Gone);
    test.assert_nothing_is_left(0).await;

    promote(relay, &second).await;
    let created = create().await.unwrap();
    assert_eq!(created.removal(), None);
    let stats = relay.broker().stats(&created).await.unwrap();
    assert_eq!((stats.stored, stats.conservation_error), (0, 0));
    test.send("new", HOUR).await;
}

/// A process changes the settings, and has only done so on the first shard when another one begins a drain.
#[tokio::test]
async fn a_shard_that_a_change_has_not_reached_keeps_its_messages_when_the_topic_is_drained() {
    let test = Removing::start().await;
    let relay = &test.relay;
    let sent = test.send("kept", HOUR).await;
    let version = async || relay.hash("conf").await["version"].clone();
    let before = version().await;
    let changed = TopicSettings {
        max_attempts: 9,
        ..of_shards(3)
    };
    let declare = relay
        .broker()
        .declare(test.name(), &changed, Declare::Update);
    let mut declare = std::pin::pin!(declare);
    while version().await == before {
        assert!(futures_util::poll!(&mut declare).is_pending());
    }
    let drain = test.late.remove_topic(test.name(), Removal::Drain, None);
    assert_eq!(drain.await.unwrap(), Removal::Drain);
    let refused = declare.await.unwrap_err();
    assert_eq!(refused.to_string(), "topic t is being removed");
    let topic = test.late.topic(test.name()).await.unwrap();
    let stats = test.late.stats(&topic).await.unwrap();
    assert_eq!(stats.stored, sent.len() as u64);
}

#[tokio::test]
async fn a_process_that_knows_a_removed_topic_does_not_declare_it_as_lost() {
    let test = Removing::start().await;
    test.begin(Removal::Drain).await;
    assert_eq!(test.step(test.relay.broker()).await, ShardRemoval::Gone);
    assert!(test.late.known(test.name()).is_some());
    assert_eq!(test.late.redeclare_lost().await.unwrap(), []);
    assert!(test.late.known(test.name()).is_none());
    test.assert_nothing_is_left(0).await;
}

#[tokio::test]
async fn a_draining_topic_delivers_what_it_has_and_takes_nothing_new() {
    let test = Removing::start().await;
    let relay = &test.relay;
    let sent = test.send("waits", ms(1000)).await;
    test.begin(Removal::Drain).await;
    let topic = relay.broker().topic(test.name()).await.unwrap();
    let again = relay.broker().send(&topic, Shard::new(0), &sent[..1]).await;
    assert_eq!(again.unwrap()[0].outcome, SendOutcome::Duplicate);
    let new = relay
        .broker()
        .send(&topic, Shard::new(0), &[message("new", ms(0))])
        .await;
    assert_eq!(new.unwrap_err().to_string(), "topic t is being removed");
    let changed = relay
        .broker()
        .declare(test.name(), &of_shards(3), Declare::Update)
        .await;
    assert_eq!(changed.unwrap_err().to_string(), "topic t is being removed");
    for shard in topic.shards() {
        let left = relay.broker().remove_shard(&topic, shard).await.unwrap();
        assert!(matches!(left, ShardRemoval::Left(1..)), "{shard}: {left:?}");
    }
    relay.step(1000);
    for (index, shard) in topic.shards().enumerate() {
        relay
            .broker()
            .move_due(&topic, shard, 50, SOON)
            .await
            .unwrap();
        let read = relay.read_as(shard, "c", 1).await.remove(0);
        assert_eq!(read.id.as_ref(), Some(&sent[index].id));
        let left = relay.broker().remove_shard(&topic, shard).await.unwrap();
        assert_ne!(left, ShardRemoval::Gone, "one is in flight on {shard}");
        let settle = settlement(&read, Verdict::Ack);
        let settled = relay
            .broker()
            .settle(&topic, shard, relay.group(), &[settle])
            .await;
        assert_eq!(settled.unwrap(), [Settled::Acked]);
    }
    assert_eq!(test.step(relay.broker()).await, ShardRemoval::Gone);
    test.assert_nothing_is_left(0).await;
}

#[tokio::test]
async fn a_draining_topic_waits_for_a_delivery_whose_payload_is_lost() {
    let test = Removing::start().await;
    let relay = &test.relay;
    let held = relay.hold("ghost").await;
    relay.lose_payload("ghost").await;
    test.begin(Removal::Drain).await;
    let first = async || {
        let topic = relay.broker().topic(test.name()).await.unwrap();
        let shard = Shard::new(0);
        for other in topic.shards().filter(|other| *other != shard) {
            let removed = relay.broker().remove_shard(&topic, other).await;
            assert_eq!(removed.unwrap(), ShardRemoval::Gone);
        }
        relay.broker().remove_shard(&topic, shard).await.unwrap()
    };
    assert_eq!(first().await, ShardRemoval::Left(1));
    assert_eq!(relay.settle(&held, Verdict::Ack).await, Settled::Acked);
    assert_eq!(first().await, ShardRemoval::Gone);
    test.assert_nothing_is_left(0).await;
}

#[tokio::test]
async fn a_drain_can_be_forced_and_not_the_other_way_round() {
    let test = Removing::start().await;
    test.send("waits", HOUR).await;
    test.begin(Removal::Drain).await;
    assert_ne!(test.step(test.relay.broker()).await, ShardRemoval::Gone);
    let forced = test.begin(Removal::Force).await;
    assert_eq!(forced.removal(), Some(Removal::Force));
    let again = test.begin(Removal::Drain).await;
    assert_eq!(again.removal(), Some(Removal::Force));
    assert_eq!(test.step(test.relay.broker()).await, ShardRemoval::Gone);
    test.assert_nothing_is_left(0).await;
}

#[tokio::test]
async fn the_first_shard_waits_for_the_others() {
    let test = Removing::start().await;
    let topic = test.begin(Removal::Force).await;
    let broker = test.relay.broker();
    let first = async || broker.remove_shard(&topic, Shard::new(0)).await.unwrap();
    assert_eq!(first().await, ShardRemoval::Left(2));
    broker.remove_shard(&topic, Shard::new(2)).await.unwrap();
    assert_eq!(first().await, ShardRemoval::Left(1));
    // A process that sends to a shard that is gone does not declare it again.
    let stale = test.late.topic(test.name()).await.unwrap();
    let sent = test
        .late
        .send(&stale, Shard::new(2), &[message("new", HOUR)])
        .await;
    assert_eq!(sent.unwrap_err().to_string(), "topic t is being removed");
    broker.remove_shard(&topic, Shard::new(1)).await.unwrap();
    assert_eq!(first().await, ShardRemoval::Gone);
    test.assert_nothing_is_left(0).await;
}

#[tokio::test]
async fn a_removal_that_stopped_before_it_was_unregistered_is_finished_by_any_process() {
    let test = Removing::start().await;
    test.begin(Removal::Force).await;
    let registry = format!("{}:v1:{{registry}}:topics", test.relay.broker().namespace());
    let entry: String = test
        .relay
        .command(cmd("HGET").arg(&registry).arg("t"))
        .await;
    assert_eq!(test.step(test.relay.broker()).await, ShardRemoval::Gone);
    let _: u64 = test
        .relay
        .command(cmd("HSET").arg(&registry).arg("t").arg(entry))
        .await;
    assert_eq!(test.late.refresh().await.unwrap().len(), 0);
    test.assert_nothing_is_left(0).await;
}

/// Between the two last calls of a removal, the topic may be created again.
#[tokio::test]
async fn a_removal_leaves_the_entry_of_a_newer_topic_in_the_registry() {
    let test = Removing::start().await;
    test.begin(Removal::Force).await;
    let registry = format!("{}:v1:{{registry}}:topics", test.relay.broker().namespace());
    let newer = ["t", "3 4"];
    let _: u64 = test
        .relay
        .command(cmd("HSET").arg(&registry).arg(&newer))
        .await;
    assert_eq!(test.step(test.relay.broker()).await, ShardRemoval::Gone);
    let entry: Option<String> = test
        .relay
        .command(cmd("HGET").arg(&registry).arg("t"))
        .await;
    assert_eq!(entry.as_deref(), Some("3 4"));
}

#[tokio::test]
async fn a_topic_that_is_created_again_is_another_one() {
    let mut test = Removing::start().await;
    let sent = test.send("m", HOUR).await;
    let before = test.begin(Removal::Force).await.epoch();
    assert_eq!(test.step(test.relay.broker()).await, ShardRemoval::Gone);
    let other = TopicSettings {
        max_attempts: 7,
        ..of_shards(2)
    };
    let broker = test.relay.broker();
    let created = broker
        .declare(test.name(), &other, Declare::UpdateAt(0))
        .await
        .unwrap();
    assert_eq!((created.epoch(), created.removal()), (before + 1, None));
    let left: i64 = test
        .relay
        .command(cmd("PTTL").arg(test.relay.key("conf")))
        .await;
    assert_eq!(left, -1, "it stays");
    // A process that missed all of it.
    let late = test.late.refresh().await.unwrap();
    assert_eq!(late[0].settings(), &other);
    let shard = late[0].shard_of(&sent[0].id);
    let accepted = test.late.send(&late[0], shard, &sent[..1]).await.unwrap();
    assert_eq!(
        accepted[0].outcome,
        SendOutcome::Waiting,
        "the old one is forgotten"
    );
    test.relay.set_topic(created);
    test.relay.assert_conserved().await;
}

#[tokio::test]
async fn a_topic_that_was_resharded_is_removed_and_its_numbers_go_on() {
    let relay = Relay::with("removal", of_shards(2)).await;
    let name = relay.topic().name().clone();
    let remove = async || {
        relay
            .broker()
            .remove_topic(&name, Removal::Force, None)
            .await
    };
    let is_resharding = |removed| matches!(removed, Err(BrokerError::Resharding { .. }));
    let opened = open(&relay, 3).await;
    assert!(is_resharding(remove().await));
    assert_eq!(migrate_out(relay.broker(), &opened).await, 0);
    // The old shards have keys.
    assert!(matches!(remove().await, Err(BrokerError::Changing(_))));
    let topic = relay.broker().known(&name).unwrap();
    relay.broker().drop_retired_keys(&topic).await.unwrap();
    let late = process(&relay).await;
    let test = Removing { relay, late };
    test.begin(Removal::Drain).await;
    let broker = test.relay.broker();
    let resharded = broker.reshard(&name, 4).await;
    assert_eq!(
        resharded.unwrap_err().to_string(),
        "topic t is being removed"
    );
    assert_eq!(test.step(broker).await, ShardRemoval::Gone);
    test.assert_nothing_is_left(2).await;
    assert_eq!(test.late.refresh().await.unwrap().len(), 0);
    let again = broker.declare(&name, &of_shards(1), Declare::Update).await;
    assert_eq!(again.unwrap().shards().next(), Some(Shard::new(2)));
    broker.reshard(&name, 2).await.unwrap();
    let topic = broker.known(&name).unwrap();
    assert_eq!(migrate_out(broker, &topic).await, 0);
    assert!(!broker.known(&name).unwrap().is_resharding());
}

#[tokio::test]
async fn a_manager_that_stalled_does_nothing_to_the_topic_that_was_created_since() {
    for how in [Removal::Drain, Removal::Force] {
        let test = Removing::start().await;
        test.begin(how).await;
        let stalled = test.late.newest(test.name()).await.unwrap();
        assert_eq!(test.step(test.relay.broker()).await, ShardRemoval::Gone);
        let broker = test.relay.broker();
        let new = broker
            .declare(test.name(), &of_shards(3), Declare::Update)
            .await
            .unwrap();
        for shard in new.shards() {
            broker
                .send(&new, shard, &[message("m", HOUR)])
                .await
                .unwrap();
        }
        let before = test.relay.snapshot().await;
        for shard in [1, 2, 0].map(Shard::new) {
            let _ = test.late.remove_shard(&stalled, shard).await;
        }
        assert_eq!(before.diff(&test.relay.snapshot().await), "");
    }
}

#[tokio::test]
async fn a_field_that_somebody_writes_to_the_record_ends_with_it() {
    let test = Removing::start().await;
    test.begin(Removal::Force).await;
    assert_eq!(test.step(test.relay.broker()).await, ShardRemoval::Gone);
    let conf = test.relay.key("conf");
    let set: u64 = test
        .relay
        .command(cmd("HSET").arg(&conf).arg("resharding").arg(7))
        .await;
    assert_eq!(set, 1);
    let broker = test.relay.broker();
    broker
        .declare(test.name(), &of_shards(1), Declare::Update)
        .await
        .unwrap();
    assert!(!test.relay.hash("conf").await.contains_key("resharding"));
    let left: i64 = test.relay.command(cmd("PTTL").arg(&conf)).await;
    assert_eq!(left, -1);
}

#[tokio::test]
async fn a_topic_is_removed_at_the_epoch_that_was_seen_only() {
    let test = Removing::start().await;
    let (broker, name) = (test.relay.broker(), test.name());
    let remove = async |how, seen| broker.remove_topic(name, how, Some(seen)).await;
    let there = |refused| match refused {
        Err(BrokerError::Epoch { there, .. }) => there,
        other => panic!("{other:?}"),
    };
    assert_eq!(there(remove(Removal::Drain, 9).await), 1);
    let kept = broker.newest(name).await.unwrap();
    assert_eq!(kept.removal(), None);
    // The second call repeats the first one.
    for _ in 0..2 {
        assert_eq!(remove(Removal::Drain, 1).await.unwrap(), Removal::Drain);
    }
    assert_eq!(there(remove(Removal::Force, 1).await), 2);
    assert_eq!(remove(Removal::Force, 2).await.unwrap(), Removal::Force);
    while test.step(broker).await != ShardRemoval::Gone {}
    assert!(is_removed(remove(Removal::Force, 2).await));
    // A new topic of this name is another one.
    let settings = of_shards(3);
    let declared = broker.declare(name, &settings, Declare::Update);
    let epoch = declared.await.unwrap().epoch();
    assert_eq!(there(remove(Removal::Force, 2).await), epoch);
    assert_eq!(remove(Removal::Force, epoch).await.unwrap(), Removal::Force);
}
